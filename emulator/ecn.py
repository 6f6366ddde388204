"""Explicit congestion notification: which frames a switch marks, by the depth of the queue that they join.

Pure arithmetic on rows; callable without an engine.
"""

from __future__ import annotations

import numpy as np

from emulator.packet import CE
from emulator.schedule import mix32
from ttpoe._jit import kernel
from ttpoe.units import NEVER

MARKING = np.dtype(
    [
        (name, "i8")
        for name in (
            "kmin_bytes",  # NEVER: this port marks nothing
            "kmax_bytes",
            "pmax_q32",  # probability at kmax in 1/2**32
            "turn",  # of the draws; starts at a hash of the seed and the port's name
            "marked",
        )
    ],
    align=True,
)
"""One port's marking; its queues are told apart by their depths alone."""

DEFAULTS: tuple[tuple[int, int, int, float], ...] = (
    (25_000_000_000, 100_000, 400_000, 0.2),
    (50_000_000_000, 200_000, 800_000, 0.2),
    (100_000_000_000, 400_000, 1_600_000, 0.2),
    (200_000_000_000, 300_000, 1_200_000, 0.8),
    (400_000_000_000, 800_000, 3_200_000, 0.2),
)
"""Line rate, kmin, kmax, pmax. Source: the configuration that SimAI ships for DCQCN."""

MAX_THRESHOLD_BYTES = 2**30
"""Above it the products in :func:`mark` leave int64."""


def default_thresholds(rate_bps: int) -> tuple[int, int, float]:
    """Thresholds kmin, kmax and pmax for a line rate: those of the fastest known rate that is not faster.

    Below 25 Gb/s they shrink with the rate, as they do from 100 to 25.
    """
    slowest = DEFAULTS[0]
    if rate_bps < slowest[0]:
        return slowest[1] * rate_bps // slowest[0], slowest[2] * rate_bps // slowest[0], slowest[3]
    return next(row[1:] for row in reversed(DEFAULTS) if row[0] <= rate_bps)


def step_threshold(rate_bps: int) -> int:
    """DCTCP's K for a line rate: 30 KB for each 10 Gb/s (Alizadeh et al., "Data Center TCP", 2010, section 4)."""
    return min(30_000 * rate_bps // 10_000_000_000, MAX_THRESHOLD_BYTES)


def no_marking(ports: int) -> np.ndarray:
    """MARKING rows of ports that mark nothing."""
    rows = np.zeros(ports, MARKING)
    rows["kmin_bytes"] = NEVER
    return rows


@kernel(inline=True)
def mark(row, packet, depth_bytes):
    """Set CE on ``packet``, which is capable of it, with RED's probability for a queue of ``depth_bytes``.

    Parameters
    ----------
    row : MARKING row, modified in place
    packet : PACKET row, modified in place
    depth_bytes : int64
        What the queue holds as the frame arrives, the frame itself apart.

    Notes
    -----
    None up to kmin, all above kmax, linear between: of the depth at this instant, not of an average, as switches for
    DCQCN do (Zhu et al., "Congestion control for large-scale RDMA deployments", 2015). kmin = kmax is DCTCP's step:
    "marked if the queue occupancy is greater than K upon its arrival" (Alizadeh et al., 2010). The draw is
    exact to 2**-32 and the same on every machine.
    """
    excess = depth_bytes - row["kmin_bytes"]
    if excess <= 0:
        return
    if depth_bytes <= row["kmax_bytes"]:
        turn = row["turn"]
        row["turn"] = turn + 1
        if mix32(turn) * (row["kmax_bytes"] - row["kmin_bytes"]) >= excess * row["pmax_q32"]:
            return
    packet["ecn"] = CE
    row["marked"] += 1

"""The completion time of a flow that is alone on an idle path, exactly.

Store-and-forward queues in tandem obey a max-plus recursion (Lindley); with nothing else on the path it is the run
itself, so it equals a one-flow run to the picosecond. Knows nothing of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Hop:
    """One line of a path: its rate, and its delay with the far switch's pipeline."""

    rate_bps: int
    delay_ps: int


def _line_times(wire_bytes: np.ndarray | int, rate_bps: int) -> np.ndarray:
    return (np.asarray(wire_bytes, np.int64) * 8_000_000_000_000 + rate_bps - 1) // rate_bps


def _pass_line(ready_ps: np.ndarray, times_ps: np.ndarray, free_at_ps: int) -> np.ndarray:
    """When each frame's last bit has left a FIFO line that is free at ``free_at_ps``: Lindley, vectorized."""
    before = np.cumsum(times_ps) - times_ps
    start = np.maximum.accumulate(np.maximum(ready_ps, free_at_ps) - before) + before
    return start + times_ps


def control_path_ps(hops: list[Hop], wire_bytes: int) -> int:
    """One small frame over an idle path."""
    return sum(int(_line_times(wire_bytes, hop.rate_bps)) + hop.delay_ps for hop in hops)


def ideal_fct_ps(
    hops: list[Hop],
    back: list[Hop],
    wire_bytes: np.ndarray,
    ack_wire_bytes: int,
    window: np.ndarray,
    ack_every: int = 1,
) -> int:
    """From the first frame's start to the last byte at the receiver.

    Parameters
    ----------
    hops, back : list of Hop
        The path of data and of acknowledgements.
    wire_bytes : int64 array, shape (n,)
        Bytes on the line of each data frame.
    ack_wire_bytes : int
    window : int64 array, shape (n,)
        Frame i may start once frame ``i - window[i]`` is acknowledged.
    ack_every : int
        Frames per acknowledgement; the last frame always has one.

    Returns
    -------
    int
        Picoseconds.
    """
    n = len(wire_bytes)
    block_frames = int(window.min()) - ack_every + 1  # so that a block waits only for blocks before it
    acked_ps = np.zeros(n, np.int64)
    free_at = [0] * len(hops)
    back_free_at = [0] * len(back)
    last_ps = 0
    for first in range(0, n, block_frames):
        block = np.arange(first, min(first + block_frames, n))
        waits_for = block - window[block]
        acked_with = np.clip((waits_for // ack_every + 1) * ack_every - 1, 0, n - 1)
        ready = np.where(waits_for >= 0, acked_ps[acked_with], 0)
        for k, hop in enumerate(hops):
            done = _pass_line(ready, _line_times(wire_bytes[block], hop.rate_bps), free_at[k])
            free_at[k] = int(done[-1])
            ready = done + hop.delay_ps
        last_ps = int(ready[-1])
        is_acked = ((block + 1) % ack_every == 0) | (block == n - 1)
        acks = ready[is_acked]
        for k, hop in enumerate(back):
            if acks.size:
                done = _pass_line(acks, np.full(acks.size, _line_times(ack_wire_bytes, hop.rate_bps)), back_free_at[k])
                back_free_at[k] = int(done[-1])
                acks = done + hop.delay_ps
        acked_ps[block[is_acked]] = acks
    return last_ps

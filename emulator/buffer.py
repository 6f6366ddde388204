"""A switch's shared buffer: who may use it, when an ingress must be paused, and what is dropped for which cause.

Pure accounting on rows, callable without an engine: :func:`switch_on_frame` when a frame has arrived,
:func:`switch_on_departure` when it is taken for transmission, which frees its bytes (a frame being sent sits in the
port's transmit stage).
"""

from __future__ import annotations

import numpy as np

from ttpoe._jit import kernel

PRIORITIES = 8
PRIORITY_SHIFT = 3

SWITCH = np.dtype(
    [
        (name, "i8")
        for name in (
            "shared_limit_bytes",  # buffer less all headroom
            "shared_bytes",
            "alpha_q16",  # dynamic threshold factor in 1/65536
            "resume_offset_bytes",
            "lossless_mask",  # bit n: priority n is under PFC
            "max_shared_bytes",
            "salt",  # of this switch's hashes
        )
    ]
    + [("drops", "i8", (3,))],  # by cause, in the order of DROP_CAUSES
    align=True,
)

INGRESS = np.dtype(
    [
        (name, "i8")
        for name in (
            "shared_bytes",
            "headroom_bytes",
            "headroom_limit_bytes",
            "is_xoff",
            "refresh_at_ps",  # when the peer's pause must be renewed; NEVER before it was told
            "xoff_count",  # pauses that the peer was told of, renewals apart
            "max_headroom_bytes",
            "max_shared_bytes",
        )
    ],
    align=True,
)
"""Accounting of one (port, priority) by which frames entered."""

QUEUE = np.dtype(
    [
        ("head", "i4"),
        ("tail", "i4"),
        ("ready_head", "i4"),  # hosts: ends that have something to send, served in turn
        ("ready_tail", "i4"),
        ("bytes", "i8"),
        ("pause_until_ps", "i8"),
        ("paused_since_ps", "i8"),
        ("paused_ps", "i8"),
        ("max_bytes", "i8"),
        ("drops", "i8"),
    ],
    align=True,
)
"""One (port, priority) on its way out. 64 bytes."""

# Verdicts of switch_on_frame.
ADMITTED = 0
ADMITTED_XOFF = 1  # admitted, and the ingress must now be paused
DROP_QUEUE_THRESHOLD = 2  # lossy: the egress queue is above its share
DROP_BUFFER_FULL = 3  # lossy: the shared pool is full
DROP_HEADROOM_FULL = 4  # lossless: an error in the result
DROP_CAUSES = ("queue_threshold", "buffer_full", "headroom_full")


@kernel(inline=True)
def threshold_bytes(switch):
    """Dynamic threshold: alpha times what is free of the shared pool.

    Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.
    """
    return ((switch["shared_limit_bytes"] - switch["shared_bytes"]) * switch["alpha_q16"]) >> 16


@kernel(inline=True)
def switch_on_frame(switch, ingress, queue, is_lossless, size_bytes):
    """Admit or drop one frame.

    Parameters
    ----------
    switch : SWITCH row, modified in place
    ingress : INGRESS row, modified in place
        Where the frame entered, at its priority.
    queue : QUEUE row, modified in place
        Where it leaves.
    is_lossless : int64
        Non-zero if its priority is under PFC.
    size_bytes : int64
        Frame and FCS.

    Returns
    -------
    int64
        A verdict, above.

    Notes
    -----
    Lossless: accounted per ingress; the frame that would pass the threshold goes to headroom and asks for XOFF.
    Lossy: drop-tail by the egress queue's dynamic threshold. Source: 802.1Q annex N for headroom, SONiC for the pools.
    """
    threshold = threshold_bytes(switch)
    verdict = ADMITTED
    to_shared = True
    if is_lossless != 0:
        to_shared = (
            ingress["headroom_bytes"] == 0
            and ingress["shared_bytes"] + size_bytes <= threshold
            and switch["shared_bytes"] + size_bytes <= switch["shared_limit_bytes"]
        )
        if not to_shared:
            if ingress["headroom_bytes"] + size_bytes > ingress["headroom_limit_bytes"]:
                return DROP_HEADROOM_FULL
            ingress["headroom_bytes"] += size_bytes
            ingress["max_headroom_bytes"] = max(ingress["max_headroom_bytes"], ingress["headroom_bytes"])
            if ingress["is_xoff"] == 0:
                ingress["is_xoff"] = 1
                verdict = ADMITTED_XOFF
    elif switch["shared_bytes"] + size_bytes > switch["shared_limit_bytes"]:
        return DROP_BUFFER_FULL
    elif queue["bytes"] + size_bytes > threshold:
        return DROP_QUEUE_THRESHOLD
    if to_shared:
        ingress["shared_bytes"] += size_bytes
        ingress["max_shared_bytes"] = max(ingress["max_shared_bytes"], ingress["shared_bytes"])
        switch["shared_bytes"] += size_bytes
        switch["max_shared_bytes"] = max(switch["max_shared_bytes"], switch["shared_bytes"])
    queue["bytes"] += size_bytes
    queue["max_bytes"] = max(queue["max_bytes"], queue["bytes"])
    return verdict


@kernel(inline=True)
def switch_on_departure(switch, ingress, queue, size_bytes):
    """Free one frame's bytes, headroom first; returns 1 if the ingress may resume (XON is due).

    Resumes once headroom is empty and the shared use is the resume offset below the threshold, or nothing is left.
    Parameters as for :func:`switch_on_frame`.
    """
    queue["bytes"] -= size_bytes
    from_headroom = ingress["headroom_bytes"]
    from_headroom = min(from_headroom, size_bytes)
    ingress["headroom_bytes"] -= from_headroom
    ingress["shared_bytes"] -= size_bytes - from_headroom
    switch["shared_bytes"] -= size_bytes - from_headroom
    if ingress["is_xoff"] == 0 or ingress["headroom_bytes"] != 0:
        return 0
    if (
        ingress["shared_bytes"] != 0
        and ingress["shared_bytes"] + switch["resume_offset_bytes"] > threshold_bytes(switch)
    ):
        return 0
    ingress["is_xoff"] = 0
    return 1

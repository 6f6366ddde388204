"""A switch's shared buffer: who may use it, when an ingress must be paused, and what is dropped for which cause.

Pure accounting on rows, callable without an engine: :func:`switch_on_frame` when a frame has arrived,
:func:`switch_on_departure` when it is taken for transmission, which frees its bytes (a frame being sent sits in the
port's transmit stage).
"""

from __future__ import annotations

import numpy as np

from emulator.rows import whole_lines
from ttpoe._jit import kernel

PRIORITIES = 8
PRIORITY_SHIFT = 3

SWITCH = whole_lines(
    [(name, "i8") for name in ("headroom_bytes", "headroom_limit_bytes", "salt")]  # salt: of this switch's hashes
    + [("drops", "i8", (4,))],  # by cause, in the order of DROP_CAUSES
)

SHARED = whole_lines([(name, "i8") for name in ("limit_bytes", "bytes", "max_bytes")])
"""A pool that (port, priority) pairs of one switch share, above what each has in reserve."""

RULES = whole_lines(
    [
        (name, "i8")
        for name in (
            "shared",  # row of its pool
            "alpha_q16",  # dynamic threshold factor in 1/65536
            "static_bytes",  # threshold however empty the pool is; NEVER: none
            "reserve_bytes",  # of each (port, priority)
            "resume_offset_bytes",
            "is_lossless",  # under PFC
        )
    ],
)
"""How a switch treats one priority."""

INGRESS = whole_lines(
    [
        (name, "i8")
        for name in (
            "bytes",  # of its reserve and the shared pool; lossless priorities alone
            "headroom_bytes",
            "headroom_limit_bytes",
            "is_xoff",
            "refresh_at_ps",  # when the peer's pause must be renewed; NEVER before it was told
            "xoff_count",  # pauses that the peer was told of, renewals apart
            "max_headroom_bytes",
        )
    ],
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
        ("paused_since_ps", "i8"),  # in a storm that is not paused: resumed since
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
DROP_WATCHDOG = 5  # the queue's peer paused it for so long that the watchdog empties it
DROP_CAUSES = ("queue_threshold", "buffer_full", "headroom_full", "watchdog")


@kernel(inline=True)
def threshold_bytes(shared, rules):
    """What one (port, priority) may hold of the shared pool: alpha times what is free, or less if a static limit is.

    Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.
    """
    return min(((shared["limit_bytes"] - shared["bytes"]) * rules["alpha_q16"]) >> 16, rules["static_bytes"])


@kernel(inline=True)
def switch_on_frame(switch, shared, rules, ingress, queue, size_bytes):
    """Admit or drop one frame.

    Parameters
    ----------
    switch : SWITCH row, modified in place
    shared : SHARED row, modified in place
        The pool of the frame's priority.
    rules : RULES row
        Of the switch, for the frame's priority.
    ingress : INGRESS row, modified in place
        Where the frame entered, at its priority.
    queue : QUEUE row, modified in place
        Where it leaves.
    size_bytes : int64
        Frame and FCS.

    Returns
    -------
    int64
        A verdict, above.

    Notes
    -----
    Lossless: accounted per ingress; the frame that would pass the threshold goes to headroom and asks for XOFF.
    Lossy: drop-tail by the egress queue's threshold. Of either account the reserve is filled first and freed last, and
    only what exceeds it counts in the pool. Source: 802.1Q annex N for headroom, SONiC for the pools.
    """
    verdict = ADMITTED
    is_lossless = rules["is_lossless"] != 0
    held = ingress["bytes"] if is_lossless else queue["bytes"]
    after = max(held + size_bytes - rules["reserve_bytes"], 0)
    growth = after - max(held - rules["reserve_bytes"], 0)
    threshold = threshold_bytes(shared, rules)
    if is_lossless:
        if ingress["headroom_bytes"] == 0 and after <= threshold and shared["bytes"] + growth <= shared["limit_bytes"]:
            ingress["bytes"] += size_bytes
        else:
            if (
                ingress["headroom_bytes"] + size_bytes > ingress["headroom_limit_bytes"]
                or switch["headroom_bytes"] + size_bytes > switch["headroom_limit_bytes"]
            ):
                return DROP_HEADROOM_FULL
            growth = 0
            switch["headroom_bytes"] += size_bytes
            ingress["headroom_bytes"] += size_bytes
            ingress["max_headroom_bytes"] = max(ingress["max_headroom_bytes"], ingress["headroom_bytes"])
            if ingress["is_xoff"] == 0:
                ingress["is_xoff"] = 1
                verdict = ADMITTED_XOFF
    elif shared["bytes"] + growth > shared["limit_bytes"]:
        return DROP_BUFFER_FULL
    elif after > threshold:
        return DROP_QUEUE_THRESHOLD
    if growth != 0:
        shared["bytes"] += growth
        shared["max_bytes"] = max(shared["max_bytes"], shared["bytes"])
    queue["bytes"] += size_bytes
    queue["max_bytes"] = max(queue["max_bytes"], queue["bytes"])
    return verdict


@kernel(inline=True)
def switch_on_departure(switch, shared, rules, ingress, queue, size_bytes):
    """Free one frame's bytes, headroom first, the reserve last; returns 1 if the ingress may resume (XON is due).

    Resumes once headroom is empty and the shared use is the resume offset below the threshold, or nothing is left
    beyond the reserve. Parameters as for :func:`switch_on_frame`.
    """
    held = queue["bytes"]
    queue["bytes"] = held - size_bytes
    reserve_bytes = rules["reserve_bytes"]
    if rules["is_lossless"] == 0:
        shared["bytes"] -= max(held - reserve_bytes, 0) - max(held - size_bytes - reserve_bytes, 0)
        return 0
    from_headroom = min(ingress["headroom_bytes"], size_bytes)
    switch["headroom_bytes"] -= from_headroom
    ingress["headroom_bytes"] -= from_headroom
    held = ingress["bytes"]
    left = held - (size_bytes - from_headroom)
    ingress["bytes"] = left
    beyond = max(left - reserve_bytes, 0)
    shared["bytes"] -= max(held - reserve_bytes, 0) - beyond
    if ingress["is_xoff"] == 0 or ingress["headroom_bytes"] != 0:
        return 0
    if beyond != 0 and beyond + rules["resume_offset_bytes"] > threshold_bytes(shared, rules):
        return 0
    ingress["is_xoff"] = 0
    return 1

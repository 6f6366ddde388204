"""The PFC watchdog: a queue whose peer pauses it without end is emptied, so that its frames stop pausing others.

Source: SONiC's PFC watchdog with the action "drop". Exact where SONiC polls: a storm is detected as soon as a pause has
lasted.
"""

from __future__ import annotations

import numpy as np

from emulator.buffer import DROP_WATCHDOG, PRIORITIES, PRIORITY_SHIFT
from emulator.pfc import arm_port_timer
from emulator.port import drop, take_head
from ttpoe._jit import kernel
from ttpoe.units import NEVER

INCIDENT = np.dtype([("time_ps", "i8"), ("what", "i4"), ("port", "i4"), ("priority", "i4")], align=True)
STORM_BEGAN, STORM_ENDED = range(2)
INCIDENTS = ("pause storm detected, queue is dropped", "pause storm over, queue is restored")

_FLUSH = 16
"""Frames dropped in one event at most, so that what one event sets off stays bounded."""


@kernel
def _note(engine, incidents, what, i, priority, now_ps):
    """Keep the incident if there is room; all are counted."""
    if engine["incidents"] < len(incidents):
        row = incidents[engine["incidents"]]
        row["time_ps"] = now_ps
        row["what"] = what
        row["port"] = i
        row["priority"] = priority
    engine["incidents"] += 1


@kernel(inline=True)
def _flush(world, i, priority, now_ps):
    """Drop the first frames of a queue; returns 1 if there are more."""
    queue = world.queues[priority, i]
    for _ in range(_FLUSH):
        if queue["head"] < 0:
            return 0
        p = take_head(world, world.ports[i], queue, priority, now_ps)
        drop(world, int(world.ports[i]["switch"]), queue, p, DROP_WATCHDOG)
    return 1 if queue["head"] >= 0 else 0


@kernel(inline=True)
def watch_port(world, i, now_ps):
    """Begin and end storms of switch port ``i`` that are due, and arm its timer for the next."""
    engine = world.engine[0]
    port = world.ports[i]
    if port["switch"] < 0:
        return
    next_ps = NEVER
    for priority in range(PRIORITIES):
        bit = 1 << priority
        is_paused = int(port["paused"]) & bit != 0
        if int(port["storm"]) & bit == 0:
            if is_paused:
                due_ps = world.queues[priority, i]["paused_since_ps"] + engine["watchdog_detect_ps"]
                if due_ps > now_ps:
                    next_ps = min(next_ps, due_ps)
                else:
                    port["storm"] = int(port["storm"]) | bit
                    world.storms[(i << PRIORITY_SHIFT) + priority] += 1
                    _note(engine, world.incidents, STORM_BEGAN, i, priority, now_ps)
        elif not is_paused:
            due_ps = world.queues[priority, i]["paused_since_ps"] + engine["watchdog_restore_ps"]
            if due_ps > now_ps:
                next_ps = min(next_ps, due_ps)
            else:
                port["storm"] = int(port["storm"]) & ~bit
                _note(engine, world.incidents, STORM_ENDED, i, priority, now_ps)
        if int(port["storm"]) & bit != 0 and _flush(world, i, priority, now_ps) != 0:
            next_ps = now_ps
    if next_ps != NEVER:
        arm_port_timer(world, i, next_ps)

"""Which port of a group a switch sends a frame to: one kernel a policy.

A group is a switch's ports on shortest paths to some NICs, as :mod:`emulator.paths` finds them. Knows nothing of queues
but their depth, nothing of hosts.
"""

from __future__ import annotations

import numpy as np

from emulator.schedule import mix32
from ttpoe._jit import kernel

FLOWLET = np.dtype([("last_ps", "i8"), ("port", "i4")], align=True)
"""What a switch remembers of a flow that it hashes to this row."""

ECMP, FLOWLETS, ROUND_ROBIN, RANDOM, ADAPTIVE = range(5)
POLICIES = {
    "ecmp": ECMP, "weighted": ECMP, "flowlet": FLOWLETS, "round-robin": ROUND_ROBIN, "random": RANDOM,
    "adaptive": ADAPTIVE,
}  # fmt: skip
"""``weighted`` is ECMP over groups with weights."""
NO_WAY = -1
DOWN = -2
"""DOWN - n stands for port n while its line is down."""
FLOWLET_SHIFT = 12
"""2**12 rows a switch."""

ROUTING = np.dtype([(name, "i8") for name in ("policy", "flowlet_gap_ps", "choices")], align=True)
"""One row. ``choices``: ports that an adaptive switch compares; 0 for all of the group."""


@kernel(inline=True)
def ecmp(world, group, salt, entropy):
    """A port by the hash of the flow's fields: a flow keeps its path."""
    return world.members[group["first"] + ((mix32(entropy ^ salt) * int(group["count"])) >> 32)]


@kernel(inline=True)
def _round_robin(world, group):
    """Each frame takes the next port of the group."""
    turn = group["turn"]
    group["turn"] = turn + 1
    return world.members[group["first"] + turn % int(group["count"])]


@kernel(inline=True)
def _random(members, group, salt):
    """Each frame takes a port at random."""
    turn = group["turn"]
    group["turn"] = turn + 1
    return int(members[group["first"] + ((mix32(turn ^ salt) * int(group["count"])) >> 32)])


@kernel
def _adaptive(members, queues, ports, group, salt, choices, now_ps):
    """The shortest queue of ``choices`` draws (at most 8), or of all from a random start on; the first among equals.

    ``queues``: those of the frame's priority, by port.

    Source: local adaptive routing as in Mitzenmacher's "power of two choices" (2001) and DRILL (2017) without memory.
    Lines that are down have no queue to look at, so they are passed over at once.
    """
    turn = group["turn"]
    group["turn"] = turn + 1
    count = int(group["count"])
    first = int(group["first"])
    start = (mix32(turn ^ salt) * count) >> 32
    best = down = NO_WAY
    least = 0
    for k in range(count if choices == 0 else choices):
        at = (start + k) % count if choices == 0 else (mix32(((turn << 3) + k) ^ salt) * count) >> 32
        port = int(members[first + at])
        if port < 0:
            down = port
            continue
        depth = queues[port]["bytes"]
        if ports[port]["busy_until_ps"] > now_ps:
            depth += 1  # an idle line before a busy one with nothing queued
        if best < 0 or depth < least:
            best, least = port, depth
    return best if best >= 0 else down


@kernel
def _flowlet(members, row, group, salt, gap_ps, now_ps):
    """The flow's last port, unless it was silent for the gap: then one at random.

    Source: Kandula et al., "Dynamic load balancing without packet reordering", 2007; LetFlow (2017) chooses at random.
    """
    if row["port"] < 0 or now_ps - row["last_ps"] > gap_ps:
        row["port"] = _random(members, group, salt)
    else:
        is_member = False
        for k in range(int(group["count"])):
            is_member = is_member or members[int(group["first"]) + k] == row["port"]
        if not is_member:  # another flow's row
            row["port"] = _random(members, group, salt)
    row["last_ps"] = now_ps
    return int(row["port"])


@kernel(inline=True)
def choose_port(world, switch, packet, now_ps):
    """The port by which ``switch`` sends ``packet`` (PACKET row) on; NO_WAY; or DOWN less it, if its line is down."""
    g = int(world.group_of[switch, packet["dst"]])
    if g < 0:
        return NO_WAY
    group = world.groups[g]
    if group["count"] == 1:
        return int(world.members[group["first"]])
    routing = world.routing[0]
    policy = routing["policy"]
    salt = world.switches[switch]["salt"]
    if policy == ECMP:
        return int(ecmp(world, group, salt, int(packet["entropy"])))
    if policy == ROUND_ROBIN:
        return int(_round_robin(world, group))
    if policy == RANDOM:
        return _random(world.members, group, salt)
    if policy == ADAPTIVE:
        queues = world.queues[int(packet["priority"])]
        return _adaptive(world.members, queues, world.ports, group, salt, routing["choices"], now_ps)
    row = world.flowlets[(switch << FLOWLET_SHIFT) + (mix32(int(packet["entropy"]) ^ salt) >> (32 - FLOWLET_SHIFT))]
    return _flowlet(world.members, row, group, salt, routing["flowlet_gap_ps"], now_ps)

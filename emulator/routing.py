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

ROUTING = np.dtype([(name, "i8") for name in ("policy", "flowlet_gap_ps", "choices", "grade_bytes")], align=True)
"""One row. ``choices``: ports that an adaptive switch compares, 0 for all of the group, in steps of ``grade_bytes``."""


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
def _adaptive(members, queues, group, salt, choices, grade_bytes):
    """The shortest queue of ``choices`` draws (at most 8) or of all, in steps of ``grade_bytes``; one of equals by lot.

    ``queues``: those of the frame's priority, by port.

    Source: local adaptive routing as in Mitzenmacher's "power of two choices" (2001) and DRILL (2017) without memory;
    grades as in uet-htsim (5, 10 and 20 % of a queue) and in the eight quality bands of Junos' dynamic load balancing.
    Lines that are down have no queue to look at, so they are passed over at once.
    """
    turn = group["turn"]
    group["turn"] = turn + 1
    count = int(group["count"])
    draw = mix32(turn ^ salt)
    best = down = NO_WAY
    least = equals = 0
    for k in range(count if choices == 0 else choices):
        chance = mix32(draw + k)
        port = int(members[group["first"] + (k if choices == 0 else (chance * count) >> 32)])
        if port < 0:
            down = port
            continue
        grade = queues[port]["bytes"] // grade_bytes
        if best < 0 or grade < least:
            best, least, equals = port, grade, 1
        elif grade == least and choices == 0:  # draws are as random already
            equals += 1
            if (chance * equals) >> 32 == 0:
                best = port
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
        return _adaptive(world.members, queues, group, salt, routing["choices"], routing["grade_bytes"])
    row = world.flowlets[(switch << FLOWLET_SHIFT) + (mix32(int(packet["entropy"]) ^ salt) >> (32 - FLOWLET_SHIFT))]
    return _flowlet(world.members, row, group, salt, routing["flowlet_gap_ps"], now_ps)

"""Which port a switch sends a frame to: equal-cost groups, computed once, and one kernel a policy to choose within one.

A group is a switch's ports on shortest paths to some NICs. Knows nothing of queues but their depth, nothing of hosts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator.buffer import PRIORITY_SHIFT
from emulator.schedule import mix32
from ttpoe._jit import kernel

GROUP = np.dtype([("first", "i4"), ("count", "i4"), ("turn", "i8")], align=True)
"""Ports ``members[first : first + count]``; ``turn`` counts the frames that were sprayed over them."""

FLOWLET = np.dtype([("last_ps", "i8"), ("port", "i4")], align=True)
"""What a switch remembers of a flow that it hashes to this row."""

ECMP, FLOWLETS, ROUND_ROBIN, RANDOM, ADAPTIVE = range(5)
POLICIES = {
    "ecmp": ECMP, "flowlet": FLOWLETS, "round-robin": ROUND_ROBIN, "random": RANDOM, "adaptive": ADAPTIVE,
}  # fmt: skip
FLOWLET_SHIFT = 12
"""2**12 rows a switch."""

ROUTING = np.dtype([(name, "i8") for name in ("policy", "flowlet_gap_ps", "choices")], align=True)
"""One row. ``choices``: ports that an adaptive switch compares; 0 for all of the group."""


@dataclass(frozen=True)
class Routes:
    """Equal-cost next hops.

    Attributes
    ----------
    group_of : int32 array, shape (switches, nics)
        Group by which a switch reaches a NIC; -1 where there is no way.
    groups : GROUP array
    members : int32 array
        Ports, group by group.
    """

    group_of: np.ndarray
    groups: np.ndarray
    members: np.ndarray

    def ports(self, switch: int, nic: int) -> np.ndarray:
        """int32 (n,): the ports of ``switch`` on shortest paths to ``nic``."""
        group = int(self.group_of[switch, nic])
        if group < 0:
            return self.members[:0]
        first, count = int(self.groups["first"][group]), int(self.groups["count"][group])
        return self.members[first : first + count]


def switch_distances(tail: np.ndarray, head: np.ndarray, switches: int) -> np.ndarray:
    """Cables on the shortest way from each switch to each other.

    Parameters
    ----------
    tail, head : int array, shape (cables,)
        Switches that are cabled, one direction an entry.
    switches : int

    Returns
    -------
    int32 array, shape (switches, switches)
        -1 where there is no way.

    Notes
    -----
    Breadth first from all switches at once; a level is one matrix product, and fabrics have few levels.
    """
    adjacent = np.zeros((switches, switches), np.float32)
    adjacent[tail, head] = 1
    distance = np.full((switches, switches), -1, np.int32)
    np.fill_diagonal(distance, 0)
    frontier = np.eye(switches, dtype=np.float32)
    level = 0
    while frontier.any():
        level += 1
        reached = (frontier @ adjacent > 0) & (distance < 0)
        distance[reached] = level
        frontier = reached.astype(np.float32)
    return distance


def shortest_paths(
    port_switch: np.ndarray, nic_port: np.ndarray, is_up: np.ndarray | None = None
) -> Routes:
    """Groups of equal cost, counted in cables, from every switch to every NIC.

    Parameters
    ----------
    port_switch : int32 array, shape (ports,)
        The switch that a port belongs to, or -1 for a NIC's; port 2c and port 2c + 1 are the ends of cable c.
    nic_port : int32 array, shape (nics,)
    is_up : bool array, shape (ports,), optional
        Ports that may be used.

    Returns
    -------
    Routes

    Notes
    -----
    Cost: a matrix of inter-switch ports by switches, so 42 MB and a second or two for a fat tree of 8,192 hosts.
    """
    switches = int(port_switch.max()) + 1
    far = np.arange(len(port_switch)) ^ 1
    usable = np.ones(len(port_switch), bool) if is_up is None else is_up
    between = np.flatnonzero((port_switch >= 0) & (port_switch[far] >= 0) & usable)
    tail, head = port_switch[between], port_switch[far[between]]
    distance = switch_distances(tail, head, switches)
    members: list[np.ndarray] = []
    counts: list[int] = []
    by_switch = np.full((switches, switches), -1, np.int32)
    order = np.argsort(tail, kind="stable")
    bounds = np.searchsorted(tail[order], np.arange(switches + 1))
    for switch in range(switches):
        mine = between[order[bounds[switch] : bounds[switch + 1]]]
        if not len(mine):
            continue
        is_next = distance[port_switch[far[mine]]] + 1 == distance[switch][None, :]
        is_next &= distance[switch][None, :] > 0
        packed = np.ascontiguousarray(np.packbits(is_next, axis=0).T)
        keys = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
        _, firsts, which = np.unique(keys, return_index=True, return_inverse=True)
        for k, column in enumerate(firsts):
            ports = mine[is_next[:, column]]
            if len(ports):
                by_switch[switch][which == k] = len(counts)
                members.append(ports)
                counts.append(len(ports))
    attached = port_switch[nic_port ^ 1]
    group_of = by_switch[:, attached]
    reachable = np.flatnonzero(usable[nic_port ^ 1])
    group_of[attached, np.arange(len(nic_port))] = -1
    group_of[attached[reachable], reachable] = len(counts) + np.arange(len(reachable), dtype=np.int32)
    group_of[:, ~usable[nic_port ^ 1]] = -1
    all_counts = np.concatenate([np.array(counts, np.int32), np.ones(len(reachable), np.int32)])
    groups = np.zeros(len(all_counts), GROUP)
    groups["count"] = all_counts
    groups["first"] = np.cumsum(all_counts) - all_counts
    flat = np.concatenate([*members, nic_port[reachable] ^ 1]).astype(np.int32)
    return Routes(np.ascontiguousarray(group_of), groups, flat)


@kernel(inline=True)
def _ecmp(world, group, salt, entropy):
    """A port by the hash of the flow's fields: a flow keeps its path."""
    return world.members[group["first"] + ((mix32(entropy ^ salt) * int(group["count"])) >> 32)]


@kernel(inline=True)
def _round_robin(world, group):
    """Each frame takes the next port of the group."""
    turn = group["turn"]
    group["turn"] = turn + 1
    return world.members[group["first"] + turn % int(group["count"])]


@kernel(inline=True)
def _random(world, group, salt):
    """Each frame takes a port at random."""
    turn = group["turn"]
    group["turn"] = turn + 1
    return world.members[group["first"] + ((mix32(turn ^ salt) * int(group["count"])) >> 32)]


@kernel
def _adaptive(world, group, salt, priority, choices, now_ps):
    """The shortest queue of ``choices`` draws (at most 8), or of all from a random start on; the first among equals.

    Source: local adaptive routing as in Mitzenmacher's "power of two choices" (2001) and DRILL (2017) without memory.
    """
    turn = group["turn"]
    group["turn"] = turn + 1
    count = int(group["count"])
    first = int(group["first"])
    start = (mix32(turn ^ salt) * count) >> 32
    best = -1
    least = 0
    for k in range(count if choices == 0 else choices):
        at = (start + k) % count if choices == 0 else (mix32(((turn << 3) + k) ^ salt) * count) >> 32
        port = int(world.members[first + at])
        depth = world.queues[(port << PRIORITY_SHIFT) + priority]["bytes"]
        if world.ports[port]["busy_until_ps"] > now_ps:
            depth += 1  # an idle line before a busy one with nothing queued
        if best < 0 or depth < least:
            best, least = port, depth
    return best


@kernel
def _flowlet(world, group, salt, switch, entropy, now_ps):
    """The flow's last port, unless it was silent for the gap: then one at random.

    Source: Kandula et al., "Dynamic load balancing without packet reordering", 2007; LetFlow (2017) chooses at random.
    """
    row = world.flowlets[(switch << FLOWLET_SHIFT) + (mix32(entropy ^ salt) >> (32 - FLOWLET_SHIFT))]
    if row["port"] < 0 or now_ps - row["last_ps"] > world.routing[0]["flowlet_gap_ps"]:
        row["port"] = _random(world, group, salt)
    else:
        is_member = False
        for k in range(int(group["count"])):
            is_member = is_member or world.members[int(group["first"]) + k] == row["port"]
        if not is_member:  # another flow's row
            row["port"] = _random(world, group, salt)
    row["last_ps"] = now_ps
    return int(row["port"])


@kernel(inline=True)
def choose_port(world, switch, packet, now_ps):
    """The port by which ``switch`` sends ``packet`` (PACKET row) on, or -1 if there is no way."""
    g = int(world.group_of[switch, packet["dst"]])
    if g < 0:
        return -1
    group = world.groups[g]
    if group["count"] == 1:
        return int(world.members[group["first"]])
    routing = world.routing[0]
    policy = routing["policy"]
    salt = world.switches[switch]["salt"]
    if policy == ECMP:
        return int(_ecmp(world, group, salt, int(packet["entropy"])))
    if policy == ROUND_ROBIN:
        return int(_round_robin(world, group))
    if policy == RANDOM:
        return int(_random(world, group, salt))
    if policy == ADAPTIVE:
        return int(_adaptive(world, group, salt, int(packet["priority"]), routing["choices"], now_ps))
    return int(_flowlet(world, group, salt, switch, int(packet["entropy"]), now_ps))

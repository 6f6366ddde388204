"""Cyclic buffer dependencies under PFC: whether routes allow one, and whether a run is caught in one.

A frame that came by line i and leaves by line j holds buffer that i's sender waits for, until j takes it: i depends on
j. Without a cycle of such lines the last of any chain drains, so nothing locks (Dally and Seitz, "Deadlock-free message
routing in multiprocessor interconnection networks", 1987). Hosts always take what comes, so only lines between
switches count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulator import world
from emulator.buffer import PRIORITIES, PRIORITY_SHIFT
from emulator.paths import Routes
from emulator.topology import Topology
from ttpoe._jit import kernel


@dataclass(frozen=True)
class BufferCycle:
    """Lines that wait for each other.

    Attributes
    ----------
    priority : int
    ports : tuple of int
        Each sends to the switch that the next one belongs to, and the last to that of the first.
    """

    priority: int
    ports: tuple[int, ...]

    def named(self, topology: Topology) -> dict[str, object]:
        """Plain values for files: the priority, the switches and the ports, in order."""
        return {
            "priority": self.priority,
            "switches": [topology.switch_names[topology.port_switch[port]] for port in self.ports],
            "ports": [topology.port_names[port] for port in self.ports],
        }

    def told(self, topology: Topology) -> str:
        """As ``s0.p2 -> s1.p2 -> s0.p2``."""
        names = [topology.port_names[port] for port in (*self.ports, self.ports[0])]
        shown = names if len(names) <= 12 else [*names[:8], f"({len(names) - 12} more)", *names[-4:]]
        return " -> ".join(shown)


def line_uses(topology: Topology, routes: Routes, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which lines between switches frames take to which NICs.

    Parameters
    ----------
    topology : Topology
    routes : Routes
    pairs : int array, shape (n, 2)
        NICs that send and are sent to.

    Returns
    -------
    lines : int64 array, shape (lines,)
        Ports that send them.
    uses : uint8 array, shape (lines, ceil(nics / 8))
        A bit a NIC, as np.packbits packs them.
    """
    port_switch, switches = topology.port_switch, topology.switches
    nics = len(topology.nic_port)
    lines = np.flatnonzero((port_switch >= 0) & (port_switch[np.arange(len(port_switch)) ^ 1] >= 0))
    row_of = np.full(len(port_switch), -1, np.int64)
    row_of[lines] = np.arange(len(lines))
    member = np.zeros((len(lines), -(-nics // 8)), np.uint8)
    for switch in range(switches):
        mine = np.flatnonzero(port_switch[lines] == switch)
        if not len(mine):
            continue
        local = np.zeros((len(mine), nics), bool)
        groups, which = np.unique(routes.group_of[switch], return_inverse=True)
        for k, group in enumerate(groups.tolist()):
            if group < 0:
                continue
            first, count = int(routes.groups["first"][group]), int(routes.groups["count"][group])
            rows = row_of[routes.members[first : first + count]]
            rows = np.searchsorted(mine, np.unique(rows[rows >= 0]))
            local[rows[:, None], np.flatnonzero(which == k)] = True
        member[mine] = np.packbits(local, axis=1)
    at = np.zeros((switches, nics), bool)
    at[port_switch[topology.nic_port[pairs[:, 0]] ^ 1], pairs[:, 1]] = True
    reached = np.packbits(at, axis=1)
    tail, head = port_switch[lines], port_switch[lines ^ 1]
    order = np.argsort(head, kind="stable")
    heads, firsts = np.unique(head[order], return_index=True)
    while True:
        uses = reached[tail] & member
        if not len(lines):
            return lines, uses
        spread = reached.copy()
        spread[heads] |= np.bitwise_or.reduceat(uses[order], firsts, axis=0)
        if np.array_equal(spread, reached):
            return lines, uses
        reached = spread


def find_cycle(topology: Topology, routes: Routes, pairs: np.ndarray) -> tuple[int, ...]:
    """A shortest one of the cycles that begin somewhere among lines that depend on each other; ports, or none.

    Parameters are those of :func:`line_uses`.
    """
    lines, uses = line_uses(topology, routes, pairs)
    tail, head = topology.port_switch[lines], topology.port_switch[lines ^ 1]
    by_tail = np.argsort(tail, kind="stable")
    bounds = np.searchsorted(tail[by_tail], np.arange(topology.switches + 1))
    fan = bounds[head + 1] - bounds[head]
    before = np.repeat(np.arange(len(lines)), fan)
    offset = np.arange(len(before)) - np.repeat(np.cumsum(fan) - fan, fan)
    after = by_tail[np.repeat(bounds[head], fan) + offset]
    depends = np.zeros(len(before), bool)
    for first in range(0, len(before), 65_536):  # in pieces, which fit the cache
        piece = slice(first, first + 65_536)
        depends[piece] = (uses[before[piece]] & uses[after[piece]]).any(axis=1)
    before, after = before[depends], after[depends]
    while len(before):  # peel what nothing leads to or what leads nowhere
        keep = np.isin(before, after) & np.isin(after, before)
        if keep.all():
            break
        before, after = before[keep], after[keep]
    if not len(before):
        return ()
    return tuple(int(lines[k]) for k in _shortest_cycle(before.tolist(), after.tolist()))


def _shortest_cycle(before: list[int], after: list[int]) -> list[int]:
    """A shortest cycle through one vertex of a strongly connected part; there is one."""
    import networkx

    graph = networkx.DiGraph(zip(before, after, strict=True))
    part = next(p for p in networkx.strongly_connected_components(graph) if len(p) > 1)
    inside = graph.subgraph(part)
    start = min(part)
    ways = dict(networkx.single_target_shortest_path(inside, start))
    back = min((ways[onward] for onward in inside.successors(start)), key=len)
    return [start, *back[:-1]]


@kernel(export=True)
def keep_stuck(queues, packets, is_stuck, todo):
    """Clear the marks of queues that will move, given those that cannot move by themselves.

    A queue moves once its far ingress lets go, which it may when a frame that it holds moves: so a queue that can move
    frees those whose far ingress holds any of its frames, and so on.

    Parameters
    ----------
    queues : QUEUE array, shape (ports * 8,)
    packets : PACKET array
    is_stuck : int8 array, shape (ports * 8,), modified in place
        Queues that are paused with frames waiting. Those that stay marked wait for each other only.
    todo : int32 array, shape (ports * 8,), modified in place
        Scratch.
    """
    n = 0
    for q in range(len(queues)):
        if queues[q]["head"] >= 0 and is_stuck[q] == 0:
            todo[n] = q
            n += 1
    while n > 0:
        n -= 1
        q = int(todo[n])
        p = int(queues[q]["head"])
        while p >= 0:
            in_port = int(packets[p]["in_port"])
            if in_port >= 0:
                before = ((in_port ^ 1) << PRIORITY_SHIFT) + (q & (PRIORITIES - 1))
                if is_stuck[before] != 0:
                    is_stuck[before] = 0
                    todo[n] = before
                    n += 1
            p = int(packets[p]["next"])


def check_routes(
    topology: Topology, routes: Routes, pairs_of: dict[int, np.ndarray]
) -> list[BufferCycle]:
    """A cycle for each priority under PFC whose frames, between these pairs of NICs, allow one."""
    found = []
    for priority, pairs in pairs_of.items():
        ports = find_cycle(topology, routes, np.unique(pairs, axis=0))
        if ports:
            found.append(BufferCycle(priority, ports))
    return found


class Watch:
    """Looks at a run between events for queues that can never move again.

    What waits for each other only at two looks, longer apart than any pause lasts, is reported: a pause that ran out,
    its renewal lost, is then none.
    """

    def __init__(self) -> None:
        self._heads: dict[int, int] = {}

    def look(self, w: world.World) -> BufferCycle | None:
        """A cycle of queues that hold each other, if it did so at the last look as well."""
        stuck = stuck_queues(w)
        heads = dict(zip(stuck.tolist(), w.queues["head"].T.ravel()[stuck].tolist(), strict=True))
        was, self._heads = self._heads, heads
        if not was or any(heads.get(queue) != head for queue, head in was.items()):
            return None
        return waiting_cycle(w, stuck)


def stuck_queues(w: world.World) -> np.ndarray:
    """int64 (n,): queues (port * 8 + priority) at switches that wait for each other only."""
    ports = w.ports
    between = np.flatnonzero((ports["switch"] >= 0) & (ports["far_switch"] >= 0) & (ports["paused"] != 0))
    rows = ((between << PRIORITY_SHIFT)[:, None] + np.arange(PRIORITIES)).ravel()
    is_paused = ((ports["paused"][between][:, None] >> np.arange(PRIORITIES)) & 1).ravel() != 0
    queues = w.queues.T.ravel()
    holds = w.ingress["is_xoff"].T.ravel()[rows ^ PRIORITIES] != 0
    rows = rows[is_paused & holds & (queues["head"][rows] >= 0)]
    if not len(rows):
        return rows
    is_stuck = np.zeros(len(queues), np.int8)
    is_stuck[rows] = 1
    keep_stuck(queues, w.packets, is_stuck, np.zeros(len(queues), np.int32))
    return np.flatnonzero(is_stuck)


def waiting_cycle(w: world.World, stuck: np.ndarray) -> BufferCycle | None:
    """A cycle among queues that :func:`stuck_queues` found: each waits for an ingress that the next one holds."""
    before, after = [], []
    for queue in stuck.tolist():
        p = int(w.queues["head"][queue % PRIORITIES, queue >> PRIORITY_SHIFT])
        seen = set()
        while p >= 0:
            in_port = int(w.packets["in_port"][p])
            if in_port >= 0 and in_port not in seen:
                seen.add(in_port)
                before.append(((in_port ^ 1) << PRIORITY_SHIFT) + queue % PRIORITIES)
                after.append(queue)
            p = int(w.packets["next"][p])
    found = set(stuck.tolist())
    edges = [(a, b) for a, b in zip(before, after, strict=True) if a in found]
    cycle = _shortest_cycle([a for a, _ in edges], [b for _, b in edges]) if edges else []
    return BufferCycle(cycle[0] % PRIORITIES, tuple(queue >> PRIORITY_SHIFT for queue in cycle)) if cycle else None

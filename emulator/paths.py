"""Equal-cost groups from every switch to every NIC: shortest paths, weights by what lies beyond, static routes.

All at once, with matrices; nothing of it is compiled. Knows cables and who is at their ends, nothing of frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GROUP = np.dtype([("first", "i4"), ("count", "i4"), ("turn", "i8")], align=True)
"""Ports ``members[first : first + count]``; ``turn`` counts the frames that were sprayed over them."""

MAX_COPIES = 64
"""Entries of a group with weights: what switches give to one (WCMP). Ours within the range of hardware."""


_PathsByRate = tuple[int, int, np.ndarray]


@dataclass(frozen=True)
class Routes:
    """Equal-cost next hops.

    Attributes
    ----------
    group_of : int32 array, shape (switches, nics)
        Group by which a switch reaches a NIC; -1 where there is no way.
    groups : GROUP array
    members : int32 array
        Ports, group by group; with weights a port may be there several times.
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


@dataclass(frozen=True)
class StaticRoute:
    """Ports by which a switch sends frames to some NICs, whatever the shortest paths are."""

    switch: int
    nics: np.ndarray
    ports: np.ndarray


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


def path_counts(tail: np.ndarray, head: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """How many shortest paths there are from each switch to each other.

    Parameters
    ----------
    tail, head : int array, shape (lines,)
        Cables that paths may use, one direction an entry; parallel ones make paths of their own.
    distance : int32 array, shape (switches, switches)
        What is shortest, as :func:`switch_distances` gives it.

    Returns
    -------
    float64 array, shape (switches, switches)
        Whole numbers; 1 from a switch to itself.
    """
    beside = np.zeros(distance.shape)
    np.add.at(beside, (tail, head), 1.0)
    paths = np.eye(len(distance))
    for level in range(1, int(distance.max()) + 1):
        onward = beside @ np.where(distance == level - 1, paths, 0.0)
        paths = np.where(distance == level, onward, paths)
    return paths


def _paths_by_rate(tail: np.ndarray, head: np.ndarray, rate: np.ndarray, distance: np.ndarray) -> list[_PathsByRate]:
    """For each distinct rate, ascending: it, its step from the one below, and the paths of cables as fast."""
    found = []
    below = 0
    for least in np.unique(rate).tolist():
        is_fast = rate >= least
        found.append((least, least - below, path_counts(tail[is_fast], head[is_fast], distance)))
        below = least
    return found


def _weights(rate: np.ndarray, beyond: np.ndarray, by_rate: list[_PathsByRate]) -> np.ndarray:
    """float64 (ports, switches): the sum, over the paths by each port, of the lowest rate on it, its own included."""
    return sum(step * ((rate >= least)[:, None] * paths[beyond]) for least, step, paths in by_rate)


def _copies(weight: np.ndarray) -> np.ndarray:
    """uint8, shape as ``weight`` (ports, switches): how often each port is in its group.

    The smallest table with these ratios if it has MAX_COPIES entries at most, else about so many, and one at least.
    """
    least = np.where(weight > 0, weight, np.inf).min(axis=0)
    chosen = np.where(weight > 0, np.maximum(np.rint(weight / np.maximum(weight.sum(axis=0), 1) * MAX_COPIES), 1), 0)
    is_open = np.isfinite(least)
    for factor in range(1, MAX_COPIES):
        copies = weight * factor / least
        is_exact = is_open & (np.abs(copies - np.rint(copies)) < 1e-9).all(axis=0) & (copies.sum(axis=0) <= MAX_COPIES)
        chosen[:, is_exact] = np.rint(copies[:, is_exact])
        is_open &= ~is_exact & (copies.sum(axis=0) < MAX_COPIES)
        if not is_open.any():
            break
    return chosen.astype(np.uint8)


def find_routes(
    port_switch: np.ndarray,
    nic_port: np.ndarray,
    is_up: np.ndarray | None = None,
    rate_bps: np.ndarray | None = None,
    static: Sequence[StaticRoute] = (),
) -> Routes:
    """Groups of equal cost, counted in cables, from every switch to every NIC.

    Parameters
    ----------
    port_switch : int32 array, shape (ports,)
        The switch that a port belongs to, or -1 for a NIC's; port 2c and port 2c + 1 are the ends of cable c.
    nic_port : int32 array, shape (nics,)
    is_up : bool array, shape (ports,), optional
        Ports that may be used.
    rate_bps : int64 array, shape (ports,), optional
        Given, a port is in its group as often as the paths beyond it weigh: by the sum of their lowest rates, its own
        line's included.
    static : sequence of StaticRoute
        Their ports that are up take the place of the shortest paths.

    Returns
    -------
    Routes

    Notes
    -----
    Cost: a matrix of inter-switch ports by switches, so 42 MB and a second or two for a fat tree of 8,192 hosts.
    Weights in the manner of Zhou et al., "WCMP: weighted cost multipathing for improved fairness in data centers",
    2014, who repeat entries of the table as well.
    """
    switches = int(port_switch.max()) + 1
    far = np.arange(len(port_switch)) ^ 1
    usable = np.ones(len(port_switch), bool) if is_up is None else is_up
    between = np.flatnonzero((port_switch >= 0) & (port_switch[far] >= 0) & usable)
    tail, head = port_switch[between], port_switch[far[between]]
    distance = switch_distances(tail, head, switches)
    by_rate = None if rate_bps is None else _paths_by_rate(tail, head, rate_bps[between], distance)
    members: list[np.ndarray] = []
    counts: list[int] = []
    by_switch = np.full((switches, switches), -1, np.int32)
    order = np.argsort(tail, kind="stable")
    bounds = np.searchsorted(tail[order], np.arange(switches + 1))
    for switch in range(switches):
        mine = between[order[bounds[switch] : bounds[switch + 1]]]
        if not len(mine):
            continue
        beyond = port_switch[far[mine]]
        is_next = distance[beyond] + 1 == distance[switch][None, :]
        is_next &= distance[switch][None, :] > 0
        copies = is_next
        packed = np.packbits(is_next, axis=0).T
        if rate_bps is not None and by_rate is not None:
            copies = _copies(np.where(is_next, _weights(rate_bps[mine], beyond, by_rate), 0.0))
            packed = copies.T
        keys = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
        _, firsts, which = np.unique(keys, return_index=True, return_inverse=True)
        for k, column in enumerate(firsts):
            ports = np.repeat(mine, copies[:, column])
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
    members.append(nic_port[reachable] ^ 1)
    counts += [1] * len(reachable)
    for route in static:
        ports = route.ports[usable[route.ports]]
        group_of[route.switch, route.nics] = len(counts) if len(ports) else -1
        members.append(ports)
        counts.append(len(ports))
    groups = np.zeros(len(counts), GROUP)
    groups["count"] = counts
    groups["first"] = np.cumsum(counts) - counts
    return Routes(np.ascontiguousarray(group_of), groups, np.concatenate(members).astype(np.int32))


def circle(routes: Routes, port_switch: np.ndarray, nic: int) -> list[int]:
    """Switches among which frames to ``nic`` would go round for ever; empty if all arrive or have no way."""
    import networkx

    graph = networkx.DiGraph()
    for switch in range(len(routes.group_of)):
        for port in set(routes.ports(switch, nic).tolist()):
            if (onward := int(port_switch[port ^ 1])) >= 0:
                graph.add_edge(switch, onward)
    try:
        return [tail for tail, _ in networkx.find_cycle(graph)]
    except networkx.NetworkXNoCycle:
        return []

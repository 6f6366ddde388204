"""What a network is made of and what it can carry: counts, hops, paths, oversubscription, bisection.

Reads a topology, runs nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.paths import path_counts, switch_distances
from emulator.topology import Topology, links_between

_SWAP_TRIALS = 4
"""Splits of a graph that Kernighan and Lin's heuristic begins from."""


def survey(topology: Topology, *, is_regular: bool) -> dict[str, Any]:
    """Everything that ``ttpoe topology`` prints.

    Parameters
    ----------
    topology : Topology
    is_regular : bool
        Whether hosts are numbered as they are cabled and all groups are alike, as in all shapes but graphs.
    """
    between = len(links_between(topology))
    tiers = np.array(topology.switch_tiers)
    bisection_bps, method = bisection(topology, is_regular)
    in_half = topology.nic_host < topology.hosts // 2
    half_bps = int(topology.rate_bps[topology.nic_port[in_half]].sum())
    return {
        "hosts": topology.hosts,
        "nics": len(topology.nic_port),
        "switches": topology.switches,
        "switches_per_tier": {str(tier): int((tiers == tier).sum()) for tier in np.unique(tiers).tolist()},
        "cables": {"host": len(topology.nic_port), "switch": between},
        "optics": {"host": 2 * len(topology.nic_port), "switch": 2 * between},
        "oversubscription_per_tier": oversubscription(topology),
        "bisection_bps": bisection_bps,
        "bisection_method": method,
        "bisection_of_half": bisection_bps / half_bps,
        **path_statistics(topology),
    }


def oversubscription(topology: Topology) -> dict[str, float | None]:
    """By tier: the worst switch's rate towards lower tiers and hosts over that towards higher ones; None at the top."""
    far = np.arange(len(topology.port_switch)) ^ 1
    tier_of = np.append(np.array(topology.switch_tiers), 0)  # the last is what -1 indexes: a host
    here, there = tier_of[topology.port_switch], tier_of[topology.port_switch[far]]
    worst: dict[str, float | None] = {}
    for tier in sorted(set(topology.switch_tiers)):
        ratios = []
        for switch in np.flatnonzero(np.array(topology.switch_tiers) == tier):
            mine = topology.port_switch == switch
            up = int(topology.rate_bps[mine & (there > here)].sum())
            if up:
                ratios.append(int(topology.rate_bps[mine & (there < here)].sum()) / up)
        worst[str(tier)] = max(ratios) if ratios else None
    return worst


def path_statistics(topology: Topology) -> dict[str, Any]:
    """Hops (cables) and equal-cost paths, over the ordered pairs of NICs of the same number in different hosts.

    Of the shortest paths, whatever static routes there are.
    """
    lines = np.flatnonzero(
        (topology.port_switch >= 0) & (topology.port_switch[np.arange(len(topology.port_switch)) ^ 1] >= 0)
    )
    tail, head = topology.port_switch[lines], topology.port_switch[lines ^ 1]
    distance = switch_distances(tail, head, topology.switches)
    paths = path_counts(tail, head, distance)
    pairs = np.zeros((topology.switches, topology.switches), np.int64)
    home = topology.port_switch[topology.nic_port ^ 1]
    number = np.arange(len(home)) - np.searchsorted(topology.nic_host, topology.nic_host)
    for nic in range(int(number.max()) + 1):
        count = np.bincount(home[number == nic], minlength=topology.switches)
        pairs += np.outer(count, count) - np.diag(count)
    is_cut_off = (distance < 0) & (pairs > 0)
    weight = np.where(distance >= 0, pairs, 0).ravel()
    if not weight.any():
        return {"paths": None, "hops": None, "pairs_cut_off": int(pairs[is_cut_off].sum())}
    return {
        "paths": _spread(paths.ravel(), weight),
        "hops": _spread(distance.ravel() + 2, weight),
        "pairs_cut_off": int(pairs[is_cut_off].sum()),
    }


def _spread(values: np.ndarray, weight: np.ndarray) -> dict[str, float]:
    """Least, median (nearest rank), mean and most of values that occur so often."""
    order = np.argsort(values, kind="stable")
    order = order[weight[order] > 0]
    sums = np.cumsum(weight[order])
    middle = order[np.searchsorted(sums, (sums[-1] + 1) // 2)]
    mean = float((values[order] * weight[order]).sum() / sums[-1])
    return {
        "min": int(values[order[0]]), "median": int(values[middle]), "mean": mean, "max": int(values[order[-1]]),
    }  # fmt: skip


def bisection(topology: Topology, is_regular: bool) -> tuple[int, str]:
    """What one half of the hosts can send to the other at once, and how the halves were found.

    Returns
    -------
    bisection_bps : int
        The maximum flow, each way, from half of the hosts to the others over all cables, hosts' own included.
    method : str

    Notes
    -----
    The least over all ways to halve the hosts is meant, which is hard to find in general. In a regular shape the
    halves are the first hosts and the last ones: groups stay whole (but for the middle one of an odd number), so that
    no other split has fewer cables between its halves. In other graphs it is the least of that and of a few splits by
    Kernighan and Lin (1970): an upper bound.
    """
    halves = [np.arange(topology.hosts) < topology.hosts // 2]
    method = "first half of the hosts against the second"
    if not is_regular:
        halves += _kernighan_lin(topology)
        method = f"least of {len(halves)} splits (Kernighan-Lin), so an upper bound"
    return min(_flow_bps(topology, half) for half in halves), method


def _kernighan_lin(topology: Topology) -> list[np.ndarray]:
    """Halves of the hosts, with few cables between them: switches move with whom they serve."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(topology.hosts))
    for port in range(0, len(topology.port_switch), 2):
        a, b = _ends(topology, port)
        rate = int(topology.rate_bps[port]) / 1e9 + (graph[a][b]["weight"] if graph.has_edge(a, b) else 0)
        graph.add_edge(a, b, weight=rate)
    found = []
    for seed in range(_SWAP_TRIALS):
        part, _ = networkx.community.kernighan_lin_bisection(graph, weight="weight", seed=seed)
        inside = np.array([host in part for host in range(topology.hosts)])
        order = np.argsort(~inside, kind="stable")  # the halves of the whole graph need not halve the hosts
        half = np.zeros(topology.hosts, bool)
        half[order[: topology.hosts // 2]] = True
        found.append(half)
    return found


def _ends(topology: Topology, port: int) -> tuple[int, int]:
    """Nodes of a cable: hosts by number, switches behind them."""

    def node(end: int) -> int:
        switch = int(topology.port_switch[end])
        return topology.hosts + switch if switch >= 0 else int(topology.nic_host[topology.port_nic[end]])

    return node(port), node(port ^ 1)


def _flow_bps(topology: Topology, half: np.ndarray) -> int:
    import networkx

    graph = networkx.DiGraph()
    for port in range(0, len(topology.port_switch), 2):
        a, b = _ends(topology, port)
        rate = int(topology.rate_bps[port])
        for tail, head in ((a, b), (b, a)):
            before = graph[tail][head]["capacity"] if graph.has_edge(tail, head) else 0
            graph.add_edge(tail, head, capacity=before + rate)
    for host in range(topology.hosts):
        if half[host]:
            graph.add_edge("from", host)
        else:
            graph.add_edge(host, "to")
    algorithm = networkx.algorithms.flow.boykov_kolmogorov
    return int(networkx.maximum_flow_value(graph, "from", "to", flow_func=algorithm))

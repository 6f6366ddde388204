"""What one half of a network's hosts can send to the other: maximum flow over classes of switches that are alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.symmetry import balanced
from emulator.topology import Topology, links_between

_SWAP_TRIALS = 4
"""Splits of a graph that Kernighan and Lin's heuristic begins from."""


def bisection(
    topology: Topology, is_regular: bool, on_stage: Callable[[str], object] = lambda stage: None
) -> tuple[int, str]:
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
    no other split has fewer cables between its halves. Where hosts have cables of their own, another split may carry
    less, which is told. In other graphs it is the least of that and of a few splits by
    Kernighan and Lin (1970): an upper bound.
    """
    halves = [np.arange(topology.hosts) < topology.hosts // 2]
    method = "first half of the hosts against the second"
    rates = np.split(topology.rate_bps[topology.nic_port], np.searchsorted(topology.nic_host, range(1, topology.hosts)))
    if is_regular and not all(np.array_equal(rates[0], own) for own in rates):
        method += ", whose cables differ, so an upper bound"
    if not is_regular:
        halves += _kernighan_lin(topology, on_stage)
        method = f"least of {len(halves)} splits (Kernighan-Lin), so an upper bound"
    on_stage("bisection")
    return min(flow_bps(topology, half) for half in halves), method


def flow_bps(topology: Topology, half: np.ndarray) -> int:
    """Maximum flow, bit/s, from the hosts of ``half`` (bool, shape (hosts,)) to the others.

    Notes
    -----
    Exact, on a graph of a few nodes: switches are merged into classes such that all of a class have the same rate to
    each class and to the hosts of each half. Flows between switches add up to one between classes; and a flow between
    classes spreads over their cables in proportion to rates, which keeps each cable within its rate and each switch
    balanced. A fat tree has five classes or so, however large.
    """
    import networkx

    between = links_between(topology)
    a, b = topology.port_switch[between], topology.port_switch[between + 1]
    tail, head = np.concatenate([a, b]), np.concatenate([b, a])
    rate = np.tile(topology.rate_bps[between], 2)
    hosts_bps = np.zeros((topology.switches, 2), np.int64)
    side = (~half[topology.nic_host]).astype(np.int64)
    np.add.at(hosts_bps, (topology.port_switch[topology.nic_port ^ 1], side), topology.rate_bps[topology.nic_port])
    kind = balanced(tail, head, rate, hosts_bps)
    classes = int(kind.max()) + 1
    capacity = np.zeros((classes + 2, classes + 2), np.int64)
    np.add.at(capacity, (kind[tail], kind[head]), rate)
    np.add.at(capacity[classes], kind, hosts_bps[:, 0])
    np.add.at(capacity.T[classes + 1], kind, hosts_bps[:, 1])
    np.fill_diagonal(capacity, 0)
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(classes + 2))
    for one, other in np.argwhere(capacity).tolist():
        graph.add_edge(one, other, capacity=int(capacity[one, other]))
    algorithm = networkx.algorithms.flow.boykov_kolmogorov
    return int(networkx.maximum_flow_value(graph, classes, classes + 1, flow_func=algorithm))


def _kernighan_lin(topology: Topology, on_stage: Callable[[str], object]) -> list[np.ndarray]:
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
        on_stage(f"bisection: split {seed + 1} of {_SWAP_TRIALS}")
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

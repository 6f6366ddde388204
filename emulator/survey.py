"""What a network is made of and what it can carry: counts, hops, paths, oversubscription, bisection.

Reads a topology, runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.bisection import bisection
from emulator.symmetry import twins
from emulator.topology import Topology, links_between


def survey(
    topology: Topology, *, is_regular: bool, on_stage: Callable[[str], object] = lambda stage: None
) -> dict[str, Any]:
    """Everything that ``ttpoe topology`` prints.

    Parameters
    ----------
    topology : Topology
    is_regular : bool
        Whether hosts are numbered as they are cabled and all groups are alike, as in all shapes but graphs.
    on_stage : callable
        Told what begins, in a few words.
    """
    on_stage("counting paths")
    spread = path_statistics(topology)
    between = len(links_between(topology))
    tiers = np.array(topology.switch_tiers)
    bisection_bps, method = bisection(topology, is_regular, on_stage)
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
        **spread,
    }


def oversubscription(topology: Topology) -> dict[str, float | None]:
    """By tier: the worst switch's rate towards lower tiers and hosts over that towards higher ones; None at the top."""
    ports = np.flatnonzero(topology.port_switch >= 0)
    tier_of = np.append(np.array(topology.switch_tiers), 0)  # the last is what -1 indexes: a host
    here, there = topology.port_switch[ports], tier_of[topology.port_switch[ports ^ 1]]
    up, down = np.zeros((2, topology.switches), np.int64)
    for rates, is_counted in ((up, there > tier_of[here]), (down, there < tier_of[here])):
        np.add.at(rates, here[is_counted], topology.rate_bps[ports[is_counted]])
    worst: dict[str, float | None] = {}
    for tier in sorted(set(topology.switch_tiers)):
        mine = (tier_of[:-1] == tier) & (up > 0)
        worst[str(tier)] = float((down[mine] / up[mine]).max()) if mine.any() else None
    return worst


def path_statistics(topology: Topology) -> dict[str, Any]:
    """Hops (cables) and equal-cost paths, over the ordered pairs of NICs of the same number in different hosts.

    Of the shortest paths, whatever static routes there are. Counted once for all switches with the same neighbours.
    """
    between = links_between(topology)
    lines = np.concatenate([between, between + 1])
    tail, head = topology.port_switch[lines], topology.port_switch[lines ^ 1]
    kind = twins(tail, head, topology.switches)
    home = topology.port_switch[topology.nic_port ^ 1]
    number = np.arange(len(home)) - np.searchsorted(topology.nic_host, topology.nic_host)
    classes = np.unique(kind[home])
    distance, paths = _from_classes(kind, tail, head, classes)
    pairs = np.zeros((len(classes), len(classes)), np.int64)
    beside = 0
    for nic in range(int(number.max()) + 1):
        count = np.bincount(home[number == nic], minlength=topology.switches)
        of_class = np.bincount(kind, weights=count)[classes].astype(np.int64)
        squares = np.bincount(kind, weights=count * count)[classes].astype(np.int64)
        pairs += np.outer(of_class, of_class) - np.diag(squares)
        beside += int((count * (count - 1)).sum())
    far = np.where(distance >= 0, pairs, 0).ravel()
    weight = np.append(far, beside)
    cut_off = int(pairs[distance < 0].sum())
    if not weight.any():
        return {"paths": None, "hops": None, "pairs_cut_off": cut_off}
    return {
        "paths": _spread(np.append(paths.ravel(), 1.0), weight),
        "hops": _spread(np.append(distance.ravel(), 0) + 2, weight),
        "pairs_cut_off": cut_off,
    }


def _from_classes(
    kind: np.ndarray, tail: np.ndarray, head: np.ndarray, sources: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cables on the shortest ways, and how many ways, from a switch of each source class to another switch of each.

    Returns
    -------
    distance : int64 array, shape (sources, sources)
        -1 where there is no way; on the diagonal that between two switches of the class, if it has two.
    paths : float64 array, shape (sources, sources)
        Whole numbers.
    """
    size = np.bincount(kind)
    cables = np.zeros((len(size), len(size)))  # between all of one class and one of the other
    np.add.at(cables, (kind[tail], kind[head]), 1.0)
    cables /= size[None, :]
    distance = np.full((len(sources), len(size)), -1, np.int64)
    paths = np.zeros(distance.shape)
    onward = cables[sources] / size[sources][:, None]  # one switch alone begins
    level = 1
    while (reached := (onward > 0) & (distance < 0)).any():
        distance[reached] = level
        paths[reached] = onward[reached]
        onward = np.where(reached, onward, 0.0) @ cables
        level += 1
    return distance[:, sources], paths[:, sources]


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

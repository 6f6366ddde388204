"""Networks: counts, names, shortest paths against a plain search, and what cannot be wired."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from emulator.config import ConfigError, LinkConfig, make_scenario
from emulator.paths import switch_distances
from emulator.shapes import build_topology
from emulator.topology import Topology, links_between

LEAF_SPINE = {"kind": "leaf-spine", "leaves": 3, "hosts_per_leaf": 2, "spines": 2, "cables_per_pair": 2}
FAT_TREE = {"kind": "fat-tree", "k": 4}
TWO_TIERS = {"kind": "fat-tree", "k": 4, "tiers": 2, "leaf_oversubscription": 3}
OVERSUBSCRIBED = {"kind": "fat-tree", "k": 4, "leaf_oversubscription": 2, "pod_oversubscription": 2}
RAIL = {"kind": "rail", "servers": 4, "rails": 3, "servers_per_group": 2, "spines": 2}
DUAL = {
    "kind": "dual-plane", "scale_out": FAT_TREE,
    "front_end": {"kind": "leaf-spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 1},
}  # fmt: skip
ALL = (LEAF_SPINE, FAT_TREE, TWO_TIERS, OVERSUBSCRIBED, RAIL, DUAL)


def build(shape: dict) -> Topology:
    scenario = make_scenario({"topology": shape, "workload": {"kind": "permutation"}})
    return build_topology(scenario.topology, scenario.link, 0)


@pytest.mark.parametrize(
    ("shape", "hosts", "nics", "switches", "cables"),
    [
        (LEAF_SPINE, 6, 6, 5, 6 + 12),
        (FAT_TREE, 16, 16, 20, 16 + 16 + 16),
        ({"kind": "fat-tree", "hosts": 128}, 128, 128, 80, 3 * 128),
        (TWO_TIERS, 24, 24, 6, 24 + 8),
        (OVERSUBSCRIBED, 32, 32, 18, 32 + 16 + 8),
        (RAIL, 4, 12, 6 + 2, 12 + 12),
        (DUAL, 16, 32, 25, 48 + 16 + 4),
    ],
)
def test_counts(shape, hosts, nics, switches, cables):
    topology = build(shape)
    assert (topology.hosts, len(topology.nic_port), topology.switches) == (hosts, nics, switches)
    assert len(topology.port_names) == 2 * cables
    assert len(set(topology.port_names)) == 2 * cables
    assert len(links_between(topology)) == cables - nics


def neighbours(topology: Topology, switch: int) -> list[tuple[int, int]]:
    """(port, switch at its other end)."""
    mine = np.flatnonzero(topology.port_switch == switch)
    return [(int(p), int(topology.port_switch[p ^ 1])) for p in mine if topology.port_switch[p ^ 1] >= 0]


def searched(topology: Topology, start: int) -> dict[int, int]:
    """Distances from a switch, by a plain breadth-first search."""
    found = {start: 0}
    todo = deque([start])
    while todo:
        at = todo.popleft()
        for _, to in neighbours(topology, at):
            if to not in found:
                found[to] = found[at] + 1
                todo.append(to)
    return found


@pytest.mark.parametrize("shape", ALL)
def test_groups_are_all_shortest_paths_and_nothing_else(shape):
    topology = build(shape)
    for nic, port in enumerate(topology.nic_port):
        home = int(topology.port_switch[port ^ 1])
        distance = searched(topology, home)
        for switch in range(topology.switches):
            ports = sorted(topology.routes.ports(switch, nic).tolist())
            if switch == home:
                assert ports == [port ^ 1]
            elif switch not in distance:
                assert ports == []
            else:
                nearer = [p for p, to in neighbours(topology, switch) if distance[to] == distance[switch] - 1]
                assert ports == sorted(nearer)


def test_paths_of_a_fat_tree():
    topology = build(FAT_TREE)
    assert [topology.port_names[p] for p in topology.path(0, 1)] == ["h0", "e0.0.p1"]
    assert len(topology.path(0, 2)) == 4
    assert len(topology.path(0, 15)) == 6
    edge = topology.switch_names.index("e0.0")
    assert len(topology.routes.ports(edge, 15)) == 2
    assert topology.switch_tiers.count(3) == 4


def test_planes_share_nothing():
    topology = build(DUAL)
    assert topology.nics(5).tolist() == [10, 11]
    assert topology.port_names[topology.nic_port[10]] == "h5.n0"
    assert topology.path(10, 13) == []
    rate = {int(topology.rate_bps[topology.nic_port[nic]]) for nic in topology.nics(5)}
    assert rate == {100_000_000_000, 25_000_000_000}


def test_rails_without_spines_are_islands():
    topology = build({"kind": "rail", "servers": 4, "rails": 2, "spines": 0})
    assert len(topology.path(0, 2)) == 2
    assert topology.path(0, 3) == []


def test_distances_of_a_line_and_an_island():
    tail, head = np.array([0, 1, 1, 2]), np.array([1, 0, 2, 1])
    expected = [[0, 1, 2, -1], [1, 0, 1, -1], [2, 1, 0, -1], [-1, -1, -1, 0]]
    assert switch_distances(tail, head, 4).tolist() == expected


def test_uplinks_have_their_own_rate():
    topology = build({**FAT_TREE, "uplink": {"rate_bps": "400G", "delay_ps": "2us"}})
    up = links_between(topology)
    assert set(topology.rate_bps[up]) == {400_000_000_000}
    assert set(topology.delay_ps[up]) == {2_000_000}
    assert set(topology.rate_bps[topology.nic_port]) == {LinkConfig().rate_bps}


@pytest.mark.parametrize(
    ("shape", "field", "what"),
    [
        ({"kind": "fat-tree", "hosts": 17}, "topology", "no even k makes 17 hosts; take 16 or 54"),
        ({"kind": "fat-tree"}, "topology", "give k"),
        ({"kind": "fat-tree", "k": 4, "hosts": 20}, "topology", "k = 4 makes 16 hosts, not 20"),
        ({"kind": "fat-tree", "k": 5}, "topology.k", "multiple of 2"),
        ({"kind": "fat-tree", "k": 8, "pod_oversubscription": 3}, "topology", "must divide k / 2 = 4"),
        ({"kind": "ring"}, "topology.kind", '"fat-tree"'),
        ({"kind": "leaf-spine", "spine": 3}, "topology.spine", "did you mean spines?"),
        ({"kind": "rail", "servers": 4, "servers_per_group": 3}, "topology", "must divide servers 4"),
        ({**DUAL, "front_end": {"kind": "fat-tree", "k": 8}}, "topology", "16 hosts and front_end 128"),
        ({**DUAL, "front_end": {"kind": "fat-tree", "tier": 8}}, "topology.front_end.tier", "did you mean tiers?"),
    ],
)
def test_the_sentence_names_the_field(shape, field, what):
    with pytest.raises(ConfigError) as caught:
        make_scenario({"topology": shape, "workload": {"kind": "permutation"}})
    assert str(caught.value).startswith(field)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)

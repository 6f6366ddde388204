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


@pytest.mark.parametrize("shape", ALL[:-1], ids=lambda shape: shape["kind"])
def test_hosts_of_any_shape_may_have_cables_of_their_own(shape):
    """Numbers and ranges; the later one decides; all NICs of a host are alike; uplinks stay as they are."""
    classes = [{"hosts": ["0-2"], "rate_bps": "25G"}, {"hosts": [2, 3], "delay_ps": "5us", "bad_fcs_frames": [1]}]
    topology, plain = build({**shape, "links": classes}), build(shape)
    nics, host = topology.nic_port, topology.nic_host
    assert set(topology.rate_bps[nics[host <= 2]]) == {25_000_000_000}
    assert set(topology.rate_bps[nics[host > 2]]) == {LinkConfig().rate_bps}
    assert set(topology.delay_ps[nics[(host == 2) | (host == 3)]]) == {5_000_000}
    assert set(topology.delay_ps[nics[(host != 2) & (host != 3)]]) == {LinkConfig().delay_ps}
    assert topology.bad_fcs_frames == {int(port): (1,) for port in nics[(host == 2) | (host == 3)]}
    assert (topology.rate_bps[nics ^ 1] == topology.rate_bps[nics]).all()
    up = links_between(topology)
    assert topology.rate_bps[up].tolist() == plain.rate_bps[up].tolist()
    assert topology.port_names == plain.port_names


def test_each_plane_has_classes_of_its_own():
    front = {**DUAL["front_end"], "links": [{"hosts": ["4-7"], "rate_bps": "10G"}]}
    scale_out = {**FAT_TREE, "links": [{"hosts": [4], "rate_bps": "400G"}]}
    topology = build({**DUAL, "scale_out": scale_out, "front_end": front})
    rates = [[int(topology.rate_bps[topology.nic_port[nic]]) // 10**9 for nic in topology.nics(h)] for h in (3, 4, 5)]
    assert rates == [[100, 25], [400, 10], [100, 10]]


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ({**FAT_TREE, "links": [{"hosts": ["8-16"]}]}, "topology.links.0.hosts: there is no host 16; the last one is"),
        ({**DUAL, "front_end": {**DUAL["front_end"], "links": [{"hosts": [16]}]}},
         "topology.front_end.links.0.hosts: there is no host 16; the last one is 15"),
        ({**FAT_TREE, "links": [{"hosts": ["5-"]}]}, "topology.links.0.hosts: '5-' is no range of hosts; give"),
        ({**FAT_TREE, "links": [{"hosts": ["9-5"]}]}, "topology.links.0.hosts: '9-5' is no range of hosts; give"),
        ({**FAT_TREE, "links": [{"hosts": "0-5"}]}, "topology.links.0.hosts: must be a list"),
        ({**FAT_TREE, "links": [{"hosts": [-1]}]}, "topology.links.0.hosts.0: "),
        ({**DUAL, "scale_out": {**FAT_TREE, "links": [{"hosts": [1], "rate": 1}]}},
         "topology.scale_out.links.0.rate: there is no such field; did you mean rate_bps?"),
    ],
)  # fmt: skip
def test_classes_that_cannot_be(shape, says):
    with pytest.raises(ConfigError) as caught:
        build(shape)
    assert str(caught.value).startswith(says)


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

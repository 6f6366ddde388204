"""Networks from files: three formats that mean the same, static routes, weights, and what cannot be wired."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from emulated import COMPILED, flows, make, result_of

from emulator.config import ConfigError, LinkConfig, load_scenario, make_scenario
from emulator.paths import find_routes, path_counts, switch_distances
from emulator.shapes import build_topology
from emulator.topology import Topology

NODES = [{"name": f"{n}{k}", "kind": kind} for n, kind in (("h", "host"), ("s", "switch")) for k in range(3)]
LINKS: list[dict[str, Any]] = [
    {"a": "h0", "b": "s0"}, {"a": "h1", "b": "s1"}, {"a": "h2", "b": "s2"}, {"a": "h0", "b": "s1", "rate_bps": "25G"},
    {"a": "s0", "b": "s1", "rate_bps": "400G", "delay_ps": "2us"}, {"a": "s1", "b": "s2"}, {"a": "s2", "b": "s0"},
]  # fmt: skip
CLOCKWISE = [
    {"switch": "s0", "to": ["h1", "h2"], "via": ["s1"]}, {"switch": "s1", "to": ["h2", "h0"], "via": ["s2"]},
    {"switch": "s2", "to": ["h0", "h1"], "via": ["s0"]},
]  # fmt: skip


def graph(nodes=NODES, links=LINKS, routes=()) -> dict[str, Any]:
    return {"kind": "graph", "nodes": nodes, "links": links, "routes": list(routes)}


def build(topology: dict[str, Any], folder: Path = Path()) -> Topology:
    scenario = make_scenario({"topology": topology}, folder)
    return build_topology(scenario.topology, scenario.link, 0)


def as_toml(values: dict[str, Any]) -> str:
    lines = []
    for what in ("nodes", "links"):
        for row in values[what]:
            lines += [f"[[{what}]]", *(f"{name} = {json.dumps(value)}" for name, value in row.items())]
    return "\n".join(lines)


def written(path: Path) -> Path:
    """The network above in the format that the file's name says."""
    if path.suffix == ".toml":
        path.write_text(as_toml(graph()))
        return path
    if path.name == "plain.json":
        path.write_text(json.dumps({"nodes": NODES, "links": LINKS}))
        return path
    network = nx.MultiGraph()
    for node in NODES:
        network.add_node(node["name"], kind=node["kind"])
    for link in LINKS:
        network.add_edge(link["a"], link["b"], **{k: v for k, v in link.items() if k not in "ab"})
    if path.suffix == ".graphml":
        nx.write_graphml(network, path)
    else:
        path.write_text(json.dumps(nx.node_link_data(network, edges="links" if path.name == "old.json" else "edges")))
    return path


@pytest.mark.parametrize("name", ["net.toml", "plain.json", "new.json", "old.json", "net.graphml"])
def test_each_format_wires_the_same_network(name, tmp_path):
    written(tmp_path / name)
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(f'[topology]\nkind = "graph"\nfile = "{name}"\n')
    loaded = load_scenario(scenario)  # from another working directory
    topology = build_topology(loaded.topology, loaded.link, 0)
    assert topology.host_names == ("h0", "h1", "h2")
    assert topology.switch_names == ("s0", "s1", "s2")
    assert len(topology.port_names) == 14
    assert topology.nics(0).tolist() == [0, 1]
    assert {topology.port_names[port] for port in topology.nic_port} == {"h0.n0", "h0.n1", "h1", "h2"}
    by_name = dict(zip(topology.port_names, range(14), strict=True))
    assert int(topology.rate_bps[by_name["h0.n1"]]) == 25_000_000_000
    fast = [port for port in by_name.values() if topology.rate_bps[port] == 400_000_000_000]
    assert sorted(topology.switch_names[topology.port_switch[port]] for port in fast) == ["s0", "s1"]
    assert set(topology.delay_ps[fast]) == {2_000_000}
    assert int(topology.rate_bps[by_name["h1"]]) == LinkConfig().rate_bps


def test_static_routes_take_the_place_of_the_shortest_paths():
    topology = build(graph(routes=CLOCKWISE))
    nic_of = {host: int(topology.nics(host)[0]) for host in range(3)}
    assert [topology.port_names[p] for p in topology.path(nic_of[0], nic_of[2])] == ["h0.n0", "s0.p1", "s1.p3", "s2.p0"]
    assert len(build(graph()).path(nic_of[0], nic_of[2])) == 3
    for nic, port in enumerate(topology.nic_port):  # h0 has a NIC at s1 as well, which s1 reaches by its cable
        home = int(topology.port_switch[port ^ 1])
        assert topology.routes.ports(home, nic).tolist() == [port ^ 1]


def test_a_later_route_overrides_an_earlier_one_and_a_file_may_be_added_to(tmp_path):
    path = written(tmp_path / "net.graphml")
    values = {"kind": "graph", "file": path.name, "routes": [*CLOCKWISE, {"switch": "s0", "to": ["h2"], "via": ["s2"]}]}
    topology = build(values, tmp_path)
    assert len(topology.path(0, int(topology.nics(2)[0]))) == 3


def test_tiers_are_found_from_the_hosts():
    nodes = [{"name": n, "kind": "host"} for n in "ab"] + [{"name": n, "kind": "switch"} for n in ("x", "y", "z", "w")]
    links = [{"a": a, "b": b} for a, b in ("ax", "by", "xz", "yz", "zw")]
    topology = build(graph([*nodes[:-1], {**nodes[-1], "tier": 5}], links))
    assert topology.switch_tiers == (1, 1, 2, 5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nodes": [*NODES, {"name": "s0", "kind": "switch"}]}, "nodes.6.name: there are two nodes s0"),
        ({"nodes": [*NODES, {"name": "h9", "kind": "host"}]}, "nodes.6: host h9 has no cable"),
        ({"nodes": [*NODES, {"name": "r", "kind": "router"}]}, "nodes.6.kind: must be 'host' or 'switch'"),
        ({"nodes": [*NODES, {"name": "a/b", "kind": "host"}]}, "nodes.6.name: "),
        ({"nodes": [*NODES, {"name": "s9", "kind": "switch", "teir": 1}]}, "nodes.6.teir: there is no such field; did"),
        ({"nodes": NODES[3:]}, 'nodes: there is no host; name one with kind = "host"'),
        ({"links": [*LINKS, {"a": "h0", "b": "s7"}]}, "links.7.b: there is no node s7"),
        ({"links": [*LINKS, {"a": "h0", "b": "h1"}]}, "links.7: two hosts, h0 and h1; put a switch between"),
        ({"links": [*LINKS, {"a": "s1", "b": "s1"}]}, "links.7.b: s1 is cabled to itself"),
        ({"links": [*LINKS, {"a": "s1", "b": "s2", "rate_bps": "fast"}]}, "links.7.rate_bps: "),
        ({"links": [*LINKS, {"a": "s1"}]}, "links.7.b: this field is required"),
        ({"routes": [{"switch": "h0", "to": ["h1"], "via": ["s0"]}]}, "routes.0.switch: there is no switch h0"),
        ({"routes": [{"switch": "s0", "to": ["s1"], "via": ["s1"]}]}, "routes.0.to: there is no host s1"),
        ({"routes": [{"switch": "s0", "to": ["h1"], "via": ["h1"]}]}, "routes.0.via: h1 is no neighbour of s0"),
        ({"routes": [{"switch": "s0", "to": [], "via": ["s1"]}]}, "routes.0: name hosts under to"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_file_and_the_field(change, sentence, tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({**{"nodes": NODES, "links": LINKS}, **change}))
    with pytest.raises(ConfigError) as caught:
        build({"kind": "graph", "file": "net.json"}, tmp_path)
    assert str(caught.value).startswith(f"{path}: {sentence}")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"^topology"):
        build({**graph(), **change})


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("net.toml", None, "No such file"),
        ("net.yaml", "", "ends in .toml, .json or .graphml"),
        ("net.toml", "[[nodes]", "this is no toml of a network"),
        ("net.json", "{", "this is no json of a network"),
        ("net.json", "[]", "must be a table with nodes and links"),
        ("net.json", '{"nodes": [{"id": 1}], "links": [{"source": 1}]}', "node-link form of a network"),
        ("net.json", '{"nodes": [{"id": 1}], "links": 3}', "node-link form of a network"),
        ("net.json", '{"nodes": 3}', "nodes: "),
        ("net.graphml", "<graphml", "this is no graphml of a network"),
        ("net.graphml", "<graphml></graphml>", "this is no graphml of a network"),
        ("net.toml", b"\xff\xfe", "this is no toml of a network"),
    ],
)
def test_a_file_that_is_no_network_is_told_in_a_sentence(name, content, sentence, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        build({"kind": "graph", "file": name}, tmp_path)
    assert str(caught.value).startswith(str(path))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directed_graph_is_refused(tmp_path):
    network = nx.DiGraph([("h0", "s0"), ("h1", "s0")])
    nx.write_graphml(network, tmp_path / "net.graphml")
    with pytest.raises(ConfigError, match="a cable goes both ways; make it undirected"):
        build({"kind": "graph", "file": "net.graphml"}, tmp_path)


def test_a_scenario_holds_the_network_and_not_its_file(tmp_path):
    """So that what results.json tells can be run again where the file is not."""
    path = written(tmp_path / "net.json")
    scenario = make_scenario({"topology": {"kind": "graph", "file": path.name}}, tmp_path)
    path.unlink()
    assert make_scenario(asdict(scenario)) == scenario
    with pytest.raises(ConfigError, match=r"^topology.nodez: there is no such field; did you mean nodes"):
        make_scenario({"topology": {"kind": "graph", "file": written(path).name, "nodez": 1}}, tmp_path)


def test_a_file_and_a_list_exclude_each_other(tmp_path):
    with pytest.raises(ConfigError, match=r"^topology.file: nodes and links are in the file"):
        build({**graph(), "file": "net.toml"}, tmp_path)


def test_routes_that_go_round_are_refused():
    around = [{"switch": "s0", "to": ["h2"], "via": ["s1"]}, {"switch": "s1", "to": ["h2"], "via": ["s0"]}]
    with pytest.raises(ConfigError) as caught:
        make({**flows((0, 2, 1_000)), "topology": graph(routes=around)}, "ttpoe")
    assert str(caught.value) == "topology.routes: frames to h2 would go round s0, s1; change one of them"


# --- paths and weights -----------------------------------------------------------------------------------------------


def random_network(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ports' switches, NICs' ports and rates of a random connected multigraph with a host at each switch."""
    rng = np.random.default_rng(seed)
    switches = int(rng.integers(3, 9))
    cables = [(int(rng.integers(0, k)), k) for k in range(1, switches)]
    cables += [tuple(int(v) for v in rng.choice(switches, 2, replace=False)) for _ in range(switches)]
    ends = [end for cable in cables for end in cable]
    for switch in range(switches):
        ends += [-1, switch]
    rates = np.repeat(rng.choice([25, 50, 100], len(cables) + switches), 2)
    return np.array(ends), 2 * len(cables) + 2 * np.arange(switches), rates


@pytest.mark.parametrize("seed", range(12))
def test_path_counts_and_weights_are_those_of_all_paths_listed(seed):
    port_switch, nic_port, rates = random_network(seed)
    switches = int(port_switch.max()) + 1
    lines = [p for p in range(len(port_switch)) if min(port_switch[p], port_switch[p ^ 1]) >= 0]
    tail, head = port_switch[lines], port_switch[np.array(lines) ^ 1]
    distance = switch_distances(tail, head, switches)
    counts = path_counts(tail, head, distance)
    routes = find_routes(port_switch, nic_port, rate_bps=rates)

    def walk(at: int, to: int) -> list[list[int]]:
        if at == to:
            return [[]]
        nearer = [p for p in lines if port_switch[p] == at and distance[port_switch[p ^ 1], to] == distance[at, to] - 1]
        return [[p, *rest] for p in nearer for rest in walk(int(port_switch[p ^ 1]), to)]

    for a in range(switches):
        for b in range(switches):
            ways = walk(a, b)
            assert counts[a, b] == len(ways)
            if a == b:
                continue
            expected: dict[int, int] = {}
            for way in ways:
                expected[way[0]] = expected.get(way[0], 0) + min(int(rates[p]) for p in way)
            share = np.array(list(expected.values())) / sum(expected.values())
            members = routes.ports(a, b).tolist()
            found = np.array([members.count(port) for port in expected]) / len(members)
            assert set(members) == set(expected)
            assert np.abs(found - share).max() <= 1 / 64


def test_weighted_is_ecmp_where_all_paths_are_alike():
    scenario = make_scenario({"topology": {"kind": "fat-tree", "k": 4}})
    topology = build_topology(scenario.topology, scenario.link, 0)
    weighted = topology.routed(rate_bps=topology.rate_bps)
    for switch in range(topology.switches):
        for nic in range(16):
            assert weighted.ports(switch, nic).tolist() == topology.routes.ports(switch, nic).tolist()


@COMPILED
def test_weighted_routing_fills_uneven_uplinks_by_their_rates():
    """Four 100G hosts over spines of 300G and 100G: 3 of 4 flows by the fast one, about, where ecmp sends half."""
    nodes = [{"name": f"h{k}", "kind": "host"} for k in range(8)]
    nodes += [{"name": n, "kind": "switch"} for n in ("l0", "l1", "fast", "slow")]
    links = [{"a": f"h{k}", "b": f"l{k // 4}"} for k in range(8)]
    links += [{"a": leaf, "b": spine, "rate_bps": rate} for leaf in ("l0", "l1")
              for spine, rate in (("fast", "300G"), ("slow", "100G"))]  # fmt: skip
    values = flows(*((k % 4, 4 + k % 4, 20_000) for k in range(200)), topology=graph(nodes, links))
    share = {}
    for routing in ("ecmp", "weighted"):
        ports = {p["name"]: p["tx_bytes"] for p in result_of({**values, "routings": [routing]}, "roce-pfc").ports}
        share[routing] = ports["l0.p4"] / (ports["l0.p4"] + ports["l0.p5"])
    assert share["ecmp"] == pytest.approx(0.5, abs=0.12)
    assert share["weighted"] == pytest.approx(0.75, abs=0.12)

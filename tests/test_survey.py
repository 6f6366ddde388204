"""``ttpoe topology``: counts and measures against closed forms, drawings, and the command."""

from __future__ import annotations

import json
from typing import Any

import networkx
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from test_deadlock import ring
from test_topology import DUAL, RAIL, build

from emulator.bisection import flow_bps
from emulator.paths import path_counts, switch_distances
from emulator.survey import path_statistics, survey
from emulator.symmetry import balanced, twins
from emulator.topology import Topology, links_between
from ttpoe.cli import group

RATE = 100_000_000_000


@pytest.mark.parametrize("k", [2, 4, 8])
def test_a_fat_tree_is_what_its_paper_says(k):
    """Al-Fares et al. (2008): 5k^2/4 switches, k^3/4 hosts, (k/2)^2 paths between pods, full bisection."""
    told = survey(build({"kind": "fat-tree", "k": k}), is_regular=True)
    assert told["hosts"] == told["nics"] == k**3 // 4
    assert told["switches"] == 5 * k * k // 4
    assert told["switches_per_tier"] == {"1": k * k // 2, "2": k * k // 2, "3": k * k // 4}
    assert told["cables"] == {"host": k**3 // 4, "switch": k**3 // 2}
    assert told["optics"] == {"host": k**3 // 2, "switch": k**3}
    assert told["bisection_bps"] == k**3 // 8 * RATE
    assert told["bisection_of_half"] == 1.0
    assert told["oversubscription_per_tier"] == {"1": 1.0, "2": 1.0, "3": None}
    assert told["paths"]["max"] == (k // 2) ** 2
    assert told["hops"]["max"] == 6
    pairs = k**3 // 4 - 1
    far = (k**3 // 4 - k * k // 4) / pairs
    in_pod = (k * k // 4 - k // 2) / pairs
    beside = (k // 2 - 1) / pairs
    assert told["hops"]["mean"] == pytest.approx(6 * far + 4 * in_pod + 2 * beside)
    assert told["paths"]["mean"] == pytest.approx((k // 2) ** 2 * far + k // 2 * in_pod + beside)


def test_hosts_with_cables_of_their_own_may_have_a_worse_split():
    """Two slow hosts of four against the others carry 2 Gb/s, whatever the first half and the second do."""
    told = survey(build({"kind": "star", "hosts": 4, "links": [{"hosts": [0, 2], "rate_bps": "1G"}]}), is_regular=True)
    assert told["bisection_bps"] == RATE + 10**9
    assert told["bisection_method"] == (
        "first half of the hosts against the second, whose cables differ, so an upper bound"
    )
    told = survey(build({"kind": "star", "hosts": 4, "links": [{"hosts": ["0-3"], "rate_bps": "1G"}]}), is_regular=True)
    assert told["bisection_method"] == "first half of the hosts against the second"


@pytest.mark.parametrize(("hosts_per_leaf", "spines", "cables"), [(8, 2, 1), (4, 4, 1), (6, 3, 2), (12, 2, 3)])
def test_a_leaf_spine_is_limited_by_its_uplinks(hosts_per_leaf, spines, cables):
    shape = {"kind": "leaf-spine", "leaves": 4, "hosts_per_leaf": hosts_per_leaf, "spines": spines,
             "cables_per_pair": cables}  # fmt: skip
    told = survey(build(shape), is_regular=True)
    assert told["oversubscription_per_tier"]["1"] == pytest.approx(hosts_per_leaf / (spines * cables))
    assert told["bisection_bps"] == 2 * min(hosts_per_leaf, spines * cables) * RATE
    assert told["paths"] == {"min": 1, "median": spines * cables**2, "max": spines * cables**2,
                             "mean": pytest.approx(told["paths"]["mean"])}  # fmt: skip
    assert told["hops"]["max"] == 4


def test_rails_and_planes_count_all_nics():
    rail = survey(build({**RAIL, "spines": 0, "servers_per_group": None}), is_regular=True)
    assert rail["hops"] == {"min": 2, "median": 2, "mean": 2.0, "max": 2}
    assert rail["pairs_cut_off"] == 0  # NIC r reaches all NICs r
    dual = survey(build(DUAL), is_regular=True)
    assert dual["bisection_bps"] == 8 * RATE + 2 * 25_000_000_000  # of the front end: two leaves of one uplink
    assert dual["nics"] == 32


def test_uplinks_of_half_the_rate_halve_the_bisection():
    told = survey(build({"kind": "fat-tree", "k": 4, "uplink": {"rate_bps": "50G"}}), is_regular=True)
    assert told["bisection_of_half"] == 0.5
    assert told["oversubscription_per_tier"]["1"] == 2.0


def test_a_graph_is_split_where_it_is_thin():
    """Two groups of hosts, numbered in turn, joined by one cable: the heuristic finds it, the numbering does not."""
    nodes = [{"name": f"h{k}", "kind": "host"} for k in range(8)] + [{"name": n, "kind": "switch"} for n in "xy"]
    links = [{"a": f"h{k}", "b": "xy"[k % 2]} for k in range(8)] + [{"a": "x", "b": "y", "rate_bps": "40G"}]
    told = survey(build({"kind": "graph", "nodes": nodes, "links": links}), is_regular=False)
    assert told["bisection_bps"] == 40_000_000_000
    assert "upper bound" in told["bisection_method"]


def test_a_ring_has_two_cables_between_its_halves():
    told = survey(build(ring(8, is_clockwise=False)), is_regular=False)
    assert told["bisection_bps"] == 2 * RATE
    assert told["hops"]["max"] == 6
    assert told["paths"]["max"] == 2  # to the host opposite


@st.composite
def networks(draw) -> dict[str, Any]:
    """Any shape, small: oversubscribed, with slow uplinks, parallel cables, odd groups; or any graph."""
    size = st.integers(1, 5)
    rates = st.sampled_from(["25G", "40G", "100G", "400G"])
    kind = draw(st.sampled_from(["fat-tree", "leaf-spine", "rail", "dual-plane", "graph"]))
    uplink = {"rate_bps": draw(rates)}
    if kind == "fat-tree":
        k = draw(st.sampled_from([2, 4, 6]))
        tiers = draw(st.sampled_from([2, 3]))
        pod = draw(st.sampled_from([n for n in (1, 2, 3) if k // 2 % n == 0])) if tiers == 3 else 1
        return {"kind": kind, "k": k, "tiers": tiers, "pod_oversubscription": pod, "uplink": uplink,
                "leaf_oversubscription": draw(st.integers(1, 3))}  # fmt: skip
    leaf_spine = {"kind": "leaf-spine", "leaves": draw(size), "hosts_per_leaf": draw(size) + 1, "spines": draw(size),
                  "cables_per_pair": draw(st.integers(1, 2)), "uplink": uplink}  # fmt: skip
    if kind == "leaf-spine":
        return leaf_spine
    if kind == "dual-plane":
        hosts = leaf_spine["leaves"] * leaf_spine["hosts_per_leaf"]
        front = {"kind": "leaf-spine", "leaves": 1, "hosts_per_leaf": hosts, "spines": 1}
        return {"kind": kind, "scale_out": leaf_spine, "front_end": front}
    if kind == "rail":
        per_group, groups = draw(size) + 1, draw(st.integers(1, 3))
        return {"kind": kind, "servers": per_group * groups, "servers_per_group": per_group, "uplink": uplink,
                "rails": draw(st.integers(2, 3)), "spines": draw(size)}  # fmt: skip
    switches, hosts = draw(st.integers(1, 7)), draw(st.integers(2, 9))
    nodes = [{"name": f"h{k}", "kind": "host"} for k in range(hosts)]
    nodes += [{"name": f"s{k}", "kind": "switch"} for k in range(switches)]
    one = st.integers(0, switches - 1)
    ends = [(f"h{k}", f"s{draw(one)}") for k in range(hosts)]
    ends += [(f"s{a}", f"s{b}") for a, b in draw(st.lists(st.tuples(one, one), max_size=14)) if a != b]
    return {"kind": kind, "nodes": nodes, "links": [{"a": a, "b": b, "rate_bps": draw(rates)} for a, b in ends]}


def whole_flow_bps(network: Topology, half: np.ndarray) -> int:
    """Maximum flow over all hosts, switches and cables, none merged."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(("from", "to"))
    for port, far in enumerate(np.arange(len(network.port_switch)) ^ 1):
        tail, head = (
            ("s", int(network.port_switch[p])) if network.port_switch[p] >= 0
            else ("h", int(network.nic_host[network.port_nic[p]])) for p in (port, far)
        )  # fmt: skip
        before = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        graph.add_edge(tail, head, capacity=before + int(network.rate_bps[port]))
    for host in range(network.hosts):
        graph.add_edge(*(("from", ("h", host)) if half[host] else (("h", host), "to")))
    return int(networkx.maximum_flow_value(graph, "from", "to"))


@settings(max_examples=150, deadline=None)
@given(networks(), st.randoms(use_true_random=False))
def test_merged_switches_carry_what_the_whole_network_does(shape, random):
    """Of the first half against the second, as regular shapes are split, and of any other split."""
    network = build(shape)
    some = np.array([random.random() < 0.5 for _ in range(network.hosts)])
    for half in (np.arange(network.hosts) < network.hosts // 2, some):
        assert flow_bps(network, half) == whole_flow_bps(network, half)


@settings(max_examples=150, deadline=None)
@given(networks())
def test_paths_of_merged_switches_are_those_of_each_pair(shape):
    """Every ordered pair of NICs of a number, one by one, over distances and path counts of all switches."""
    network = build(shape)
    far = network.port_switch[np.arange(len(network.port_switch)) ^ 1]
    is_between = (network.port_switch >= 0) & (far >= 0)
    tail, head = network.port_switch[is_between], far[is_between]
    distance = switch_distances(tail, head, network.switches)
    count = path_counts(tail, head, distance)
    home = network.port_switch[network.nic_port ^ 1]
    number = np.arange(len(home)) - np.searchsorted(network.nic_host, network.nic_host)
    pairs = [(a, b) for a in range(len(home)) for b in range(len(home)) if a != b and number[a] == number[b]]
    ways = sorted(int(count[home[a], home[b]]) for a, b in pairs if distance[home[a], home[b]] >= 0)
    hops = sorted(int(distance[home[a], home[b]]) + 2 for a, b in pairs if distance[home[a], home[b]] >= 0)
    told = path_statistics(network)
    assert told["pairs_cut_off"] == len(pairs) - len(ways)
    for key, values in (("paths", ways), ("hops", hops)):
        if not values:
            assert told[key] is None
            continue
        middle = values[(len(values) + 1) // 2 - 1]
        assert told[key] == {"min": values[0], "median": middle, "max": values[-1],
                             "mean": pytest.approx(sum(values) / len(values))}  # fmt: skip


def test_a_large_fat_tree_has_few_kinds_of_switches():
    """So that 65,536 hosts take seconds: half of an 8,192-host tree merges to a class a tier and half."""
    network = build({"kind": "fat-tree", "k": 32})
    assert flow_bps(network, np.arange(network.hosts) < network.hosts // 2) == 4096 * RATE
    between = links_between(network)
    a, b = network.port_switch[between], network.port_switch[between + 1]
    own = (np.array(network.switch_tiers) == 1).astype(np.int64)[:, None]
    kind = balanced(np.append(a, b), np.append(b, a), np.tile(network.rate_bps[between], 2), own)
    assert int(kind.max()) + 1 == 3
    assert int(twins(np.append(a, b), np.append(b, a), network.switches).max()) + 1 == 32 + 32 * 16 + 16


def run(*arguments: str):
    return CliRunner().invoke(group, ["topology", *arguments])


@pytest.mark.parametrize(
    ("arguments", "worst", "switches"),
    [
        (("--oversubscription", "4:1", "--hosts", "64", "--topology", "leaf-spine"), {"1": 4.0, "2": None}, [8, 2]),
        (("--oversubscription", "3:2", "--hosts", "12", "--topology", "leaf-spine"), {"1": 1.5, "2": None}, [4, 2]),
        (("--oversubscription", "2", "--hosts", "32"), {"1": 2.0, "2": 1.0, "3": None}, [8, 8, 4]),
        (("--hosts", "16", "--pod-oversubscription", "2:1"), {"1": 1.0, "2": 2.0, "3": None}, [8, 8, 2]),
        (("--hosts", "32", "--tiers", "2", "--oversubscription", "1:1"), {"1": 1.0, "2": None}, [8, 4]),
        (("--hosts", "64", "--oversubscription", "1:1", "--uplink-rate", "400G"),
         {"1": 1.0, "2": 1.0, "3": None}, [8, 8, 4]),
        (("--hosts", "64", "--topology", "leaf-spine", "--oversubscription", "2:1", "--uplink-rate", "400G"),
         {"1": 2.0, "2": None}, [8, 1]),
        (("--hosts", "16", "--uplink-rate", "25G"), {"1": 4.0, "2": 1.0, "3": None}, [8, 8, 4]),
        (("--hosts", "16", "--topology", "rail", "--nics", "2", "--hosts-per-leaf", "8", "--oversubscription", "8:1"),
         {"1": 8.0, "2": None}, [4, 1]),
        (("--hosts", "12", "--topology", "leaf-spine", "--hosts-per-leaf", "6", "--spines", "2"),
         {"1": 3.0, "2": None}, [2, 2]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_options_make_the_oversubscription_that_is_measured(arguments, worst, switches):
    told = json.loads(run(*arguments, "--json").stdout)
    assert told["oversubscription_per_tier"] == worst
    assert list(told["switches_per_tier"].values()) == switches


@pytest.mark.parametrize(
    "arguments",
    [
        ("--hosts", "16"), ("--topology", "leaf-spine", "--hosts", "12"), ("--topology", "star", "--hosts", "3"),
        ("examples/ring_deadlock.toml",),
    ],
)  # fmt: skip
def test_the_command_prints_and_draws(arguments, tmp_path, request, monkeypatch):
    monkeypatch.chdir(request.config.rootpath)
    done = run(*arguments, "--out", str(tmp_path / "net.png"))
    assert done.exit_code == 0, done.output
    assert "bisection" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert (tmp_path / "net.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(run(*arguments, "--json").stdout)
    assert told["hosts"] == int(arguments[-1]) if arguments[-1].isdigit() else 3


def test_a_terminal_is_told_what_takes_time():
    done = CliRunner(env={"FORCE_COLOR": "1", "TERM": "xterm"}).invoke(group, ["topology", "--json"])
    assert json.loads(done.stdout)["hosts"] == 16
    assert "bisection" in done.stderr
    assert run("--json").stderr == ""


def test_a_graph_file_can_be_given_as_it_is(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"nodes": ring(4)["nodes"], "links": ring(4)["links"]}))
    assert json.loads(run(str(path), "--json").stdout)["switches"] == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--hosts", "17"), "--topology and --hosts: no even k makes 17 hosts; take 16 or 54"),
        (("missing.toml",), "missing.toml: No such file"),
        (("missing.json",), "missing.json: No such file"),
        (("ring.json", "--hosts", "4"), "--hosts: ring.json says what network it is; leave it out"),
        (("ring.json", "--topology", "star"), "--topology: ring.json says what network it is; leave it out"),
        (("ring.toml", "--rate", "10G"), "--rate: ring.toml says what network it is; leave it out"),
        (("ring.toml", "--oversubscription", "4"), "--oversubscription: ring.toml says what network it is; leave it"),
        (("--oversubscription", "4:0"), "'4:0' is not a ratio; write 4:1, 3:2 or 4"),
        (("--oversubscription", "much"), "'much' is not a ratio"),
        (("--oversubscription", "3:2"), "--oversubscription: a leaf of a fat tree has a whole number"),
        (("--uplink-rate", "400G", "--oversubscription", "1:8"), "--oversubscription: a leaf of a fat tree has a"),
        (("--pod-oversubscription", "4:1"), "--pod-oversubscription: must divide k / 2 = 2 and needs three tiers"),
        (("--pod-oversubscription", "3:2"), "--pod-oversubscription: must be a whole number to 1"),
        (("--tiers", "2", "--pod-oversubscription", "2", "--hosts", "8"), "--pod-oversubscription: two tiers have no"),
        (("--topology", "star", "--tiers", "2"), "--tiers: is for fat-tree, not for star; leave it out"),
        (("--spines", "2"), "--spines: is for leaf-spine or rail, not for fat-tree; leave it out"),
        (("--topology", "leaf-spine", "--spines", "2", "--oversubscription", "2"), "--spines and --oversubscription"),
        (("--topology", "leaf-spine", "--spines", "0"), "--spines: must be greater than or equal to 1"),
        (("--topology", "leaf-spine", "--hosts-per-leaf", "5"), "--hosts-per-leaf: 5 does not divide the 16"),
        (("--topology", "leaf-spine", "--hosts", "7", "--oversubscription", "4"), "--oversubscription: 7 hosts a leaf"),
        (("--topology", "rail", "--hosts-per-leaf", "8", "--spines", "0"), "several groups need spines; raise spines"),
        (("--uplink-rate", "5"), "--uplink-rate: must be greater than or equal to 1000000 bit/s"),
        (("--out", "/nowhere/net.png"), "--out: cannot write /nowhere/net.png"),
    ],
)
def test_a_wrong_call_is_told_in_a_sentence(arguments, sentence):
    done = run(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_half_of_an_odd_number_is_the_smaller_half():
    told = survey(build({"kind": "leaf-spine", "leaves": 1, "hosts_per_leaf": 5, "spines": 1}), is_regular=True)
    assert (told["bisection_bps"], told["bisection_of_half"]) == (2 * RATE, 1.0)
    assert np.isclose(told["hops"]["mean"], 2.0)

"""``ttpoe topology``: counts and measures against closed forms, drawings, and the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from test_deadlock import ring
from test_topology import DUAL, RAIL, build

from emulator.survey import survey
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


def run(*arguments: str):
    return CliRunner().invoke(group, ["topology", *arguments])


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

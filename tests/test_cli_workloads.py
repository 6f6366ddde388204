"""Workloads as ``ttpoe multipath`` and ``ttpoe run`` take them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from emulated import COMPILED

from ttpoe.cli import group

DATA = Path(__file__).parent / "data" / "workloads"


def run(*arguments: str):
    return CliRunner().invoke(group, ["multipath", "--transport", "roce-pfc", *arguments])


@COMPILED
@pytest.mark.parametrize(
    ("arguments", "flows"),
    [
        (("--workload", "incast"), 15),
        (("--workload", "outcast", "--peers", "3", "--jitter", "5us"), 3),
        (("--workload", "victim", "--size", "10kB"), 15),
        (("--workload", "hotspot", "--messages", "2"), 32),
        (("--workload", "all-to-all", "--size", "5kB", "--parallel", "3"), 240),
        (("--workload", "shifted-all-to-all", "--size", "5kB"), 240),
        (("--workload", "poisson", "--load", "40%", "--distribution", "alistorage", "--messages", "60"), 60),
        (("--workload", "poisson", "--size", "3kB", "--duration", "5us"), None),
        (("--workload", "poisson", "--size", "3kB", "--messages", "100", "--load", "150%"), 100),
        (("--workload", "ring-all-reduce", "--size", "100kB", "--compute", "1us"), 480),
        (("--workload", "tree-all-reduce", "--size", "100kB", "--chunks", "3"), 90),
        (("--flows", str(DATA / "permutation.cm")), 16),
    ],
    ids=lambda value: value[1].rpartition("/")[2] if isinstance(value, tuple) else None,
)
def test_each_workload_runs(arguments, flows):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.stdout)["runs"]
    assert told["finished"] == told["flows"] == (told["flows"] if flows is None else flows)
    assert (told["collective"] is not None) == ("all-to-all" in arguments[1] or "all-reduce" in arguments[1])
    assert bool(told["groups"]) == (arguments[1] in ("victim", "hotspot"))


@COMPILED
def test_an_overload_queues_what_it_offers():
    """At 150 % messages come faster than lines take them, so that slowdown grows with their number."""

    def slowdown(load: str, messages: str) -> float:
        done = run("--workload", "poisson", "--size", "30kB", "--load", load, "--messages", messages, "--json")
        return json.loads(done.stdout)["runs"][0]["slowdown_p99"]

    assert slowdown("150%", "2000") > 1.5 * slowdown("150%", "500")
    assert slowdown("1.5", "2000") > 3 * slowdown("50%", "2000")


@COMPILED
def test_rows_that_only_some_workloads_have(tmp_path):
    """In the table where they mean something, and nowhere else; no label is cut."""
    ring = run("--workload", "ring-all-reduce", "--repeat", "2").stdout
    assert "bus bandwidth, Gb/s" in ring
    poisson = run("--workload", "poisson", "--distribution", "hadoop", "--messages", "100").stdout
    assert "slowdown p99, above 1 MB" in poisson
    victim = run("--workload", "victim", "--out", str(tmp_path / "out")).stdout
    assert "FCT p50, victim, us" in victim
    permutation = run("--size", "10kB", "--frame-overhead", "peer").stdout
    assert "permutation on fat-tree of 16 hosts, frames without headers" in " ".join(permutation.split())
    for word in ("bandwidth", "victim", " kB  "):
        assert word not in permutation.replace("peak queue, kB", "")
    assert "…" not in ring + poisson + victim + permutation
    with open(tmp_path / "out" / "flows.csv") as file:
        assert [row["group"] for row in csv.DictReader(file)] == ["incast"] * 14 + ["victim"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--load", "0.5"), "--load: --workload permutation has no use for it; leave it out"),
        (("--workload", "poisson", "--peers", "3"), "--peers: --workload poisson has no use for it; leave it out"),
        (("--flows", "x.csv", "--workload", "incast"), "--flows and --workload both say who sends; give one of them"),
        (("--flows", "x.csv", "--size", "5"), "--size: --flows has no use for it; leave it out"),
        (("--flows", "none.csv"), "--flows: none.csv: No such file or directory"),
        (("--workload", "poisson", "--distribution", "uniform"), "--distribution: must be 'websearch', 'hadoop' or"),
        (("--workload", "poisson", "--load", "0"), "--load: "),
        (("--workload", "poisson", "--load", "401%"), "--load: must be less than or equal to 4"),
        (("--workload", "poisson", "--load", "heavy"), "'heavy' is not a load; write 0.4 or 40%, and above 100%"),
        (("--workload", "poisson", "--messages", "5", "--duration", "1us"), "both say where to end; give one of them"),
        (("--workload", "incast", "--peers", "16"), "--topology and --hosts: the workload names host 16"),
        (("--workload", "ring-all-reduce", "--size", "5"), "--size: 5 bytes cannot be cut in 16 chunks; raise it"),
        (("--workload", "burst"), "--workload"),
        (("--frame-overhead", "none"), "--frame-overhead"),
    ],
)
def test_what_is_wrong_is_named(arguments, sentence):
    done = run(*arguments)
    assert done.exit_code == 2
    assert sentence in done.output
    assert "Traceback" not in done.output

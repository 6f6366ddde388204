"""``ttpoe multipath`` as a user calls it."""

from __future__ import annotations

import csv
import json

import pytest
from click.testing import CliRunner
from emulated import COMPILED

from ttpoe.cli import group


def run(*arguments: str):
    return CliRunner().invoke(group, ["multipath", *arguments])


@COMPILED
def test_each_transport_with_each_routing_in_json(tmp_path):
    done = run("--size", "50kB", "--transport", "roce-pfc,ttpoe", "--routing", "ecmp,adaptive", "--json",
               "--out", str(tmp_path / "out"))  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [(r["transport"], r["routing"], r["finished"]) for r in told["runs"]] == [
        (transport, routing, 16) for transport in ("roce-pfc", "ttpoe") for routing in ("ecmp", "adaptive")
    ]
    keys = {(row["transport"], row["routing"], row["metric"]) for row in told["summary"]}
    assert ("ttpoe", "adaptive", "fct_us_p99") in keys
    assert (tmp_path / "out" / "multipath.png").stat().st_size > 10_000
    with open(tmp_path / "out" / "flows.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 16
    assert {row["routing"] for row in rows} == {"ecmp", "adaptive"}


@COMPILED
def test_five_routings_make_a_table_a_transport():
    done = run("--size", "20kB", "--transport", "roce-pfc", "--routing", "ecmp,flowlet,round-robin,random,adaptive")
    assert done.exit_code == 0, done.output
    assert "permutation on fat-tree of 16 hosts, roce-pfc" in done.stdout
    assert "round-robin" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--hosts", "17"), "--topology and --hosts: no even k makes 17 hosts; take 16 or 54"),
        (("--routing", "best"), "--routing: must be 'ecmp', 'weighted', 'flowlet', 'round-robin', 'random' or"),
        (("--routing", "ecmp,ecmp"), "--routing: name one or more of"),
        (("--transport", ""), "--transport: there is none"),
        (("--size", "0"), "--size"),
    ],
)
def test_what_is_wrong_is_named(arguments, sentence):
    done = run(*arguments)
    assert done.exit_code == 2
    assert sentence in done.output

"""``ttpoe multipath`` as a user calls it."""

from __future__ import annotations

import csv
import json
from io import StringIO

import pytest
from click.testing import CliRunner
from emulated import COMPILED
from rich.console import Console

from ttpoe.cli import group
from ttpoe.cli.tables import comparison


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


@COMPILED
def test_long_figures_make_fewer_columns():
    """Every cell is whole in 80 columns, however many flows there are and however long intervals are."""
    done = run("--size", "20kB", "--transport", "roce-pfc,irn,spectrum,ib", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    for each in told["runs"]:
        each["flows"] = each["finished"] = 261_632
    for row in told["summary"]:
        if row["metric"] == "paused_us":
            row["median"], row["ci95"] = 1_234_567.8, (1_234_567.8, 1_234_567.8)
    console = Console(width=80, file=StringIO())
    tables = comparison("a title", told)
    for table in tables:
        console.print(table)
    text = console.file.getvalue()
    assert text.count("261632/261632") == 4
    assert text.count("1,234,567.8 - 1,234,567.8") == 4
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


@COMPILED
def test_an_oversubscribed_network_takes_as_many_times_as_long():
    """Half of the hosts send to the other half over uplinks of a quarter of their rate."""

    def makespan(*network: str) -> float:
        done = run("--topology", "leaf-spine", "--hosts", "16", "--hosts-per-leaf", "8", "--workload", "permutation",
                   "--transport", "spectrum", "--seed", "3", *network, "--json")  # fmt: skip
        return json.loads(done.stdout)["runs"][0]["makespan_us"]

    assert makespan("--oversubscription", "8:1") > 2 * makespan("--oversubscription", "2:1")
    assert makespan("--spines", "4") == makespan("--oversubscription", "2:1")


@COMPILED
def test_rails_and_tiers_are_run():
    for network in (("--topology", "rail", "--nics", "2", "--hosts", "6"), ("--tiers", "2", "--hosts", "8")):
        done = run(*network, "--size", "20kB", "--transport", "roce-pfc", "--json")
        told = json.loads(done.stdout)["runs"][0]
        assert told["finished"] == told["flows"] == int(network[-1])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--hosts", "17"), "--topology and --hosts: no even k makes 17 hosts; take 16 or 54"),
        (("--tiers", "4"), "Invalid value for '--tiers': 4 is not in the range"),
        (("--nics", "2"), "--nics: is for rail, not for fat-tree; leave it out"),
        (("--hosts", "32", "--oversubscription", "4:1"), "--topology and --hosts: no even k makes 32 hosts; take 8"),
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

"""What docs/studies.md claims: who is hurt beside an incast and by what, and 255 flows each way on mixed speeds."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from emulator.bounds import frames_of
from emulator.config import ScenarioConfig, load_scenario
from emulator.fabric import Fabric
from emulator.results import RunResult
from ttpoe.units import PS_PER_MS, PS_PER_US

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "victim_study.py"


@cache
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("victim_study", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["victim_study"] = importlib.util.module_from_spec(spec)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@cache
def measured(name: str, far: int, seed: int = 1) -> dict[str, Any]:
    row: dict[str, Any] = study().measure(name, far, seed)
    return row


# --- a victim beside a growing incast ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "tolerance"), [("roce-pfc", 0.06), ("ib", 0.01)])
@pytest.mark.parametrize(("far", "seed"), [(2, 1), (2, 2), (8, 1), (16, 3)])
def test_spreading_is_what_the_ingress_shares_say(name, tolerance, far, seed):
    """The flow gets what each far sender of its uplink gets, and the near sender what its port may hold."""
    row, alone = measured(name, far, seed), measured(name, 0)
    assert row["flow_gbps"] == pytest.approx(row["flow_expected"] * alone["flow_gbps"], rel=tolerance)
    assert row["near_share"] == pytest.approx(row["near_expected"], rel=tolerance)
    assert row["uplink_paused"] > 0.6
    assert row["drops"] == 0


def test_the_near_sender_gets_many_fair_shares_under_pfc_and_fewer_under_credits():
    """Of ports, not of flows; and the buffer of a slow line is a small part of the queue."""
    assert measured("roce-pfc", 16, 3)["near_share"] > 5 / 17
    assert 2 / 17 < measured("ib", 16, 3)["near_share"] < 3 / 17
    assert measured("ib", 2)["near_share"] < 0.9 / 3
    assert measured("irn", 8)["near_share"] == pytest.approx(1 / 9, rel=0.1)


def test_the_flow_falls_as_the_incast_grows():
    for name in ("roce-pfc", "ib"):
        goodput = [measured(name, far)["flow_gbps"] for far in (0, 2, 8)]
        assert goodput[0] > 2 * goodput[1] > 4 * goodput[2]


def test_pauses_hurt_by_the_queue_that_is_shared():
    """In a priority of its own the flow passes the paused one, over the same uplink, paused as before."""
    own, shared = measured("roce-pfc, own priority", 8), measured("roce-pfc", 8)
    assert own["uplink_paused"] > 0.8 * shared["uplink_paused"] > 0.6
    assert own["flow_gbps"] == pytest.approx(measured("roce-pfc", 0)["flow_gbps"], rel=0.01)


def test_a_full_pool_hurts_without_any_pause():
    """Drop-tail: the burst loses frames of its own queue, up to what theory says of a full pool."""
    row, alone = measured("ttpoe", 8), measured("ttpoe", 0)
    assert (row["pauses"], row["burst_nics_paused"], row["flow_drops"]) == (0, 0, 0)
    assert row["drop_causes"]["queue_threshold"] == row["drops"]
    assert alone["burst_drops"] == 0
    queue_bytes, share = study().squeezed()
    assert 0.1 < row["burst_drop_share"] < 1.02 * share
    assert row["burst_us"] > 1.15 * alone["burst_us"]
    full = measured("ttpoe", 16, 2)
    assert full["pool_used"] > 0.85
    assert full["burst_drop_share"] == pytest.approx(share, rel=0.1)
    assert 0.98 * queue_bytes < 1000 * full["burst_queue_kb"] < 1000 * alone["burst_queue_kb"]


def test_memory_is_what_hurts_the_burst():
    """With a limit of each queue the incast cannot fill the pool; and windows by delay do not fill it at all."""
    assert measured("ttpoe, queues <= 1.5 MB", 8)["burst_drops"] == 0
    for name in ("ttpoe-swift", "irn", "roce-pfc", "ib"):
        row = measured(name, 8)
        assert row["burst_drops"] == 0
        assert row["burst_us"] == pytest.approx(measured(name, 0)["burst_us"], rel=0.02)
    assert measured("ttpoe-swift", 8)["pool_used"] < 0.1


def test_dcqcn_spares_the_flow():
    row = measured("roce-dcqcn, paper", 8)
    assert row["flow_gbps"] > 0.98 * measured("roce-dcqcn, paper", 0)["flow_gbps"]
    assert row["near_share"] == pytest.approx(1 / 9, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--senders", "4,x"), "give numbers with commas between them"),
        (("--senders", "99"), "from 0 to 17"),
        (("--seeds", "0"), "--seeds"),
        (("--out", "no/where.png"), "there is no directory no; make it"),
    ],
)
def test_the_script_refuses_in_a_sentence(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *arguments])
    with pytest.raises(SystemExit) as end:
        study().main()
    assert end.value.code == 2
    assert says in capsys.readouterr().err


# --- mixed speeds, two NICs, 255 flows --------------------------------------------------------------------------------

LINES_BPS = {"1:255": 2 * 100 * 10**9, "255:1": 2 * 25 * 10**9, "pair": 2 * 25 * 10**9}
"""Of both NICs of the host that all flows of a group share."""


@cache
def mixed() -> ScenarioConfig:
    return load_scenario(ROOT / "examples" / "mixed_fabric.toml")


@cache
def ran(transport: str, changed: str = "", **fields: Any) -> tuple[Fabric, RunResult, dict[str, float]]:
    """And by group: its last completion over what the shared host's lines take. ``fields`` of ``changed`` differ."""
    scenario = replace(mixed(), **{changed: replace(getattr(mixed(), changed), **fields)}) if changed else mixed()
    fabric = Fabric(scenario, transport, 1)
    result = fabric.run()
    over = {}
    for row in result.summary()["groups"]:
        kind = row["group"].removesuffix(" alone")
        size_bytes = 200_000 if kind == "1:255" else 100_000
        bound_us = 255 * frames_of(fabric, size_bytes).total * 8 / LINES_BPS[kind] * 1e6
        over[row["group"]] = row["fct_us"]["max"] / bound_us
    return fabric, result, over


@pytest.mark.parametrize("transport", mixed().transports)
def test_255_flows_each_way_on_mixed_speeds_finish(transport):
    _, result, over = ran(transport)
    assert len(result.flows) == 6 * 255
    assert result.unfinished == result.errors == []
    told = result.counters
    assert told["created"] == told["delivered"] + told["drops"] + told["lost"] + told["in_network"]
    assert min(over.values()) > 0.999
    assert over["1:255 alone"] < 1.03


def test_lossless_and_delay_based_transports_meet_the_bound_alone():
    for transport in ("roce-pfc", "ib", "ttpoe-swift"):
        over = ran(transport)[2]
        assert over["255:1 alone"] < 1.02
        assert over["pair alone"] < 1.02
        assert ran(transport)[1].counters["drops"] == 0
    assert 1.02 < ran("irn")[2]["255:1 alone"] < 1.3
    assert ran("irn")[1].counters["drops"] == 0
    for transport in ("ttpoe", "iwarp"):
        assert 1.05 < ran(transport)[2]["255:1 alone"] < 2
        assert ran(transport)[1].counters["drops"] > 0


def test_credits_let_hot_spots_hold_each_other_up():
    """PFC's switches have memory for it, and each hot spot keeps its own pace."""
    pfc, credits = ran("roce-pfc")[2], ran("ib")[2]
    for group in ("255:1", "pair"):
        assert pfc[group] < 1.03
        assert credits[group] > 1.4
    assert credits["1:255"] > 3


def test_little_on_the_way_leaves_little_to_spread():
    over = ran("ib", "roce", window_bytes=16_000)[2]
    assert max(over[group] for group in ("255:1", "pair")) < 1.03


def test_floors_of_timers_far_from_the_queues_cost_what_the_docs_say():
    """Too low, and what waits is sent again; too high, and a lost tail waits."""
    low = ran("ttpoe", "ttpoe", rto_min_ps=100 * PS_PER_US)
    assert low[1].unfinished == []
    assert low[2]["255:1"] > 2.5 * ran("ttpoe")[2]["255:1"]
    assert low[1].counters["timeouts"] > 10 * ran("ttpoe")[1].counters["timeouts"]
    high = ran("iwarp", "tcp", rto_min_ps=200 * PS_PER_MS)[1]
    assert high.unfinished == []
    assert 200 * PS_PER_MS < int(high.flows["fct_rx_ps"].max()) < 210 * PS_PER_MS


def test_both_nics_of_hosts_at_both_speeds_are_used_alike():
    fabric, result, _ = ran("roce-pfc")
    rates = {port["name"]: port["rate_bps"] for port in result.ports}
    hosts = ("h0.n0", "h127.n1", "h128.n0", "h255.n1")
    assert [rates[name] // 10**9 for name in hosts] == [100, 100, 25, 25]
    assert sorted({rate for name, rate in rates.items() if name.startswith("s")}) == [400 * 10**9]
    for which, end in ((slice(0, 255), 0), (slice(255, 510), 1), (slice(510, 765), 0)):
        assert sorted(Counter(fabric.flow_nics[which, end].tolist()).values()) == [127, 128]

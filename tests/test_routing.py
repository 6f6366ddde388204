"""Routing policies at a switch, and flows that cross a fabric."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from emulated import ALL, COMPILED, checked, flows, make, result_of, traced

from emulator.bounds import ideal_flow_ps
from emulator.config import ConfigError
from emulator.workloads.patterns import permutation

FAT_TREE = {"kind": "fat-tree", "k": 4}
POLICIES = ("ecmp", "flowlet", "round-robin", "random", "adaptive")
ONE_FLOW = flows((0, 15, 300_000), topology=FAT_TREE, tcp={"initial_window_packets": 1000},
                 ttpoe={"initial_window_packets": 1000, "target_delay_ps": "1ms"})  # fmt: skip
PERMUTATION = {"topology": FAT_TREE, "workload": {"kind": "permutation", "size_bytes": 100_000}}
UPLINKS = {"e0.0.p2", "e0.0.p3"}


@pytest.mark.parametrize("transport", ALL)
def test_a_flow_alone_takes_the_ideal_time(transport):
    result = result_of(ONE_FLOW, transport)
    assert result.flows["fct_rx_ps"][0] == result.flows["ideal_ps"][0] > 0


@pytest.mark.parametrize("routing", POLICIES)
@pytest.mark.parametrize("transport", ALL)
def test_all_finish_and_nothing_is_lost_from_the_books(transport, routing):
    result = checked({**PERMUTATION, "routings": [routing]}, transport)
    assert result.unfinished == []
    assert result.routing == routing
    assert result.errors == []


def sprayed(routing: str) -> Counter[str]:
    """Data frames that each uplink of the sender's edge switch took."""
    values = {**ONE_FLOW, "routings": [routing], "roce": {"rto_exponent": 20}}
    fabric, _, rows = traced(values, "roce-pfc", UPLINKS)
    rows = rows[(rows["is_out"] == 1) & (rows["kind"] == 0)]
    return Counter(fabric.topology.port_names[port] for port in rows["port"])


def test_ecmp_keeps_a_flow_on_one_path():
    assert len(sprayed("ecmp")) == 1


def test_round_robin_is_even():
    used = sprayed("round-robin")
    assert set(used) == UPLINKS
    assert abs(used["e0.0.p2"] - used["e0.0.p3"]) <= 1


def test_random_is_even_on_average():
    used = sprayed("random")
    total = sum(used.values())
    assert abs(used["e0.0.p2"] - total / 2) < 4 * (total / 4) ** 0.5


def test_a_flowlet_stays_while_its_flow_is_busy_and_moves_after_a_gap():
    assert len(sprayed("flowlet")) == 1
    far_apart = flows(*((0, 15, 4_096, 100_000_000 * k) for k in range(40)), topology=FAT_TREE)
    values = {**far_apart, "routings": ["flowlet"], "routing": {"flowlet_gap_ps": "50us"}}
    _, _, rows = traced(values, "roce-pfc", UPLINKS)
    rows = rows[(rows["is_out"] == 1) & (rows["kind"] == 0)]
    assert len(set(rows["port"])) == 2


def test_adaptive_evens_what_ecmp_collides():
    """Two flows of a switch towards others fill two uplinks; by hash they share one for half of the seeds."""
    two = flows((0, 15, 300_000), (1, 11, 300_000), topology=FAT_TREE)

    def worst_queue(routing: str, grade: int = 65_536) -> list[int]:
        values = {**two, "routings": [routing], "routing": {"grade_bytes": grade}}
        return [
            max(p["max_queue_bytes"] for p in result_of(values, "roce-pfc", seed).ports) for seed in range(12)
        ]

    collided = sum(queue > 100_000 for queue in worst_queue("ecmp"))
    assert 2 <= collided <= 10
    assert max(worst_queue("adaptive")) < 65_536 + 20_000
    assert max(worst_queue("adaptive", 1)) < 20_000


def test_adaptive_is_no_worse_than_random_where_senders_run_in_step():
    """A permutation over a whole fat tree: with queues told to the byte each sender keeps its path, as with ECMP."""
    spray = {"name": "spray", "base": "roce", "recovery": "reordering"}
    values = {"topology": {"kind": "fat-tree", "k": 8}, "workload": {"kind": "permutation", "size_bytes": 1_000_000},
              "frame_overhead": "peer"}  # fmt: skip

    def tail(routing: str, grade: int = 65_536) -> float:
        mine = {**values, "profiles": [{**spray, "routing": routing}], "routing": {"grade_bytes": grade}}
        return float(np.median([result_of(mine, "spray", seed).flows["fct_rx_ps"].max() for seed in range(1, 6)]))

    random = tail("random")
    assert tail("adaptive") < 1.02 * random
    assert tail("adaptive", 1) > 1.2 * random


def test_ecmp_spreads_flows_evenly():
    """Over the four paths between two pods, 400 flows: chi-squared with 3 degrees of freedom below its 99.9 % point."""
    many = flows(*((0, 15, 1_000, 2_000_000 * k) for k in range(400)), topology=FAT_TREE)
    _, _, rows = traced(many, "roce-pfc", {f"a0.{j}.p{n}" for j in (0, 1) for n in (2, 3)})
    rows = rows[(rows["is_out"] == 1) & (rows["kind"] == 0)]
    counts = np.array(list(Counter(rows["port"].tolist()).values()))
    assert counts.sum() == 400
    assert len(counts) == 4
    assert ((counts - 100) ** 2 / 100).sum() < 16.3


def test_permutation_is_a_derangement_that_the_seed_decides():
    for hosts in (2, 3, 16, 101):
        target = permutation(7, hosts)
        assert sorted(target) == list(range(hosts))
        assert all(host != to for host, to in enumerate(target))
    assert permutation(7, 16) != permutation(8, 16)


def test_messages_take_a_hosts_nics_in_turn_or_the_one_they_name():
    dual = {"kind": "dual-plane", "scale_out": FAT_TREE,
            "front_end": {"kind": "leaf-spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 1}}  # fmt: skip
    fabric = make(flows((0, 15, 5_000), (0, 15, 5_000), (0, 15, 5_000), topology=dual), "roce")
    assert fabric.flow_nics.tolist() == [[0, 30], [1, 31], [0, 30]]
    incast = flows(*((h, 15, 5_000) for h in range(6)), topology=dual)
    assert make(incast, "roce").flow_nics[:, 1].tolist() == [30, 31] * 3  # all NICs of the receiver are used
    named = flows((0, 15, 5_000), topology=dual)
    named["workload"]["flows"][0]["nic"] = 1
    fabric = make(named, "roce")
    result = fabric.run()
    assert result.unfinished == []
    used = {port["name"] for port in result.ports if port["tx_frames"]}
    assert used == {"h0.n1", "h15.n1"} | {name for name in used if name.startswith("f.")}
    assert result.flows["fct_rx_ps"][0] == ideal_flow_ps(fabric, 0)
    named["workload"]["flows"][0]["nic"] = 2
    with pytest.raises(ConfigError, match=r"workload: nic of h.*: there is no NIC 2"):
        make(named, "roce")


@COMPILED
@pytest.mark.parametrize("transport", ["roce-pfc", "ttpoe"])
def test_slices_and_captures_never_change_a_digest(transport):
    values = {**PERMUTATION, "routings": ["adaptive"]}
    whole = result_of(values, transport).digest
    assert make(values, transport).run(max_events=37).digest == whole
    assert traced(values, transport, UPLINKS)[1].digest == whole
    assert result_of({**values, "routings": ["random"]}, transport).digest != whole


@COMPILED
def test_lossless_across_switches_with_many_to_one():
    """15 to 1 through three tiers: pauses spread, nothing is lost, and the last is done at the receiver's line rate."""
    values = {**flows(*((k, 0, 200_000) for k in range(1, 16)), topology=FAT_TREE), "switch": {"buffer_bytes": "1MB"}}
    result = result_of(values, "roce-pfc")
    assert result.counters["drops"] == 0
    assert result.counters["pauses"] > 0
    assert any(port["xoffs_sent"] and port["name"].startswith(("a", "c")) for port in result.ports)
    makespan_ps = int(result.flows["fct_rx_ps"].max())
    assert result.wire_bound_ps <= makespan_ps < result.wire_bound_ps * 1.02


@COMPILED
@pytest.mark.parametrize("routing", ["ecmp", "random", "adaptive"])
@pytest.mark.parametrize(
    ("mtu", "reaction", "delay", "uplink"),
    [
        (256, "0us", "100ns", "100G"), (1024, "1us", "1us", "400G"), (4096, "3us", "5us", "40G"),
        (9000, "0us", "1us", "25G"),
    ],
)  # fmt: skip
def test_no_loss_at_the_headroom_bound_anywhere(mtu, reaction, delay, uplink, routing):
    """15 to 1, over mixed speeds, short and long links, slow reactions, one path and many; buffers of little more."""
    values = {
        **flows(*((k, 0, 150_000) for k in range(1, 16)), topology={**FAT_TREE, "uplink": {"rate_bps": uplink}}),
        "routings": [routing], "link": {"delay_ps": delay}, "roce": {"mtu_bytes": mtu, "window_bytes": "1MB"},
        "switch": {"buffer_bytes": "2MB", "pause_reaction_ps": reaction, "alpha": 0.0625}, "until_ps": "3ms",
    }  # fmt: skip
    result = result_of(values, "irn-pfc" if routing != "ecmp" else "roce-pfc")
    assert result.counters["drops"] == 0
    assert result.counters["pauses"] > 10
    assert result.errors == []

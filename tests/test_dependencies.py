"""Flows that wait for others, run: when they start, what a collective takes, and many flows at one host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated import ALL, COMPILED, checked, incast, make, result_of

from emulator.config import make_scenario
from emulator.engine import RunStatus
from emulator.framing import mtu_of

pytestmark = COMPILED

DATA = Path(__file__).parent / "data" / "workloads"
US = 10**6


def matrix(tmp_path: Path, text: str, **fields: Any) -> dict[str, Any]:
    """Plain values of a scenario of a connection matrix."""
    path = tmp_path / "load.cm"
    path.write_text(text)
    return {"workload": {"kind": "file", "path": str(path)}, **fields}


@pytest.mark.parametrize("transport", ALL)
def test_a_flow_starts_when_another_ends_where_it_says(tmp_path, transport):
    """At the instant of the last byte at the receiver, or of the last acknowledgement at the sender."""
    text = """0->1 id 1 start 0 size 50000 recv_done_trigger 1 send_done_trigger 2
1->2 id 2 trigger 1 size 3000
0->3 id 3 trigger 2 size 3000
4->5 id 4 start 1000 size 20000 recv_done_trigger 3
1->5 id 5 trigger 3 size 10
trigger id 1 oneshot
trigger id 2 oneshot
trigger id 3 barrier count 1
"""
    result = checked(matrix(tmp_path, text), transport, every=7)
    assert result.unfinished == []
    start, rx, tx = (result.flows[name].tolist() for name in ("start_ps", "fct_rx_ps", "fct_tx_ps"))
    assert start == [0, rx[0], tx[0], 1000, 1000 + rx[3]]
    assert tx[0] > rx[0]


def test_any_or_all_of_several(tmp_path):
    """A multishot's flows start one at each end; a barrier's with the last."""
    lines = [f"{h}->9 id {h} start 0 size {h}0000 recv_done_trigger 1 send_done_trigger 2" for h in (1, 2, 3)]
    lines += [f"4->{h} id {h} trigger 1 size 10" for h in (5, 6)]
    lines += ["7->8 id 9 trigger 2 size 10", "trigger id 1 multishot", "trigger id 2 barrier count 3"]
    result = result_of(matrix(tmp_path, "\n".join(lines)), "roce")
    flows = result.flows
    assert sorted(flows["start_ps"][3:5].tolist()) == sorted(flows["fct_rx_ps"][:3].tolist())[:2]
    assert flows["start_ps"][5] == flows["fct_tx_ps"][:3].max()


def test_what_waits_for_a_flow_that_fails_is_told(tmp_path):
    text = "0->1 id 1 start 0 size 5000 recv_done_trigger 1\n1->2 id 2 trigger 1 size 10\ntrigger id 1 oneshot\n"
    lost = {"links": [{"hosts": [0], "bad_fcs_frames": list(range(1, 4000))}]}
    result = result_of(matrix(tmp_path, text, topology=lost, ttpoe={"retry_limit": 2}), "ttpoe")
    assert result.status is RunStatus.EMPTY
    assert result.unfinished == ["h0>h1 (retry_limit)", "h1>h2 (not started)"]
    assert result.flows["start_ps"].tolist() == [0, -1]


def test_a_thousand_flows_start_at_one_end(tmp_path):
    """More than an event may otherwise add to the queue."""
    n = 1000
    lines = ["0->1 id 1 start 0 size 10 recv_done_trigger 1", "trigger id 1 oneshot"]
    lines += [f"{2 + k}->{2 + (k + 1) % n} id {k + 2} trigger 1 size 100" for k in range(n)]
    result = checked(matrix(tmp_path, "\n".join(lines)), "roce", every=100)
    assert result.unfinished == []
    assert set(result.flows["start_ps"][1:].tolist()) == {int(result.flows["fct_rx_ps"][0])}


@pytest.mark.parametrize("transport", ["ttpoe", "roce-pfc"])
@pytest.mark.parametrize("compute_us", [0, 3])
def test_a_ring_takes_its_steps(transport, compute_us):
    """Chunk after chunk: 2 (N-1) ideal times and N-1 computations, and ACKs of the next chunk share each line."""
    hosts, size = 8, 800_000
    values = {"topology": {"kind": "star", "hosts": hosts},
              "workload": {"kind": "ring", "size_bytes": size, "compute_ps": compute_us * US}}  # fmt: skip
    result = checked(values, transport)
    told = result.summary()
    ideal_ps = int(result.flows["ideal_ps"][0])
    expected_us = (2 * (hosts - 1) * ideal_ps + (hosts - 1) * compute_us * US) / US
    acks = 88 / 1108 if transport == "ttpoe" else 86 / 4178
    assert expected_us <= told["makespan_us"] <= (1 + acks) * expected_us
    collective = told["collective"]
    assert collective["algorithm_gbps"] == pytest.approx(size * 8 / told["makespan_us"] / 1000)
    assert collective["bus_gbps"] == pytest.approx(collective["algorithm_gbps"] * 2 * 7 / 8)
    assert collective["bus_gbps"] < 100
    assert result.counters["resent_packets"] == 0


def test_links_of_a_collective_are_open():
    """No OPEN: a chunk alone takes its ideal time, which has no handshake."""
    values = {"topology": {"kind": "star", "hosts": 2}, "workload": {"kind": "ring", "size_bytes": 2000}}
    result = result_of(values, "ttpoe")
    assert result.flows["fct_rx_ps"].min() == result.flows["ideal_ps"][0]
    assert result.flows["ideal_ps"][0] < 3 * US  # two cables of 1 us and a frame; a handshake takes four more


def test_chunks_shorten_a_tree():
    def makespan(chunks: int) -> float:
        values = {"topology": {"kind": "star", "hosts": 15},
                  "workload": {"kind": "tree", "size_bytes": "4MB", "chunks": chunks}}  # fmt: skip
        return result_of(values, "roce-pfc").summary()["makespan_us"]

    whole, cut = makespan(1), makespan(16)
    inner_us = 2 * 4_000_000 * 8 / 100_000  # an inner host receives all of it from two
    assert cut < 0.6 * whole
    assert cut > inner_us


def test_shifted_all_to_all_beats_naive():
    def result(order: str) -> Any:
        values = {"topology": {"kind": "star", "hosts": 12},
                  "workload": {"kind": "all-to-all", "order": order, "size_bytes": 100_000}}  # fmt: skip
        return result_of(values, "roce-pfc").summary()

    naive, shifted = result("naive"), result("shifted")
    assert shifted["max_queue_bytes"] < 0.2 * naive["max_queue_bytes"]
    assert shifted["makespan_us"] < 0.8 * naive["makespan_us"]
    assert 60 < shifted["collective"]["bus_gbps"] < 98


@pytest.mark.parametrize("transport", ALL)
@pytest.mark.parametrize("kind", ["incast", "outcast"])
def test_255_flows_at_one_host(transport, kind):
    """Either way round, and with little memory: a link keeps slots for what it sends, not for a whole window."""
    field = "senders" if kind == "incast" else "receivers"
    values = {"workload": {"kind": kind, field: 255, "size_bytes": 64_000}}
    fabric = make(values, transport)
    result = fabric.run()
    assert result.unfinished == []
    assert fabric.world.ring.nbytes < 255 * 64 * 24 * 2 + 10_000
    if kind == "outcast":
        assert result.counters["drops"] == 0
        goodput = result.flows["size_bytes"] / result.flows["fct_rx_ps"]
        assert goodput.min() > 0.8 * goodput.max()


def test_poisson_bins_and_no_loss_from_the_books():
    values = {"topology": {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 2},
              "workload": {"kind": "poisson", "distribution": "hadoop", "load": 0.6, "messages": 400}}  # fmt: skip
    result = checked(values, "roce-pfc", every=5000)
    told = result.summary()
    assert [row["bin"] for row in told["size_bins"]] == ["to 10 kB", "to 100 kB", "to 1 MB", "above 1 MB"]
    assert sum(row["flows"] for row in told["size_bins"]) == 400
    slowdown = result.flows["fct_rx_ps"] / result.flows["ideal_ps"]
    small = slowdown[result.flows["size_bytes"] <= 10_000]
    assert told["size_bins"][0]["slowdown_p99"] in small
    assert slowdown.min() >= 1


def test_groups_are_told_apart():
    values = {"workload": {"kind": "victim", "senders": 8, "size_bytes": 500_000}, "switch": {"buffer_bytes": "2MB"}}
    told = {t: {row["group"]: row for row in result_of(values, t).summary()["groups"]} for t in ("roce-pfc", "ttpoe")}
    assert all(set(groups) == {"incast", "victim"} for groups in told.values())
    assert told["roce-pfc"]["victim"]["slowdown_p50"] > 3  # its NIC is paused for the incast's sake
    assert told["roce-pfc"]["incast"]["flows"] == 8


# --- frames as peers count them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ALL)
def test_peer_frames_are_their_payload(transport):
    """One flow alone takes its ideal time, and n of them n payloads at line rate after the first frame's way."""
    open_window = {"initial_window_packets": 10_000, "target_delay_ps": "1s", "handshake": False}
    peer = {"frame_overhead": "peer", "tcp": {"initial_window_packets": 10_000}}
    alone = result_of(incast(1, 1_000_000, ttpoe={**open_window, "handshake": True}, **peer), transport)
    assert alone.flows["fct_rx_ps"][0] == alone.flows["ideal_ps"][0]
    result = checked(incast(6, 500_000, ttpoe=open_window, **peer), transport)
    assert result.counters["drops"] == 0
    mtu = mtu_of(transport, make_scenario({"ttpoe": {"mode": "ipv4"}}))
    expected = 6 * 500_000 * 80 + mtu * 80 + 2 * US
    assert result.wire_bound_ps == expected
    assert expected <= result.flows["fct_rx_ps"].max() <= 1.001 * expected
    assert result.summary()["goodput_limit_gbps"] == 100
    port = next(port for port in result.ports if port["name"] == "h1")
    assert port["tx_bytes"] == 500_000
    assert next(port for port in result.ports if port["name"] == "h0")["tx_bytes"] % 64 == 0


def test_peer_frames_cannot_be_captured():
    from emulator.quantities import ConfigError

    with pytest.raises(ConfigError, match="frame_overhead"):
        make(incast(1, 1000, frame_overhead="peer"), "roce", capture=frozenset({"h0"}))


def test_a_matrix_of_htsim_on_a_fat_tree():
    values = {"topology": {"kind": "fat-tree", "hosts": 16},
              "workload": {"kind": "file", "path": str(DATA / "permutation.cm")}}  # fmt: skip
    result = result_of(values, "roce-pfc")
    assert result.unfinished == []
    assert (np.sort(result.flows["dst"]) == np.arange(16)).all()

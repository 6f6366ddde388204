"""Selective resending: IRN by its paper, in-NIC reordering by our reading, go-back-0 by what is told of it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, examples, flows, incast, make, result_of, traced
from hypothesis import given, settings
from hypothesis import strategies as st
from rocepair import RTO_HIGH_PS, RTO_LOW_PS, SLOTS, US, Pair, ack, carry

from emulator.config import ConfigError
from emulator.engine import RunStatus
from emulator.framing import message_wire_bytes
from emulator.packet import ANSWER, DATA
from emulator.roce import PSN_MASK, SYNDROME_ACK, SYNDROME_NAK_SEQUENCE, WRITE_ONLY, wire_bytes
from ttpoe.units import NEVER

KINDS = ["selective", "reordering"]


def psns(packets: list[np.ndarray]) -> list[int]:
    return [int(packet["psn"][0]) for packet in packets]


def answer_of(packet: np.ndarray | None) -> tuple[int, int, int | None]:
    """Syndrome, PSN, and the PSN told behind them."""
    assert packet is not None
    sack = int(packet["msn"][0]) >> 24 if packet["payload_bytes"][0] else None
    return int(packet["syndrome"][0]), int(packet["psn"][0]), sack


def finish(pair: Pair) -> None:
    """Carry everything over a good line."""
    carry(pair, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_packet_out_of_order_is_placed_and_told(kind: str) -> None:
    pair = Pair(5000, recovery=kind, psn=PSN_MASK)
    sent = pair.send_all()
    assert {int(p["opcode"][0]) for p in sent} == {WRITE_ONLY}
    assert answer_of(pair.give(1, sent[0])) == (SYNDROME_ACK, PSN_MASK, None)
    told = (SYNDROME_NAK_SEQUENCE, 0) if kind == "selective" else (SYNDROME_ACK, PSN_MASK)
    assert answer_of(pair.give(1, sent[2])) == (*told, 1)
    assert answer_of(pair.give(1, sent[4])) == (*told, 3)
    assert answer_of(pair.give(1, sent[2])) == (SYNDROME_ACK, PSN_MASK, None)  # again
    assert answer_of(pair.give(1, sent[1])) == (SYNDROME_ACK, 1, None)
    assert answer_of(pair.give(1, sent[3])) == (SYNDROME_ACK, 3, None)
    assert pair.qps["rx_bytes"][1] == 5000
    assert pair.qps["duplicates_received"][1] == 1
    assert not pair.bits.any()


@pytest.mark.parametrize("lost", [{k for k in range(7) if bits >> k & 1} for bits in range(1, 2**6)])
def test_each_pattern_of_losses_costs_what_was_lost(lost: set[int]) -> None:
    """Seven packets of which the last arrives, so that it tells of all before it: each lost one is resent, once."""
    pair = Pair(7000, recovery="selective", psn=PSN_MASK - 3)
    answers = [pair.give(1, packet) for k, packet in enumerate(pair.send_all()) if k not in lost]
    for answer in answers:
        assert answer is not None
        pair.give(0, answer)
    finish(pair)
    assert pair.qps["una"][0] == 7
    assert pair.qps["rx_bytes"][1] == 7000
    assert pair.qps["packets_resent"][0] == len(lost)
    assert pair.qps["timeouts"][0] == 0
    assert pair.qps["duplicates_received"][1] == 0
    assert not pair.bits.any()


def test_recovery_resends_in_order_then_goes_on_with_new_packets() -> None:
    """Section 3.1: the first is what the NAK names, others only if a later packet is known to have come."""
    pair = Pair(20_000, recovery="selective", window=10_000)
    sent = pair.send_all()
    assert len(sent) == 10
    answers = [pair.give(1, packet) for k, packet in enumerate(sent) if k not in (2, 5, 8)]
    assert answers[0] is not None
    pair.give(0, answers[0])
    pair.give(0, answers[1])  # type: ignore[arg-type]
    assert psns(pair.send_all()) == [10, 11]
    pair.give(0, answers[2])  # type: ignore[arg-type]  # a NAK of 2, told by 3
    assert pair.selective["recovery"][0] == 11
    assert psns(pair.send_all()) == [2]  # the window is full
    pair.give(0, answers[3])  # type: ignore[arg-type]
    pair.give(0, answers[4])  # type: ignore[arg-type]  # told by 6
    assert psns(pair.send_all()) == [5]
    for answer in answers[5:]:
        pair.give(0, answer)  # type: ignore[arg-type]
    assert psns(pair.send_all()) == [8]
    assert pair.selective["is_recovering"][0] == 1
    pair.give(0, ack(11))
    assert pair.selective["is_recovering"][0] == 0
    assert psns(pair.send_all()) == list(range(12, 20))


def test_a_resend_that_is_lost_waits_for_the_timer() -> None:
    pair = Pair(8000, recovery="selective")
    sent = pair.send_all()
    naks = [pair.give(1, packet) for packet in sent[1:]]
    for nak in naks:
        pair.give(0, nak)  # type: ignore[arg-type]
    assert psns(pair.send_all()) == [0]
    assert pair.qps["timer_at_ps"][0] == RTO_HIGH_PS
    pair.timeout()
    assert psns(pair.send_all()) == [0]
    assert pair.qps["timeouts"][0] == 1


@pytest.mark.parametrize(("packets", "rto_ps"), [(1, RTO_LOW_PS), (3, RTO_LOW_PS), (4, RTO_HIGH_PS), (9, RTO_HIGH_PS)])
def test_few_packets_in_flight_have_a_short_timeout(packets: int, rto_ps: int) -> None:
    """RTO_low while no more than N = 3 are in flight, counted from the first; RTO_high else."""
    pair = Pair(packets * 1000, recovery="selective")
    pair.now_ps = 7
    pair.send()
    pair.now_ps = 9
    pair.send_all()
    assert pair.qps["timer_at_ps"][0] == 7 + rto_ps
    if packets > 3:
        pair.give(0, ack(packets - 4))
        assert pair.qps["timer_at_ps"][0] == 9 + RTO_LOW_PS


@given(st.permutations(range(8)))
@examples(150)
def test_reordering_alone_resends_nothing(order: list[int]) -> None:
    """In-NIC reordering: whatever the order, within the time for it."""
    pair = Pair(8000, recovery="reordering", psn=PSN_MASK - 2)
    sent = pair.send_all()
    answers = [pair.give(1, sent[k]) for k in order]
    assert all(answer_of(answer)[0] == SYNDROME_ACK for answer in answers)
    for answer in answers:
        pair.give(0, answer)  # type: ignore[arg-type]
    assert pair.send() is None
    assert (pair.qps["una"][0], pair.qps["packets_resent"][0]) == (8, 0)
    assert pair.qps["timer_at_ps"][0] == NEVER
    assert not pair.bits.any()


def test_gaps_that_stay_are_told_together_after_a_while() -> None:
    """What was missing when the clock began is lost when it ends; what went missing since has a clock of its own."""
    pair = Pair(20_000, recovery="reordering")
    sent = pair.send_all()
    for k, now_us in ((0, 0), (2, 10), (5, 10), (9, 50), (13, 60)):
        pair.now_ps = now_us * US
        answer = pair.give(1, sent[k])
        assert answer_of(answer)[0] == SYNDROME_ACK
        pair.give(0, answer)  # type: ignore[arg-type]
    assert pair.qps["timer_at_ps"][1] == 110 * US
    assert pair.send() is None
    nak = pair.missed()
    assert answer_of(nak) == (SYNDROME_NAK_SEQUENCE, 1, 2)
    pair.give(0, nak)
    assert psns(pair.send_all()) == [1]
    nak = pair.missed()
    assert answer_of(nak) == (SYNDROME_NAK_SEQUENCE, 1, 13)  # 100 us later, of all that came by then
    pair.give(0, nak)
    again = pair.send_all()
    assert psns(again) == [1, 3, 4, 6, 7, 8, 10, 11, 12]  # 1 as well, whose resend did not come
    for packet in again:
        answer = pair.give(1, packet)
    assert answer_of(answer) == (SYNDROME_ACK, 13, None)
    assert pair.qps["timer_at_ps"][1] == NEVER


def test_a_lost_tail_under_reordering_costs_one_timeout() -> None:
    """Nothing came to tell of it: all that is not known to have come goes out again, and new packets after it."""
    pair = Pair(10_000, recovery="reordering", window=7000)
    sent = pair.send_all()
    pair.give(0, pair.give(1, sent[2]))  # type: ignore[arg-type]
    pair.timeout()
    again = pair.send_all()
    assert psns(again) == [0, 1, 3, 4, 5, 6]
    for packet in again:
        pair.give(0, pair.give(1, packet))  # type: ignore[arg-type]
    last = pair.send_all()
    assert psns(last) == [7, 8, 9]
    for packet in last:
        pair.give(0, pair.give(1, packet))  # type: ignore[arg-type]
    assert (pair.qps["una"][0], pair.qps["timeouts"][0], pair.qps["timer_at_ps"][0]) == (10, 1, NEVER)
    assert not pair.bits.any()


@given(
    st.sampled_from(KINDS), st.integers(1, 40), st.sampled_from([0, 1, PSN_MASK - 5, PSN_MASK]), st.integers(1, 4),
    st.integers(1, SLOTS), st.lists(st.sampled_from(["ok", "ok", "ok", "lose", "twice", "late"]), max_size=200),
)  # fmt: skip
@settings(max_examples=300)
def test_everything_arrives_once(
    kind: str, packets: int, psn: int, every: int, window: int, fates: list[str]
) -> None:
    """Over a line that loses, repeats and delays frames in both directions, until its bad days are over."""
    size = packets * 1000 - 7
    pair = Pair(size, psn=psn, every=every, window=max(window, every) * 1000, recovery=kind)
    pair.params["retry_limit"] = 1000
    carry(pair, fates)
    assert pair.qps["una"][0] == packets
    assert pair.qps["rx_bytes"][1] == size
    assert pair.qps["expected"][1] == packets
    assert pair.qps["failure"][0] == 0
    assert not pair.bits.any()


@pytest.mark.parametrize("recovery", ["go-back-n", "go-back-0", *KINDS])
def test_a_good_line_needs_no_resend(recovery: str) -> None:
    pair = Pair(30_000, recovery=recovery, window=8_000, every=2)
    finish(pair)
    assert pair.qps["una"][0] == 30
    assert pair.qps["packets_resent"][0] == 0


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3))
@examples(50)
def test_go_back_0_begins_again(lost: list[int]) -> None:
    """A gap takes the responder and the requester back to the message's first packet."""
    pair = Pair(6000, recovery="go-back-0", psn=PSN_MASK)
    for which in lost:
        answers = [pair.give(1, packet) for k, packet in enumerate(pair.send_all()) if k != which]
        naks = [answer for answer in answers if answer is not None]
        if not naks:  # of a first packet, again: a gap is told once
            pair.timeout()
            continue
        assert answer_of(naks[-1])[:2] == (SYNDROME_NAK_SEQUENCE, PSN_MASK)
        assert pair.qps["rx_bytes"][1] == 0
        for nak in naks:
            pair.give(0, nak)
        assert pair.qps["una"][0] == 0
    assert psns(pair.send_all()) == [PSN_MASK, 0, 1, 2, 3, 4]
    pair.timeout()
    finish(pair)
    assert (pair.qps["rx_bytes"][1], pair.qps["msn"][1]) == (6000, 1)


@COMPILED
def test_go_back_0_delivers_nothing_where_go_back_n_is_healthy() -> None:
    """Guo et al. 2016, section 4.1: one loss in 256 packets, messages of 4 MB in packets of 1 KB, a busy line."""
    values = incast(
        1, 4_000_000, roce={"mtu_bytes": 1024}, until_ps="20ms",
        topology={"links": [{"hosts": [1], "impaired_ways": "from_host", "impairments": {"loss_every": 256}}]},
        profiles=[{"name": "back-0", "base": "roce", "recovery": "go-back-0"}],
    )  # fmt: skip
    healthy, lost = result_of(values, "roce"), result_of(values, "back-0")
    assert lost.status is RunStatus.UNTIL
    assert lost.flows["fct_rx_ps"].tolist() == [-1]
    sender = next(port for port in lost.ports if port["name"] == "h1")
    assert sender["tx_bytes"] * 80 > 0.9 * 20e9  # of 20 ms at 100 Gb/s
    assert healthy.unfinished == []
    assert healthy.summary()["goodput_gbps"] > 0.6 * healthy.goodput_limit_gbps  # type: ignore[operator]


@pytest.mark.parametrize("transport", ["irn", "irn-pfc", "spectrum"])
def test_a_flow_alone_takes_the_ideal_time(transport: str) -> None:
    """Each packet has a RETH; the window of one product of bandwidth and delay does not show."""
    result = result_of(incast(1, 1_000_000), transport)
    wire = wire_bytes(WRITE_ONLY, 4096) * 244 + wire_bytes(WRITE_ONLY, 1_000_000 - 244 * 4096)
    last = int(wire_bytes(WRITE_ONLY, 1_000_000 - 244 * 4096))
    assert result.flows["fct_rx_ps"].tolist() == result.flows["ideal_ps"].tolist()
    assert result.flows["fct_rx_ps"][0] >= wire * 80 + 2 * US + last * 80


@pytest.mark.parametrize("way", ["star", "fat-tree"])
def test_the_window_is_a_product_of_bandwidth_and_delay(way: str) -> None:
    """One packet less and a flow alone would take longer."""
    topology: dict[str, Any] = {"kind": way} if way == "star" else {"kind": way, "hosts": 16}
    values = flows((0, 9, 2_000_000), topology=topology)
    fabric = make(values, "irn")
    window = int(fabric.world.qps["window_packets"][0]) * 4096
    result = fabric.run()
    unlimited = result_of(values | {"roce": {"window_bytes": 2**27}}, "irn")
    narrower = result_of(values | {"roce": {"window_bytes": window - 4096}}, "irn")
    assert result.flows["fct_rx_ps"][0] == unlimited.flows["fct_rx_ps"][0]
    assert narrower.flows["fct_rx_ps"][0] > result.flows["fct_rx_ps"][0]


def test_the_window_is_by_the_slowest_line_of_a_flows_own_way() -> None:
    """The longest round trip, in packets of that line: a slow host's senders need fewer to keep it busy."""
    links = [{"hosts": [0], "rate_bps": "25G"}]
    values = flows((1, 0, 2_000_000), (2, 3, 2_000_000), topology={"kind": "star", "hosts": 4, "links": links})
    fabric = make(values, "irn")
    slow, fast = fabric.world.qps["window_packets"][0::2].tolist()
    assert 4 * (slow - 1) < fast <= 4 * slow
    result = fabric.run()
    assert result.flows["fct_rx_ps"].tolist() == result.flows["ideal_ps"].tolist()
    unlimited = result_of(values | {"roce": {"window_bytes": 2**27}}, "irn")
    assert result.flows["fct_rx_ps"].tolist() == unlimited.flows["fct_rx_ps"].tolist()


def test_irn_needs_no_pauses_and_resends_what_was_dropped() -> None:
    result = result_of(incast(40, 200_000, switch={"buffer_bytes": "1MB"}), "irn")
    assert result.unfinished == []
    assert result.counters["pauses"] == 0
    assert result.counters["drops"] > 0
    assert result.counters["resent_packets"] < 1.5 * result.counters["drops"]
    same = result_of(incast(40, 200_000, switch={"buffer_bytes": "1MB"}), "roce")
    assert same.counters["resent_packets"] > 2 * result.counters["resent_packets"]


@pytest.mark.parametrize("transport", ["roce-pfc", "irn", "spectrum"])
def test_spraying_and_who_minds(transport: str) -> None:
    """Frames that overtake each other are losses to go-back-N and IRN; a NIC that reorders resends nothing."""
    topology = {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 8, "spines": 4}
    values = flows(*((k, 8 + k, 1_000_000) for k in range(8)), topology=topology, routings=["random"])
    result = result_of(values, transport)
    assert result.unfinished == []
    assert result.counters["drops"] == 0
    assert (result.counters["resent_packets"] == 0) == (transport == "spectrum")


def test_spectrum_routes_each_packet_and_beats_one_path() -> None:
    """A permutation over four spines, by default adaptive; `routings` says otherwise."""
    topology = {"kind": "leaf-spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 4}
    values: dict[str, Any] = {"workload": {"kind": "permutation", "size_bytes": 2_000_000}, "topology": topology}
    runs = {routing: make(values, "spectrum", routing=routing).run() for routing in (None, "ecmp")}
    assert runs[None].routing == "adaptive"
    adaptive, ecmp = (run.summary()["slowdown_p99"] for run in runs.values())
    assert adaptive < 1.1 < ecmp
    assert runs[None].counters["resent_packets"] == 0


def test_a_loss_under_reordering_costs_its_time_and_one_packet() -> None:
    values = incast(1, 4_000_000, topology={"links": [{"hosts": [1], "bad_fcs_frames": [100]}]})
    result = result_of(values, "spectrum")
    assert result.counters["resent_packets"] == 1
    frame_ps = 4194 * 80
    assert result.flows["fct_rx_ps"][0] == result.flows["ideal_ps"][0] + frame_ps  # the rest goes on meanwhile


def test_losses_under_reordering_are_repaired_without_a_timeout() -> None:
    """Though nothing more comes: the receiver's clock runs on."""
    impaired = {"hosts": [1], "impaired_ways": "from_host", "impairments": {"loss_every": 50}}
    result = result_of(incast(1, 4_000_000, topology={"links": [impaired]}), "spectrum")
    assert result.flows["timeouts"].tolist() == [0]
    assert result.flows["fct_rx_ps"][0] < result.flows["ideal_ps"][0] + 3 * 110 * US
    assert result.counters["resent_packets"] < 1.2 * 977 / 50 + 5


def test_what_is_told_on_the_line() -> None:
    """A NAK with the PSN that came behind it: 4 bytes more than an ACK."""
    values = incast(1, 100_000, topology={"links": [{"hosts": [1], "bad_fcs_frames": [5]}]})
    fabric, result, rows = traced(values, "irn", {"h1"})
    initial = int(fabric.world.qps["initial_psn"][0])
    sent = rows[(rows["is_out"] == 1) & (rows["kind"] == DATA)]["frame"]["tx_seq"]
    assert sorted((int(psn) - initial) & PSN_MASK for psn in sent) == sorted([*range(25), 4])
    naks = rows[(rows["kind"] == ANSWER) & (rows["frame"]["vc"] == SYNDROME_NAK_SEQUENCE)]["frame"]
    assert {(int(psn) - initial) & PSN_MASK for psn in naks["tx_seq"]} == {4}
    told = [((int(msn) >> 24) - initial) & PSN_MASK for msn in naks["rx_seq"]]
    assert told == list(range(5, 5 + len(told)))
    assert len(naks) > 3
    assert (naks["payload_bytes"] == 4).all()
    assert result.counters["resent_packets"] == 1


def test_a_window_beyond_the_bits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^roce\.window_bytes: irn keeps track of 65536 packets; lower it to"):
        make(incast(1, 10**9, roce={"window_bytes": 2**30}), "irn")


@pytest.mark.parametrize(
    ("recovery", "control", "flow"),
    list(product(["go-back-n", "go-back-0", "selective", "reordering"], ["none", "dcqcn"], ["none", "pfc"])),
)
def test_parts_combine(recovery: str, control: str, flow: str) -> None:
    """Each recovery with each congestion control and each flow control, from one scenario."""
    own = {"name": "own", "base": "roce", "recovery": recovery, "congestion_control": control, "flow_control": flow}
    result = result_of(incast(8, 200_000, profiles=[own]), "own")
    assert result.transport == "own"
    assert result.unfinished == []
    assert (result.counters["marks_received"] > 0) == (control == "dcqcn")
    frames = message_wire_bytes(1, 4096, 200_000).sum() * 8
    assert result.wire_bound_ps is not None
    assert result.wire_bound_ps >= frames * 80

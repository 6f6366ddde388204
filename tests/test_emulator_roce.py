"""RoCEv2 reliable connections against the rules of the InfiniBand Architecture Specification, chapter 9."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import flows, incast, make, result_of, traced
from hypothesis import given, settings
from hypothesis import strategies as st
from rocepair import RTO_PS, US, Pair, ack, carry, psn_diff, write

from emulator import roce
from emulator.engine import RunStatus
from emulator.packet import ANSWER, DATA
from emulator.roce import (
    ACKNOWLEDGE,
    MAX_OUTSTANDING_PACKETS,
    PSN_MASK,
    ROCE_FRAME,
    SYNDROME_ACK,
    SYNDROME_NAK_SEQUENCE,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_MIDDLE,
    WRITE_ONLY,
)  # fmt: skip
from ttpoe.state import FRAME, Failure
from ttpoe.units import NEVER


def test_a_row_of_either_protocol_fits_the_same_memory() -> None:
    assert ROCE_FRAME.itemsize == FRAME.itemsize


@given(st.integers(0, PSN_MASK), st.integers(-(2**23), 2**23 - 1))
def test_psn_distance_is_signed_and_wraps(psn: int, distance: int) -> None:
    assert psn_diff((psn + distance) & PSN_MASK, psn) == distance


@pytest.mark.parametrize(
    ("size", "opcodes", "lengths"),
    [
        (1, [WRITE_ONLY], [1]),
        (1000, [WRITE_ONLY], [1000]),
        (1001, [WRITE_FIRST, WRITE_LAST], [1000, 1]),
        (3500, [WRITE_FIRST, WRITE_MIDDLE, WRITE_MIDDLE, WRITE_LAST], [1000, 1000, 1000, 500]),
    ],
)
def test_a_message_is_cut_into_first_middle_last(size: int, opcodes: list[int], lengths: list[int]) -> None:
    """IBTA 9.4.1.1: only, or first, middle and last; all but the last as long as the path's MTU."""
    sent = Pair(size, psn=PSN_MASK).send_all()
    assert [int(p["opcode"][0]) for p in sent] == opcodes
    assert [int(p["payload_bytes"][0]) for p in sent] == lengths
    assert [int(p["psn"][0]) for p in sent] == [(PSN_MASK + k) & PSN_MASK for k in range(len(sent))]


def test_each_request_is_acknowledged_with_its_psn_and_the_message_count() -> None:
    pair = Pair(2500, psn=PSN_MASK)
    answers = [pair.give(1, packet) for packet in pair.send_all()]
    assert [a is not None and a[0].tolist() for a in answers] == [
        (ACKNOWLEDGE, SYNDROME_ACK, PSN_MASK, 0, 0),
        (ACKNOWLEDGE, SYNDROME_ACK, 0, 0, 0),
        (ACKNOWLEDGE, SYNDROME_ACK, 1, 1, 0),  # MSN counts completed messages
    ]
    for answer in answers:
        assert answer is not None
        assert pair.give(0, answer) is None
    assert pair.qps["una"][0] == 3
    assert pair.qps["timer_at_ps"][0] == NEVER
    assert pair.qps["rx_bytes"][1] == 2500


def test_acknowledging_every_third_packet_and_the_last() -> None:
    pair = Pair(8000, every=3)
    answers = [pair.give(1, packet) for packet in pair.send_all()]
    assert [k for k, a in enumerate(answers) if a is not None] == [2, 5, 7]


def test_an_acknowledgement_is_cumulative_and_old_ones_change_nothing() -> None:
    pair = Pair(5000)
    pair.send_all()
    pair.give(0, ack(2))
    assert pair.qps["una"][0] == 3
    for stale in (ack(1), ack(2), ack(-1), ack(5), ack(1, SYNDROME_NAK_SEQUENCE)):
        before = int(pair.qps["una"][0]), int(pair.qps["next"][0])
        pair.give(0, stale)
        assert (int(pair.qps["una"][0]), int(pair.qps["next"][0])) == before
    assert pair.qps["dropped_stale"][0] == 4  # two below una, one beyond what was sent, a NAK below una


def test_a_gap_is_nakked_once_until_the_expected_packet_comes() -> None:
    """IBTA 9.7.5.2.8: NAK sequence error names the expected PSN; further gaps are silent until it arrives."""
    pair = Pair(10_000, psn=100)
    assert pair.give(1, write(102)) is not None
    nak = pair.out[0].tolist()
    assert nak == (ACKNOWLEDGE, SYNDROME_NAK_SEQUENCE, 100, 0, 0)
    assert pair.give(1, write(103)) is None
    assert pair.give(1, write(104)) is None
    assert pair.give(1, write(100, WRITE_FIRST)) is not None
    assert pair.out[0].tolist() == (ACKNOWLEDGE, SYNDROME_ACK, 100, 0, 0)
    assert pair.give(1, write(105)) is not None  # a new episode
    assert pair.out[0].tolist() == (ACKNOWLEDGE, SYNDROME_NAK_SEQUENCE, 101, 0, 0)
    assert pair.qps["naks_sent"][1] == 2
    assert pair.qps["rx_bytes"][1] == 1000


def test_a_duplicate_is_acknowledged_with_the_last_psn_in_order() -> None:
    """IBTA 9.7.5.1.4.3: a duplicate WRITE is not executed again; its ACK names the last completed request."""
    pair = Pair(10_000, psn=PSN_MASK - 1)
    for k in range(3):
        pair.give(1, write(PSN_MASK - 1 + k))
    assert pair.give(1, write(PSN_MASK - 1)) is not None
    assert pair.out[0].tolist() == (ACKNOWLEDGE, SYNDROME_ACK, 0, 0, 0)
    assert pair.qps["duplicates_received"][1] == 1
    assert pair.qps["rx_bytes"][1] == 3000


def test_a_nak_goes_back_and_acknowledges_what_is_before_it() -> None:
    pair = Pair(6000, psn=PSN_MASK - 1)
    pair.send_all()
    pair.give(0, ack(PSN_MASK + 1, SYNDROME_NAK_SEQUENCE))
    assert pair.qps["una"][0] == 2
    assert pair.qps["timer_at_ps"][0] == NEVER
    sent = pair.send_all()
    assert [int(p["psn"][0]) for p in sent] == [0, 1, 2, 3]
    assert pair.qps["packets_resent"][0] == 4
    assert pair.qps["bytes_resent"][0] == 4000
    assert pair.qps["timer_at_ps"][0] == pair.now_ps + RTO_PS


def test_an_acknowledgement_skips_what_was_about_to_be_resent() -> None:
    pair = Pair(6000)
    pair.send_all()
    pair.give(0, ack(0, SYNDROME_NAK_SEQUENCE))
    pair.send()
    pair.give(0, ack(3))
    assert int(pair.send()["psn"][0]) == 4  # type: ignore[index]


def test_the_timer_restarts_on_progress_only() -> None:
    pair = Pair(5000)
    pair.send()
    pair.now_ps = 10 * US
    pair.send()
    assert pair.qps["timer_at_ps"][0] == RTO_PS  # of the oldest
    pair.now_ps = 20 * US
    pair.give(0, ack(0))
    assert pair.qps["timer_at_ps"][0] == 20 * US + RTO_PS
    pair.now_ps = 30 * US
    pair.give(0, ack(0))
    assert pair.qps["timer_at_ps"][0] == 20 * US + RTO_PS
    pair.timeout(20 * US + RTO_PS - 1)
    assert pair.qps["timeouts"][0] == 0


@pytest.mark.parametrize("limit", [1, 7])
def test_the_retry_limit(limit: int) -> None:
    """The limit is of retries: one more timeout and the queue pair fails; progress forgets them."""
    pair = Pair(2000, retries=limit)
    pair.send_all()
    for _ in range(limit):
        pair.timeout()
        assert pair.qps["failure"][0] == 0
        assert len(pair.send_all()) == 2
    pair.give(0, ack(0))
    for _ in range(limit):
        pair.timeout()
        assert pair.qps["failure"][0] == 0
        assert len(pair.send_all()) == 1
    pair.timeout()
    assert pair.qps["failure"][0] == Failure.RETRY_LIMIT
    assert pair.send() is None
    assert pair.qps["timer_at_ps"][0] == NEVER


def test_the_window_counts_unacknowledged_payload() -> None:
    pair = Pair(10_000, window=3500)
    assert len(pair.send_all()) == 3
    pair.give(0, ack(0))
    assert len(pair.send_all()) == 1
    pair.give(0, ack(3))
    assert len(pair.send_all()) == 3


def test_without_a_window_psns_limit_what_is_outstanding() -> None:
    """24-bit PSNs tell new from old only within half of their space."""
    pair = Pair(2**40, mtu=1)
    pair.qps["max"][0] = pair.qps["next"][0] = MAX_OUTSTANDING_PACKETS - 1
    assert pair.send() is not None
    assert pair.send() is None
    pair.give(0, ack(0))
    assert pair.send() is not None
    assert MAX_OUTSTANDING_PACKETS < 2**23


@given(st.integers(1, 30), st.sampled_from([0, 1, PSN_MASK - 5, PSN_MASK]), st.integers(1, 4), st.integers(1, 12),
       st.lists(st.sampled_from(["ok", "ok", "ok", "lose", "twice", "late"]), max_size=200))  # fmt: skip
@settings(max_examples=300)
def test_everything_arrives_once_and_in_order(
    packets: int, psn: int, every: int, window: int, fates: list[str]
) -> None:
    """Over a line that loses, repeats and delays frames in both directions, until its bad days are over."""
    size = packets * 1000 - 7
    pair = Pair(size, psn=psn, every=every, window=max(window, every) * 1000, retries=7)
    pair.params["retry_limit"] = 1000
    carry(pair, fates)
    assert pair.qps["una"][0] == packets
    assert pair.qps["rx_bytes"][1] == size
    assert pair.qps["expected"][1] == packets
    assert pair.qps["msn"][1] == 1
    assert pair.qps["failure"][0] == 0


def lossy(lost: dict[int, list[int]], **fields: Any) -> dict[str, Any]:
    """Fields of a star where some frames of some hosts arrive damaged."""
    links = [{"hosts": [host], "bad_fcs_frames": frames} for host, frames in lost.items()]
    return {"topology": {"links": links}, **fields}


PATH_PS = (4194 * 80 + US) * 2


@pytest.mark.parametrize("exponent", [1, 8, 14, 20])
def test_the_timeout_is_4096_ns_times_a_power_of_two(exponent: int) -> None:
    values = incast(1, 4096, **lossy({1: [1]}, roce={"rto_exponent": exponent}))
    flow = result_of(values, "roce").flows[0]
    assert flow["fct_rx_ps"] == 4_096_000 * 2**exponent + PATH_PS
    assert (flow["timeouts"], flow["resent_packets"], flow["drops"]) == (1, 1, 0)


def test_exponent_zero_is_no_timeout() -> None:
    """IBTA 9.7.6.1.3: a timeout field of zero disables the timer; the run says that nothing will happen any more."""
    result = result_of(incast(1, 4096, **lossy({1: [1]}, roce={"rto_exponent": 0})), "roce")
    assert result.status is RunStatus.EMPTY
    assert result.unfinished == ["h1>h0"]
    assert result.counters["lost"] == 1


def test_seven_retries_then_the_flow_fails() -> None:
    values = incast(2, 4096, **lossy({1: list(range(1, 100))}, roce={"rto_exponent": 8}))
    result = result_of(values, "roce")
    assert result.status is RunStatus.FINISHED
    assert result.unfinished == ["h1>h0 (retry_limit)"]
    assert result.flows["timeouts"].tolist() == [8, 0]
    assert result.flows["resent_packets"].tolist() == [7, 0]
    assert result.flows["fct_rx_ps"][0] == -1
    assert result.end_ps == 8 * 4_096_000 * 256
    assert result.counters["lost"] == 8


def test_a_lost_last_packet_costs_a_timeout_a_lost_middle_one_a_round_trip() -> None:
    """Nothing after the last packet can show the gap."""
    took = {}
    for lost in (10, 5):
        flow = result_of(incast(1, 40_960, **lossy({1: [lost]})), "roce").flows[0]
        took[lost] = int(flow["fct_rx_ps"] - flow["ideal_ps"])
    assert RTO_PS < took[10] < RTO_PS + 10 * US
    assert 0 < took[5] < 10 * US


def test_go_back_n_on_the_line() -> None:
    """The PSNs leaving the sender: in order, then again from the lost one once the NAK is there."""
    values = incast(1, 40 * 4096, **lossy({1: [5]}))
    fabric, result, rows = traced(values, "roce", {"h1"})
    initial = int(fabric.world.qps["initial_psn"][0])
    sent = rows[(rows["is_out"] == 1) & (rows["kind"] == DATA)]
    psns = [(p - initial) & PSN_MASK for p in sent["frame"]["tx_seq"].tolist()]
    naks = rows[(rows["is_out"] == 0) & (rows["frame"]["vc"] == SYNDROME_NAK_SEQUENCE)]
    assert len(naks) == 1
    assert (int(naks["frame"]["tx_seq"][0]) - initial) & PSN_MASK == 4
    assert psns.count(4) == 2
    back = psns.index(4, 5)  # the resend
    assert psns == [*range(back), *range(4, 40)]
    assert sent["time_ps"][back - 1] < naks["time_ps"][0] <= sent["time_ps"][back]
    assert result.counters["resent_packets"] == back - 4
    assert result.flows["timeouts"][0] == 0


def test_psns_wrap_in_a_run() -> None:
    """A message across PSN 2^24 with a loss on each side of the wrap takes as long as any other."""
    times = []
    for psn in (PSN_MASK - 20, 1000):
        fabric = make(incast(1, 60 * 4096, **lossy({1: [15, 40]})), "roce")
        fabric.world.qps["initial_psn"] = psn
        result = fabric.run()
        assert result.unfinished == []
        times.append(result.flows["fct_rx_ps"][0])
    assert times[0] == times[1]


def test_what_acknowledgements_are_saved() -> None:
    """With one ACK for 4 packets a quarter of the answers cross the path, and the message takes as long."""
    runs = {every: result_of(incast(1, 100 * 4096, roce={"ack_every_packets": every}), "roce") for every in (1, 4)}
    answers = {every: run.counters["packet_hops"] - run.counters["data_hops"] for every, run in runs.items()}
    assert answers == {1: 200, 4: 50}
    assert runs[1].flows["fct_rx_ps"][0] == runs[4].flows["fct_rx_ps"][0]


def test_opcodes_and_message_count_in_a_capture() -> None:
    values = flows((0, 1, 10_000), (0, 1, 100))
    _, _, rows = traced(values, "roce-pfc", {"h1"})
    data = rows[(rows["kind"] == DATA) & (rows["end"] == 1)]
    assert data["frame"]["opcode"].tolist() == [WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST]
    assert rows[(rows["kind"] == DATA) & (rows["end"] == 3)]["frame"]["opcode"].tolist() == [WRITE_ONLY]
    answers = rows[(rows["kind"] == ANSWER) & (rows["end"] == 0)]
    assert answers["frame"]["opcode"].tolist() == [ACKNOWLEDGE] * 3
    assert answers["frame"]["rx_seq"].tolist() == [0, 0, 1]
    assert (rows["priority"] == 3).all()


@given(size=st.integers(0, 9000))
def test_bytes_on_the_line(size: int) -> None:
    """Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, padding to 4; RETH 16; AETH 4; minimum 60; FCS 4; line 20."""
    padded = -(-size // 4) * 4
    assert roce.wire_bytes(WRITE_MIDDLE, size) == max(58 + padded, 60) + 24
    assert roce.wire_bytes(WRITE_LAST, size) == max(58 + padded, 60) + 24
    assert roce.wire_bytes(WRITE_FIRST, size) == 74 + padded + 24
    assert roce.wire_bytes(WRITE_ONLY, size) == 74 + padded + 24
    assert roce.wire_bytes(ACKNOWLEDGE, 0) == 86

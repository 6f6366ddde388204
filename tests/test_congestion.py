"""Congestion windows by hand: RFC 5681, 3465, 6928 in numbers; payloads of 100 bytes, round trips of 100 us."""

from __future__ import annotations

import pytest
from world import Rig

from ttpoe import machine
from ttpoe.fsm import Opcode
from ttpoe.state import Failure
from ttpoe.units import NEVER

Op = Opcode
US = 1_000_000
MTU = 100
RTT = 100 * US
RENO = {
    "congestion_control": "reno", "mtu_bytes": MTU, "window_bytes": 100_000, "rto_initial_ps": 1000 * US,
    "rto_min_ps": 300 * US, "rto_max_ps": 100_000 * US, "retry_limit": 50,
}  # fmt: skip


def reno(packets: int = 10, **params) -> Rig:
    """A link that has much to send; its first id is 1001."""
    rig = Rig(**{**RENO, "initial_window_packets": packets, **params})
    rig.feed(Op.OPEN, 500)
    rig.submit(50_000)
    return rig


def packets(rig: Rig, name: str = "cwnd_bytes") -> float:
    return rig[name] / MTU


def send(rig: Rig) -> list[int]:
    """Ids that go out now."""
    return [seq for seq, _ in rig.poll()]


def in_turn(rig: Rig, seqs: list[int]) -> list[int]:
    """A round trip later each is acknowledged; returns the ids that this lets out."""
    rig.now_ps += RTT
    out = []
    for seq in seqs:
        rig.feed(Op.ACK, 0, seq)
        out += send(rig)
    return out


# The start (RFC 6928) and slow start (RFC 5681, 3.1)


@pytest.mark.parametrize("first", [1, 3, 10])
def test_the_initial_window(first):
    rig = reno(first)
    assert send(rig) == list(range(1001, 1001 + first))
    assert rig["ssthresh_bytes"] == NEVER


def test_slow_start_doubles_each_round_trip():
    rig = reno()
    out = send(rig)
    for expected in (10, 20, 40, 80):
        assert len(out) == expected == packets(rig)
        out = in_turn(rig, out)
    assert packets(rig) == 160


@pytest.mark.parametrize(("last", "grown"), [(1001, 1), (1002, 2), (1003, 2), (1010, 2)])
def test_an_acknowledgement_of_many_counts_for_two(last, grown):
    """RFC 3465, 2.2: L is two."""
    rig = reno()
    send(rig)
    rig.feed(Op.ACK, 0, last)
    assert packets(rig) == 10 + grown


def test_short_payloads_grow_it_by_their_bytes():
    rig = Rig(**RENO)
    rig.feed(Op.OPEN, 500)
    for seq in range(1001, 1011):
        rig.submit(60)
        rig.poll()
        assert rig["tx_max"] == seq + 1
    rig.feed(Op.ACK, 0, 1001)
    assert rig["cwnd_bytes"] == 1060


@pytest.mark.parametrize("answer", ["nothing", "OPEN_ACK"])
def test_after_a_lost_open_the_window_is_one(answer):
    """RFC 5681, 3.1; the threshold is not touched."""
    rig = Rig(**RENO)
    rig.open()
    rig.submit(1000)
    rig.timeout()
    rig.timeout()
    rig.feed(Op.OPEN_ACK, 501, 1000)
    assert send(rig) == [1001]
    assert in_turn(rig, [1001]) == [1002, 1003]
    assert rig["ssthresh_bytes"] == NEVER


# A loss (RFC 5681, 3.2 and 4.3; RFC 6582)


def lossy() -> Rig:
    """1001 to 1010 are out, and 1001 is missed: the window is halved, and five go out again."""
    rig = reno()
    send(rig)
    rig.now_ps += RTT
    rig.feed(Op.NACK, 0, 1001)
    return rig


def test_a_loss_halves_what_was_in_flight():
    rig = lossy()
    assert (packets(rig), packets(rig, "ssthresh_bytes")) == (5, 5)
    assert send(rig) == [1001, 1002, 1003, 1004, 1005]  # go-back-N, within the window


def test_what_a_nack_acknowledges_is_no_longer_in_flight():
    rig = reno()
    send(rig)
    rig.feed(Op.NACK, 0, 1005)
    assert (packets(rig), packets(rig, "ssthresh_bytes")) == (3, 3)
    assert send(rig) == [1005, 1006, 1007]


@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_the_threshold_is_two_at_least(first):
    rig = reno(first)
    send(rig)
    rig.feed(Op.NACK, 0, 1001)
    assert packets(rig, "ssthresh_bytes") == 2
    assert packets(rig) == min(first, 2)  # a loss never opens the window


def test_half_an_odd_flight():
    rig = reno(7)
    send(rig)
    rig.feed(Op.NACK, 0, 1001)
    assert rig["cwnd_bytes"] == 350
    assert send(rig) == [1001, 1002, 1003]


def test_congestion_avoidance_grows_by_one_for_each_window_acknowledged():
    rig = lossy()
    out = send(rig)
    for expected in (5, 6, 7, 8):
        assert len(out) == expected == packets(rig)
        out = in_turn(rig, out)
    assert packets(rig) == 9


def test_a_loss_forgets_what_was_counted_towards_the_next_growth():
    rig = lossy()
    in_turn(rig, send(rig)[:4])
    assert rig["ca_acked_bytes"] == 400
    rig["min_rtt_ps"] = rig["srtt_ps"] = US
    rig.feed(Op.NACK, 0, 1005)
    assert rig["ca_acked_bytes"] == 0


def test_congestion_avoidance_counts_every_byte():
    """RFC 3465, 2.1: after any number of acknowledgements nothing is rounded away."""
    rig = Rig(**{**RENO, "initial_window_packets": 20})
    rig.feed(Op.OPEN, 500)
    rig["ssthresh_bytes"] = 2 * MTU
    cwnd, counted = 2000, 0
    seq = 1000
    for k in range(4000):
        size = 1 + (37 * k + 60) % 100
        while packets(rig) * MTU - (rig["sent_bytes"] - rig["acked_bytes"]) >= MTU:
            rig.submit(size)
            rig.poll()
        before = rig["acked_bytes"]
        seq += 1
        rig.feed(Op.ACK, 0, seq)
        counted += rig["acked_bytes"] - before
        if counted >= cwnd:
            counted -= cwnd
            cwnd += MTU
        assert (rig["cwnd_bytes"], rig["ca_acked_bytes"]) == (cwnd, counted)
    assert cwnd > 4000


@pytest.mark.parametrize(("later_us", "expected"), [(0, 5), (99, 5), (100, 2.5)])
def test_a_loss_of_what_was_sent_within_a_round_trip_of_another_is_of_the_same_window(later_us, expected):
    """RFC 9002, 7.3.2. A resend that is lost later than that is a second sign (RFC 5681, 4.3)."""
    rig = reno()
    rig["min_rtt_ps"], rig["srtt_ps"] = 50 * US, RTT
    send(rig)
    rig.now_ps += RTT
    rig.feed(Op.NACK, 0, 1001)
    rig.now_ps += later_us * US
    assert len(send(rig)) == 5
    rig.now_ps += RTT
    rig.feed(Op.NACK, 0, 1001)
    assert (packets(rig), packets(rig, "ssthresh_bytes")) == (expected, expected)
    assert len(send(rig)) == int(expected)  # sent again all the same


def test_a_loss_in_the_next_window_is_a_second_sign():
    rig = reno()
    rig["min_rtt_ps"], rig["srtt_ps"] = 50 * US, RTT
    send(rig)
    rig.feed(Op.NACK, 0, 1001)
    out = in_turn(rig, send(rig))
    assert out == list(range(1006, 1012))
    rig.now_ps += RTT
    rig.feed(Op.NACK, 0, 1007)
    assert packets(rig) == 2.5


# A timeout


def test_a_timeout_starts_again_with_one():
    rig = reno()
    send(rig)
    rig.timeout()
    assert (packets(rig), packets(rig, "ssthresh_bytes")) == (1, 5)
    assert send(rig) == [1001]
    out = in_turn(rig, [1001])
    assert out == [1002, 1003]
    out = in_turn(rig, out)
    assert packets(rig) == len(out) == 4
    rig.feed(Op.ACK, 0, out[0])
    assert packets(rig) == 5  # the threshold: from here on one each window
    rig.feed(Op.ACK, 0, out[1])
    assert packets(rig) == 5


def test_a_second_timeout_of_the_same_id_holds_the_threshold():
    rig = reno()
    send(rig)
    for _ in range(3):
        rig.timeout()
        assert send(rig) == [1001]
        assert (packets(rig), packets(rig, "ssthresh_bytes")) == (1, 5)
    rig.feed(Op.ACK, 0, 1001)
    send(rig)
    rig.timeout()
    assert packets(rig, "ssthresh_bytes") == 2


def test_an_acknowledgement_of_many_counts_for_one_after_a_timeout():
    """RFC 3465, 2.3: the receiver may have had them all along."""
    rig = reno()
    send(rig)
    rig.timeout()
    send(rig)
    rig.feed(Op.ACK, 0, 1001)
    send(rig)
    rig.feed(Op.ACK, 0, 1010)
    assert packets(rig) == 3


def test_a_nack_after_a_timeout_does_not_open_the_window():
    rig = reno()
    rig["min_rtt_ps"] = rig["srtt_ps"] = US
    send(rig)
    rig.timeout()
    send(rig)
    rig.now_ps += RTT
    rig.feed(Op.NACK, 0, 1001)
    assert packets(rig) == 1


def test_a_nack_of_what_a_timeout_has_sent_again_does_not_lower_the_threshold_further():
    rig = reno()
    rig["min_rtt_ps"], rig["srtt_ps"] = US, RTT
    send(rig)
    rig.timeout()
    send(rig)
    rig.now_ps += RTT
    rig.feed(Op.NACK, 0, 1001)
    assert (packets(rig), packets(rig, "ssthresh_bytes")) == (1, 5)


# The tail (RFC 8985, 7.4)


@pytest.mark.parametrize(("wait_us", "expected"), [(100, 5), (99, 11)])
def test_a_probe_that_repaired_a_loss_is_a_sign_and_one_that_was_needless_is_not(wait_us, expected):
    rig = Rig(**RENO, tail_loss_probe=True)
    rig.feed(Op.OPEN, 500)
    rig["min_rtt_ps"] = rig["srtt_ps"] = RTT
    rig.submit(1000)
    assert len(send(rig)) == 10
    rig.timeout()
    assert send(rig) == [1010]
    rig.now_ps += wait_us * US
    rig.feed(Op.ACK, 0, 1010)
    assert packets(rig) == expected if expected == 5 else packets(rig) > 10


def test_a_nack_in_answer_to_a_probe_halves_once():
    rig = Rig(**RENO, tail_loss_probe=True)
    rig.feed(Op.OPEN, 500)
    rig["min_rtt_ps"] = rig["srtt_ps"] = RTT
    rig.submit(1000)
    send(rig)
    rig.timeout()
    send(rig)
    rig.now_ps += RTT
    rig.feed(Op.NACK, 0, 1009)
    assert (packets(rig), send(rig)) == (2, [1009, 1010])
    rig.now_ps += RTT
    rig.feed(Op.ACK, 0, 1010)
    assert (packets(rig), packets(rig, "ssthresh_bytes")) == (3, 2)  # a whole window was acknowledged


# Idling and underuse


@pytest.mark.parametrize(("idle_us", "window"), [(301, 10), (300, 20)])
def test_idle_for_more_than_a_timeout_starts_again(idle_us, window):
    """RFC 5681, 4.1: counted from the last payload sent."""
    rig = Rig(**RENO)
    rig.feed(Op.OPEN, 500)
    rig.submit(1000)
    out = send(rig)
    sent_at_ps = rig.now_ps
    assert in_turn(rig, out) == []
    assert packets(rig) > 10
    rig["cwnd_bytes"], rig["rto_ps"] = 20 * MTU, 300 * US
    rig.now_ps = sent_at_ps + idle_us * US
    rig.submit(5000)
    assert len(send(rig)) == packets(rig) == window


def test_slow_answers_are_no_idling():
    """More than a timeout since the last payload, but others are still out."""
    rig = Rig(**RENO)
    rig.feed(Op.OPEN, 500)
    rig.submit(1000)
    out = send(rig)
    for seq in out[:3]:
        rig.now_ps += 200 * US
        rig.feed(Op.ACK, 0, seq)
    rig["cwnd_bytes"], rig["rto_ps"] = 20 * MTU, 300 * US
    rig.submit(5000)
    assert len(send(rig)) == 13


def test_idling_never_opens_the_window():
    rig = Rig(**RENO)
    rig.feed(Op.OPEN, 500)
    rig.submit(100)
    in_turn(rig, send(rig))
    rig["cwnd_bytes"] = 3 * MTU
    rig.now_ps += 10**6 * US
    rig.submit(5000)
    assert len(send(rig)) == 3


def test_a_window_less_than_half_in_use_does_not_grow():
    rig = Rig(**RENO)
    rig.feed(Op.OPEN, 500)
    for _ in range(50):
        rig.submit(4 * MTU)
        in_turn(rig, send(rig))
    assert packets(rig) == 10
    rig.submit(5 * MTU)
    rig.feed(Op.ACK, 0, send(rig)[0])
    assert packets(rig) == 11


def test_the_transmit_memory_bounds_it():
    rig = reno(window_bytes=20 * MTU)
    out = send(rig)
    for _ in range(10):
        out = in_turn(rig, out)
    assert (len(out), packets(rig)) == (20, 41)  # the first that is more than twice of it


# What is no sign of congestion


def test_a_full_peer_is_no_congestion():
    rig = reno()
    send(rig)
    rig.feed(Op.NACK_FULL, 0, 1001)
    rig.timeout()
    assert send(rig) == [1001]
    rig.feed(Op.NACK_FULL, 0, 1001)
    assert (packets(rig), rig["ssthresh_bytes"]) == (10, NEVER)


def test_a_fixed_window_hears_of_nothing():
    rig = Rig(mtu_bytes=MTU, window_bytes=10 * MTU, tail_loss_probe=True, retry_limit=50)
    rig.feed(Op.OPEN, 500)
    rig.submit(50_000)
    assert len(send(rig)) == 10
    rig.feed(Op.ACK, 0, 1003)
    rig.feed(Op.NACK, 0, 1005)
    assert send(rig) == list(range(1005, 1015))
    rig.timeout()
    assert send(rig) == list(range(1005, 1015))
    rig.now_ps += 10**9 * US
    assert (rig["cwnd_bytes"], rig["ssthresh_bytes"], rig["ca_acked_bytes"]) == (NEVER, NEVER, 0)
    assert rig.failure is Failure.NONE


def test_a_window_never_forbids_the_first_frame():
    """Whatever came before: with nothing in flight no answer would ever open it."""
    rig = reno(1)
    for _ in range(40):
        send(rig)
        rig.timeout()
        assert machine.poll_payload_at(rig.links, 0, rig.ring, rig.pools, 0, rig.params, rig.now_ps, rig.out, 0) == 1
        rig.now_ps += RTT
        rig.feed(Op.NACK, 0, rig["tx_una"])

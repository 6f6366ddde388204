"""Retransmission: RFC 6298 by hand, go-back-N to the id and the byte, windows, the retry limit."""

from __future__ import annotations

import pytest
from world import Rig

from ttpoe import machine
from ttpoe.fsm import Opcode, State
from ttpoe.state import Failure, init_links, make_params, ring_slots
from ttpoe.units import NEVER

Op = Opcode
US = 1_000_000
TIMES = {"rto_initial_ps": 1000 * US, "rto_min_ps": 10 * US, "rto_max_ps": 100_000 * US}


def opened(**params) -> Rig:
    rig = Rig(**params)
    rig.feed(Op.OPEN, 500)
    return rig


def trip(rig: Rig, rtt_ps: int) -> None:
    """One PAYLOAD and its ACK, ``rtt_ps`` later."""
    rig.submit(10)
    ((seq, _),) = rig.poll()
    rig.now_ps += rtt_ps
    rig.feed(Op.ACK, 0, seq)


# RFC 6298


def test_timeout_of_the_first_and_of_later_samples():
    rig = opened(**TIMES)
    assert rig["rto_ps"] == 1000 * US
    trip(rig, 100 * US)  # 2.2: srtt R, rttvar R / 2, rto srtt + 4 rttvar
    assert (rig["srtt_ps"], rig["rttvar_ps"], rig["rto_ps"]) == (100 * US, 50 * US, 300 * US)
    trip(rig, 60 * US)  # 2.3: rttvar 3/4 50 + 1/4 |100 - 60|, then srtt 7/8 100 + 1/8 60
    assert (rig["srtt_ps"], rig["rttvar_ps"], rig["rto_ps"]) == (95 * US, 47_500_000, 285 * US)
    trip(rig, 200 * US)
    assert (rig["srtt_ps"], rig["rttvar_ps"], rig["rto_ps"]) == (108_125_000, 61_875_000, 355_625_000)
    assert rig["min_rtt_ps"] == 60 * US


def test_a_path_without_variance_keeps_a_margin():
    """A timeout of exactly one round trip would fire on the rounding of srtt."""
    rig = opened(**TIMES)
    for _ in range(200):
        trip(rig, 1000 * US)
    assert rig["rttvar_ps"] == 0
    assert rig["rto_ps"] == rig["srtt_ps"] * 9 // 8 > 1100 * US


def test_timeout_has_a_floor_and_a_ceiling():
    rig = opened(**TIMES)
    for _ in range(60):
        trip(rig, 3 * US)
    assert rig["rto_ps"] == 10 * US > rig["srtt_ps"] + 4 * rig["rttvar_ps"]
    rig = opened(**TIMES)
    trip(rig, 90_000 * US)
    assert (rig["rto_ps"], rig["srtt_ps"] + 4 * rig["rttvar_ps"]) == (100_000 * US, 270_000 * US)


def test_backing_off_doubles_to_the_ceiling():
    rig = opened(**TIMES, retry_limit=20)
    rig.submit(10)
    rig.poll()
    waits = []
    for _ in range(9):
        before = rig.now_ps
        rig.timeout()
        waits.append((rig.now_ps - before) // US)
        rig.poll()
    assert waits == [1000, 2000, 4000, 8000, 16000, 32000, 64000, 100_000, 100_000]
    assert rig["timeouts"] == rig["retries"] == 9


def test_an_acknowledgement_of_what_was_resent_is_no_sample():
    """Karn. But it is progress, which undoes the back-off: the timeout is what the samples say again."""
    rig = opened(**TIMES)
    trip(rig, 100 * US)
    rig.submit(300)
    assert rig.poll(2) == [(1002, 100), (1003, 100)]
    rig.timeout()
    assert rig["rto_ps"] == 600 * US
    assert rig.poll() == [(1002, 100), (1003, 100), (1004, 100)]
    rig.now_ps += 7 * US
    rig.feed(Op.ACK, 0, 1002)
    rig.feed(Op.ACK, 0, 1003)
    assert (rig["srtt_ps"], rig["rttvar_ps"], rig["rto_ps"]) == (100 * US, 50 * US, 300 * US)
    assert rig["min_rtt_ps"] == 100 * US
    rig.now_ps += 53 * US
    rig.feed(Op.ACK, 0, 1004)  # never sent before the timeout: 60 us
    assert (rig["srtt_ps"], rig["rttvar_ps"], rig["rto_ps"]) == (95 * US, 47_500_000, 285 * US)


def test_without_any_sample_progress_keeps_the_back_off():
    rig = opened(**TIMES)
    rig.submit(200)
    rig.poll()
    rig.timeout()
    rig.poll()
    rig.feed(Op.ACK, 0, 1001)
    assert (rig["srtt_ps"], rig["rto_ps"]) == (0, 2000 * US)


def test_only_the_ids_that_were_resent_are_ambiguous():
    rig = opened(**TIMES)
    rig.submit(300)
    rig.poll()
    rig.timeout()
    assert rig.poll(1) == [(1001, 100)]
    rig.now_ps += 40 * US
    rig.feed(Op.ACK, 0, 1001)
    assert rig["srtt_ps"] == 0
    rig.feed(Op.ACK, 0, 1002)  # went out once, before the timeout
    assert rig["srtt_ps"] == 1040 * US


def test_the_handshake_is_a_sample():
    rig = Rig(**TIMES)
    rig.open()
    rig.now_ps += 100 * US
    rig.feed(Op.OPEN_ACK, 501, 1000)
    assert (rig["srtt_ps"], rig["rttvar_ps"], rig["rto_ps"]) == (100 * US, 50 * US, 300 * US)


def test_a_handshake_that_was_replayed_is_no_sample():
    rig = Rig(**TIMES)
    rig.open()
    rig.timeout()
    rig.now_ps += 100 * US
    rig.feed(Op.OPEN_ACK, 501, 1000)
    assert (rig["srtt_ps"], rig["rto_ps"]) == (0, 2000 * US)


def test_karn_reaches_over_the_wrap():
    rig = opened(initial_seq=0xFFFFFFFD, **TIMES)
    rig.submit(400)
    assert [seq for seq, _ in rig.poll()] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]
    rig.timeout()
    rig.poll()
    rig.now_ps += US
    rig.feed(Op.ACK, 0, 1)
    assert (rig["srtt_ps"], rig["acked_bytes"]) == (0, 400)
    trip(rig, 100 * US)
    assert rig["srtt_ps"] == 100 * US


def test_a_cumulative_acknowledgement_samples_its_own_id():
    rig = opened(**TIMES)
    rig.submit(200)
    rig.poll(1)
    rig.now_ps += 30 * US
    rig.poll(1)
    rig.now_ps += 50 * US
    rig.feed(Op.ACK, 0, 1002)
    assert rig["srtt_ps"] == 50 * US


# The timer (RFC 6298, 5.1 to 5.3)


def test_the_timer_runs_while_something_is_in_flight():
    rig = opened(**TIMES)
    assert rig["timer_at_ps"] == NEVER
    rig.submit(300)
    assert rig["timer_at_ps"] == NEVER  # from the line, not from the owner's wish
    rig.now_ps = 5 * US
    rig.poll(1)
    assert rig["timer_at_ps"] == 1005 * US
    rig.now_ps = 9 * US
    rig.poll()
    assert rig["timer_at_ps"] == 1005 * US  # 5.1: runs already
    rig.now_ps = 105 * US
    rig.feed(Op.ACK, 0, 1001)
    assert rig["timer_at_ps"] == 105 * US + rig["rto_ps"]  # 5.3: starts anew
    rig.feed(Op.ACK, 0, 1003)
    assert rig["timer_at_ps"] == NEVER  # 5.2


def test_a_call_before_the_time_changes_nothing():
    rig = opened(**TIMES)
    rig.submit(300)
    rig.poll()
    before = rig.links.tobytes()
    assert machine.on_timeout_at(rig.links, 0, rig.params, rig["timer_at_ps"] - 1, rig.out, 0) == 0
    assert rig.links.tobytes() == before


# Go-back-N


def five(**params) -> Rig:
    """Ids 1001 to 1005 of 100, 100, 30, 100, 70 bytes in flight."""
    rig = opened(**TIMES, **params)
    sent = []
    for size in (230, 170):
        rig.submit(size)
        sent += rig.poll()
    assert sent == [(1001, 100), (1002, 100), (1003, 30), (1004, 100), (1005, 70)]
    return rig


def test_a_nack_resends_from_the_id_it_names():
    rig = five()
    rig.now_ps += 50 * US
    rig.feed(Op.NACK, 0, 1003)
    assert rig["acked_bytes"] == 200  # it says that all before arrived
    assert rig["timer_at_ps"] == NEVER  # nothing is in flight
    assert rig.poll() == [(1003, 30), (1004, 100), (1005, 70)]
    assert rig["timer_at_ps"] == rig.now_ps + rig["rto_ps"]
    assert (rig["payloads_resent"], rig["bytes_resent"], rig["payloads_sent"]) == (3, 200, 8)
    assert rig.poll() == []


def test_a_nack_of_the_first_id():
    rig = five()
    rig.feed(Op.NACK, 0, 1001)
    assert rig["acked_bytes"] == 0
    assert rig.poll() == [(1001, 100), (1002, 100), (1003, 30), (1004, 100), (1005, 70)]


def test_an_acknowledgement_within_a_resend_skips_what_it_covers():
    rig = five()
    rig.timeout()
    assert rig.poll(1) == [(1001, 100)]
    rig.feed(Op.ACK, 0, 1003)  # was only late
    assert (rig["acked_bytes"], rig["sent_bytes"]) == (230, 230)
    assert rig.poll() == [(1004, 100), (1005, 70)]
    rig.submit(5)
    assert rig.poll() == [(1006, 5)]  # new data behind the resends


def test_resends_come_before_new_data_and_need_no_room():
    rig = opened(window_bytes=300, **TIMES)
    rig.submit(1000)
    assert rig.poll() == [(1001, 100), (1002, 100), (1003, 100)]
    rig.feed(Op.NACK, 0, 1002)
    assert rig.poll() == [(1002, 100), (1003, 100), (1004, 100)]


@pytest.mark.parametrize("seq", [1000, 1006, 5, 0x80000000])
def test_a_nack_of_an_id_not_out_is_stale(seq):
    rig = five()
    rig.feed(Op.NACK, 0, seq)
    assert (rig["dropped_stale"], rig["nacks_received"], rig["acked_bytes"]) == (1, 0, 0)
    assert rig.poll() == []


@pytest.mark.parametrize(("seq", "counter"), [(1000, "dropped_stale"), (1006, "dropped_illegal"), (5, "dropped_stale")])
def test_an_ack_of_an_id_not_out(seq, counter):
    rig = five()
    rig.feed(Op.ACK, 0, seq)
    assert (rig[counter], rig["acked_bytes"]) == (1, 0)
    rig.feed(Op.ACK, 0, 1005)
    assert (rig[counter], rig["acked_bytes"]) == (1, 400)


def test_a_nack_that_cannot_be_about_the_resend_is_stale():
    rig = opened(**TIMES)
    trip(rig, 100 * US)
    rig.submit(300)
    assert rig.poll() == [(1002, 100), (1003, 100), (1004, 100)]
    rig.now_ps += 100 * US
    rig.feed(Op.NACK, 0, 1002)
    assert rig.poll() == [(1002, 100), (1003, 100), (1004, 100)]
    rig.now_ps += 99 * US
    rig.feed(Op.NACK, 0, 1002)  # a duplicate: sooner than a round trip
    assert rig["nacks_stale"] == 1
    assert rig.poll() == []
    rig.now_ps += US
    rig.feed(Op.NACK, 0, 1002)  # lost again
    assert rig["nacks_stale"] == 1
    assert rig.poll() == [(1002, 100), (1003, 100), (1004, 100)]


def test_before_the_first_sample_one_nack_is_one_pass():
    """Any number of NACKs may come of one pass whose frames overtake each other: they must not multiply."""
    rig = five()
    rig.feed(Op.NACK, 0, 1001)
    assert len(rig.poll()) == 5
    for _ in range(3):
        rig.now_ps += 100 * US
        rig.feed(Op.NACK, 0, 1001)
        assert rig.poll() == []
    assert rig["nacks_stale"] == 3
    rig.timeout()
    assert len(rig.poll()) == 5


def test_a_stale_nack_still_acknowledges():
    rig = opened(**TIMES)
    trip(rig, 100 * US)
    rig.submit(300)
    rig.poll()
    rig.now_ps += 100 * US
    rig.feed(Op.NACK, 0, 1002)
    rig.poll()
    rig.now_ps += US
    rig.feed(Op.NACK, 0, 1004)
    assert (rig["nacks_stale"], rig["acked_bytes"]) == (1, 210)


def test_a_nack_of_an_id_not_resent_yet_waits_for_it():
    rig = five()
    rig.timeout()
    rig.poll(1)
    rig.feed(Op.NACK, 0, 1003)
    assert rig.poll() == [(1003, 30), (1004, 100), (1005, 70)]
    assert rig["payloads_resent"] == 4


# Tail-loss probe (RFC 8985, 7)

PROBING = {**TIMES, "rto_min_ps": 500 * US, "tail_loss_probe": True}


def tail_lost(**params) -> Rig:
    """Round trips of 100 us; 1002 to 1004 went out at 100 us, and all but the last are acknowledged at 200 us."""
    rig = opened(**{**PROBING, **params})
    trip(rig, 100 * US)
    rig.submit(300)
    assert rig.poll() == [(1002, 100), (1003, 100), (1004, 100)]
    rig.now_ps += 100 * US
    rig.feed(Op.ACK, 0, 1003)
    return rig


def test_a_lost_tail_is_sent_once_more_after_two_round_trips():
    rig = tail_lost()
    assert rig["timer_at_ps"] == 300 * US  # from when it went out
    assert rig.timeout() == []
    assert rig.poll() == [(1004, 100)]
    assert (rig["probes_sent"], rig["payloads_resent"]) == (1, 1)
    assert (rig["timeouts"], rig["retries"], rig["rto_ps"]) == (0, 0, 500 * US)
    assert rig["timer_at_ps"] == rig.now_ps + 500 * US  # then the timeout: one probe only
    rig.now_ps += 100 * US
    rig.feed(Op.ACK, 0, 1004)
    assert (rig["acked_bytes"], rig["timer_at_ps"], rig["resends_spurious"]) == (310, NEVER, 0)
    assert rig["srtt_ps"] == 100 * US  # Karn


def test_the_answer_to_a_probe_may_be_a_nack():
    rig = opened(**PROBING)
    trip(rig, 100 * US)
    rig.submit(300)
    rig.poll()
    rig.timeout()
    assert rig.poll() == [(1004, 100)]
    rig.now_ps += 100 * US
    rig.feed(Op.NACK, 0, 1003)
    assert rig.poll() == [(1003, 100), (1004, 100)]
    assert rig["timeouts"] == 0


def test_the_timeout_follows_a_probe_without_an_answer():
    rig = tail_lost()
    rig.timeout()
    rig.poll()
    assert rig.timeout() == []
    assert rig.poll() == [(1004, 100)]
    assert (rig["probes_sent"], rig["timeouts"], rig["rto_ps"]) == (1, 1, 1000 * US)


def test_a_probe_waits_for_an_answer_to_the_one_before():
    """Otherwise an owner who submits a little all the time would never see the timeout of a dead peer."""
    rig = opened(**PROBING, retry_limit=0)
    trip(rig, 100 * US)
    for _ in range(7):
        rig.submit(1)
        rig.poll()
        rig.now_ps += 90 * US
        if rig.now_ps >= rig["timer_at_ps"]:
            machine.on_timeout_at(rig.links, 0, rig.params, rig.now_ps, rig.out, 0)
    assert rig["probes_sent"] == 1
    rig.timeout()
    assert rig.failure is Failure.RETRY_LIMIT


def test_the_next_tail_has_a_probe_of_its_own():
    rig = tail_lost()
    rig.timeout()
    rig.poll()
    rig.now_ps += 100 * US
    rig.feed(Op.ACK, 0, 1004)
    rig.submit(10)
    rig.poll()
    rig.timeout()
    assert rig.poll() == [(1005, 10)]
    assert rig["probes_sent"] == 2


def test_progress_postpones_the_probe():
    rig = tail_lost()
    rig.submit(10)
    rig.poll()
    assert rig["timer_at_ps"] == 300 * US  # the probe that is due already
    rig.now_ps += 40 * US
    rig.feed(Op.ACK, 0, 1004)
    assert rig["timer_at_ps"] == 200 * US + 2 * rig["srtt_ps"]


def test_an_acknowledgement_of_an_earlier_one_leaves_a_round_trip_more():
    rig = opened(**PROBING)
    trip(rig, 100 * US)
    rig.submit(300)
    rig.poll()
    rig.now_ps += 190 * US
    rig.feed(Op.ACK, 0, 1003)
    assert rig["timer_at_ps"] == rig.now_ps + rig["srtt_ps"]


@pytest.mark.parametrize("why", ["more to send", "no sample", "off", "the timeout comes first"])
def test_no_probe(why):
    rig = opened(**{**PROBING, **{
        "off": {"tail_loss_probe": False}, "the timeout comes first": {"probe_min_ps": 500 * US},
    }.get(why, {})}, window_bytes=300)  # fmt: skip
    if why != "no sample":
        trip(rig, 100 * US)
    rig.submit(310 if why == "more to send" else 300)
    rig.poll()
    assert (rig["timer_is_probe"], rig["timer_at_ps"]) == (0, rig.now_ps + rig["rto_ps"])


def test_the_least_wait_for_a_probe():
    rig = tail_lost(probe_min_ps=345 * US)
    assert rig["timer_at_ps"] == 100 * US + 345 * US


def test_an_answer_that_came_too_soon_tells_that_the_resend_was_needless():
    rig = tail_lost()
    rig.timeout()
    rig.poll()
    rig.now_ps += 99 * US
    rig.feed(Op.ACK, 0, 1004)
    assert rig["resends_spurious"] == 1


def test_before_the_first_sample_nothing_is_too_soon():
    rig = five()
    rig.timeout()
    rig.poll()
    rig.feed(Op.ACK, 0, 1005)
    assert rig["resends_spurious"] == 0


def test_a_probe_goes_out_over_the_wrap():
    rig = opened(**PROBING, initial_seq=0xFFFFFFFD)
    trip(rig, 100 * US)
    rig.submit(150)
    assert rig.poll() == [(0xFFFFFFFF, 100), (0, 50)]
    rig.timeout()
    assert rig.poll() == [(0, 50)]
    rig.feed(Op.ACK, 0, 0)
    assert rig["acked_bytes"] == 160


def test_a_probe_of_the_only_frame():
    rig = opened(**PROBING)
    trip(rig, 100 * US)
    rig.submit(60)
    rig.poll()
    rig.timeout()
    assert rig.poll() == [(1002, 60)]


# NACK_FULL, the sending side


def held(**params) -> Rig:
    """Round trips of 100 us; 1002 to 1006 are out, and the peer has just refused 1002."""
    rig = opened(**TIMES, **params)
    trip(rig, 100 * US)
    rig.submit(500)
    assert len(rig.poll()) == 5
    rig.feed(Op.NACK_FULL, 0, 77)
    assert rig.poll() == []
    return rig


def test_a_full_peer_is_asked_by_the_oldest_id_alone_with_back_off():
    rig = held(retry_limit=0)
    waits = []
    for _ in range(12):
        before = rig.now_ps
        assert rig.timeout() == []
        waits.append((rig.now_ps - before) // US)
        assert rig.poll() == [(1002, 100)]
        rig.now_ps += 100 * US
        rig.feed(Op.NACK_FULL, 0, 1002)
        assert rig.poll() == []
    assert waits == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 51200, 100_000, 100_000]
    assert (rig["timeouts"], rig["retries"], rig["rto_ps"]) == (0, 0, 300 * US)
    assert (rig["nack_fulls_received"], rig["nacks_received"]) == (13, 0)


def test_the_least_wait_for_a_full_peer():
    rig = held(probe_min_ps=345 * US)
    assert rig["timer_at_ps"] == rig.now_ps + 345 * US


def test_without_a_sample_a_full_peer_is_asked_after_a_timeout():
    rig = five()
    rig.feed(Op.NACK_FULL)
    assert rig["timer_at_ps"] == rig.now_ps + 1000 * US


def test_a_peer_with_room_again_is_trusted_with_twice_what_it_took():
    rig = held()
    rig.submit(2000)
    rig.timeout()
    assert rig.poll() == [(1002, 100)]
    rig.feed(Op.ACK, 0, 1002)
    assert rig.poll() == [(1003, 100), (1004, 100)]
    rig.feed(Op.ACK, 0, 1003)
    rig.feed(Op.ACK, 0, 1004)
    assert rig.poll() == [(seq, 100) for seq in (1005, 1006, 1007, 1008)]
    rig.feed(Op.NACK_FULL, 0, 1005)
    rig.timeout()
    assert rig.poll() == [(1005, 100)]
    assert rig["nack_fulls_received"] == 2


def test_all_the_window_is_open_again_once_the_peer_took_as_much():
    rig = held(window_bytes=600)
    rig.submit(2000)
    rig.timeout()
    for seq in (1002, 1003, 1004, 1005, 1006):
        rig.poll()
        rig.feed(Op.ACK, 0, seq)
    assert (rig["peer_room_bytes"], rig["full_wait_ps"]) == (NEVER, 0)


def test_the_wait_halves_with_what_the_peer_takes():
    """A reader takes one payload in so much time: the next wait is near that, not near a round trip."""
    rig = held()
    for _ in range(4):
        rig.timeout()
        rig.poll()
        rig.feed(Op.NACK_FULL, 0, 1002)
    assert rig["full_wait_ps"] == 1600 * US
    rig.timeout()
    rig.poll()
    rig.feed(Op.ACK, 0, 1002)
    assert rig["full_wait_ps"] == 800 * US
    rig.poll()
    rig.feed(Op.NACK_FULL, 0, 1003)
    assert rig["full_wait_ps"] == 1600 * US


def test_a_probe_that_nobody_answers_is_a_retry():
    """A peer that was full and dies is noticed."""
    rig = held(retry_limit=1)
    rig.timeout()
    rig.poll()
    rig.timeout()
    assert rig.poll() == [(1002, 100)]
    rig.timeout()
    assert rig.failure is Failure.RETRY_LIMIT


def test_a_refusal_is_an_answer():
    """A peer that says that it is full is alive: what timed out before it said so is no longer counted."""
    rig = five(retry_limit=1)
    rig.timeout()
    rig.poll()
    rig.feed(Op.NACK_FULL)
    assert rig["retries"] == 0
    for _ in range(2):
        rig.timeout()
        rig.poll()
    assert rig.failure is Failure.NONE


def test_a_nack_full_again_while_holding_changes_nothing():
    rig = held()
    before = rig["timer_at_ps"]
    rig.now_ps += 5 * US
    rig.feed(Op.NACK_FULL, 0, 77)
    assert (rig["timer_at_ps"], rig["full_wait_ps"]) == (before, 100 * US)
    assert rig.poll() == []


def test_an_ack_that_a_nack_full_has_overtaken_ends_the_hold():
    rig = held()
    rig.feed(Op.ACK, 0, 1002)
    assert rig.poll() == [(1003, 100), (1004, 100)]
    assert rig["timer_at_ps"] == rig.now_ps + rig["rto_ps"]


def test_a_small_payload_that_was_taken_does_not_shut_out_the_next():
    rig = opened(**TIMES)
    trip(rig, 100 * US)
    rig.submit(7)
    rig.poll()
    rig.submit(500)
    rig.poll()
    rig.feed(Op.NACK_FULL, 0, 1002)
    rig.feed(Op.ACK, 0, 1002)
    assert rig.poll() == [(1003, 100)]


def test_a_nack_full_when_nothing_is_out_is_stale():
    rig = opened(**TIMES)
    trip(rig, 100 * US)
    rig.feed(Op.NACK_FULL, 0, 1001)
    assert (rig["nack_fulls_received"], rig["dropped_stale"], rig["timer_at_ps"]) == (0, 1, NEVER)
    rig.submit(300)
    assert len(rig.poll()) == 3


def test_a_full_peer_is_no_reason_to_close_early():
    rig = held()
    assert rig.close() == []
    rig.timeout()
    rig.poll()
    rig.feed(Op.ACK, 0, 1002)
    rig.poll()
    assert rig.feed(Op.ACK, 0, 1006) == [(Op.CLOSE, 1007, 500)]


# NACK_FULL, the receiving side


def filled(**params) -> Rig:
    """501 to 503 fill the buffer of 300 bytes, and 504 was refused."""
    rig = opened(rx_limit_bytes=300, **params)
    for seq in (501, 502, 503):
        assert rig.feed(Op.PAYLOAD, seq, 0, 100) == [(Op.ACK, 0, seq)]
    assert rig.feed(Op.PAYLOAD, 504, 0, 100) == [(Op.NACK_FULL, 0, 504)]
    return rig


def test_a_pass_into_a_full_buffer_draws_one_nack_full_and_each_probe_one_more():
    rig = filled()
    for seq in range(505, 560):
        assert rig.feed(Op.PAYLOAD, seq, 0, 100) == []
    for _ in range(3):
        assert rig.feed(Op.PAYLOAD, 504, 0, 100) == [(Op.NACK_FULL, 0, 504)]
    assert (rig["nack_fulls_sent"], rig["nacks_sent"], rig["rx_bytes"]) == (4, 0, 300)


def test_a_duplicate_is_acknowledged_by_a_full_receiver():
    rig = filled()
    assert rig.feed(Op.PAYLOAD, 502, 0, 100) == [(Op.ACK, 0, 502)]


def test_room_is_told_when_the_peer_asks():
    rig = filled()
    rig.read(99)
    assert rig.feed(Op.PAYLOAD, 504, 0, 100) == [(Op.NACK_FULL, 0, 504)]
    rig.read(1)
    assert rig.feed(Op.PAYLOAD, 505, 0, 100) == []  # late, and behind the one that was refused
    assert rig.feed(Op.PAYLOAD, 504, 0, 100) == [(Op.ACK, 0, 504)]
    assert rig.feed(Op.PAYLOAD, 506, 0, 100) == [(Op.NACK, 0, 505)]  # the episode is over: a gap is a gap


def test_a_short_payload_may_fit_where_a_long_one_did_not():
    rig = opened(rx_limit_bytes=250)
    rig.feed(Op.PAYLOAD, 501, 0, 200)
    assert rig.feed(Op.PAYLOAD, 502, 0, 51) == [(Op.NACK_FULL, 0, 502)]
    assert rig.feed(Op.PAYLOAD, 502, 0, 50) == [(Op.ACK, 0, 502)]


def test_an_empty_buffer_takes_any_payload():
    rig = opened(rx_limit_bytes=50)
    assert rig.feed(Op.PAYLOAD, 501, 0, 100) == [(Op.ACK, 0, 501)]
    assert rig.feed(Op.PAYLOAD, 502, 0, 1) == [(Op.NACK_FULL, 0, 502)]
    rig.read(100)
    assert rig.feed(Op.PAYLOAD, 502, 0, 100) == [(Op.ACK, 0, 502)]


def test_a_slow_owner_does_not_lose_a_peer_that_still_sends():
    """We closed, the peer has more (CLOSE_NACK), and our own owner is slow: its silence is no retry."""
    rig = opened(rx_limit_bytes=300, retry_limit=2)
    rig.feed(Op.PAYLOAD, 501, 0, 300)
    rig.close()
    rig.feed(Op.CLOSE_NACK, 502, 1001)
    for _ in range(5):
        rig.timeout()
        rig.timeout()
        assert rig.feed(Op.PAYLOAD, 502, 0, 100) == [(Op.NACK_FULL, 0, 502)]
    rig.read(300)
    assert rig.feed(Op.PAYLOAD, 502, 0, 100) == [(Op.ACK, 0, 502), (Op.CLOSE, 1001, 502)]


# The receiving side


def test_a_gap_is_named_once_and_again_on_a_new_pass():
    rig = opened()
    assert rig.feed(Op.PAYLOAD, 501, 0, 10) == [(Op.ACK, 0, 501)]
    assert rig.feed(Op.PAYLOAD, 503, 0, 10) == [(Op.NACK, 0, 502)]
    assert rig.feed(Op.PAYLOAD, 504, 0, 10) == []
    assert rig.feed(Op.PAYLOAD, 505, 0, 10) == []
    assert rig.feed(Op.PAYLOAD, 503, 0, 10) == [(Op.NACK, 0, 502)]  # ids step back: 502 was lost again
    assert rig.feed(Op.PAYLOAD, 504, 0, 10) == []
    assert rig.feed(Op.PAYLOAD, 502, 0, 10) == [(Op.ACK, 0, 502)]
    assert rig.feed(Op.PAYLOAD, 504, 0, 10) == [(Op.NACK, 0, 503)]  # the next gap is a new one
    assert (rig["gaps_received"], rig["nacks_sent"], rig["payloads_received"], rig["rx_bytes"]) == (6, 3, 2, 20)


def test_a_short_step_back_is_overtaking_and_a_long_one_a_new_pass():
    rig = opened()
    assert rig.feed(Op.PAYLOAD, 510, 0, 10) == [(Op.NACK, 0, 501)]
    assert rig.feed(Op.PAYLOAD, 530, 0, 10) == []
    assert rig.feed(Op.PAYLOAD, 530, 0, 10) == []  # a duplicate
    assert rig.feed(Op.PAYLOAD, 530 - machine.MAX_OVERTAKING, 0, 10) == []  # overtaken by others
    assert rig.feed(Op.PAYLOAD, 529 - machine.MAX_OVERTAKING, 0, 10) == [(Op.NACK, 0, 501)]
    assert rig.feed(Op.PAYLOAD, 514, 0, 10) == []  # the new pass goes on
    assert rig.feed(Op.PAYLOAD, 530, 0, 10) == []


def test_a_duplicate_is_acknowledged_by_its_own_id():
    rig = opened()
    for seq in (501, 502, 503):
        rig.feed(Op.PAYLOAD, seq, 0, 10)
    assert rig.feed(Op.PAYLOAD, 501, 0, 10) == [(Op.ACK, 0, 501)]
    assert rig.feed(Op.PAYLOAD, 503, 0, 10) == [(Op.ACK, 0, 503)]
    assert (rig["duplicates_received"], rig["rx_bytes"], rig["acks_sent"]) == (2, 30, 5)


def test_order_is_serial_across_the_wrap():
    rig = Rig()
    rig.feed(Op.OPEN, 0xFFFFFFFE)
    assert rig.feed(Op.PAYLOAD, 0, 0, 10) == [(Op.NACK, 0, 0xFFFFFFFF)]
    assert rig.feed(Op.PAYLOAD, 0xFFFFFFFF, 0, 10) == [(Op.ACK, 0, 0xFFFFFFFF)]
    assert rig.feed(Op.PAYLOAD, 0, 0, 10) == [(Op.ACK, 0, 0)]
    assert rig.feed(Op.PAYLOAD, 0xFFFFFFFF, 0, 10) == [(Op.ACK, 0, 0xFFFFFFFF)]
    assert (rig["rx_seq"], rig["rx_bytes"]) == (0, 20)


def test_an_empty_payload_is_refused():
    rig = opened()
    assert rig.feed(Op.PAYLOAD, 501, 0, 0) == [(Op.NACK, 0, 501)]
    assert rig["rx_seq"] == 500


# The window


def test_the_window_counts_bytes_held_until_acknowledged():
    rig = opened(window_bytes=250)
    rig.submit(1000)
    assert rig.poll() == [(1001, 100), (1002, 100)]  # 50 bytes are left, too few for the next
    rig.feed(Op.ACK, 0, 1001)
    assert rig.poll() == [(1003, 100)]
    assert rig["cut_bytes"] - rig["acked_bytes"] == rig.pools["held_bytes"][0] == 200


def test_the_window_is_filled_to_the_last_byte():
    rig = opened(window_bytes=250)
    rig.submit(250)
    assert rig.poll() == [(1001, 100), (1002, 100), (1003, 50)]
    rig.submit(1)
    assert rig.poll() == []


def test_the_pool_is_a_second_window():
    rig = opened(window_bytes=1000, pool_bytes=150)
    rig.submit(500)
    assert rig.poll() == [(1001, 100)]
    rig.feed(Op.ACK, 0, 1001)
    assert rig.pools["held_bytes"][0] == 0
    assert rig.poll() == [(1002, 100)]


def test_small_payloads_end_with_the_ring():
    rig = opened(window_bytes=1000, slots=4)
    for _ in range(9):
        rig.submit(1)
        rig.poll()
    assert rig["tx_max"] == 1005
    rig.feed(Op.ACK, 0, 1002)
    assert rig.poll() == [(1005, 5)]  # what waited goes in one


def test_a_failed_link_gives_its_bytes_back():
    rig = opened(retry_limit=0)
    rig.submit(500)
    rig.poll()
    assert rig.pools["held_bytes"][0] == 500
    rig.timeout()
    assert (rig.failure, rig.pools["held_bytes"][0]) == (Failure.RETRY_LIMIT, 0)
    assert rig["submitted_bytes"] - rig["acked_bytes"] == 500  # what was not delivered
    assert rig.poll() == []


@pytest.mark.parametrize("end", ["restart", "no link", "close"])
def test_a_link_that_ends_on_a_frame_gives_its_bytes_back(end):
    rig = opened()
    rig.feed(Op.PAYLOAD, 501, 0, 10)  # proves the peer
    rig.submit(500)
    rig.poll()
    if end == "restart":
        rig.feed(Op.OPEN, 7777)
        assert rig.failure is Failure.PEER_RESTARTED
    elif end == "no link":
        rig.feed(Op.NACK_NOLINK, 0, 1003)
        assert rig.failure is Failure.LINK_DOWN
    else:
        rig.feed(Op.CLOSE, 502, 1000)
        rig.feed(Op.CLOSE_ACK, 0, 1006)
        assert rig.failure is Failure.CLOSED_UNSENT
    assert rig.pools["held_bytes"][0] == 0
    assert rig.state is State.CLOSED


# The retry limit


@pytest.mark.parametrize("state", [State.OPEN_SENT, State.OPEN, State.CLOSE_SENT, State.CLOSE_RECD])
@pytest.mark.parametrize("retry_limit", [0, 1, 3, 6])
def test_the_limit_is_that_many_retries_then_the_end(state, retry_limit):
    rig = Rig(retry_limit=retry_limit, rto_initial_ps=100, rto_max_ps=700).bring_to(state)
    expected = [100, 300, 700, 1400, 2100, 2800, 3500]  # waits of 100, 200, 400, then the ceiling of 700
    for at in expected[:retry_limit]:
        rig.timeout()
        assert (rig.now_ps, rig.state, rig.failure) == (at, state, Failure.NONE)
        rig.poll()
    assert rig.timeout() == []
    assert (rig.now_ps, rig.state, rig.failure) == (expected[retry_limit], State.CLOSED, Failure.RETRY_LIMIT)
    assert (rig["timeouts"], rig["timer_at_ps"]) == (retry_limit + 1, NEVER)


def test_progress_forgets_the_retries():
    rig = five(retry_limit=3)
    for seq in range(1001, 1006):
        for _ in range(3):
            rig.timeout()
            rig.poll()
        rig.feed(Op.ACK, 0, seq)
        assert rig["retries"] == 0
    assert rig.failure is Failure.NONE


def test_a_nack_without_progress_does_not():
    rig = five(retry_limit=3)
    rig.timeout()
    rig.poll()
    rig.feed(Op.NACK, 0, 1001)
    assert rig["retries"] == 1


# Parameters

GOOD = {"mtu_bytes": 10, "window_bytes": 10, "rto_initial_ps": 5, "rto_min_ps": 5, "rto_max_ps": 5, "retry_limit": 0}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mtu_bytes": 0}, "a payload has at least 1 byte"),
        ({"window_bytes": 9}, "below one payload"),
        ({"rto_min_ps": 0}, "must be positive"),
        ({"rto_min_ps": 6}, "in this order"),
        ({"rto_initial_ps": 6}, "in this order"),
        ({"rto_max_ps": NEVER}, "leave int64"),
        ({"retry_limit": -1}, "give 0 to fail at the first timeout"),
        ({"congestion_control": "cubic"}, "choose one of fixed, reno"),
        ({"initial_window_packets": 0}, "must be from 1"),
        ({"initial_window_packets": 10**6 + 1}, "must be from 1"),
        ({"probe_min_ps": -1}, "must be from 0"),
        ({"probe_min_ps": 6}, "to rto_max_ps 5"),
    ],
)
def test_parameters_that_cannot_work(change, says):
    make_params(**GOOD)
    with pytest.raises(ValueError, match=says):
        make_params(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("window", "mtu", "slots"), [(1024, 1024, 2), (2048, 1024, 4), (3072, 1024, 4), (10**6, 1024, 1024), (10, 10, 2)]
)
def test_ring_slots_are_a_power_of_two_above_the_window(window, mtu, slots):
    assert ring_slots(window, mtu) == slots > window // mtu


@pytest.mark.parametrize("slots", [0, 3, 12])
def test_slots_that_are_no_power_of_two(slots):
    rig = Rig()
    with pytest.raises(ValueError, match="give a power of two"):
        init_links(rig.links, 0, 0, rig.params, slots)

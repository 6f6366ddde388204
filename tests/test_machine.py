"""The machine's special readings one by one, and whole runs of two of them over an unfriendly network."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import A, B, Path, Reader, Rig, Script, World, draw_script

from ttpoe import machine
from ttpoe.fsm import Opcode, State
from ttpoe.state import LINK, Failure, Status, init_links
from ttpoe.units import NEVER, PS_PER_MS, PS_PER_US

Op = Opcode
CLOSED, OPEN_SENT, OPEN_RECD, OPEN, CLOSE_SENT, CLOSE_RECD = State


# Opening


def test_an_opening_by_its_ids():
    active, passive = Rig(initial_seq=0xFFFFFFFF), Rig(initial_seq=41)
    assert active.open() == [(Op.OPEN, 0xFFFFFFFF, 0)]
    assert passive.feed(*active_frame(active)) == [(Op.OPEN_ACK, 42, 0xFFFFFFFF)]
    active.feed(Op.OPEN_ACK, 42, 0xFFFFFFFF)
    assert (active.state, passive.state) == (OPEN, OPEN)
    for sender, receiver, first in ((active, passive, 0), (passive, active, 42)):
        sender.submit(150)
        assert sender.poll() == [(first, 100), (first + 1, 50)]
        assert receiver.feed(Op.PAYLOAD, first, 0, 100) == [(Op.ACK, 0, first)]


def active_frame(rig: Rig) -> tuple[Opcode, int, int]:
    return (Opcode(rig.out[0]["opcode"]), int(rig.out[0]["tx_seq"]), int(rig.out[0]["rx_seq"]))


@pytest.mark.parametrize("opcode", [Op.OPEN_ACK, Op.OPEN_NACK])
@pytest.mark.parametrize("rx", [999, 1001, 0])
def test_an_answer_to_another_open_is_stale(opcode, rx):
    rig = Rig().bring_to(OPEN_SENT)
    assert rig.feed(opcode, 501, rx) == []
    assert (rig.state, rig.failure, rig["dropped_stale"]) == (OPEN_SENT, Failure.NONE, 1)


def test_data_and_a_close_wait_for_the_open():
    rig = Rig()
    rig.open()
    rig.submit(150)
    assert rig.close() == []
    assert rig.poll() == []
    assert rig.feed(Op.OPEN_ACK, 501, 1000) == []
    assert rig.poll() == [(1001, 100), (1002, 50)]
    assert rig.feed(Op.ACK, 0, 1001) == []
    assert rig.feed(Op.ACK, 0, 1002) == [(Op.CLOSE, 1003, 500)]


def test_a_close_of_an_idle_link_that_waits_for_the_open():
    rig = Rig()
    rig.open()
    rig.close()
    assert rig.feed(Op.OPEN_ACK, 501, 1000) == [(Op.CLOSE, 1001, 500)]


def test_simultaneous_open_needs_both_answers():
    """Passing ships: an OPEN does not shortcut to OPEN; each goes there by the OPEN_ACK, then both send."""
    a, b = Rig(initial_seq=1000), Rig(initial_seq=500)
    a.open()
    b.open()
    assert a.feed(Op.OPEN, 500) == [(Op.OPEN_ACK, 1001, 500)]
    assert b.feed(Op.OPEN, 1000) == [(Op.OPEN_ACK, 501, 1000)]
    assert (a.state, b.state) == (OPEN_SENT, OPEN_SENT)
    b.feed(Op.OPEN_ACK, 1001, 500)
    assert (a.state, b.state) == (OPEN_SENT, OPEN)
    b.submit(10)
    assert b.poll() == [(501, 10)]
    assert a.feed(Op.PAYLOAD, 501, 0, 10) == [(Op.NACK_NOLINK, 0, 501)]
    assert b.feed(Op.NACK_NOLINK, 0, 501) == []  # it answered our OPEN, yet need not be open: no reason to give up
    assert (b.state, b["dropped_lost"]) == (OPEN, 1)
    a.feed(Op.OPEN_ACK, 501, 1000)
    b.timeout()
    assert b.poll() == [(501, 10)]
    assert a.feed(Op.PAYLOAD, 501, 0, 10) == [(Op.ACK, 0, 501)]
    assert b.feed(Op.ACK, 0, 501) == []
    assert b["acked_bytes"] == a["rx_bytes"] == 10


def test_an_open_again_before_the_answer_counts():
    rig = Rig().bring_to(OPEN_SENT)
    rig.feed(Op.OPEN, 77)
    assert rig.feed(Op.OPEN, 500) == [(Op.OPEN_ACK, 1001, 500)]  # it restarted, and nothing is lost
    assert (rig.state, rig["rx_seq"]) == (OPEN_SENT, 500)


# OPEN while the link is up


@pytest.mark.parametrize("state", [OPEN, CLOSE_SENT])
def test_an_open_with_an_id_that_was_used_changes_nothing(state):
    rig = Rig()
    rig.feed(Op.OPEN, 500)
    for seq in (501, 502, 503):
        rig.feed(Op.PAYLOAD, seq, 0, 10)
    if state is CLOSE_SENT:
        rig.close()
    before = rig.links.tobytes()
    for seq in (500, 501, 503):  # the duplicate, and the reference module's resync by its last acknowledged id
        assert rig.feed(Op.OPEN, seq) == [(Op.OPEN_ACK, 1001, seq)]
    assert rig.links.tobytes() == before


@pytest.mark.parametrize("state", [OPEN, CLOSE_SENT, CLOSE_RECD])
@pytest.mark.parametrize("seq", [499, 504, 0x80000000, 0, 503 + 0x80000000])
def test_an_open_with_another_id_is_a_restart(state, seq):
    rig = Rig()
    rig.feed(Op.OPEN, 500)
    for earlier in (501, 502, 503):
        rig.feed(Op.PAYLOAD, earlier, 0, 10)
    if state is CLOSE_SENT:
        rig.close()
    if state is CLOSE_RECD:
        rig.submit(10)
        rig.poll()
        rig.feed(Op.CLOSE, 504, 1000)
    assert rig.state is state
    assert rig.feed(Op.OPEN, seq) == []
    assert (rig.state, rig.failure) == (CLOSED, Failure.PEER_RESTARTED)


def test_a_duplicate_open_after_half_the_id_space():
    rig = Rig()
    rig.feed(Op.OPEN, 500)
    rig["rx_seq"] = (500 + 0x90000000) & 0xFFFFFFFF  # as after so many PAYLOADs
    rig["payloads_received"] = 0x90000000
    assert rig.feed(Op.OPEN, 500) == [(Op.OPEN_ACK, 1001, 500)]
    assert rig.failure is Failure.NONE
    rig.feed(Op.OPEN, 499)
    assert rig.failure is Failure.PEER_RESTARTED


# A row that has ended


def test_an_ended_row_stays_closed_until_it_is_made_new():
    """A late duplicate of the OPEN must not raise a link with used ids that nobody holds at the other end."""
    rig = Rig().bring_to(CLOSE_SENT)
    rig.feed(Op.CLOSE_ACK, 0, 1001)
    assert (rig.state, rig.failure) == (CLOSED, Failure.NONE)
    assert rig.feed(Op.OPEN, 500) == [(Op.OPEN_NACK, 0, 500)]
    assert rig.state is CLOSED
    assert machine.on_open_at(rig.links, 0, 0, rig.out, 0) == Status.ILLEGAL_SEND
    assert machine.on_submit_at(rig.links, 0, 10) == Status.NOT_OPEN
    assert machine.on_close_at(rig.links, 0, 0, rig.out, 0) == Status.NOT_OPEN
    assert rig.feed(Op.CLOSE, 501, 1000) == [(Op.CLOSE_ACK, 0, 501)]  # still answered
    assert rig.feed(Op.PAYLOAD, 501, 0, 1) == [(Op.NACK_NOLINK, 0, 501)]
    init_links(rig.links, 1000, 2, rig.params, 16)
    assert rig.feed(Op.OPEN, 500) == [(Op.OPEN_ACK, 1001, 500)]
    assert rig.state is OPEN


def test_a_peer_that_restarts_is_served_by_a_new_row():
    rig = Rig().bring_to(OPEN)
    rig.feed(Op.OPEN, 7777)
    assert rig.failure is Failure.PEER_RESTARTED
    assert rig.feed(Op.OPEN, 7777) == [(Op.OPEN_NACK, 0, 7777)]
    init_links(rig.links, 3000, 2, rig.params, 16)
    assert rig.feed(Op.OPEN, 7777) == [(Op.OPEN_ACK, 3001, 7777)]


def test_links_opened_without_a_handshake():
    rigs = Rig(initial_seq=1000), Rig(initial_seq=0xFFFFFFFF)
    for rig, peer in zip(rigs, (0xFFFFFFFF, 1000), strict=True):
        machine.open_links(rig.links, peer)
    for sender, receiver, seq in ((rigs[0], rigs[1], 1001), (rigs[1], rigs[0], 0)):
        sender.submit(10)
        assert sender.poll() == [(seq, 10)]
        assert receiver.feed(Op.PAYLOAD, seq, 0, 10) == [(Op.ACK, 0, seq)]
    rigs[0].feed(Op.NACK_NOLINK, 0, 1001)
    assert rigs[0].failure is Failure.LINK_DOWN


# NACK_NOLINK


def test_nack_nolink_of_what_was_sent_to_an_open_peer_ends_the_link():
    rig = Rig().bring_to(OPEN)
    rig.feed(Op.ACK, 0, 1001)
    rig.submit(300)
    rig.poll()
    rig.feed(Op.NACK_NOLINK, 0, 1003)
    assert (rig.state, rig.failure, rig["timer_at_ps"]) == (CLOSED, Failure.LINK_DOWN, NEVER)


@pytest.mark.parametrize("proof", [(Op.ACK, 0, 1001, 0), (Op.NACK, 0, 1001, 0), (Op.PAYLOAD, 501, 0, 10)])
def test_nack_nolink_of_what_was_sent_before_the_peer_was_known_to_be_open_is_not_believed(proof):
    """The peer may have sent it while it waited for an OPEN_ACK, and overtaken it with the proof."""
    rig = Rig()
    rig.feed(Op.OPEN, 500)
    rig.submit(300)
    assert rig.poll() == [(1001, 100), (1002, 100), (1003, 100)]
    rig.feed(*proof)
    rig.submit(100)
    rig.poll()
    for seq in (1002, 1003):
        rig.feed(Op.NACK_NOLINK, 0, seq)
    assert (rig.state, rig["dropped_lost"]) == (OPEN, 2)
    rig.feed(Op.NACK_NOLINK, 0, 1004)
    assert rig.failure is Failure.LINK_DOWN


@pytest.mark.parametrize("seq", [1001, 1004, 77, 0x90000000])
def test_nack_nolink_of_an_id_not_out_is_a_strangers_guess(seq):
    rig = Rig().bring_to(OPEN)
    rig.feed(Op.ACK, 0, 1001)
    rig.submit(200)
    rig.poll()
    rig.feed(Op.NACK_NOLINK, 0, seq)
    assert (rig.state, rig["dropped_lost"]) == (OPEN, 1)


def test_nack_nolink_of_what_was_in_flight_at_the_proof_counts_once_it_was_sent_again_long_after():
    """rto_max_ps after the proof no answer from before it is on its way; what a timeout sends again then counts."""
    rig = Rig(rto_initial_ps=100, rto_max_ps=400)
    rig.feed(Op.OPEN, 500)
    rig.submit(300)
    rig.poll()
    rig.now_ps = 50
    rig.feed(Op.ACK, 0, 1001)  # the proof: rto is 56, from a round trip of 50
    believed_at_ps = 0
    while not believed_at_ps:
        rig.timeout()
        assert [seq for seq, _ in rig.poll()] == [1002, 1003]
        rig.feed(Op.NACK_NOLINK, 0, 77)  # a stranger's guess never counts
        assert rig.state is OPEN
        rig.feed(Op.NACK_NOLINK, 0, 1002)
        if rig.state is CLOSED:
            believed_at_ps = rig.now_ps
    assert rig.failure is Failure.LINK_DOWN
    assert believed_at_ps - 50 >= 400
    assert rig["retries"] < 5


def test_nack_nolink_counts_only_for_what_was_sent_again():
    """After the step back an answer to the first pass names an id that this pass has not reached."""
    rig = Rig(rto_initial_ps=100, rto_max_ps=100)
    rig.feed(Op.OPEN, 500)
    rig.submit(300)
    rig.poll()
    rig.feed(Op.PAYLOAD, 501, 0, 10)
    rig.timeout()
    assert rig.poll(most=1) == [(1001, 100)]
    rig.feed(Op.NACK_NOLINK, 0, 1002)
    assert rig.state is OPEN
    rig.feed(Op.NACK_NOLINK, 0, 1001)
    assert rig.failure is Failure.LINK_DOWN


# Closing


def test_a_close_in_two_messages():
    active, passive = Rig().bring_to(CLOSE_SENT), Rig(initial_seq=500)
    passive.feed(Op.OPEN, 1000)
    assert passive.feed(Op.CLOSE, 1001, 500) == [(Op.CLOSE_ACK, 0, 1001)]
    assert (passive.state, passive.failure) == (CLOSED, Failure.NONE)
    assert active.feed(Op.CLOSE_ACK, 0, 1001) == []
    assert (active.state, active.failure, active["timer_at_ps"]) == (CLOSED, Failure.NONE, NEVER)
    assert passive.feed(Op.CLOSE, 1001, 500) == [(Op.CLOSE_ACK, 0, 1001)]  # had the answer been lost


def test_simultaneous_close():
    a, b = Rig().bring_to(CLOSE_SENT), Rig(initial_seq=500)
    b.feed(Op.OPEN, 1000)
    assert b.close() == [(Op.CLOSE, 501, 1000)]
    assert a.feed(Op.CLOSE, 501, 1000) == [(Op.CLOSE_ACK, 0, 501)]
    assert b.feed(Op.CLOSE, 1001, 500) == [(Op.CLOSE_ACK, 0, 1001)]
    for rig, seq in ((a, 1001), (b, 501)):
        assert (rig.state, rig.failure) == (CLOSED, Failure.NONE)
        assert rig.feed(Op.CLOSE_ACK, 0, seq) == []
        assert rig.state is CLOSED


@pytest.mark.parametrize(
    ("rx", "answer", "after", "illegal"),
    [
        (1003, Op.CLOSE_ACK, CLOSED, 0),  # local tx: it has all
        (1004, Op.CLOSE_ACK, CLOSED, 0),  # local tx + 1: it has our CLOSE too, as printed
        (1002, Op.CLOSE_NACK, CLOSE_SENT, 0),
        (500, Op.CLOSE_NACK, CLOSE_SENT, 0),
        (1005, Op.CLOSE_NACK, CLOSE_SENT, 1),  # more than there is
    ],
)
def test_close_received_in_close_sent(rx, answer, after, illegal):
    rig = Rig()
    rig.feed(Op.OPEN, 500)
    rig.submit(300)
    rig.poll()
    rig.feed(Op.ACK, 0, 1003)
    assert rig.close() == [(Op.CLOSE, 1004, 500)]
    tx = 0 if answer is Op.CLOSE_ACK else 1003
    assert rig.feed(Op.CLOSE, 501, rx) == [(answer, tx, 501)]
    assert (rig.state, rig["dropped_illegal"]) == (after, illegal)


def test_close_with_data_unacknowledged_on_the_other_side():
    """It says NACK with its last id; the closer takes all up to there, closes again, and both end in order."""
    closer, other = Rig(), Rig(initial_seq=500)
    closer.feed(Op.OPEN, 500)
    other.feed(Op.OPEN, 1000)
    other.submit(250)
    other.poll()
    assert closer.close() == [(Op.CLOSE, 1001, 500)]
    assert closer.feed(Op.PAYLOAD, 501, 0, 100) == [(Op.NACK, 0, 501)]  # before the CLOSE is answered
    assert closer.feed(Op.PAYLOAD, 502, 0, 100) == []
    assert other.feed(Op.CLOSE, 1001, 500) == [(Op.CLOSE_NACK, 503, 1001)]
    assert machine.on_submit_at(other.links, 0, 1) == Status.NOT_OPEN
    assert closer.feed(Op.CLOSE_NACK, 503, 1001) == []
    assert (closer["close_answered"], closer["rx_closing_seq"]) == (1, 503)
    assert closer.timeout() == []  # no CLOSE replay until the closing id is reached
    other.feed(Op.NACK, 0, 501)
    assert other.poll() == [(501, 100), (502, 100), (503, 50)]
    assert closer.feed(Op.PAYLOAD, 501, 0, 100) == [(Op.ACK, 0, 501)]
    assert closer.feed(Op.PAYLOAD, 502, 0, 100) == [(Op.ACK, 0, 502)]
    assert closer["retries"] == 0  # the wait makes progress
    assert closer.feed(Op.PAYLOAD, 503, 0, 50) == [(Op.ACK, 0, 503), (Op.CLOSE, 1001, 503)]
    assert closer.feed(Op.PAYLOAD, 504, 0, 1) == [(Op.NACK_NOLINK, 0, 504)]  # beyond the local closing id
    assert other.feed(Op.CLOSE, 1001, 503) == [(Op.CLOSE_ACK, 0, 1001)]  # its rx says that all arrived: no ACK needed
    assert (other.state, other.failure, other["acked_bytes"]) == (CLOSED, Failure.NONE, 250)
    closer.feed(Op.CLOSE_ACK, 0, 1001)
    assert (closer.state, closer.failure, closer["rx_bytes"]) == (CLOSED, Failure.NONE, 250)


def test_a_gap_is_named_once_while_the_close_is_unanswered():
    """Naming it on every pass would keep the passes coming at the pace of the round trip until the CLOSE arrives."""
    rig = Rig().bring_to(CLOSE_SENT)
    assert rig.feed(Op.PAYLOAD, 501, 0, 10) == [(Op.NACK, 0, 501)]
    for seq in (502, 501, 502, 501):
        assert rig.feed(Op.PAYLOAD, seq, 0, 10) == []
    rig.feed(Op.CLOSE_NACK, 502, 1001)
    assert rig.feed(Op.PAYLOAD, 502, 0, 10) == [(Op.NACK, 0, 501)]  # taken now, so 501 is worth naming
    assert rig.feed(Op.PAYLOAD, 501, 0, 10) == [(Op.ACK, 0, 501)]


def test_a_close_nack_that_comes_after_the_data():
    rig = Rig()
    rig.feed(Op.OPEN, 500)
    rig.feed(Op.PAYLOAD, 501, 0, 10)
    rig.close()
    assert rig.feed(Op.CLOSE_NACK, 501, 1001) == [(Op.CLOSE, 1001, 501)]
    assert rig["close_answered"] == 0


def test_a_close_nack_forgets_the_retries_once():
    rig = Rig().bring_to(CLOSE_SENT)
    rig.timeout()
    rig.timeout()
    rig.feed(Op.CLOSE_NACK, 503, 1001)
    assert rig["retries"] == 0
    rig.timeout()
    rig.feed(Op.CLOSE_NACK, 503, 1001)
    assert rig["retries"] == 1


@pytest.mark.parametrize("rx", [1000, 1002, 0])
def test_answers_to_another_close_are_stale(rx):
    rig = Rig().bring_to(CLOSE_SENT)
    rig.feed(Op.CLOSE_NACK, 503, rx)
    rig.feed(Op.CLOSE_ACK, 0, rx)
    assert (rig.state, rig["close_answered"], rig["dropped_stale"]) == (CLOSE_SENT, 0, 2)


def test_a_close_in_close_recd_acknowledges_by_its_rx():
    rig = Rig().bring_to(CLOSE_RECD)
    assert rig.feed(Op.CLOSE, 501, 1001) == [(Op.CLOSE_ACK, 0, 501)]
    assert (rig.state, rig.failure, rig["acked_bytes"]) == (CLOSED, Failure.NONE, 100)


def test_a_close_received_ends_what_was_never_sent():
    rig = Rig(window_bytes=100)
    rig.feed(Op.OPEN, 500)
    rig.submit(250)
    rig.poll()
    assert rig.feed(Op.CLOSE, 501, 1000) == [(Op.CLOSE_NACK, 1001, 501)]
    rig.feed(Op.ACK, 0, 1001)
    assert rig.poll() == []  # 1002 would be beyond the remote closing id
    assert rig.feed(Op.CLOSE, 501, 1001) == [(Op.CLOSE_ACK, 0, 501)]
    assert (rig.state, rig.failure) == (CLOSED, Failure.CLOSED_UNSENT)
    assert rig["submitted_bytes"] - rig["acked_bytes"] == 150


def test_a_close_ahead_of_its_data():
    """A peer that closes with ids of its own on the way: CLOSE_ACK at once, CLOSED once they are here."""
    rig = Rig()
    rig.feed(Op.OPEN, 500)
    assert rig.feed(Op.CLOSE, 503, 1000) == [(Op.CLOSE_ACK, 0, 503)]
    assert rig.state is CLOSE_RECD
    assert rig["timer_at_ps"] != NEVER
    rig.feed(Op.PAYLOAD, 501, 0, 10)
    assert rig.state is CLOSE_RECD
    rig.feed(Op.PAYLOAD, 502, 0, 10)
    assert (rig.state, rig.failure, rig["rx_bytes"]) == (CLOSED, Failure.NONE, 20)


def test_a_close_with_an_id_behind_us_closes_too():
    """The reference module's ids on CLOSE mean nothing: what was delivered already is no reason to wait."""
    rig = Rig()
    rig.feed(Op.OPEN, 500)
    rig.feed(Op.PAYLOAD, 501, 0, 10)
    assert rig.feed(Op.CLOSE, 1, 1000) == [(Op.CLOSE_ACK, 0, 1)]
    assert (rig.state, rig.failure) == (CLOSED, Failure.NONE)


def test_a_quiesced_link_whose_peer_is_gone_ends_in_order():
    rig = Rig(retry_limit=1).bring_to(CLOSE_RECD)
    rig.feed(Op.ACK, 0, 1001)
    rig.timeout()
    rig.timeout()
    assert (rig.state, rig.failure) == (CLOSED, Failure.NONE)


def test_the_peer_that_never_sends_what_it_promised():
    rig = Rig(retry_limit=2).bring_to(CLOSE_SENT)
    rig.feed(Op.CLOSE_NACK, 503, 1001)
    for _ in range(3):
        assert rig.timeout() == []
    assert rig.failure is Failure.RETRY_LIMIT


def test_closing_twice_and_closing_while_closing():
    rig = Rig().bring_to(OPEN)
    assert rig.close() == []
    assert rig.close() == []
    assert machine.on_submit_at(rig.links, 0, 1) == Status.NOT_OPEN
    assert rig.feed(Op.ACK, 0, 1001) == [(Op.CLOSE, 1002, 500)]
    assert rig.close() == []


# Two machines over a network


def test_a_quiet_network_needs_no_resend():
    w = World(Script(submits=((0, A, 0, 100_000), (50 * PS_PER_US, B, 0, 40_000)))).run()
    for side, sent in ((A, 100_000), (B, 40_000)):
        assert w.links[side]["acked_bytes"] == w.links[1 - side]["rx_bytes"] == sent
        assert w.links[side]["payloads_resent"] == w.links[side]["timeouts"] == w.links[side]["gaps_received"] == 0
        assert w.links[side]["acks_sent"] == w.links[1 - side]["payloads_sent"]


def test_overtaking_frames_do_not_multiply():
    """Each pass of a window draws many NACKs here, and no round trip was sampled yet; the CLOSE may be lost too."""
    jitter = Path(loss=0.2, duplicate=0.1, jitter_ps=500 * PS_PER_US)
    submits = ((0, B, 0, 12), (0, A, 0, 1), (0, B, 0, 12))
    for seed in range(20):
        w = World(Script(
            seed=seed, paths=(jitter, jitter), mtu_bytes=1, window_bytes=12, submits=submits, closes=((0, A, 0),)
        )).run()  # fmt: skip
        assert sum(flight.opcode == Op.PAYLOAD for flight in w.sent) < 40 * 25


def test_one_lost_frame_costs_one_nack():
    class LosesOne(World):
        def _transmit(self, row, flight):
            if flight.opcode == Op.PAYLOAD and flight.tx_seq == 140 and not hasattr(self, "lost"):
                self.lost = True
                return
            super()._transmit(row, flight)

    w = LosesOne(Script(submits=((0, A, 0, 100_000),))).run()
    assert w.links[B]["rx_bytes"] == 100_000
    assert (w.links[A]["timeouts"], w.links[A]["nacks_received"], w.links[B]["nacks_sent"]) == (0, 1, 1)
    assert w.links[A]["payloads_resent"] <= 8  # the window


EXAMPLES = settings.default.max_examples if settings.default else 100

paths = st.builds(
    Path,
    loss=st.sampled_from([0.0, 0.05, 0.2, 0.4]),
    duplicate=st.sampled_from([0.0, 0.1, 0.4]),
    delay_ps=st.integers(1, 40 * PS_PER_US),
    jitter_ps=st.sampled_from([0, PS_PER_US, 20 * PS_PER_US, 500 * PS_PER_US]),
)
seqs = st.sampled_from([0, 5, 0x7FFFFFF8, 0xFFFFFFF0, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF)
policies = st.tuples(
    st.tuples(st.just("congestion_control"), st.sampled_from(["fixed", "reno"])),
    st.tuples(st.just("initial_window_packets"), st.integers(1, 10)),
    st.tuples(st.just("tail_loss_probe"), st.booleans()),
    st.tuples(st.just("probe_min_ps"), st.sampled_from([0, 10 * PS_PER_US, 500 * PS_PER_US])),
)
times = st.integers(0, 2000) | st.integers(0, 3_000_000)


@st.composite
def readers(draw, mtu: int) -> Reader:
    return Reader(
        limit_bytes=draw(st.just(NEVER) | st.integers(1, 5 * mtu)), take_bytes=draw(st.integers(1, 3 * mtu)),
        every_ps=draw(st.sampled_from([0, PS_PER_US, 50 * PS_PER_US])),
    )  # fmt: skip


@st.composite
def scripts(draw, *, with_closes: bool) -> Script:
    links = draw(st.integers(1, 2))
    mtu = draw(st.sampled_from([1, 64, 1024]))
    window = mtu * draw(st.integers(1, 12)) + draw(st.integers(0, mtu - 1))
    link = st.integers(0, links - 1)
    side = st.sampled_from([A, B])
    at_ps = times.map(lambda ns: ns * 1000)
    opens = [(draw(at_ps), draw(side), k) for k in range(links)]
    opens += draw(st.lists(st.tuples(at_ps, side, link), max_size=2))
    return Script(
        seed=draw(st.integers(0, 2**32)), initial_seqs=(draw(seqs), draw(seqs)), paths=(draw(paths), draw(paths)),
        links=links, mtu_bytes=mtu, window_bytes=window, pool_bytes=draw(st.sampled_from([NEVER, window, window + 7])),
        opens=tuple(opens),
        submits=tuple(draw(st.lists(st.tuples(at_ps, side, link, st.integers(1, 12 * mtu)), max_size=10))),
        closes=tuple(draw(st.lists(st.tuples(at_ps, side, link), max_size=4))) if with_closes else (),
        readers=(draw(readers(mtu)), draw(readers(mtu))), policy=draw(policies),
    )  # fmt: skip


@settings(max_examples=4 * EXAMPLES)
@given(scripts(with_closes=False))
def test_every_byte_arrives_once_and_in_order(script):
    w = World(script).run()  # which checks the order, and what holds at every step
    for row, link in enumerate(w.links):
        peer = w.links[(row + script.links) % len(w.links)]
        assert (link["state"], link["failure"]) == (OPEN, Failure.NONE)
        assert link["submitted_bytes"] == link["acked_bytes"] == peer["rx_bytes"]


@settings(max_examples=4 * EXAMPLES)
@given(scripts(with_closes=True))
def test_every_close_ends_on_both_sides_and_says_what_is_missing(script):
    w = World(script).run()
    for row, link in enumerate(w.links):
        peer = w.links[(row + script.links) % len(w.links)]
        assert link["failure"] in (Failure.NONE, Failure.CLOSED_UNSENT, Failure.REFUSED)
        if link["failure"] == Failure.REFUSED:  # the peer opened and closed before its OPEN_ACK came
            assert peer["is_closing"]
            assert link["acked_bytes"] == 0
        if link["failure"] == Failure.CLOSED_UNSENT:
            assert peer["is_closing"]
        assert peer["rx_bytes"] == link["acked_bytes"]


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_drawn_scripts(first_seed):
    for seed in range(first_seed, first_seed + 50):
        World(draw_script(seed)).run()


@settings(max_examples=3 * EXAMPLES)
@given(
    scripts(with_closes=True), st.sampled_from([(A, B), (A,), (B,)]), times, st.integers(0, 4),
)  # fmt: skip
def test_a_peer_that_dies_is_noticed_in_time(script, dead, at_ns, retry_limit):
    """From a moment on no frame of one side, or of both, arrives: whoever owes something learns it within the bound."""
    died_at = at_ns * 1000
    dying = tuple(replace(p, dead_from_ps=died_at) if side in dead else p for side, p in enumerate(script.paths))
    script = replace(script, paths=dying, retry_limit=retry_limit, rto_max_ps=PS_PER_MS)
    w = World(script).run()
    wire_ps = (script.mtu_bytes + 88) * script.byte_ps
    last = max([died_at, *(at for at, *_ in (*script.submits, *script.closes, *script.opens))])
    for row, link in enumerate(w.links):
        if link["failure"] == Failure.RETRY_LIMIT and len(dead) == 2:
            settle = max(p.delay_ps + p.jitter_ps for p in script.paths)
            bound = last + settle + (retry_limit + 1) * (script.rto_max_ps + 2 * script.links * wire_ps)
            assert w.ended_at_ps[row] <= bound
        # PEER_RESTARTED and an unnoticed debt are violations that the world finds itself


def test_a_dead_peer_costs_exactly_the_retries():
    script = Script(
        paths=(Path(), Path(dead_from_ps=0)), retry_limit=4, rto_initial_ps=100 * PS_PER_US, rto_max_ps=400 * PS_PER_US
    )
    w = World(script).run()
    assert (w.failure(A), w.links[A]["timeouts"]) == (Failure.RETRY_LIMIT, 5)
    assert w.ended_at_ps[A] == (100 + 200 + 400 + 400 + 400) * PS_PER_US
    assert sum(f.opcode == Op.OPEN for f in w.sent) == 5


# The same in every mode


def _digests(seeds: list[int], **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(FilePath(__file__).with_name("world.py")), *map(str, seeds)],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


SEEDS = [3, 4, 11, 62, 142, 196]


@pytest.fixture(scope="module")
def compiled_digests() -> list[str]:
    return [World(draw_script(seed), keep_log=True).run().digest() for seed in SEEDS]


def test_a_run_is_a_function_of_its_script(compiled_digests):
    assert [World(draw_script(seed), keep_log=True).run().digest() for seed in SEEDS] == compiled_digests
    assert len(set(compiled_digests)) == len(SEEDS)


def test_interpreted_alike_with_numpy_errors_raised(compiled_digests):
    assert _digests(SEEDS, NUMBA_DISABLE_JIT="1") == compiled_digests


def test_bounds_checked_alike(compiled_digests):
    assert _digests(SEEDS, NUMBA_BOUNDSCHECK="1") == compiled_digests


def test_rows_hold_int64_only():
    """Narrow fields wrap interpreted and widen compiled."""
    assert {LINK[name] for name in LINK.names or ()} == {np.dtype("i8")}

"""Each switch of the reference module's ways, off and on; the rows are those of docs/reference-profile.md.

tests/test_captures_replayed.py shows that the module does so on the wire; here is what the switch alone changes.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from wirepair import MAC_A, MAC_B, WirePair
from world import Rig, World, draw_script

from ttpoe import machine
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import Endpoint
from ttpoe.fsm import Opcode, State
from ttpoe.impair import Impairment
from ttpoe.reference import MAX_REPEATS
from ttpoe.rules import MODULE, PROFILES, REFERENCE, SPECIFICATION, Rule
from ttpoe.state import Failure, Status
from ttpoe.units import NEVER, PS_PER_MS, PS_PER_US
from ttpoe.wire import build, make_header, parse

Op = Opcode
CLOSED, OPEN_SENT, OPEN_RECD, OPEN, CLOSE_SENT, CLOSE_RECD = State


def rig(rules: Rule = SPECIFICATION, **fields: int) -> Rig:
    return Rig(rules=int(rules), **fields)


def frame(opcode: Opcode, tx: int = 0, rx: int = 0, payload: bytes = b"", vc: int = 2) -> bytes:
    """A frame from B to A."""
    header = make_header(
        dst_mac=MAC_A, src_mac=MAC_B, opcode=opcode, vc=vc, tx_seq=tx, rx_seq=rx, payload_bytes=len(payload)
    )
    return build(header, payload)


def answers(endpoint: Endpoint, *frames: bytes, now_ps: int = 0) -> list[tuple[Opcode, int, int]]:
    """What A sends on these frames, as (opcode, tx, rx)."""
    endpoint.receive(frames, now_ps)
    sent = []
    while (data := endpoint.poll_transmit(now_ps)) is not None:
        row = parse(bytes(data)).header[0]
        sent.append((Opcode(row["opcode"]), int(row["tx_seq"]), int(row["rx_seq"])))
    return sent


# What is written into answers: the received frame, the specification's answer, the module's

FIELDS = {
    Rule.OPEN_ACK_ZERO: (CLOSED, (Op.OPEN, 500), [(Op.OPEN_ACK, 1001, 500)], [(Op.OPEN_ACK, 0, 500)]),
    Rule.ACK_LAST: (OPEN, (Op.PAYLOAD, 499, 0, 10), [(Op.ACK, 0, 499)], [(Op.ACK, 0, 500)]),
    Rule.NACK_LAST: (OPEN, (Op.PAYLOAD, 505, 0, 10), [(Op.NACK, 0, 501)], [(Op.NACK, 0, 500)]),
    Rule.NOLINK_ECHO: (CLOSED, (Op.PAYLOAD, 5, 77, 10), [(Op.NACK_NOLINK, 0, 5)], [(Op.NACK_NOLINK, 0, 77)]),
    Rule.CLOSE_ACK_ECHO: (CLOSED, (Op.CLOSE, 9, 88), [(Op.CLOSE_ACK, 0, 9)], [(Op.CLOSE_ACK, 0, 88)]),
    Rule.OPEN_SHORTCUT: (OPEN_SENT, (Op.OPEN, 500), [(Op.OPEN_ACK, 1001, 500)], [(Op.OPEN_ACK, 1001, 500)]),
    Rule.CLOSE_STAYS: (OPEN_SENT, (Op.CLOSE, 9, 88), [(Op.CLOSE_ACK, 0, 9)], [(Op.CLOSE_ACK, 0, 9)]),
    Rule.TAKE_WHILE_CLOSING: (CLOSE_SENT, (Op.PAYLOAD, 501, 0, 10), [(Op.NACK, 0, 501)], [(Op.ACK, 0, 501)]),
    Rule.PLAIN_ORDER: (OPEN, (Op.PAYLOAD, 0, 0, 10), [(Op.ACK, 0, 0)], [(Op.NACK, 0, 501)]),
    Rule.CLOSE_PRINTED: (OPEN, (Op.CLOSE, 501, 1002), [(Op.CLOSE_NACK, 1001, 501)], [(Op.CLOSE_NACK, 1001, 501)]),
    Rule.CLOSE_TWICE: (OPEN, (Op.CLOSE, 501, 1001), [(Op.CLOSE_ACK, 0, 501)], [(Op.CLOSE_ACK, 0, 501)] * 2),
}
AFTER = {  # the state afterwards, where it differs
    Rule.OPEN_SHORTCUT: (OPEN_SENT, OPEN), Rule.CLOSE_STAYS: (CLOSED, OPEN_SENT),
}  # fmt: skip


@pytest.mark.parametrize("rule", FIELDS, ids=lambda rule: rule.name)
def test_an_answer_without_and_with_a_switch(rule):
    state, received, plain, as_module = FIELDS[rule]
    after = AFTER.get(rule)
    for rules, expected, index in ((Rule(0), plain, 0), (rule, as_module, 1)):
        one = rig(rules).bring_to(state)
        assert one.feed(*received) == expected
        if after:
            assert one.state is after[index]


def test_close_ids_are_zero():
    for rules, sent in ((Rule(0), (Op.CLOSE, 1001, 500)), (Rule.CLOSE_ZERO, (Op.CLOSE, 0, 0))):
        one = rig(rules)
        one.feed(Op.OPEN, 500)
        assert one.close() == [sent]
        assert one.timeout() == [sent]


# Opening


def test_ids_start_at_one():
    one = rig(Rule.START_AT_ONE, initial_seq=77)
    assert one.open() == [(Op.OPEN, 1, 1)]
    assert one.timeout() == [(Op.OPEN, 1, 1)]
    one.feed(Op.OPEN_ACK, 0, 1)
    assert (one.state, one["rx_seq"]) == (OPEN, 1)  # tx 0 names no id: the module's first PAYLOAD is 2
    one.submit(10)
    assert one.poll() == [(2, 10)]
    assert one.feed(Op.PAYLOAD, 2, 0, 10) == [(Op.ACK, 0, 2)]
    other = rig(Rule.START_AT_ONE)
    other.open()
    other.feed(Op.OPEN_ACK, 43, 1)
    assert other["rx_seq"] == 42  # a peer that names its id is believed


def test_an_open_ack_of_another_open():
    for rules, state in ((Rule(0), OPEN_SENT), (Rule.OPEN_ACK_ANY_ID, OPEN)):
        one = rig(rules).bring_to(OPEN_SENT)
        one.feed(Op.OPEN_ACK, 501, 999)
        assert one.state is state


def test_an_owner_opens_an_open_link_again():
    one = rig(Rule.OPEN_AGAIN).bring_to(OPEN)
    timer_at_ps = one["timer_at_ps"]
    one.now_ps = 7
    assert one.open() == [(Op.OPEN, 1000, 0)]  # the last acknowledged id
    one.feed(Op.ACK, 0, 1001)
    assert one.open() == [(Op.OPEN, 1001, 0)]
    assert one.state is OPEN
    assert timer_at_ps == 100
    plain = rig().bring_to(OPEN)
    assert machine.on_open_at(plain.links, 0, 0, plain.out, 0) == Status.ILLEGAL_SEND


def test_a_resync_goes_on_behind_its_id():
    """Its risk: a peer that restarts is taken for the same one, and its bytes are appended to the old ones."""
    one = rig(Rule.OPEN_RESYNC).bring_to(OPEN)
    assert one.feed(Op.PAYLOAD, 501, 0, 10) == [(Op.ACK, 0, 501)]
    assert one.feed(Op.OPEN, 7) == [(Op.OPEN_ACK, 1001, 7)]
    assert one.feed(Op.PAYLOAD, 8, 0, 10) == [(Op.ACK, 0, 8)]
    assert (one.state, one.failure, one["rx_bytes"]) == (OPEN, Failure.NONE, 20)
    plain = rig().bring_to(OPEN)
    assert plain.feed(Op.OPEN, 7) == []
    assert plain.failure is Failure.PEER_RESTARTED


def test_no_way_left_is_silence_then_nack_nolink():
    for rules, refusal in ((Rule(0), [(Op.OPEN_NACK, 0, 9)]), (Rule.REFUSE_SILENTLY, [])):
        endpoint = Endpoint(MAC_A, EndpointConfig(backlog=1, rules=rules))
        endpoint.is_listening = True
        assert answers(endpoint, frame(Op.OPEN, 1, vc=0))[0][0] is Op.OPEN_ACK
        assert answers(endpoint, frame(Op.OPEN, 9)) == refusal
        assert answers(endpoint, frame(Op.PAYLOAD, 10, 0, b"x")) == [(Op.NACK_NOLINK, 0, 10)]
        ended = rig(rules).bring_to(OPEN_SENT)
        ended.feed(Op.OPEN_NACK, 0, 1000)
        assert ended.feed(Op.OPEN, 9) == refusal


# Opening again after NACK_NOLINK


def test_nack_nolink_opens_again_and_sends_again():
    one = rig(Rule.REOPEN | Rule.STOP_AND_WAIT)
    one.feed(Op.OPEN, 500)
    one.submit(200)
    assert one.poll() == [(1001, 100)]
    one.feed(Op.ACK, 0, 1001)
    assert one.poll() == [(1002, 100)]
    assert one.feed(Op.NACK_NOLINK, 0, 0) == [(Op.OPEN, 1001, 0)]  # whatever it names
    assert one.state is OPEN_SENT
    assert one.poll() == []
    assert one.timeout() == [(Op.OPEN, 1001, 0)]
    one.feed(Op.OPEN_ACK, 42, 1001)
    assert (one.state, one["rx_seq"]) == (OPEN, 41)
    assert one.poll() == [(1002, 100)]
    one.feed(Op.ACK, 0, 1002)
    assert one["acked_bytes"] == 200


def test_nack_nolink_with_nothing_out_is_no_reason():
    for rules, sent in ((Rule.REOPEN, []), (Rule.REOPEN | Rule.REOPEN_BLINDLY, [(Op.OPEN, 1000, 0)])):
        one = rig(rules)
        one.feed(Op.OPEN, 500)
        assert one.feed(Op.NACK_NOLINK, 0, 0) == sent


def test_a_peer_that_begins_anew_is_received_from_its_first_id():
    for rules, rx_seq in ((Rule(0), 1), (Rule.REOPEN_BLINDLY, 5)):
        one = rig(Rule.REOPEN | Rule.START_AT_ONE | rules)
        one.feed(Op.OPEN, 1)
        for seq in range(2, 6):
            one.feed(Op.PAYLOAD, seq, 0, 10)
        one.submit(10)
        one.poll()
        one.feed(Op.NACK_NOLINK, 0, 0)
        one.feed(Op.OPEN_ACK, 0, 1)
        assert one["rx_seq"] == rx_seq


def test_opening_again_backs_off():
    """A peer that opens and knows no link, at once and always, is asked ever more rarely, and in the end given up."""
    one = rig(Rule.REOPEN, rto_initial_ps=100, rto_min_ps=100, rto_max_ps=10_000, retry_limit=9)
    one.feed(Op.OPEN, 500)
    one.submit(10)
    waits = []
    for _ in range(9):
        assert len(one.poll()) == 1
        asked_at_ps = one.now_ps
        if one.feed(Op.NACK_NOLINK, 0, 0) == []:
            one.timeout()
        waits.append(one.now_ps - asked_at_ps)
        one.feed(Op.OPEN_ACK, 501, 1000)
        one["rto_ps"] = 100  # the timeout itself backs off as well
    assert waits == [0, 100, 200, 400, 800, 1600, 3200, 6400, 6400]
    one.poll()
    one.feed(Op.NACK_NOLINK, 0, 0)
    assert one.failure is Failure.LINK_DOWN
    other = rig(Rule.REOPEN)
    other.feed(Op.OPEN, 500)
    for seq in range(1001, 1010):  # with progress between there is no wait
        other.submit(10)
        other.poll()
        assert other.feed(Op.NACK_NOLINK, 0, 0) == [(Op.OPEN, seq - 1, 0)]
        other.feed(Op.OPEN_ACK, 501, seq - 1)
        other.poll()
        other.feed(Op.ACK, 0, seq)


# Closing


def test_a_close_by_the_module():
    """The printed condition's answer, then a CLOSE_ACK, then CLOSED whatever is unacknowledged."""
    rules = Rule.CLOSE_TWICE | Rule.CLOSE_PRINTED | Rule.CLOSE_ACK_ECHO
    for seen, first in ((1001, Op.CLOSE_ACK), (1002, Op.CLOSE_NACK)):
        one = rig(rules).bring_to(OPEN)
        assert one.feed(Op.CLOSE, 501, seen) == [(first, 0, seen), (Op.CLOSE_ACK, 0, 500)]
        assert (one.state, one.failure) == (CLOSED, Failure.CLOSED_UNSENT)


@pytest.mark.parametrize(("seen", "answer"), [(1000, Op.CLOSE_ACK), (1001, Op.CLOSE_ACK), (1002, Op.CLOSE_NACK)])
def test_the_printed_condition_in_close_sent(seen, answer):
    one = rig(Rule.CLOSE_PRINTED).bring_to(CLOSE_SENT)  # our CLOSE is 1001, local tx 1000
    (sent,) = one.feed(Op.CLOSE, 501, seen)
    assert sent[0] is answer
    assert one.state is (CLOSED if answer is Op.CLOSE_ACK else CLOSE_SENT)


def test_a_close_does_not_wait_for_acknowledgements():
    for rules, sent in ((Rule(0), []), (Rule.CLOSE_AT_ONCE, [(Op.CLOSE, 1002, 500)])):
        one = rig(rules).bring_to(OPEN)
        assert one.close() == sent
        one.feed(Op.ACK, 0, 1001)
        assert one.state is CLOSE_SENT
        assert one["timer_at_ps"] != NEVER


def test_ids_on_close_mean_nothing():
    """A CLOSE of zeros neither acknowledges nor cuts off: what is out is acknowledged first, then we end the link."""
    one = rig(Rule.CLOSE_ANY_ID).bring_to(OPEN)
    assert one.feed(Op.CLOSE, 0, 0) == [(Op.CLOSE_NACK, 1001, 0)]
    assert (one.state, one["acked_bytes"]) == (CLOSE_RECD, 0)
    assert one.feed(Op.PAYLOAD, 501, 0, 10) == [(Op.ACK, 0, 501)]
    assert one.feed(Op.ACK, 0, 1001) == [(Op.CLOSE_ACK, 0, 0)]
    assert (one.state, one.failure, one["rx_bytes"]) == (CLOSED, Failure.NONE, 10)
    idle = rig(Rule.CLOSE_ANY_ID)
    idle.feed(Op.OPEN, 500)
    assert idle.feed(Op.CLOSE, 0, 0) == [(Op.CLOSE_ACK, 0, 0)]
    assert (idle.state, idle.failure) == (CLOSED, Failure.NONE)


def test_two_close_acks_with_any_id_close_once():
    one = rig(Rule.CLOSE_ANY_ID).bring_to(CLOSE_SENT)
    for rx in (0, 6):
        assert one.feed(Op.CLOSE_ACK, 0, rx) == []
        assert (one.state, one.failure) == (CLOSED, Failure.NONE)
    plain = rig().bring_to(CLOSE_SENT)
    plain.feed(Op.CLOSE_ACK, 0, 0)
    assert plain.state is CLOSE_SENT


# Receiving PAYLOAD


def test_each_future_id_gets_a_nack():
    for rules, count in ((Rule(0), 1), (Rule.NACK_EACH, 4)):
        one = rig(rules)
        one.feed(Op.OPEN, 500)
        sent = [one.feed(Op.PAYLOAD, seq, 0, size) for seq, size in ((505, 9), (503, 9), (506, 9), (501, 0))]
        assert sum(map(len, sent)) == count
        assert one.feed(Op.PAYLOAD, 501, 0, 9) == [(Op.ACK, 0, 501)]


def test_duplicates_from_before_the_wrap():
    """The wrap itself is crossed in order either way."""
    for rules, answer in ((Rule(0), (Op.ACK, 0, 0xFFFFFFFF)), (Rule.PLAIN_ORDER, (Op.NACK, 0, 2))):
        one = rig(rules, initial_seq=0xFFFFFFFE)
        one.feed(Op.OPEN, 0xFFFFFFFE)
        for seq in (0xFFFFFFFF, 0, 1):
            assert one.feed(Op.PAYLOAD, seq, 0, 9) == [(Op.ACK, 0, seq)]
        assert one.feed(Op.PAYLOAD, 0xFFFFFFFF, 0, 9) == [answer]
        one.submit(300)
        assert [seq for seq, _ in one.poll()] == [0xFFFFFFFF, 0, 1]


def short_shim(opcode: Opcode, seq: int) -> bytes:
    header = make_header(dst_mac=MAC_A, src_mac=MAC_B, opcode=opcode, vc=2, tx_seq=seq, rx_seq=0)
    header["shim_length"] = 25
    return build(header)


def test_a_short_shim_length_gets_a_nack():
    for rules, sent in ((Rule(0), []), (Rule.SHORT_SHIM, [(Op.NACK, 0, 501)])):
        endpoint = Endpoint(MAC_A, EndpointConfig(rules=rules))
        endpoint.is_listening = True
        answers(endpoint, frame(Op.OPEN, 500))
        assert answers(endpoint, short_shim(Op.PAYLOAD, 501)) == sent
        assert answers(endpoint, short_shim(Op.OPEN, 501)) == []  # only PAYLOAD was seen to be answered
        assert endpoint.drops() == {"shim_too_short": 1 if sent else 2}


def test_a_payload_stops_the_only_timer():
    for rules, is_running in ((Rule(0), True), (Rule.ONE_TIMER, False)):
        one = rig(rules).bring_to(OPEN)
        one.feed(Op.PAYLOAD, 501, 0, 10)
        assert (one["timer_at_ps"] != NEVER) is is_running


# Sending PAYLOAD


def test_stop_and_wait():
    one = rig(Rule.STOP_AND_WAIT)
    one.feed(Op.OPEN, 500)
    one.submit(250)
    for sent in ((1001, 100), (1002, 100), (1003, 50)):
        assert one.poll() == [sent]
        one.feed(Op.ACK, 0, sent[0])
    plain = rig()
    plain.feed(Op.OPEN, 500)
    plain.submit(250)
    assert len(plain.poll()) == 3


@pytest.mark.parametrize("rx", [1000, 999, 1002, 7])
@pytest.mark.parametrize(("opcode", "rule"), [(Op.ACK, Rule.MISMATCH_RESENDS), (Op.NACK, Rule.NACK_RESENDS)])
def test_an_answer_that_names_another_id_resends_at_once(opcode, rule, rx):
    for rules, resent in ((Rule(0), []), (rule | Rule.STOP_AND_WAIT, [(1001, 100)])):
        one = rig(rules).bring_to(OPEN)
        for _ in range(3):
            one.feed(opcode, 0, rx)
            assert one.poll() == resent
        one.feed(Op.ACK, 0, 1001)
        one.feed(opcode, 0, rx)
        assert one.poll() == []


def test_a_nack_that_names_the_last_good_id():
    """Both meanings of its rx: what is before it has arrived, and it is sent again, though it may have arrived too."""
    for rules, resent in ((Rule(0), []), (Rule.NACK_EITHER, [(1001, 100), (1002, 100)])):
        one = rig(rules)
        one.feed(Op.OPEN, 500)
        one.submit(200)
        one.poll()
        one.feed(Op.NACK, 0, 1000)
        assert one.poll() == resent
    one = rig(Rule.NACK_EITHER)
    one.feed(Op.OPEN, 500)
    one.submit(300)
    one.poll()
    one.feed(Op.NACK, 0, 1002)
    assert one["acked_bytes"] == 100
    assert [seq for seq, _ in one.poll()] == [1002, 1003]
    one.feed(Op.NACK, 0, 999)  # older than both
    assert one.poll() == []


def test_nack_full_waits_for_the_timer():
    for rules, timer_at_ps in ((Rule(0), 107), (Rule.FULL_WAITS, 100)):
        one = rig(rules).bring_to(OPEN)
        one.now_ps = 7
        one.feed(Op.NACK_FULL, 0, 1001)
        assert one["timer_at_ps"] == timer_at_ps
        one.timeout()
        assert one.poll() == [(1001, 100)]


def test_after_the_retry_limit_the_id_is_dropped_without_a_word():
    one = rig(Rule.SKIP_LOST | Rule.STOP_AND_WAIT, retry_limit=2)
    one.feed(Op.OPEN, 500)
    one.submit(250)
    assert one.poll() == [(1001, 100)]
    for _ in range(2):
        one.timeout()
        assert one.poll() == [(1001, 100)]
    one.timeout()
    assert one.poll() == [(1002, 100)]
    assert (one.state, one.failure, one.pools["held_bytes"][0]) == (OPEN, Failure.NONE, 100)
    one.feed(Op.ACK, 0, 1002)
    assert one.poll() == [(1003, 50)]
    with pytest.raises(ValueError, match="SKIP_LOST without STOP_AND_WAIT"):
        EndpointConfig(rules=Rule.SKIP_LOST)


def test_fixed_timers():
    """OPEN 250, PAYLOAD 375, CLOSE 500 ms, whatever the round trip and however often."""
    pair = WirePair(EndpointConfig.profile("module"))
    a = pair.a
    pair.is_cut = True
    link = a.connect(MAC_B, 0, 0)
    for k in range(1, 5):
        assert a.next_deadline_ps() == 250 * k * PS_PER_MS
        a.handle_timeout(250 * k * PS_PER_MS)
    assert answers(a, frame(Op.OPEN_ACK, 0, 1, vc=0), now_ps=1001 * PS_PER_MS)[-1][0] is Op.OPEN
    link.submit(b"x")
    for k in range(4):
        assert answers(a, now_ps=(1001 + 375 * k) * PS_PER_MS)[0][:2] == (Op.PAYLOAD, 2)
        assert a.next_deadline_ps() == (1376 + 375 * k) * PS_PER_MS
        a.handle_timeout((1376 + 375 * k) * PS_PER_MS)
    answers(a, frame(Op.ACK, 0, 2, vc=0), now_ps=3000 * PS_PER_MS)
    a.close(link, 3000 * PS_PER_MS)
    for k in range(1, 4):
        assert a.next_deadline_ps() == (3000 + 500 * k) * PS_PER_MS
        a.handle_timeout((3000 + 500 * k) * PS_PER_MS)
    assert EndpointConfig.profile("module").retry_limit == 1000


# What every profile does


@pytest.mark.parametrize("profile", PROFILES)
def test_silence(profile):
    """vc above 2, opcode above 10, a frame below 64 bytes, a VLAN tag, a shim length beyond the frame."""
    endpoint = Endpoint(MAC_A, EndpointConfig.profile(profile))
    endpoint.is_listening = True
    good = frame(Op.OPEN, 1)
    bad = [bytearray(good) for _ in range(3)]
    bad[0][43] = 3
    bad[1][42] = 11
    bad[2][40:42] = (31).to_bytes(2, "big")
    tagged = good[:12] + b"\x81\x00\x00\x01" + good[12:]
    assert answers(endpoint, *map(bytes, bad), good[:60], good[:63], tagged) == []
    assert len(answers(endpoint, good)) == 1


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_ignored(profile):
    """Reserved bits, pads, the rest of the type header, tx and rx of version 1, epoch, shim nodes, a foreign OUI."""
    endpoint = Endpoint(MAC_A, EndpointConfig.profile(profile))
    endpoint.is_listening = True
    data = bytearray(frame(Op.OPEN, 1))
    for at in (14, *range(16, 40), *range(44, 52), *range(60, 64)):
        data[at] = 0xFF
    data[15] |= 0x7F
    data[42] |= 0xC0
    data[6:9] = b"\x02\x00\x00"
    (sent,) = answers(endpoint, bytes(data))
    assert sent[0] is Op.OPEN_ACK
    assert sent[2] == 1


@pytest.mark.parametrize("profile", PROFILES)
def test_frames_are_padded_and_payloads_bounded(profile):
    endpoint = Endpoint(MAC_A, EndpointConfig.profile(profile))
    endpoint.is_listening = True
    answers(endpoint, frame(Op.OPEN, 1))
    (link,) = endpoint.links
    link.submit(b"x" * 3000)
    sizes = []
    while (data := endpoint.poll_transmit(0)) is not None:
        sizes.append(len(data))
    assert max(sizes) - 60 == (1008 if profile == "module" else 1024)
    endpoint.receive([frame(Op.PAYLOAD, 2, 0, b"y" * 1024)], 0)
    assert link.readable_bytes == 1024
    assert len(endpoint.poll_transmit(0) or b"") == 64


# The repetition of the last answer


def repeating(**fields: int) -> Rig:
    return Rig(answer_repeat_ps=1000, **fields)


def test_an_answer_is_repeated_when_the_peer_falls_silent():
    """From its answer to a PAYLOAD of ours on; ever more rarely; not more than MAX_REPEATS times."""
    one = repeating().bring_to(OPEN)
    one.feed(Op.PAYLOAD, 501, 0, 10)
    one.now_ps = 50
    one.feed(Op.ACK, 0, 1001)
    at_ps = []
    while one["timer_at_ps"] != NEVER:
        assert one.timeout() == [(Op.ACK, 0, 501)]
        at_ps.append(one.now_ps)
    assert at_ps == [50 + 1000 * (2**k - 1) for k in range(1, MAX_REPEATS + 1)]
    assert (one["acks_repeated"], one["timeouts"], one.state) == (MAX_REPEATS, 0, OPEN)


def test_the_waits_begin_anew_behind_each_further_id_of_the_peer():
    one = repeating().bring_to(OPEN)
    one.feed(Op.ACK, 0, 1001)
    for _ in range(5):
        one.timeout()
    assert one["timer_at_ps"] - one.now_ps == 32_000
    one.submit(10)
    one.poll()
    one.feed(Op.PAYLOAD, 501, 0, 10)
    one.feed(Op.ACK, 0, 1002)
    assert one["timer_at_ps"] - one.now_ps == 1000
    assert one.timeout() == [(Op.ACK, 0, 501)]


def test_no_answer_is_repeated_before_the_peer_has_answered_one_of_ours():
    """Its timer runs then, and repeats what is lost: more would only multiply."""
    one = repeating()
    one.feed(Op.OPEN, 500)
    one.feed(Op.PAYLOAD, 501, 0, 10)
    assert one["timer_at_ps"] == NEVER


def test_a_peer_that_goes_on_is_left_alone():
    one = repeating().bring_to(OPEN)
    one.feed(Op.ACK, 0, 1001)
    one.now_ps = 500
    one.feed(Op.PAYLOAD, 501, 0, 10)
    assert one.timeout() == []
    assert (one["timer_at_ps"], one["timeouts"], one["acks_repeated"]) == (NEVER, 0, 0)


def test_an_answer_is_repeated_while_we_send():
    """Then our timer runs for our own PAYLOAD, and the acknowledgements that come are the clock."""
    one = repeating()
    one.feed(Op.OPEN, 500)
    one.submit(1000)
    one.poll()
    sent = []
    for k in range(10):
        one.now_ps = 10 + 400 * k
        one.links["rto_ps"] = one.links["timer_at_ps"] = 100_000
        sent += one.feed(Op.ACK, 0, 1001 + k)
    assert sent == [(Op.ACK, 0, 500), (Op.ACK, 0, 500)]  # after 1000, and 2000 more


def test_new_payload_has_its_own_timeout_while_an_answer_waits_to_be_repeated():
    one = repeating(rto_min_ps=200, rto_initial_ps=200).bring_to(OPEN)
    one.feed(Op.ACK, 0, 1001)
    assert one["timer_at_ps"] == 1000
    one.submit(10)
    one.poll()
    assert one["timer_at_ps"] == one["rto_ps"] == 200


def test_a_resend_has_its_own_timeout_too():
    one = repeating(rto_min_ps=200, rto_initial_ps=200).bring_to(OPEN)
    one.now_ps = 30
    one.feed(Op.NACK, 0, 1001)
    assert one.poll() == [(1001, 100)]
    assert one["timer_at_ps"] == 230


def test_an_open_ack_is_repeated_to_a_peer_that_says_it_has_no_link():
    one = repeating().bring_to(OPEN)
    assert one.feed(Op.NACK_NOLINK, 0, 1001) == []
    one.now_ps = 1000
    assert one.feed(Op.NACK_NOLINK, 0, 1001) == [(Op.OPEN_ACK, 1001, 500)]


def test_closing_does_not_wait_for_a_repetition():
    one = repeating().bring_to(OPEN)
    one.feed(Op.ACK, 0, 1001)
    assert one["timer_at_ps"] == 1000
    one.feed(Op.CLOSE, 503, 1001)
    assert (one.state, one["timer_at_ps"]) == (CLOSE_RECD, one["rto_ps"])


def test_nothing_is_repeated_by_default():
    one = Rig().bring_to(OPEN)
    one.feed(Op.PAYLOAD, 501, 0, 10)
    one.feed(Op.ACK, 0, 1001)
    assert (one["timer_at_ps"], one["repeat_at_ps"]) == (NEVER, NEVER)
    assert EndpointConfig().answer_repeat_ps == 0
    assert EndpointConfig.profile("reference").answer_repeat_ps > 0


# Profiles


def exchange(profile_a: str, profile_b: str, seed: int, loss: float = 0.05, **changes: int) -> WirePair:
    """Both ends send 40 messages of 10 bytes over a lossy line, one by one, until nothing moves."""
    lossy = [Impairment(2 * seed + way, loss=loss) for way in (0, 1)]
    pair = WirePair(impairments=(lossy[0], lossy[1]))
    pair.a = Endpoint(MAC_A, EndpointConfig.profile(profile_a, **changes if profile_a != "module" else {}))
    pair.b = Endpoint(MAC_B, EndpointConfig.profile(profile_b))
    pair.b.is_listening = True
    pair.a.connect(MAC_B, 0, 0)
    left = {pair.a: 40, pair.b: 40}
    for _ in range(4000):
        for endpoint, messages in left.items():
            for link in endpoint.links:
                if link.state is OPEN and link.unacknowledged_bytes == 0 and messages:
                    left[endpoint] -= 1
                    link.submit(b"0123456789")
        if not pair.step() and not pair.wait():
            break
    return pair


def received(pair: WirePair) -> tuple[int, int]:
    (a,), (b,) = pair.a.links, pair.b.links
    return a.field("rx_bytes"), b.field("rx_bytes")


SEEDS = range(12)


def test_two_modules_can_stall_for_ever():
    """What the repetition is for. No timer runs, and yet not all is delivered."""
    stalled = 0
    for seed in SEEDS:
        pair = exchange("module", "module", seed)
        if received(pair) != (400, 400):
            assert pair.a.next_deadline_ps() == pair.b.next_deadline_ps() == NEVER
            stalled += 1
    assert stalled > 3


@pytest.mark.parametrize("profiles", [("reference", "module"), ("module", "reference"), ("reference", "reference")])
def test_the_reference_profile_does_not_stall(profiles):
    for seed in SEEDS:
        assert received(exchange(*profiles, seed)) == (400, 400), seed


def test_without_the_repetition_it_would():
    assert any(received(exchange("reference", "module", seed, answer_repeat_ps=0)) != (400, 400) for seed in SEEDS)


def test_exactly_one_answer_for_each_payload():
    """The module answers each further one by a resend."""
    for seed in SEEDS:
        pair = exchange("reference", "module", seed)
        (a,) = pair.a.links
        came = a.field("payloads_received") + a.field("duplicates_received") + a.field("gaps_received")
        assert a.field("acks_sent") + a.field("nacks_sent") == came
        repeated = a.field("acks_repeated")
        sent = sum(way == "a" and parse(data).header[0]["opcode"] in (Op.ACK, Op.NACK) for way, data in pair.frames)
        assert sent == came + repeated


@pytest.mark.parametrize(("rules", "in_order"), [(SPECIFICATION, False), (REFERENCE, True)], ids=["spec", "reference"])
def test_whole_runs_that_repeat_answers(rules, in_order):
    """Drawn scripts under the oracle of tests/world.py. Frames that overtake each other are a risk of OPEN_RESYNC."""
    for seed in range(60):
        script = draw_script(seed)
        if in_order:
            paths = [dataclasses.replace(path, duplicate=0.0, jitter_ps=0) for path in script.paths]
            script = dataclasses.replace(script, paths=tuple(paths))
        policy = (*script.policy, ("rules", int(rules)), ("answer_repeat_ps", 200 * PS_PER_US))
        World(dataclasses.replace(script, policy=policy, max_steps=200_000)).run()


def test_the_profiles():
    assert EndpointConfig.profile("spec") == EndpointConfig()
    assert EndpointConfig.profile("reference").rules == REFERENCE
    assert EndpointConfig.profile("module", mtu_bytes=64).mtu_bytes == 64
    assert EndpointConfig.profile("reference", rules=REFERENCE & ~Rule.REOPEN).rules == REFERENCE & ~Rule.REOPEN
    with pytest.raises(ValueError, match="profile is 'x'; it must be spec, reference or module"):
        EndpointConfig.profile("x")
    assert ~Rule(0) == REFERENCE | MODULE


@pytest.mark.parametrize("name", ["open_timeout_ps", "close_timeout_ps", "answer_repeat_ps"])
def test_times_are_bounded(name):
    with pytest.raises(ValueError, match=f"{name} is -1; it must be from 0"):
        EndpointConfig(**{name: -1})
    with pytest.raises(ValueError, match=name):
        Rig(**{name: 1 << 60})


def test_every_switch_is_in_the_docs_with_its_test():
    """docs/reference-profile.md: the switch, whether the profiles have it, and tests that are there."""
    root = Path(__file__).resolve().parent
    text = (root.parent / "docs" / "reference-profile.md").read_text()
    for rule in Rule:
        (row,) = [line for line in text.splitlines() if line.startswith("|") and f"`{rule.name}`" in line.split("|")[4]]
        cells = [cell.strip() for cell in row.split("|")]
        marks = [name for name, rules in (("reference", REFERENCE), ("module", MODULE)) if rule in rules]
        assert cells[5] == ", ".join(marks), rule.name
    sources = "".join((root / name).read_text() for name in ("test_reference.py", "test_captures_replayed.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in sources, name

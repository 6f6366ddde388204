"""Many links behind one address: strangers, bad frames, restarts, death, buffers, fairness."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wirepair import MAC_A, MAC_B, WirePair

from ttpoe.batch import LinkEvent
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import Endpoint
from ttpoe.errors import LocalProtocolError
from ttpoe.fsm import Opcode, State
from ttpoe.impair import Impairment
from ttpoe.link import Link
from ttpoe.state import Failure
from ttpoe.units import NEVER, PS_PER_MS, PS_PER_S
from ttpoe.wire import build, make_header, parse

SMALL = EndpointConfig(
    mtu_bytes=64, window_bytes=1024, send_buffer_bytes=4096, receive_buffer_bytes=4096, idle_timeout_ps=NEVER
)


def frame(opcode: int, *, tx: int = 0, rx: int = 0, payload: bytes = b"", src=MAC_A, dst=MAC_B, vc=2, **fields):
    header = make_header(
        dst_mac=dst, src_mac=src, opcode=opcode, vc=vc, tx_seq=tx, rx_seq=rx, payload_bytes=len(payload)
    )
    for name, value in fields.items():
        header[name] = value
    return build(header, payload)


def answers(endpoint: Endpoint, *frames: bytes) -> list[tuple[Opcode, int, int]]:
    """Opcode, tx and rx of what ``endpoint`` says to ``frames``."""
    endpoint.receive(frames, 0)
    said = []
    while (out := endpoint.poll_transmit(0)) is not None:
        header = parse(bytes(out)).header[0]
        assert (header["dst_mac"], header["src_mac"]) == (MAC_A, endpoint.mac)
        said.append((Opcode(int(header["opcode"])), int(header["tx_seq"]), int(header["rx_seq"])))
    return said


def send_all(pair: WirePair, link, data: bytes) -> bytes:
    """Submit, run, and read until everything has arrived, then close."""
    sent, got, peer = 0, b"", None
    for _ in range(200_000):
        if sent < len(data):
            sent += link.submit(data[sent:])
        if sent == len(data):
            pair.a.close(link, pair.now_ps)
        moved = pair.step()
        peer = peer or pair.b.accept()
        if peer is not None:
            got += peer.read()
        if not moved and not pair.wait():
            break
    assert link.has_ended
    assert link.error is None
    assert peer is not None
    return got + peer.read()


# Whole transfers


@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.02, 0.2]),
    reorder=st.sampled_from([0.0, 0.02, 0.2]),
    duplicate=st.sampled_from([0.0, 0.02, 0.2]),
    first_id=st.sampled_from([0xFFFFFFF0, 0xFFFFFFFF, 0, 0x7FFFFFFF, 12345]),
    size=st.sampled_from([0, 1, 63, 64, 65, 20_000]),
)
def test_exactly_once_and_in_order_over_a_bad_line(seed, loss, reorder, duplicate, first_id, size):
    impairments = tuple(Impairment(seed + way, loss=loss, reorder=reorder, duplicate=duplicate) for way in range(2))
    config = dataclasses.replace(SMALL, retry_limit=40)
    pair = WirePair(config, draw_seq=lambda: first_id, impairments=impairments)
    data = random.Random(seed).randbytes(size)
    link = pair.a.connect(MAC_B, 2, pair.now_ps)
    assert send_all(pair, link, data) == data


def test_clean_line_needs_no_resend_and_no_timeout():
    pair = WirePair()
    data = random.Random(1).randbytes(5_000_000)
    assert send_all(pair, pair.a.connect(MAC_B, 0, 0), data) == data
    counters = pair.a.counters()
    assert counters["payloads_sent"] == -(-len(data) // 1024)
    assert counters["payloads_resent"] == counters["timeouts"] == 0
    assert pair.a.drops() == pair.b.drops() == {}


def test_frames_on_the_wire_are_padded_and_sized():
    pair = WirePair()
    send_all(pair, pair.a.connect(MAC_B, 2, 0), b"x" * 1027)
    payloads = [data for who, data in pair.frames if who == "a" and parse(data).header["opcode"] == Opcode.PAYLOAD]
    assert [len(data) for data in payloads] == [1084, 64]
    assert payloads[1][60:] == b"xxx\0"
    assert all(len(data) == 64 for _, data in pair.frames if data not in payloads)


def test_padding_shows_nothing_of_older_frames():
    pair = WirePair(dataclasses.replace(SMALL, burst_frames=1))
    link = pair.a.connect(MAC_B, 2, 0)
    pair.settle()
    for data in (b"s" * 64, b"x"):
        link.submit(data)
        pair.settle()
    assert [data[60:64] for _, data in pair.frames if data[42] == Opcode.PAYLOAD] == [b"ssss", b"x\0\0\0"]


# Bad input


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        ("too_short", frame(Opcode.PAYLOAD, payload=b"x")[:63]),
        ("too_short", b""),
        ("not_ttpoe", frame(Opcode.PAYLOAD)[:12] + b"\x08\x00" + bytes(50)),
        ("vlan_tagged", frame(Opcode.PAYLOAD)[:12] + b"\x81\x00\x00\x05\x9a\xc6" + bytes(50)),
        ("gateway", frame(Opcode.PAYLOAD, gateway=0x80)),
        ("shim_too_short", frame(Opcode.PAYLOAD, shim_length=25)),
        ("shim_beyond_frame", frame(Opcode.PAYLOAD, payload=b"x" * 100)[:159]),
        ("payload_too_long", frame(Opcode.PAYLOAD, payload=b"x" * 1025)),
        ("unknown_opcode", frame(11)),
        ("unknown_vc", frame(Opcode.PAYLOAD, vc=3)),
        ("foreign_destination", frame(Opcode.PAYLOAD, dst=MAC_B + 1)),
        ("foreign_destination", frame(Opcode.PAYLOAD, dst=0xFFFFFFFFFFFF)),
        ("bad_source", frame(Opcode.OPEN, src=MAC_B)),
        ("bad_source", frame(Opcode.OPEN, src=0x01005E000001)),
        ("illegal", frame(Opcode.OPEN_ACK, tx=5, rx=1)),
        ("illegal", frame(Opcode.OPEN_NACK)),
        ("illegal", frame(Opcode.CLOSE_NACK)),
        ("stale", frame(Opcode.ACK)),
        ("stale", frame(Opcode.NACK)),
        ("stale", frame(Opcode.NACK_FULL)),
        ("lost", frame(Opcode.NACK_NOLINK)),
    ],
)
def test_bad_frame_is_counted_and_unanswered(reason, data):
    endpoint = Endpoint(MAC_B, slot_bytes=1514)
    endpoint.is_listening = True
    assert answers(endpoint, data) == []
    assert endpoint.drops() == {reason: 1}
    assert endpoint.links == []


def test_frame_longer_than_any_slot_is_counted():
    endpoint = Endpoint(MAC_B)
    assert answers(endpoint, frame(Opcode.PAYLOAD, payload=b"x" * 9000)) == []
    assert endpoint.drops() == {"shim_beyond_frame": 1}


@given(st.lists(st.binary(max_size=200), max_size=5), st.randoms(use_true_random=False))
def test_no_bytes_raise(frames, rng):
    endpoint = Endpoint(MAC_B, SMALL)
    endpoint.is_listening = True
    good = frame(Opcode(rng.randrange(11)), tx=rng.randrange(2**32), payload=rng.randbytes(rng.randrange(60)))
    mangled = bytearray(good)
    for _ in range(rng.randrange(4)):
        mangled[rng.randrange(12, len(mangled))] = rng.randrange(256)
    endpoint.receive([*frames, bytes(mangled), good[: rng.randrange(len(good))]], 0)
    while endpoint.poll_transmit(0) is not None:
        pass
    endpoint.handle_timeout(PS_PER_S)


def test_a_flood_fills_no_memory():
    endpoint = Endpoint(MAC_B)
    endpoint.receive((frame(Opcode.PAYLOAD, tx=n, payload=b"x") for n in range(2000)), 0)
    assert endpoint.links == []
    drops = endpoint.drops()
    assert drops["answers_full"] > 0
    assert drops["answers_full"] + drops["unknown_link"] == 2000


# Strangers


@pytest.mark.parametrize(
    ("received", "answer"),
    [
        (frame(Opcode.PAYLOAD, tx=7, payload=b"x"), (Opcode.NACK_NOLINK, 0, 7)),
        (frame(Opcode.CLOSE, tx=9, rx=3), (Opcode.CLOSE_ACK, 0, 9)),
        (frame(Opcode.OPEN, tx=5), (Opcode.OPEN_NACK, 0, 5)),
    ],
)
def test_stranger_is_answered_from_the_closed_column(received, answer):
    endpoint = Endpoint(MAC_B)
    assert answers(endpoint, received) == [answer]
    assert endpoint.links == []


def test_stranger_opens_only_where_somebody_listens():
    endpoint = Endpoint(MAC_B, draw_seq=lambda: 70)
    assert answers(endpoint, frame(Opcode.OPEN, tx=5)) == [(Opcode.OPEN_NACK, 0, 5)]
    endpoint.is_listening = True
    assert answers(endpoint, frame(Opcode.OPEN, tx=5)) == [(Opcode.OPEN_ACK, 71, 5)]
    assert answers(endpoint, frame(Opcode.OPEN, tx=5)) == [(Opcode.OPEN_ACK, 71, 5)], "a duplicate changes nothing"
    link = endpoint.accept()
    assert link is not None
    assert link.state == State.OPEN
    assert endpoint.accept() is None


def test_opens_beyond_the_backlog_are_refused():
    endpoint = Endpoint(MAC_B, EndpointConfig(backlog=20))
    endpoint.is_listening = True
    opens = [frame(Opcode.OPEN, tx=1, src=MAC_A + 256 * n) for n in range(25)]
    endpoint.receive(opens, 0)
    assert len(endpoint.links) == 20
    said = [parse(bytes(out)).header[0]["opcode"] for out in iter(lambda: endpoint.poll_transmit(0), None)]
    assert said == [Opcode.OPEN_ACK] * 20 + [Opcode.OPEN_NACK] * 5
    assert endpoint.drops() == {"open_refused": 5}


def test_refused_connect_tells_the_owner():
    pair = WirePair()
    pair.b.is_listening = False
    link = pair.a.connect(MAC_B, 2, 0)
    pair.run()
    assert pair.a.poll_event() == (link, LinkEvent.FAILED)
    assert link.field("failure") == Failure.REFUSED
    assert "refused" in str(link.error)


# Links


def test_growing_keeps_links_working():
    pair = WirePair(SMALL)
    links = []
    for n in range(60):  # 20 peers' worth of rows on both sides, while the first ones are open
        pair.a.mac = MAC_A  # one peer has three channels only, so strangers open the rest
        if n < 3:
            links.append(pair.a.connect(MAC_B, n, pair.now_ps))
            pair.settle()
        pair.b.receive([frame(Opcode.OPEN, tx=n, src=MAC_A + 256 * (n + 1))], pair.now_ps)
        while pair.b.poll_transmit(pair.now_ps) is not None:
            pass
    accepted = {link.vc: link for link in iter(pair.b.accept, None) if link.peer_mac == MAC_A}
    for link in links:
        link.submit(b"channel %d" % link.vc)
    pair.settle()
    assert {vc: link.read() for vc, link in accepted.items()} == {vc: b"channel %d" % vc for vc in range(3)}
    assert len(pair.b.links) == 63


def test_rows_are_reused_and_old_links_keep_their_counters():
    pair = WirePair(SMALL)
    for n in range(30):
        link = pair.a.connect(MAC_B, 2, pair.now_ps)
        link.submit(bytes([n]))
        pair.a.close(link, pair.now_ps)
        pair.run()
        accepted = pair.b.accept()
        assert accepted is not None
        assert accepted.read() == bytes([n])
        assert link.counters()["payloads_sent"] == 1
    assert pair.a.counters()["payloads_sent"] == pair.b.counters()["payloads_received"] == 30
    assert pair.a.links == pair.b.links == []
    assert pair.a.next_deadline_ps() == pair.b.next_deadline_ps() == NEVER


def test_second_link_to_the_same_peer_is_our_fault():
    endpoint = Endpoint(MAC_A)
    endpoint.connect(MAC_B, 2, 0)
    with pytest.raises(LocalProtocolError, match="is there already"):
        endpoint.connect(MAC_B, 2, 0)
    endpoint.connect(MAC_B, 1, 0)


@pytest.mark.parametrize(
    ("mac", "vc", "message"),
    [(MAC_B, 3, "vc is 3"), (MAC_A, 2, "not the address"), (0xFFFFFFFFFFFF, 2, "not the address"), (-1, 2, "not the"),
     (0, 2, "00:00:00:00:00:00 is not the address")],
)
def test_connect_checks_its_arguments(mac, vc, message):
    with pytest.raises(LocalProtocolError, match=message):
        Endpoint(MAC_A).connect(mac, vc, 0)


def test_both_connect_at_once():
    pair = WirePair()
    a, b = pair.a.connect(MAC_B, 2, 0), pair.b.connect(MAC_A, 2, 0)
    pair.settle()
    assert a.state == b.state == State.OPEN
    a.submit(b"from a")
    b.submit(b"from b")
    pair.settle()
    assert (a.read(), b.read()) == (b"from b", b"from a")
    assert pair.b.accept() is None


def test_both_close_at_once():
    pair = WirePair()
    a = pair.a.connect(MAC_B, 2, 0)
    pair.settle()
    b = pair.b.accept()
    assert b is not None
    pair.a.close(a, pair.now_ps)
    pair.b.close(b, pair.now_ps)
    pair.run()
    assert (a.has_ended, a.error, b.has_ended, b.error) == (True, None, True, None)


def test_forgotten_link_is_down_for_the_peer():
    pair = WirePair()
    link = pair.a.connect(MAC_B, 2, 0)
    pair.settle()
    link.submit(b"proof that it is open")
    pair.settle()
    accepted = pair.b.accept()
    assert accepted is not None
    pair.b.forget(accepted)
    link.submit(b"into the void")
    pair.run()
    assert link.field("failure") == Failure.LINK_DOWN
    assert "does not know this link" in str(link.error)


def test_link_lost_right_after_the_proof_is_down_within_two_longest_timeouts():
    """All that is in flight was first sent before the peer was known to be open; the retry limit would take 14 s."""
    pair = WirePair()
    link = pair.a.connect(MAC_B, 2, 0)
    pair.settle()
    link.submit(b"x" * 10_000)
    pair.step()
    accepted = pair.b.accept()
    assert accepted is not None
    first = pair.b.poll_transmit(pair.now_ps)  # the ACK of the first frame alone gets through
    assert first is not None
    pair.b.forget(accepted)
    pair.a.receive([bytes(first)], pair.now_ps)
    while (frame := pair.b.poll_transmit(pair.now_ps)) is not None:
        assert parse(bytes(frame)).header[0]["opcode"] == Opcode.ACK
    lost_ps = pair.now_ps
    pair.run()
    assert link.field("failure") == Failure.LINK_DOWN
    assert pair.now_ps - lost_ps < 2 * EndpointConfig().rto_max_ps


def test_peer_death_is_told_within_the_bound():
    pair = WirePair()
    link = pair.a.connect(MAC_B, 2, 0)
    pair.settle()
    link.submit(b"hello")
    pair.settle()
    pair.is_cut = True
    died_ps = pair.now_ps
    link.submit(b"anybody?")
    pair.run()
    assert link.field("failure") == Failure.RETRY_LIMIT
    assert pair.now_ps - died_ps < 11 * PS_PER_S, "the bound that EndpointConfig promises"


def test_unanswered_open_is_told_within_the_bound():
    pair = WirePair()
    pair.is_cut = True
    link = pair.a.connect(MAC_B, 2, 0)
    pair.run()
    assert link.field("failure") == Failure.RETRY_LIMIT
    assert pair.now_ps < 19 * PS_PER_S, "the bound that EndpointConfig promises"


def test_restarted_peer_ends_the_old_link_and_opens_a_new_one():
    seqs = iter([1000, 2000])
    pair = WirePair(draw_seq=lambda: next(seqs, 5000))
    link = pair.a.connect(MAC_B, 2, 0)
    pair.settle()
    link.submit(b"old life")
    pair.settle()
    old = pair.b.accept()
    assert old is not None
    while pair.b.poll_event():
        pass

    pair.a = Endpoint(MAC_A, draw_seq=lambda: 777_777)
    reborn = pair.a.connect(MAC_B, 2, pair.now_ps)
    pair.settle()
    pair.wait()  # its OPEN comes again
    pair.settle()
    assert pair.b.poll_event() == (old, LinkEvent.FAILED)
    assert old.field("failure") == Failure.PEER_RESTARTED
    assert old.read() == b"old life"
    assert reborn.state == State.OPEN
    new = pair.b.accept()
    assert new is not None
    assert new is not old
    reborn.submit(b"new life")
    pair.settle()
    assert new.read() == b"new life"


def test_restarted_peer_is_refused_where_nobody_listens():
    pair = WirePair(draw_seq=lambda: 1000)
    pair.a.connect(MAC_B, 2, 0)
    pair.settle()
    old = pair.b.accept()
    assert old is not None
    pair.b.is_listening = False
    assert answers(pair.b, frame(Opcode.OPEN, tx=50)) == [(Opcode.PAYLOAD, 1000, 0)], "do you still have the link?"
    assert answers(pair.b, frame(Opcode.NACK_NOLINK, rx=1000)) == []
    assert old.field("failure") == Failure.PEER_RESTARTED
    assert answers(pair.b, frame(Opcode.OPEN, tx=50)) == [(Opcode.OPEN_NACK, 0, 50)]


def test_link_that_ended_before_it_was_accepted_can_be_read():
    pair = WirePair()
    link = pair.a.connect(MAC_B, 2, 0)
    link.submit(b"hit and run")
    pair.a.close(link, 0)
    pair.run()
    accepted = pair.b.accept()
    assert accepted is not None
    assert accepted.has_ended
    assert accepted.read() == b"hit and run"


# Buffers


def test_a_full_receive_buffer_holds_the_peer_and_a_late_reader_gets_everything():
    config = dataclasses.replace(SMALL, receive_buffer_bytes=256)
    pair = WirePair(config)
    data = bytes(range(250)) * 4
    link = pair.a.connect(MAC_B, 2, 0)
    assert link.submit(data) == len(data)
    pair.settle()
    accepted = pair.b.accept()
    assert accepted is not None
    assert accepted.readable_bytes == 256
    assert pair.a.counters()["nack_fulls_received"] == pair.b.counters()["nack_fulls_sent"] == 1
    assert pair.b.counters()["nacks_sent"] == 0, "a full buffer must not start another pass at once"
    got = b""
    while len(got) < len(data):
        got += accepted.read(100)
        assert accepted.readable_bytes <= 256
        if not pair.step():
            assert pair.wait() or accepted.readable_bytes
    assert got == data
    assert pair.b.drops() == {}


def test_a_reader_that_pauses_for_an_hour_loses_nothing():
    """No number of refusals is a retry; and they are few: once a pass, and once a probe, which back off."""
    config = dataclasses.replace(SMALL, receive_buffer_bytes=256, retry_limit=1)
    pair = WirePair(config)
    data = bytes(range(250)) * 4
    link = pair.a.connect(MAC_B, 2, 0)
    link.submit(data)
    pair.settle()
    accepted = pair.b.accept()
    assert accepted is not None
    while pair.now_ps < 3600 * PS_PER_S:
        pair.wait()
        pair.settle()
    refused = pair.b.counters()["nack_fulls_sent"]
    assert 1800 < refused < 1830  # every rto_max of 2 s, and the waits that led there
    assert pair.a.counters()["payloads_resent"] <= refused + config.window_bytes // config.mtu_bytes
    got = b""
    while len(got) < len(data):
        got += accepted.read()
        if not pair.step():
            assert pair.wait() or accepted.readable_bytes
    assert got == data
    assert link.state is State.OPEN


def test_shared_window_bounds_all_links_together():
    config = dataclasses.replace(SMALL, shared_window=True)
    pair = WirePair(config)
    links = [pair.a.connect(MAC_B, vc, 0) for vc in range(3)]
    pair.settle()
    pair.is_cut = True
    for link in links:
        link.submit(bytes(1000))
    frames = list(iter(lambda: pair.a.poll_transmit(pair.now_ps), None))
    assert len(frames) == 1024 // 64
    pair.a.forget(links[1])  # REQ_HI had all of it
    assert pair.a.poll_transmit(pair.now_ps) is not None, "what a forgotten link held is free for others"


def open_endpoint(peers: list[tuple[int, int]], config: EndpointConfig = SMALL) -> tuple[Endpoint, list[Link]]:
    """An endpoint with links to peers, given as MAC and channel, all open."""
    endpoint = Endpoint(MAC_A, config, draw_seq=lambda: 1000)
    links = [endpoint.connect(mac, vc, 0) for mac, vc in peers]
    endpoint.receive([frame(Opcode.OPEN_ACK, tx=1, rx=1000, src=mac, dst=MAC_A, vc=vc) for mac, vc in peers], 0)
    while endpoint.poll_transmit(0) is not None:
        pass
    assert {link.state for link in links} == {State.OPEN}
    return endpoint, links


def sent_to(endpoint: Endpoint) -> list[tuple[int, int]]:
    """Peers and channels of all that may be sent, in order."""
    headers = [parse(bytes(out)).header[0] for out in iter(lambda: endpoint.poll_transmit(0), None)]
    return [(int(header["dst_mac"]), int(header["vc"])) for header in headers]


def test_links_of_a_channel_take_turns():
    peers = [(MAC_B + n, 2) for n in range(3)]
    endpoint, links = open_endpoint(peers, dataclasses.replace(SMALL, burst_frames=2))
    for link in links:
        link.submit(bytes(64 * 6))
    sent = sent_to(endpoint)
    assert sorted(sent[:6]) == [peer for peer in peers for _ in range(2)]
    assert sent[:6] == sent[6:12] == sent[12:]


def test_requests_go_before_data():
    """REQ_HI before REQ_LO before DATA, also before what waits already; within a channel all are served."""
    endpoint, links = open_endpoint([(MAC_B + n, vc) for vc in (2, 0, 1) for n in range(2)])
    for link in links:
        link.submit(bytes(64 * 3))
    sent = sent_to(endpoint)
    assert [vc for _, vc in sent] == [1] * 6 + [0] * 6 + [2] * 6
    assert {mac for mac, _ in sent[:6]} == {mac for mac, _ in sent[12:]} == {MAC_B, MAC_B + 1}


def test_a_request_waits_for_one_burst_at_most():
    endpoint, (data, request) = open_endpoint([(MAC_B, 2), (MAC_B, 1)], dataclasses.replace(SMALL, burst_frames=4))
    data.submit(bytes(64 * 16))
    assert endpoint.poll_transmit(0) is not None
    request.submit(b"urgent")
    assert [vc for _, vc in sent_to(endpoint)] == [2] * 3 + [1] + [2] * 12


def test_a_full_window_of_requests_does_not_starve_data():
    endpoint, (data, request) = open_endpoint([(MAC_B, 2), (MAC_B, 1)])
    request.submit(bytes(4096))
    data.submit(bytes(64))
    assert [vc for _, vc in sent_to(endpoint)] == [1] * 16 + [2]


def test_links_keep_their_own_books_of_what_is_in_flight():
    pair = WirePair(SMALL)
    links = [pair.a.connect(MAC_B, vc, 0) for vc in range(2)]
    pair.settle()
    links[0].submit(b"a" * 64)
    links[1].submit(b"b" * 10)
    assert pair.step()
    pair.settle()
    assert [link.unacknowledged_bytes for link in links] == [0, 0]
    assert pair.a.counters()["payloads_resent"] == 0


def test_answers_come_before_payload():
    pair = WirePair()
    link = pair.a.connect(MAC_B, 2, 0)
    pair.settle()
    link.submit(b"x" * 5000)
    first = pair.a.poll_transmit(pair.now_ps)
    assert first is not None
    assert len(first) == 1084
    pair.a.receive([frame(Opcode.CLOSE, tx=3, src=MAC_B + 1, dst=MAC_A)], pair.now_ps)
    second = pair.a.poll_transmit(pair.now_ps)
    assert second is not None
    assert parse(bytes(second)).header[0]["opcode"] == Opcode.CLOSE_ACK


# Time


def test_no_timer_runs_while_nothing_waits():
    pair = WirePair()
    assert pair.a.next_deadline_ps() == NEVER
    link = pair.a.connect(MAC_B, 2, 0)
    assert pair.a.next_deadline_ps() == 250 * PS_PER_MS
    pair.settle()
    assert pair.a.next_deadline_ps() == NEVER
    link.submit(b"x")
    assert pair.a.poll_transmit(pair.now_ps) is not None
    assert pair.a.next_deadline_ps() > pair.now_ps


def test_timeout_called_early_does_nothing():
    pair = WirePair()
    pair.a.connect(MAC_B, 2, 0)
    assert pair.a.poll_transmit(0) is not None
    pair.a.handle_timeout(249 * PS_PER_MS)
    assert pair.a.poll_transmit(0) is None
    pair.a.handle_timeout(250 * PS_PER_MS)
    assert pair.a.poll_transmit(0) is not None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"mtu_bytes": 0}, "mtu_bytes is 0"),
        ({"mtu_bytes": 65490}, "mtu_bytes is 65490"),
        ({"window_bytes": 1023}, "window_bytes is 1023"),
        ({"send_buffer_bytes": 1}, "send_buffer_bytes is 1"),
        ({"receive_buffer_bytes": 1}, "receive_buffer_bytes is 1"),
        ({"rto_min_ps": 0}, "rto_min_ps 0"),
        ({"rto_max_ps": 1}, "rto_max_ps 1 "),
        ({"retry_limit": 0}, "retry_limit is 0"),
        ({"tag_sets": 0}, "tag_sets is 0"),
        ({"tag_sets": 3}, "tag_sets is 3; it must be a power of two"),
        ({"tag_ways": 0}, "tag_ways is 0"),
        ({"idle_timeout_ps": 0}, "idle_timeout_ps is 0"),
        ({"victim_idle_ps": 2**63}, "victim_idle_ps is 9"),
        ({"backlog": 0}, "backlog is 0"),
        ({"burst_frames": 0}, "burst_frames is 0"),
        ({"burst_frames": 2**40}, "burst_frames is 1099511627776; it must be from 1 to 1024"),
        ({"tag_ways": 2**63}, "tag_ways is 9"),
        ({"tag_sets": 2**24}, "tag_ways is 2; with tag_sets 16777216"),
        ({"retry_limit": 2**63}, "retry_limit is 9"),
        ({"rto_max_ps": 2**63}, "rto_max_ps is 9"),
        ({"window_bytes": 2**41}, "window_bytes is 2199023255552; .* at most 2\\*\\*40"),
        ({"window_bytes": 2**40}, "window_bytes is 1099511627776; of payloads of mtu_bytes 1024"),
        ({"mtu_bytes": 1.5}, "mtu_bytes is 1.5; it must be a whole number"),
        ({"retry_limit": "7"}, "retry_limit is '7'; it must be a whole number"),
        ({"backlog": None}, "backlog is None; it must be a whole number"),
        ({"tag_sets": True}, "tag_sets is True; it must be a whole number"),
        ({"rules": 3}, "rules is 3; it must be of ttpoe.rules.Rule"),
    ],
)
def test_config_names_the_wrong_field(fields, name):
    with pytest.raises(ValueError, match=name):
        EndpointConfig(**fields)


def test_opening_ids_are_not_guessable():
    ids = set()
    for _ in range(8):
        endpoint = Endpoint(MAC_A, SMALL)
        ids.add(endpoint.connect(MAC_B, 2, 0).field("initial_seq"))
    assert len(ids) == 8

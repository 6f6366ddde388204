"""What strangers, ghosts and the dead can do to an endpoint: nothing that lasts, and nothing without a guess."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strangers import ANY, flood, transfer_beside
from wirepair import MAC_A, MAC_B, WirePair

from ttpoe.batch import LinkEvent
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import Endpoint
from ttpoe.errors import LocalProtocolError
from ttpoe.fsm import Opcode, State
from ttpoe.guard import CLOSE_WINDOW
from ttpoe.link import Link
from ttpoe.state import Failure
from ttpoe.tagtable import tag_set_at
from ttpoe.units import NEVER, PS_PER_MS, PS_PER_S
from ttpoe.wire import build, make_header, parse

CONFIG = EndpointConfig(mtu_bytes=64, window_bytes=1024, send_buffer_bytes=4096, receive_buffer_bytes=4096)
OURS, PEERS = 1000, 1000  # opening ids
OTHER = 0x98ED5C000100  # stations that are neither


def frame(opcode: int, *, tx: int = 0, rx: int = 0, payload: bytes = b"", src=MAC_A, dst=MAC_B, vc=2) -> bytes:
    header = make_header(
        dst_mac=dst, src_mac=src, opcode=opcode, vc=vc, tx_seq=tx, rx_seq=rx, payload_bytes=len(payload)
    )
    return build(header, payload)


def said(endpoint: Endpoint, now_ps: int) -> list[tuple[int, Opcode, int, int]]:
    """Destination, opcode, tx and rx of what an endpoint has to say."""
    headers = [parse(bytes(out)).header[0] for out in iter(lambda: endpoint.poll_transmit(now_ps), None)]
    return [(int(h["dst_mac"]), Opcode(int(h["opcode"])), int(h["tx_seq"]), int(h["rx_seq"])) for h in headers]


def listening(**fields: int) -> Endpoint:
    endpoint = Endpoint(MAC_B, dataclasses.replace(CONFIG, **fields), draw_seq=lambda: OURS)
    endpoint.is_listening = True
    return endpoint


def open_pair(config: EndpointConfig = CONFIG, *, used: bool = True) -> tuple[WirePair, Link, Link]:
    """A pair with one open link, on which both have sent something."""
    pair = WirePair(config)
    a = pair.a.connect(MAC_B, 2, 0)
    pair.settle()
    b = pair.b.accept()
    assert b is not None
    if used:
        for link in (a, b):
            link.submit(b"hello")
            pair.settle()
        assert (a.read(), b.read()) == (b"hello", b"hello")
    return pair, a, b


# The tag table


@given(first=st.integers(0, 0xFFFFFF - 255), bits=st.integers(0, 12))
def test_neighbours_by_number_have_a_set_each(first, bits):
    size = 1 << bits
    block = first // size * size
    assert {tag_set_at(block + n, bits) for n in range(size)} == set(range(size))


@pytest.mark.parametrize("stride_bits", range(17))
def test_ports_at_a_stride_have_a_set_each(stride_bits):
    assert {tag_set_at(0x98ED5C000000 | n << stride_bits, 8) for n in range(256)} == set(range(256))


def test_the_set_depends_on_the_node_id_alone():
    assert tag_set_at(0x98ED5C123456, 8) == tag_set_at(0x123456, 8) == 0x12 ^ 0x34 ^ 0x56


def test_two_peers_of_one_set_and_a_third():
    """The specification's 256 sets of two: the third is refused, while the two are in use."""
    endpoint = listening()
    peers = [MAC_A + 0x010100 * n for n in range(3)]
    assert len({tag_set_at(mac, 8) for mac in peers}) == 1
    for mac in peers[:2]:
        endpoint.receive([frame(Opcode.OPEN, tx=5, src=mac), frame(Opcode.PAYLOAD, tx=6, src=mac, payload=b"x")], 0)
    said(endpoint, 0)
    endpoint.receive([frame(Opcode.OPEN, tx=5, src=peers[2])], 0)
    assert said(endpoint, 0) == [(peers[2], Opcode.OPEN_NACK, 0, 5)]
    assert endpoint.drops() == {"open_refused": 1}
    endpoint.receive([frame(Opcode.OPEN, tx=5, src=peers[2], vc=1)], 0)
    assert said(endpoint, 0) == [(peers[2], Opcode.OPEN_ACK, OURS + 1, 5)], "each channel has a table of its own"


def test_512_neighbours_have_512_links_and_no_victim():
    endpoint = listening(backlog=1000)
    endpoint.receive([frame(Opcode.OPEN, tx=1, src=0x98ED5C001000 + n) for n in range(250)], 0)
    said(endpoint, 0)
    endpoint.receive([frame(Opcode.OPEN, tx=1, src=0x98ED5C001000 + n) for n in range(250, 512)], 0)
    assert (len(endpoint.links), endpoint.victims) == (512, 0)


def test_an_emulated_endpoint_has_as_many_peers_as_it_is_told():
    endpoint = listening(tag_sets=2048, tag_ways=1, backlog=5000)
    for first in range(0, 2048, 128):
        endpoint.receive([frame(Opcode.OPEN, tx=1, src=0x98ED5C001000 + n) for n in range(first, first + 128)], 0)
        said(endpoint, 0)
    assert (len(endpoint.links), endpoint.victims) == (2048, 0)


def test_our_own_link_finds_its_set_full_of_links_in_use():
    endpoint = Endpoint(MAC_A, dataclasses.replace(CONFIG, tag_sets=1))
    endpoint.connect(MAC_B, 2, 0)
    endpoint.connect(MAC_B + 1, 2, 0)
    with pytest.raises(LocalProtocolError, match=r"2 links on vc 2 have the places of this peer .* raise tag_ways"):
        endpoint.connect(MAC_B + 2, 2, 0)
    assert len(endpoint.links) == 2
    endpoint.connect(MAC_B + 2, 1, 0)


# Victims


def test_a_link_that_was_never_used_goes_first_the_oldest():
    endpoint = listening(tag_sets=1, tag_ways=3)
    endpoint.receive([frame(Opcode.OPEN, tx=5, src=MAC_A)], 0)
    endpoint.receive([frame(Opcode.PAYLOAD, tx=6, src=MAC_A, payload=b"x")], 0)
    endpoint.receive([frame(Opcode.OPEN, tx=5, src=OTHER + 1)], 1)
    endpoint.receive([frame(Opcode.OPEN, tx=5, src=OTHER + 2)], 2)
    used, oldest, newer = iter(endpoint.accept, None)
    said(endpoint, 2)
    endpoint.receive([frame(Opcode.OPEN, tx=5, src=OTHER + 3)], 3)
    assert said(endpoint, 3) == [
        (OTHER + 1, Opcode.CLOSE, OURS + 1, 5), (OTHER + 3, Opcode.OPEN_ACK, OURS + 1, 5)
    ]  # fmt: skip
    assert (used.has_ended, oldest.has_ended, newer.has_ended, endpoint.victims) == (False, True, False, 1)
    events = dict(iter(endpoint.poll_event, None))
    assert events[oldest] & LinkEvent.FAILED
    assert oldest.field("failure") == Failure.VICTIM
    assert "never used the link that it opened" in str(oldest.error)


def test_the_peer_of_a_victim_is_told():
    pair, a, b = open_pair(dataclasses.replace(CONFIG, tag_sets=1, tag_ways=1), used=False)
    pair.b.receive([frame(Opcode.OPEN, tx=5, src=OTHER + 1)], pair.now_ps)
    pair.settle()
    assert (a.has_ended, a.error, b.has_ended) == (True, None, True), "to the peer it is an orderly end"


def test_a_victim_that_nobody_accepted_leaves_the_backlog():
    endpoint = listening(tag_sets=1, tag_ways=1)
    for n in range(300):
        endpoint.receive([frame(Opcode.OPEN, tx=5, src=OTHER + n)], n)
        said(endpoint, n)
    link = endpoint.accept()
    assert link is not None
    assert (link.peer_mac, link.has_ended, endpoint.accept()) == (OTHER + 299, False, None)
    assert endpoint.poll_event() == (link, LinkEvent.OPENED)
    assert endpoint.poll_event() is None


def test_an_idle_link_is_closed_in_order_for_another_peer():
    config = dataclasses.replace(CONFIG, tag_sets=1, tag_ways=1, victim_idle_ps=PS_PER_S, idle_timeout_ps=NEVER)
    pair, a, b = open_pair(config)
    newcomer = frame(Opcode.OPEN, tx=5, src=OTHER + 1)
    pair.b.receive([newcomer], pair.now_ps)
    assert said(pair.b, pair.now_ps) == [(OTHER + 1, Opcode.OPEN_NACK, 0, 5)], "not idle for long enough"
    pair.now_ps += 2 * PS_PER_S
    pair.b.receive([newcomer, newcomer], pair.now_ps)
    pair.settle()
    assert [parse(data).header[0]["opcode"] for _, data in pair.frames[-2:]] == [Opcode.CLOSE, Opcode.CLOSE_ACK]
    assert (a.has_ended, a.error, b.has_ended, b.error) == (True, None, True, None)
    assert pair.b.drops() == {"open_refused": 1, "open_waits": 1}
    pair.b.receive([newcomer], pair.now_ps)
    assert said(pair.b, pair.now_ps) == [(OTHER + 1, Opcode.OPEN_ACK, OURS + 1, 5)]


@pytest.mark.parametrize("why", ["unread", "unacknowledged", "ours"])
def test_links_that_are_no_victims(why):
    config = dataclasses.replace(CONFIG, tag_sets=1, tag_ways=1, victim_idle_ps=1, idle_timeout_ps=NEVER)
    pair, a, b = open_pair(config)
    if why == "unread":
        a.submit(b"x")
        pair.settle()
    elif why == "unacknowledged":
        b.submit(b"x")
    endpoint, own = (pair.a, MAC_A) if why == "ours" else (pair.b, MAC_B)
    endpoint.is_listening = True
    said(endpoint, pair.now_ps)
    later_ps = pair.now_ps + PS_PER_S
    endpoint.receive([frame(Opcode.OPEN, tx=5, src=OTHER + 77, dst=own)], later_ps)
    assert (OTHER + 77, Opcode.OPEN_NACK, 0, 5) in said(endpoint, later_ps)
    assert endpoint.victims == 0


def test_our_own_link_takes_the_place_of_one_that_was_never_used():
    endpoint = listening(tag_sets=1, tag_ways=1)
    endpoint.receive([frame(Opcode.OPEN, tx=5)], 0)
    endpoint.connect(OTHER + 1, 2, 1)
    assert [link.peer_mac for link in endpoint.links] == [OTHER + 1]


# Ghosts and the dead


def test_an_idle_link_lives_as_long_as_both_ends_do():
    pair, a, b = open_pair()
    counters = {"payloads_sent": 1, "payloads_received": 1, "payloads_resent": 0, "timeouts": 0}
    while pair.now_ps < 24 * 3600 * PS_PER_S:
        assert pair.wait()
        pair.settle()
    assert a.state is b.state is State.OPEN
    for endpoint in (pair.a, pair.b):
        assert {name: endpoint.counters()[name] for name in counters} == counters, "a question is no data"
        assert endpoint.drops() == {}
    frames_a_day = 24 * 3600 / 30 * 2
    assert len(pair.frames) < 1.1 * frames_a_day, "one end asks, the other hears it"
    a.submit(b"good morning")
    pair.settle()
    assert b.read() == b"good morning"


def test_what_a_flood_leaves_behind_is_asked_eleven_times_and_gone():
    endpoint = listening()
    endpoint.receive([frame(Opcode.OPEN, tx=5)], 0)
    now_ps, sent = 0, []
    while endpoint.links:
        sent += [opcode for _, opcode, _, _ in said(endpoint, now_ps)]
        now_ps = endpoint.next_deadline_ps()
        endpoint.handle_timeout(now_ps)
    assert sent == [Opcode.OPEN_ACK] + 11 * [Opcode.PAYLOAD]
    waits_ms = [250, 500, 1000] + 8 * [2000]  # RFC 6298 without a sample, as for an OPEN
    assert now_ps == 30 * PS_PER_S + sum(waits_ms) * PS_PER_MS


@pytest.mark.parametrize("who", ["reader", "writer"])
def test_a_peer_that_died_is_noticed_on_an_idle_link(who):
    pair, a, b = open_pair()
    pair.is_cut = True
    died_ps = pair.now_ps
    link = a if who == "writer" else b
    while not link.has_ended:
        pair.step()
        assert pair.wait()
    assert link.field("failure") == Failure.RETRY_LIMIT
    assert "answered nothing through 11 timeouts" in str(link.error)
    assert 30 * PS_PER_S <= pair.now_ps - died_ps < 42 * PS_PER_S


def test_a_late_open_leaves_a_ghost_for_a_while_only():
    """The row of an ended link is used anew, so a duplicate of its OPEN raises a link that nobody holds there."""
    pair, a, _ = open_pair()
    [late] = [data for who, data in pair.frames if who == "a" and data[42] == Opcode.OPEN]
    pair.a.close(a, pair.now_ps)
    pair.settle()
    pair.b.receive([late], pair.now_ps)
    ghost = pair.b.accept()
    assert ghost is not None
    pair.settle()
    assert ghost.state is State.OPEN
    assert pair.wait()
    pair.settle()
    assert ghost.field("failure") == Failure.LINK_DOWN
    assert pair.a.links == pair.b.links == []
    assert pair.now_ps < 31 * PS_PER_S


def test_a_peer_without_a_machine_behind_its_address_ends_by_the_retry_limit():
    endpoint = listening()
    endpoint.receive([frame(Opcode.OPEN, tx=5)], 0)
    said(endpoint, 0)
    now_ps, questions = 0, 0
    while endpoint.links:
        now_ps = endpoint.next_deadline_ps()
        endpoint.handle_timeout(now_ps)
        questions += len(said(endpoint, now_ps))
    assert questions == CONFIG.retry_limit + 1
    assert now_ps < 48 * PS_PER_S
    assert endpoint.next_deadline_ps() == NEVER


def test_a_question_is_what_any_peer_takes_for_a_duplicate():
    """One byte with the id before the oldest unacknowledged one; the machine answers ACK and delivers nothing."""
    pair, a, b = open_pair()
    pair.now_ps = pair.b.next_deadline_ps()
    pair.b.handle_timeout(pair.now_ps)
    [question] = [bytes(out) for out in iter(lambda: pair.b.poll_transmit(pair.now_ps), None)]
    header = parse(question).header[0]
    assert (header["opcode"], header["tx_seq"], header["payload_bytes"], len(question)) == (
        Opcode.PAYLOAD, OURS + 1, 1, 64
    )  # fmt: skip
    pair.a.receive([question], pair.now_ps)
    assert a.readable_bytes == 0
    assert said(pair.a, pair.now_ps) == [(MAC_B, Opcode.ACK, 0, OURS + 1)]
    assert b.state is State.OPEN


def test_no_questions_if_none_are_wanted():
    pair, _, _ = open_pair(dataclasses.replace(CONFIG, idle_timeout_ps=NEVER))
    assert pair.a.next_deadline_ps() == pair.b.next_deadline_ps() == NEVER


# Frames of strangers in a peer's name


def attack(pair: WirePair, frames: list[bytes]) -> None:
    """Give ``b`` frames that claim to come from ``a``; the true ``a`` answers what it hears of it."""
    pair.b.receive(frames, pair.now_ps)
    pair.settle()


def assert_still_works(pair: WirePair, a: Link, b: Link) -> None:
    assert a.state is b.state is State.OPEN
    for source, sink, data in ((a, b, b"still"), (b, a, b"here")):
        source.submit(data)
        pair.settle()
        assert sink.read() == data
    assert pair.a.counters()["payloads_resent"] == pair.b.counters()["payloads_resent"] == 0


@pytest.mark.parametrize("tx", [0, PEERS - 1, PEERS + 2, 0x7FFFFFFF, 0xFFFFFFFF])
def test_an_open_does_not_reset_a_link(tx):
    """One forged OPEN, or a late one of an earlier link, would end it; the peer is asked, and has it still."""
    pair, a, b = open_pair()
    attack(pair, [frame(Opcode.OPEN, tx=tx)])
    assert_still_works(pair, a, b)
    assert pair.b.drops() == {"stale": 1}


def test_a_storm_of_opens_asks_once_at_a_time():
    pair, a, b = open_pair()
    pair.b.receive([frame(Opcode.OPEN, tx=n) for n in range(5000, 5060)], pair.now_ps)
    assert said(pair.b, pair.now_ps) == [(MAC_A, Opcode.PAYLOAD, OURS + 1, 0)]
    pair.a.receive([frame(Opcode.PAYLOAD, tx=OURS + 1, payload=b"\0", src=MAC_B, dst=MAC_A)], pair.now_ps)
    pair.settle()
    assert_still_works(pair, a, b)


@pytest.mark.parametrize(
    ("tx", "rx"),
    [
        (PEERS + 1, OURS + 1),  # delivered already
        (PEERS + 2 + CLOSE_WINDOW, OURS + 1),
        (0x80000000, OURS + 1),
        (PEERS + 2, OURS - 1),
        (PEERS + 2, OURS + 3),
        (0, 0),
    ],
)
def test_a_close_with_ids_that_the_peer_cannot_send_is_stale(tx, rx):
    """Half of all ids would close the link, and all others would leave it half closed."""
    pair, a, b = open_pair()
    attack(pair, [frame(Opcode.CLOSE, tx=tx, rx=rx)])
    assert_still_works(pair, a, b)
    assert pair.b.drops() == {"stale": 1}


def test_the_ids_of_a_true_close_are_believed():
    pair, a, b = open_pair()
    attack(pair, [frame(Opcode.CLOSE, tx=PEERS + 2, rx=OURS + 1)])
    assert b.has_ended
    assert not a.has_ended


@pytest.mark.parametrize("opcode", [Opcode.ACK, Opcode.NACK, Opcode.NACK_NOLINK, Opcode.CLOSE_ACK, Opcode.CLOSE_NACK])
@pytest.mark.parametrize("offset", [-(2**31), -2, -1, 16, 17, 2**31 - 1])
def test_an_answer_to_what_was_not_sent_changes_nothing(opcode, offset):
    """16 ids are out, from OURS + 2 on; anything else is no answer."""
    pair, _, b = open_pair()
    pair.is_cut = True
    b.submit(bytes(1024))
    assert len(said(pair.b, pair.now_ps)) == 16
    before = b.counters()
    pair.b.receive([frame(opcode, rx=(OURS + 2 + offset) & 0xFFFFFFFF)], pair.now_ps)
    after = b.counters()
    changed = {name for name in after if after[name] != before[name]}
    assert len(changed) == (0 if opcode is Opcode.CLOSE_ACK else 1), "the tables let a CLOSE_ACK pass in OPEN"
    assert all(name.startswith("dropped_") for name in changed)
    assert said(pair.b, pair.now_ps) == []


@pytest.mark.parametrize("rx", [OURS, OURS + 2, 0])
def test_nolink_is_no_answer_to_a_question_that_was_not_asked(rx):
    pair, a, b = open_pair()
    attack(pair, [frame(Opcode.NACK_NOLINK, rx=rx)])
    assert_still_works(pair, a, b)


@pytest.mark.parametrize("offset", [1, 7, 15])
def test_nolink_must_name_the_oldest_id_that_is_out(offset):
    pair, _, b = open_pair()
    pair.is_cut = True
    b.submit(bytes(1024))
    assert len(said(pair.b, pair.now_ps)) == 16
    pair.b.receive([frame(Opcode.NACK_NOLINK, rx=OURS + 2 + offset)], pair.now_ps)
    assert (b.state, b.field("dropped_lost")) == (State.OPEN, 1)
    pair.b.receive([frame(Opcode.NACK_NOLINK, rx=OURS + 2)], pair.now_ps)
    assert b.field("failure") == Failure.LINK_DOWN


def test_payload_is_delivered_with_the_expected_id_alone():
    pair, a, b = open_pair()
    ids = random.Random(1).sample(range(PEERS + 3, 2**32), 200)
    pair.b.receive([frame(Opcode.PAYLOAD, tx=n, payload=b"evil") for n in ids], pair.now_ps)
    assert b.readable_bytes == 0
    assert len(said(pair.b, pair.now_ps)) <= len(ids)
    pair.settle()
    a.submit(b"good")
    pair.settle()
    assert b.read() == b"good"


@pytest.mark.parametrize("opcode", [Opcode.OPEN_NACK, Opcode.OPEN_ACK, Opcode.CLOSE])
@pytest.mark.parametrize("rx", [OURS - 1, OURS + 1, 0])
def test_only_an_answer_that_names_our_open_ends_it(opcode, rx):
    """A late CLOSE of an earlier link names nothing of ours."""
    endpoint = Endpoint(MAC_B, CONFIG, draw_seq=lambda: OURS)
    link = endpoint.connect(MAC_A, 2, 0)
    endpoint.receive([frame(opcode, tx=7, rx=rx)], 0)
    assert link.state is State.OPEN_SENT


def test_answers_to_strangers_are_no_larger_than_what_they_answer():
    """Amplification: a frame for a frame of 64 bytes at most, but the CLOSE of a victim that an OPEN made."""
    rng = random.Random(2)
    for opcode in Opcode:
        endpoint = listening(tag_sets=1, tag_ways=1)
        frames = [
            frame(opcode, tx=rng.randrange(2**32), rx=rng.randrange(2**32), src=OTHER + n, payload=b"x" * (opcode == 6))
            for n in range(60)
        ]
        for n, data in enumerate(frames):
            endpoint.receive([data], n)
            answers = said(endpoint, n)
            assert 64 * len(answers) <= len(data) * (2 if opcode is Opcode.OPEN and n else 1)


# Floods


def test_ten_thousand_opens_and_a_million_random_frames():
    """Memory is bounded by the tag table, and a link that was there goes on as if nothing were."""
    pair, a, b = open_pair()
    data = random.Random(3).randbytes(50_000)
    sent, got = 0, b""
    rng = np.random.default_rng(4)
    for opcode, total in ((int(Opcode.OPEN), 10_000), (ANY, 1_000_000)):
        rounds = 50
        for _ in range(rounds):
            answers = flood(pair.b, rng, total // rounds, pair.now_ps, opcode)
            assert answers <= 2 * total // rounds
            sent += a.submit(data[sent : sent + 500])
            for _ in range(50):
                pair.step()
            got += b.read()
    assert got == data[:sent]
    assert sent == 50_000
    assert pair.a.counters()["payloads_resent"] == pair.b.counters()["nacks_sent"] == 0
    assert len(pair.b.links) <= 3 * 512
    assert pair.b._rows.links.size <= 2048
    assert pair.b.victims > 5000
    assert a.state is b.state is State.OPEN


def test_what_a_flood_leaves_behind_goes_away():
    endpoint = listening()
    flood(endpoint, np.random.default_rng(5), 10_000, 0, int(Opcode.OPEN))
    assert len(endpoint.links) > 1000
    now_ps = 0
    while endpoint.links:
        now_ps = endpoint.next_deadline_ps()
        endpoint.handle_timeout(now_ps)
        said(endpoint, now_ps)
    assert now_ps < 60 * PS_PER_S
    assert not endpoint._rows.tags.any()


def test_a_peer_gets_in_during_a_flood_and_stays():
    """Its way in a set that is full of strangers' links is the oldest of theirs; then it is used, and no victim."""
    pair = WirePair(CONFIG)
    rng = np.random.default_rng(6)
    flood(pair.b, rng, 10_048, 0, int(Opcode.OPEN))
    link = pair.a.connect(MAC_B, 2, pair.now_ps)
    link.submit(b"let me in")
    pair.settle()
    flood(pair.b, rng, 10_048, PS_PER_MS, int(Opcode.OPEN))
    pair.settle()
    [mine] = [peer for peer in pair.b.links if peer.peer_mac == MAC_A]
    assert mine.read() == b"let me in"
    assert link.state is mine.state is State.OPEN


@pytest.mark.root
async def test_a_transfer_on_a_wire_with_ten_thousand_opens_and_random_frames(veth):
    async with asyncio.timeout(120):
        receiver, _, is_right = await transfer_beside(veth, 10_000_000, [(10_048, int(Opcode.OPEN)), (20_032, ANY)])
    assert is_right
    counters = receiver.sans_io.counters()
    assert counters["bytes_resent"] == 0
    assert receiver.sans_io.victims > 1000
    assert receiver.sans_io._rows.links.size <= 2048

"""A link as its owner sees it: buffers, reads, ends."""

from __future__ import annotations

import pytest
from wirepair import MAC_A, MAC_B, WirePair

from ttpoe.config import EndpointConfig
from ttpoe.errors import (
    ClosedByPeerError,
    LinkDownError,
    LinkRefusedError,
    LocalProtocolError,
    PeerRestartedError,
    PeerUnreachableError,
    RemoteProtocolError,
    VictimError,
    check_status,
    failure_error,
)
from ttpoe.fsm import State
from ttpoe.state import Failure, Status


def open_pair(config: EndpointConfig | None = None):
    pair = WirePair(config)
    link = pair.a.connect(MAC_B, 2, pair.now_ps)
    pair.settle()
    accepted = pair.b.accept()
    assert accepted is not None
    return pair, link, accepted


def test_opens_on_both_sides():
    _, link, accepted = open_pair()
    assert link.state == accepted.state == State.OPEN
    assert (link.is_passive, accepted.is_passive) == (False, True)
    assert (link.peer_mac, accepted.peer_mac) == (MAC_B, MAC_A)
    assert repr(link) == "<Link 98:ed:5c:00:00:02 vc 2 OPEN>"


def test_bytes_cross_in_both_directions():
    pair, link, accepted = open_pair()
    assert link.submit(b"question") == 8
    accepted.submit(b"answer")
    pair.settle()
    assert (accepted.read(), link.read()) == (b"question", b"answer")
    assert link.unacknowledged_bytes == accepted.unacknowledged_bytes == 0


def test_read_takes_no_more_than_asked():
    pair, link, accepted = open_pair()
    link.submit(b"0123456789")
    pair.settle()
    assert [accepted.read(4), accepted.read(0), accepted.read(100), accepted.read()] == [b"0123", b"", b"456789", b""]


def test_send_buffer_is_bounded_and_wraps():
    config = EndpointConfig(mtu_bytes=100, window_bytes=200, send_buffer_bytes=250)
    pair, link, accepted = open_pair(config)
    data = bytes(range(256)) * 8
    sent, got = 0, b""
    while len(got) < len(data):
        taken = link.submit(data[sent:])
        assert link.unacknowledged_bytes <= 250
        sent += taken
        assert link.submit(data[sent:]) == 0 or sent == len(data)
        pair.step()
        got += accepted.read()
    assert got == data


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_submit_copies(kind):
    pair, link, accepted = open_pair()
    data = bytearray(b"before")
    link.submit(kind(data))
    data[:] = b"after!"
    pair.settle()
    assert accepted.read() == b"before"


def test_close_keeps_what_can_be_read():
    pair, link, accepted = open_pair()
    link.submit(b"last words")
    pair.a.close(link, pair.now_ps)
    pair.run()
    assert link.has_ended
    assert accepted.has_ended
    assert link.error is None
    assert accepted.error is None
    assert accepted.read() == b"last words"
    assert accepted.counters()["payloads_received"] == 1


def test_submit_after_close_is_our_fault():
    pair, link, _ = open_pair()
    pair.a.close(link, pair.now_ps)
    with pytest.raises(LocalProtocolError, match="98:ed:5c:00:00:02 vc 2 is closed"):
        link.submit(b"x")
    pair.run()
    with pytest.raises(LocalProtocolError, match="is closed"):
        link.submit(b"x")


def test_submit_after_the_peers_close_is_no_fault_of_ours():
    pair, link, accepted = open_pair()
    accepted.submit(b"on its way")
    pair.a.close(link, pair.now_ps)
    pair.step()
    assert accepted.state is State.CLOSE_RECD
    with pytest.raises(ClosedByPeerError, match="98:ed:5c:00:00:01 vc 2 has closed the link"):
        accepted.submit(b"x")
    pair.run()
    assert accepted.has_ended
    assert accepted.error is None
    with pytest.raises(ClosedByPeerError, match="has closed the link"):
        accepted.submit(b"x")


def test_submit_to_a_link_that_was_forgotten_is_our_fault():
    pair, link, _ = open_pair()
    pair.a.forget(link)
    with pytest.raises(LocalProtocolError, match="is closed"):
        link.submit(b"x")


def test_submit_after_failure_raises_the_peers_error():
    pair, link, _ = open_pair()
    pair.is_cut = True
    link.submit(b"x")
    pair.run()
    with pytest.raises(PeerUnreachableError, match="98:ed:5c:00:00:02 vc 2 answered nothing through 11 timeouts"):
        link.submit(b"x")


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure.RETRY_LIMIT, PeerUnreachableError),
        (Failure.REFUSED, LinkRefusedError),
        (Failure.LINK_DOWN, LinkDownError),
        (Failure.PEER_RESTARTED, PeerRestartedError),
        (Failure.CLOSED_UNSENT, ClosedByPeerError),
        (Failure.VICTIM, VictimError),
    ],
)
def test_every_failure_has_a_sentence(failure, kind):
    error = failure_error(failure, "somebody", 3)
    assert type(error) is kind
    assert isinstance(error, RemoteProtocolError)
    assert isinstance(error, ConnectionError)
    assert "somebody" in str(error)


def test_no_failure_is_no_error():
    assert failure_error(Failure.NONE, "somebody", 0) is None
    assert {failure.value for failure in Failure} == set(range(7)), "a failure without a row in the test above"


@pytest.mark.parametrize("status", [status for status in Status if status < 0])
def test_every_status_has_a_sentence(status):
    with pytest.raises(LocalProtocolError, match="cannot dance: "):
        check_status(status, "dance")


def test_good_status_passes():
    assert check_status(2, "dance") == 2

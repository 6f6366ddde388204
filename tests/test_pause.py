"""PAUSE and PFC: the frames, when a port may send, and a driver on a veth pair that honours them."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

import ttpoe
from ttpoe.clock import now_ps
from ttpoe.config import EndpointConfig
from ttpoe.fsm import Opcode
from ttpoe.pause import ALL, PortPause, build_pause, parse_mac_control, quanta_of
from ttpoe.rawsock import RawSocket
from ttpoe.units import PS_PER_MS, PS_PER_S

OWN, PEER = 0x98ED5C000001, 0x98ED5C000002
GROUP = bytes.fromhex("0180c2000001")
root = pytest.mark.root


# Frames


def test_pfc_byte_for_byte():
    """802.1Qbb: class-enable vector, then a time for each of eight priorities."""
    expected = "0180c2000001 98ed5c000002 8808 0101 0009 ffff 0000 0000 0001 0000 0000 0000 0000"
    assert build_pause(PEER, {0: 0xFFFF, 3: 1}) == bytes.fromhex(expected).ljust(60, b"\0")


def test_pause_byte_for_byte():
    """802.3x: one time for all."""
    assert build_pause(PEER, {ALL: 258}) == bytes.fromhex("0180c2000001 98ed5c000002 8808 0001 0102").ljust(60, b"\0")


@pytest.mark.parametrize("quanta", [{ALL: 0}, {ALL: 65535}, {0: 1}, {7: 65535, 0: 0}, dict.fromkeys(range(8), 5), {}])
def test_what_is_built_is_read(quanta):
    opcode, read = parse_mac_control(build_pause(PEER, quanta)[14:])
    assert (opcode, read) == (0x0001 if ALL in quanta else 0x0101, quanta)


def test_every_cut_of_a_frame_is_malformed():
    for quanta, shortest in (({ALL: 5}, 4), ({0: 5}, 20)):
        body = build_pause(PEER, quanta)[14:]
        for size in range(len(body)):
            assert (parse_mac_control(body[:size])[1] is not None) == (size >= shortest)


def test_a_pause_too_long_for_a_frame_is_our_fault():
    with pytest.raises(ValueError, match="65536 quanta does not fit"):
        build_pause(PEER, {0: 65536})


def test_times_of_priorities_that_are_not_enabled_mean_nothing():
    body = bytearray(build_pause(PEER, {2: 7})[14:])
    body[4:6] = b"\xff\xff"
    assert parse_mac_control(body) == (0x0101, {2: 7})


# A port


@pytest.mark.parametrize(
    ("rate_bps", "quantum_ps"),
    [(10**10, 51_200), (25 * 10**9, 20_480), (10**11, 5_120), (4 * 10**11, 1_280)],
)
def test_a_quantum_is_512_bit_times(rate_bps, quantum_ps):
    port = PortPause(OWN, rate_bps, 0)
    port.take(build_pause(PEER, {ALL: 1}), 0)
    assert port.until_ps == quantum_ps
    assert quanta_of(quantum_ps, rate_bps) == 1
    assert quanta_of(quantum_ps + 1, rate_bps) == 2


def test_pause_ends_by_itself_or_at_a_time_of_zero():
    port = PortPause(OWN, 10**10, 0)
    port.take(build_pause(PEER, {ALL: 100}), 1000)
    end_ps = 1000 + 100 * 51_200
    assert (port.is_paused(1000), port.is_paused(end_ps - 1), port.is_paused(end_ps)) == (True, True, False)
    port.take(build_pause(PEER, {ALL: 100}), end_ps)
    port.take(build_pause(PEER, {ALL: 0}), end_ps + 51_200)
    assert not port.is_paused(end_ps + 51_200)
    assert (port.pauses, port.resumes) == (2, 1)
    assert port.paused_ps(PS_PER_S) == 101 * 51_200


def test_a_new_time_replaces_the_old_one():
    """31B.3.2: the timer is set anew, be it for longer or for shorter."""
    port = PortPause(OWN, 10**10, 0)
    port.take(build_pause(PEER, {ALL: 1000}), 0)
    port.take(build_pause(PEER, {ALL: 1}), 100)
    assert port.until_ps == 100 + 51_200
    assert port.paused_ps(PS_PER_S) == 100 + 51_200


def test_pfc_stops_its_priority_alone_and_pause_stops_all():
    port = PortPause(OWN, 10**10, 3)
    port.take(build_pause(PEER, {0: 100, 4: 100}), 0)
    assert (port.is_paused(0), port.pauses) == (False, 0)
    port.take(build_pause(PEER, {}), 0)
    assert (port.is_paused(0), port.malformed) == (False, 0), "a vector of zero names nobody"
    port.take(build_pause(PEER, {3: 100}), 0)
    assert port.is_paused(0)
    port.take(build_pause(PEER, {ALL: 0}), 1)
    assert port.is_paused(1), "PAUSE of 0 does not end a PFC"
    port.take(build_pause(PEER, {3: 0}), 2)
    assert not port.is_paused(2)
    port.take(build_pause(PEER, {ALL: 100}), 3)
    assert port.is_paused(3)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        GROUP + bytes(6) + b"\x88\x08",
        GROUP + bytes(6) + b"\x88\x08\x00\x01\xff",
        GROUP + bytes(6) + b"\x88\x08\x01\x01" + bytes([0, 1]) + bytes(15),
        GROUP + bytes(6) + b"\x88\x08\x00\x02" + b"\xff" * 42,
        build_pause(PEER, {ALL: 65535}).replace(GROUP, bytes.fromhex("98ed5c000009")),
        build_pause(PEER, {ALL: 65535}).replace(GROUP, b"\xff" * 6),
    ],
)
def test_malformed_frames_are_counted_and_change_nothing(frame):
    port = PortPause(OWN, 10**10, 0)
    port.take(frame, 0)
    assert (port.malformed, port.pauses, port.is_paused(0)) == (1, 0, False)


def test_a_pause_to_our_own_address_counts():
    """802.3 annex 31B: the group address, or the station's own."""
    port = PortPause(OWN, 10**10, 0)
    port.take(build_pause(PEER, {ALL: 1}).replace(GROUP, OWN.to_bytes(6, "big")), 0)
    assert port.is_paused(0)


@pytest.mark.parametrize(("field", "value"), [("pfc_priority", 8), ("pfc_priority", -1), ("line_rate_bps", -1)])
def test_config_names_the_wrong_field(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        EndpointConfig(**{field: value})


# On a wire


@asynccontextmanager
async def open_streams(veth, *, honour_pause: bool = True, **fields):
    """A sender that honours pauses, with what it sends and when, and a receiver on a slow line."""
    config = EndpointConfig(line_rate_bps=10**7, **fields)
    sent: list[tuple[int, int]] = []

    def tap(way: str, frame: memoryview) -> None:
        if way == "out":
            sent.append((now_ps(), frame[42]))

    def sock(side, honour: bool) -> RawSocket:
        return side.call(lambda: RawSocket(side.interface, honour_pause=honour))

    async with asyncio.timeout(60):
        async with (
            ttpoe.open_endpoint(sock(veth[0], honour_pause), config, tap=tap) as a,
            ttpoe.open_endpoint(sock(veth[1], False), config) as b,
        ):
            incoming = b.listen()
            stream = await a.connect(b.mac)
            yield a, b, stream, await anext(incoming), sent


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@root
@pytest.mark.parametrize("priority", [ALL, 0])
async def test_a_sender_pauses_until_the_time_is_over(veth, priority):
    async with open_streams(veth) as (a, b, stream, peer, sent):
        b.port.send_pause(300 * PS_PER_MS, priority)
        await until(lambda: a.port.pause.pauses)
        before, until_ps = len(sent), a.port.pause.until_ps
        stream.write(b"x" * 5000)
        assert await peer.readexactly(5000) == b"x" * 5000
        assert sent[before][0] >= until_ps
        assert a.port.paused_ps >= 300 * PS_PER_MS
        assert (a.port.pause.pauses, a.port.pause.resumes, a.sans_io.counters()["payloads_resent"]) == (1, 0, 0)


@root
@pytest.mark.parametrize("priority", [ALL, 0])
async def test_a_time_of_zero_resumes_at_once(veth, priority):
    async with open_streams(veth) as (a, b, stream, peer, _):
        b.port.send_pause(3 * PS_PER_S, priority)
        await until(lambda: a.port.pause.pauses)
        stream.write(b"x" * 5000)
        await asyncio.sleep(0.02)
        assert peer.link.readable_bytes == 0
        b.port.send_pause(0, priority)
        await peer.readexactly(5000)
        assert a.port.pause.resumes == 1
        assert 0 < a.port.paused_ps < 3 * PS_PER_S


@root
async def test_answers_wait_as_well(veth):
    async with open_streams(veth) as (a, b, stream, peer, sent):
        b.port.send_pause(PS_PER_S, ALL)
        await until(lambda: a.port.pause.pauses)
        before = len(sent)
        peer.write(b"x")
        assert await stream.readexactly(1) == b"x", "receiving goes on"
        assert sent[before:] == []
        b.port.send_pause(0, ALL)
        await until(lambda: peer.link.unacknowledged_bytes == 0)
        assert sent[before][1] == Opcode.ACK


@root
async def test_timeouts_wait_for_the_end_of_a_pause(veth):
    """The retry limit counts nothing that was not sent: an OPEN outlasts a pause much longer than its timeouts."""
    async with open_streams(veth, retry_limit=1, rto_initial_ps=20 * PS_PER_MS) as (a, b, _, _, _):
        b.port.send_pause(500 * PS_PER_MS, 0)
        await until(lambda: a.port.pause.pauses)
        stream = await a.connect(b.mac, 1)
        assert a.port.paused_ps >= 500 * PS_PER_MS
        assert stream.link.counters()["timeouts"] <= 1, "the one that was due when the pause began to end"


@root
async def test_other_priorities_and_malformed_frames_do_not_stop_it(veth):
    async with open_streams(veth) as (a, b, stream, peer, _):
        b.port.send_pause(300 * PS_PER_MS, 5)
        b._sock.send(build_pause(b.mac, {ALL: 65535})[:16])
        b._sock.send(build_pause(b.mac, {ALL: 65535}).replace(GROUP, b"\xff" * 6))
        await until(lambda: a.drops().get("mac_control_malformed") == 2)
        stream.write(b"x")
        await peer.readexactly(1)
        assert (a.port.pause.pauses, a.port.paused_ps) == (0, 0)


@root
async def test_pauses_are_ignored_unless_asked_for(veth):
    async with open_streams(veth, honour_pause=False) as (a, b, stream, peer, _):
        b.port.send_pause(300 * PS_PER_MS, ALL)
        stream.write(b"x")
        await peer.readexactly(1)
        assert (a.port.pause, a.port.paused_ps) == (None, 0)


@root
async def test_a_transfer_under_many_pauses_is_whole(veth):
    data = os.urandom(2_000_000)
    async with open_streams(veth) as (a, b, stream, peer, _):

        async def pause_often() -> None:
            while True:
                b.port.send_pause(2 * PS_PER_MS, 0)
                await asyncio.sleep(0.005)

        async def send() -> None:
            stream.write(data)
            await stream.drain()

        pauser = asyncio.create_task(pause_often())
        _, got = await asyncio.gather(send(), peer.readexactly(len(data)))
        pauser.cancel()
        assert got == data
        assert a.port.pause.pauses > 0
        assert a.port.paused_ps >= 2 * PS_PER_MS


@root
def test_the_interface_tells_its_rate(veth):
    """A veth pair says 10 Gb/s of itself."""
    sock = veth[0].call(lambda: RawSocket(veth[0].interface))
    assert sock.ask_rate_bps() == 10**10
    sock.close()


@root
def test_closing_closes_the_control_socket(veth):
    sock = veth[0].call(lambda: RawSocket(veth[0].interface, honour_pause=True))
    sock.close()
    assert sock.control_sock is not None
    assert sock.control_sock.fileno() < 0
    assert sock.receive_control() == []

"""The asyncio API over raw sockets on a veth pair."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import pytest

import ttpoe
from ttpoe.aio import AsyncEndpoint
from ttpoe.config import EndpointConfig
from ttpoe.errors import (
    ClosedByPeerError,
    InterfaceError,
    LinkDownError,
    LinkRefusedError,
    LocalProtocolError,
    PeerRestartedError,
    PeerUnreachableError,
)
from ttpoe.fsm import Opcode
from ttpoe.impair import Impairment
from ttpoe.rawsock import RawSocket
from ttpoe.units import PS_PER_MS
from ttpoe.wire import build, format_mac, make_header

pytestmark = pytest.mark.root

IMPATIENT = EndpointConfig(rto_initial_ps=20 * PS_PER_MS, rto_max_ps=40 * PS_PER_MS, retry_limit=5)


def open_on(side, config: EndpointConfig | None = None, **options) -> AsyncEndpoint:
    return ttpoe.open_endpoint(side.call(lambda: RawSocket(side.interface)), config, **options)


@asynccontextmanager
async def open_pair(veth, config: EndpointConfig | None = None):
    async with open_on(veth[0], config) as a, open_on(veth[1], config) as b:
        yield a, b


@asynccontextmanager
async def open_streams(veth, config: EndpointConfig | None = None):
    async with open_pair(veth, config) as (a, b):
        incoming = b.listen()
        stream = await a.connect(b.mac)
        yield a, b, stream, await anext(incoming)


async def until(condition) -> None:
    """Wait for something that the other end's turn brings about."""
    while not condition():
        await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
async def bounded():
    """No test may hang."""
    async with asyncio.timeout(60):
        yield


async def test_hello(veth):
    async with open_pair(veth) as (a, b):

        async def serve() -> None:
            async for stream in b.listen():
                async with stream:
                    stream.write(b"you said " + await stream.readexactly(5))
                    await stream.drain()
                return

        server = asyncio.create_task(serve())
        async with await a.connect(format_mac(b.mac), vc=1) as stream:
            assert (stream.peer_mac, stream.vc) == (b.mac, 1)
            stream.write(b"hello")
            await stream.drain()
            assert await stream.read() == b"you said hello"
        await server
        assert (a.interface, b.interface) == ("ttpoe-a", "ttpoe-b")
        assert a.drops() == b.drops() == {}


async def test_three_megabytes_both_ways_at_once(veth):
    data = [os.urandom(3_000_000) for _ in range(2)]

    async def send(stream, mine: bytes) -> None:
        for at in range(0, len(mine), 100_000):
            stream.write(mine[at : at + 100_000])
            await stream.drain()

    async with open_streams(veth) as (_, _, left, right):
        _, _, got_right, got_left = await asyncio.gather(
            send(left, data[0]), send(right, data[1]), right.readexactly(3_000_000), left.readexactly(3_000_000)
        )
        assert (got_right, got_left) == (data[0], data[1])
        await asyncio.gather(left.close(), right.close())


async def test_bad_line(veth):
    data = os.urandom(300_000)
    lines = [Impairment(seed, loss=0.02, reorder=0.02, duplicate=0.02) for seed in (1, 2)]
    config = EndpointConfig(window_bytes=30_000)
    async with open_on(veth[0], config, impairment=lines[0]) as a, open_on(veth[1], config, impairment=lines[1]) as b:
        incoming = b.listen()
        stream = await a.connect(b.mac)
        peer = await anext(incoming)
        stream.write(data)
        _, got = await asyncio.gather(stream.close(), peer.read())
    assert got == data
    assert stream.link.counters()["payloads_resent"] > 0


async def test_several_channels_are_several_streams(veth):
    async with open_pair(veth) as (a, b):
        incoming = b.listen()
        streams = [await a.connect(b.mac, vc) for vc in range(3)]
        for stream in streams:
            stream.write(b"%d" % stream.vc)
        accepted = [await anext(incoming) for _ in streams]
        assert {peer.vc: await peer.read(10) for peer in accepted} == {0: b"0", 1: b"1", 2: b"2"}
        with pytest.raises(LocalProtocolError, match="is there already"):
            await a.connect(b.mac, 2)


async def test_slow_reader_holds_the_writer_back(veth):
    config = EndpointConfig(
        window_bytes=50_000, send_buffer_bytes=50_000, receive_buffer_bytes=50_000, rto_max_ps=250 * PS_PER_MS
    )
    async with open_streams(veth, config) as (_, b, stream, peer):
        data = os.urandom(400_000)
        written = 0

        async def write_all() -> None:
            nonlocal written
            for at in range(0, len(data), 10_000):
                stream.write(data[at : at + 10_000])
                await stream.drain()
                written = at + 10_000

        writer = asyncio.create_task(write_all())
        await asyncio.sleep(0.1)
        assert written <= 110_000, "both buffers and one write"
        assert peer.link.readable_bytes <= 50_000
        got = bytearray()
        while len(got) < len(data):
            got += await peer.read(7_000)
            assert len(got) + 110_000 >= written
        await writer
        assert bytes(got) == data
        assert b.sans_io.counters()["nack_fulls_sent"] > 0
        assert b.drops() == {}


async def test_a_reader_of_ten_megabytes_a_second(veth):
    """NACK_FULLs are counted, nothing is dropped, and little is sent in vain."""
    config = EndpointConfig(window_bytes=100_000, receive_buffer_bytes=200_000, send_buffer_bytes=200_000)
    async with open_streams(veth, config) as (a, b, stream, peer):
        data = os.urandom(3_000_000)

        async def write_all() -> None:
            stream.write(data)
            await stream.drain()

        writer = asyncio.create_task(write_all())
        got = bytearray()
        while len(got) < len(data):
            got += await peer.read(50_000)
            await asyncio.sleep(0.005)
        await writer
        assert bytes(got) == data
        sender, receiver = a.sans_io.counters(), b.sans_io.counters()
        assert 0 < sender["nack_fulls_received"] == receiver["nack_fulls_sent"] < 200
        assert a.drops() == b.drops() == {}
        assert sender["timeouts"] == 0
        assert sender["payloads_resent"] < 2 * len(data) / 1024


async def test_an_answer_that_waits_in_the_socket_is_heard_before_the_timer(veth):
    """A loop that was busy elsewhere finds the timer late and the ACK there: nothing is sent again."""
    async with open_streams(veth) as (a, _, stream, peer):
        stream.write(b"once")
        await asyncio.sleep(0)  # it goes out
        time.sleep(0.05)
        assert await peer.readexactly(4) == b"once"
        await until(lambda: not stream.link.unacknowledged_bytes)
        counters = a.sans_io.counters()
        assert (counters["payloads_sent"], counters["probes_sent"], counters["timeouts"]) == (1, 0, 0)


async def test_write_without_drain_is_told_before_memory_grows(veth):
    config = EndpointConfig(send_buffer_bytes=2000, window_bytes=2000)
    async with open_streams(veth, config) as (_, _, stream, peer):
        stream.write(b"a" * 5000)
        with pytest.raises(LocalProtocolError, match="await drain"):
            stream.write(b"b")
        await stream.drain()
        stream.write(b"c")
        assert await peer.readexactly(5001) == b"a" * 5000 + b"c"


async def test_nothing_written_nothing_sent(veth):
    async with open_streams(veth) as (a, _, stream, _):
        stream.write(b"")
        await stream.drain()
        assert await stream.read(0) == b""
        assert a.sans_io.counters()["payloads_sent"] == 0


async def test_close_flushes_and_the_reader_sees_the_end(veth):
    async with open_streams(veth) as (_, _, stream, peer):
        stream.write(b"x" * 1_500_000)
        closing = asyncio.create_task(stream.close())
        assert len(await peer.read()) == 1_500_000
        assert await peer.read() == await peer.read(5) == b""
        await closing
        with pytest.raises(asyncio.IncompleteReadError):
            await peer.readexactly(1)
        with pytest.raises(ClosedByPeerError, match="has closed the link"):
            peer.write(b"too late")
        with pytest.raises(LocalProtocolError, match="is closed"):
            stream.write(b"too late")
        await stream.close()


async def test_endpoint_close_flushes_every_stream(veth):
    async with open_on(veth[1]) as b:
        incoming = b.listen()
        async with open_on(veth[0]) as a:
            for vc in range(3):
                (await a.connect(b.mac, vc)).write(b"y" * 200_000)
        peers = [await anext(incoming) for _ in range(3)]
        assert [len(await peer.read()) for peer in peers] == [200_000] * 3


class _LosesFirst(Impairment):
    """Loses the first frame with an opcode, and nothing else."""

    def __init__(self, opcode: int) -> None:
        super().__init__(0)
        self._opcode: int | None = opcode

    def enter(self, frame, now_ps):
        if frame[42] == self._opcode:
            self._opcode = None
        else:
            super().enter(frame, now_ps)


async def test_endpoint_that_closes_still_repeats_a_lost_close_ack(veth):
    async def serve() -> bytes:
        async with open_on(veth[1]) as b:
            return await (await anext(b.listen())).read()

    line = _LosesFirst(Opcode.CLOSE_ACK)
    server = asyncio.create_task(serve())
    await asyncio.sleep(0)
    async with open_on(veth[0], impairment=line) as a:
        stream = await a.connect(veth[1].mac)
        stream.write(b"x")
        await stream.close()
    assert line._opcode is None
    assert await server == b"x"


async def test_body_that_raises_gives_the_link_up(veth):
    async with open_pair(veth, IMPATIENT) as (a, b):
        incoming = b.listen()
        stream = await a.connect(b.mac)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 the block is what is tested
            async with stream:
                stream.write(b"x")
                await (await anext(incoming)).readexactly(1)
                raise ZeroDivisionError
        assert a.sans_io.links == []
        with pytest.raises(LocalProtocolError, match="aborted"):
            await stream.read()


# Peers that fail


async def test_refused(veth):
    async with open_pair(veth) as (a, b):
        with pytest.raises(LinkRefusedError, match="refused the link"):
            await a.connect(b.mac)
        async with b.listen():
            await a.connect(b.mac, 0)
        with pytest.raises(LinkRefusedError):
            await a.connect(b.mac, 1)


async def test_nobody_there(veth):
    async with open_on(veth[0], IMPATIENT) as a:
        with pytest.raises(PeerUnreachableError, match="98:ed:5c:00:00:77 vc 2 answered nothing through 6 timeouts"):
            await a.connect("98:ed:5c:00:00:77")


async def test_bad_address(veth):
    async with open_on(veth[0]) as a:
        with pytest.raises(ValueError, match="is not a MAC address"):
            await a.connect("somewhere")


async def test_connect_can_be_cancelled(veth):
    async with open_on(veth[0]) as a:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await a.connect(0x98ED5C000077)
        assert a.sans_io.links == []


async def test_peer_that_dies_is_told_to_reader_and_writer(veth):
    async with open_pair(veth, IMPATIENT) as (a, b):
        incoming = b.listen()
        stream = await a.connect(b.mac)
        await anext(incoming)
        reader = asyncio.create_task(stream.read(1))
        b.abort()
        stream.write(b"anybody?")
        with pytest.raises(PeerUnreachableError):
            await stream.close()
        with pytest.raises(PeerUnreachableError):
            await reader
        with pytest.raises(PeerUnreachableError):
            stream.write(b"x")
        assert a.sans_io.links == []


async def test_peer_that_comes_back_does_not_know_the_link(veth):
    async with open_on(veth[0]) as a:
        async with open_on(veth[1]) as b:
            incoming = b.listen()
            stream = await a.connect(b.mac)
            peer = await anext(incoming)
            stream.write(b"x")
            await peer.readexactly(1)
            await until(lambda: stream.link.unacknowledged_bytes == 0)
            b.abort()
        async with open_on(veth[1]):
            stream.write(b"y")
            with pytest.raises(LinkDownError, match="does not know this link"):
                await stream.close()


async def test_restarted_peer_is_told_and_accepted_anew(veth):
    async with open_on(veth[1]) as b:
        incoming = b.listen()
        a = open_on(veth[0])
        await a.connect(b.mac)
        old = await anext(incoming)
        a.abort()
        async with open_on(veth[0]) as a:
            stream = await a.connect(b.mac)
            with pytest.raises(PeerRestartedError, match="restarted"):
                await old.read()
            new = await anext(incoming)
            stream.write(b"new life")
            assert await new.readexactly(8) == b"new life"


# Interfaces that fail


async def test_frames_with_a_tag_and_for_others_are_counted(veth):
    async with open_pair(veth) as (a, b):
        head = b.mac.to_bytes(6, "big") + a.mac.to_bytes(6, "big")
        a._sock.send(head + b"\x81\x00\x00\x05\x9a\xc6" + bytes(50))
        open_header = make_header(dst_mac=b.mac + 256, src_mac=a.mac, opcode=0, vc=0, tx_seq=1, rx_seq=0)
        a._sock.send(build(open_header))
        a._sock.send(head + b"\x9a\xc6" + bytes(20))
        await until(lambda: len(b.drops()) == 3)
        assert b.drops() == {"vlan_tagged": 1, "foreign_destination": 1, "too_short": 1}
        assert a.drops() == {}


async def test_a_link_that_goes_down_for_a_moment(veth):
    async with open_streams(veth) as (a, _, stream, peer):
        stream.write(b"before")
        assert await peer.readexactly(6) == b"before"
        veth[0].set_link(state="down")
        await asyncio.sleep(0.05)
        stream.write(b"during")
        await asyncio.sleep(0.05)
        assert a.send_drops > 0
        veth[0].set_link(state="up")
        assert await peer.readexactly(6) == b"during"


async def test_a_deleted_interface_is_told_to_every_owner(veth):
    a, b = open_on(veth[0]), open_on(veth[1])
    incoming = b.listen()
    stream = await a.connect(b.mac)
    peer = await anext(incoming)
    tasks = [asyncio.create_task(coro) for coro in (peer.read(), anext(incoming))]
    await asyncio.sleep(0)
    veth[0].delete_link()
    for task in tasks:
        with pytest.raises(InterfaceError, match="the interface ttpoe-b is gone"):
            await task
    with pytest.raises(InterfaceError, match="the interface ttpoe-a is gone"):
        await stream.close()
    with pytest.raises(InterfaceError, match="is gone"):
        await a.connect(b.mac, 1)
    await a.close()
    await b.close()


async def test_tap_sees_both_directions(veth):
    seen: list[tuple[str, int]] = []
    async with open_on(veth[1]) as b:
        b.listen()
        async with open_on(veth[0], tap=lambda way, frame: seen.append((way, frame[42]))) as a:
            stream = await a.connect(b.mac)
            stream.write(b"x")
            await stream.close()
    assert seen == [("out", 0), ("in", 1), ("out", 6), ("in", 7), ("out", 3), ("in", 4)]


async def test_a_closed_endpoint_does_nothing(veth):
    async with open_on(veth[0]) as a:
        incoming = a.listen()
        with pytest.raises(LocalProtocolError, match="listens already"):
            a.listen()
    with pytest.raises(LocalProtocolError, match="the endpoint on ttpoe-a is closed"):
        await a.connect(0x98ED5C000077)
    with pytest.raises(LocalProtocolError, match="is closed"):
        await anext(incoming)
    await a.close()


async def test_listening_ends_with_its_block(veth):
    async with open_pair(veth) as (a, b):
        async with b.listen() as incoming:
            stream = await a.connect(b.mac)
        assert [stream async for stream in incoming] == []
        assert await stream.read() == b"", "closed in order, since nobody accepted it"
        await until(lambda: not b.sans_io.links)


def test_import_is_instant():
    code = "import sys, ttpoe; sys.exit('numpy' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_export():
    with pytest.raises(AttributeError, match="no attribute 'open_endpont'"):
        _ = ttpoe.open_endpont

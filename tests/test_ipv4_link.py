"""Links in IPv4 mode: the endpoint without I/O, and the driver on a veth pair, its port and its neighbours."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager

import pytest
from test_ipv4 import octets, patched, with_checksum

import ttpoe
from ttpoe import bpf, ipv4
from ttpoe.batch import LinkEvent
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import Endpoint
from ttpoe.errors import InterfaceError, LinkRefusedError, LocalProtocolError, PeerUnreachableError
from ttpoe.fsm import Opcode
from ttpoe.impair import Impairment, ImpairmentConfig
from ttpoe.netns import Side
from ttpoe.rawsock import RawSocket
from ttpoe.units import PS_PER_MS
from ttpoe.wire import Mode

MAC_A, MAC_B, IP_A, IP_B = 0x98ED5C000001, 0x98ED5C000002, 0x0A000001, 0x0A000002
IMPATIENT = EndpointConfig(rto_initial_ps=20 * PS_PER_MS, rto_max_ps=40 * PS_PER_MS, retry_limit=3)

# Without I/O


def make_pair(config: EndpointConfig | None = None) -> tuple[Endpoint, Endpoint]:
    a = Endpoint(MAC_A, config, ip=IP_A, draw_seq=lambda: 0x100)
    b = Endpoint(MAC_B, config, ip=IP_B, draw_seq=lambda: 0x200)
    b.is_listening = True
    return a, b


def said(endpoint: Endpoint) -> list[bytes]:
    frames = []
    while (frame := endpoint.poll_transmit(0)) is not None:
        frames.append(bytes(frame))
    return frames


def frame(opcode: int, *, tx: int = 1, rx: int = 0, payload: bytes = b"", **fields: int) -> bytes:
    addresses = {"dst_mac": MAC_B, "src_mac": MAC_A, "dst_ip": IP_B, "src_ip": IP_A} | fields
    header = ipv4.make_header(
        **addresses, opcode=opcode, vc=2, tx_seq=tx, rx_seq=rx, payload_bytes=len(payload)
    )
    return ipv4.build(header, payload)


def test_a_link_as_bytes():
    """What the reference module's capture shows, from our endpoints."""
    a, b = make_pair()
    link = a.connect(MAC_B, 0, 0, peer_ip=IP_B)
    [opened] = said(a)
    assert opened == octets("""
        98 ed 5c 00 00 02  98 ed 5c 00 00 01  08 00
        45 00 00 32  00 00 40 00  09 11 5d b9  0a 00 00 01  0a 00 00 02  01 a4 01 a4  00 1a 00 00
        00 00  00 00 00 00 00 00 20 00  00 00 01 00  00 00 00 00  00 00 00 00
    """)
    b.receive([opened], 0)
    [answer] = said(b)
    assert answer == octets("""
        98 ed 5c 00 00 01  98 ed 5c 00 00 02  08 00
        45 00 00 32  00 00 40 00  09 11 5d b9  0a 00 00 02  0a 00 00 01  01 a4 01 a4  00 1a 00 00
        01 00  00 00 00 00 00 00 20 00  00 00 02 01  00 00 01 00  00 00 00 00
    """)
    a.receive([answer], 0)
    assert a.poll_event() == (link, LinkEvent.OPENED)
    link.submit(b"hey")
    [payload] = said(a)
    assert payload == octets("""
        98 ed 5c 00 00 02  98 ed 5c 00 00 01  08 00
        45 00 00 32  00 00 40 00  09 11 5d b9  0a 00 00 01  0a 00 00 02  01 a4 01 a4  00 1d 00 00
        06 00  00 00 00 00 00 00 20 00  00 00 01 01  00 00 00 00  68 65 79 00
    """)
    b.receive([payload], 0)
    peer = b.accept()
    assert peer is not None
    assert (peer.read(), peer.peer_ip, peer.peer_mac, peer.peer) == (b"hey", IP_A, MAC_A, "10.0.0.1 vc 0")
    assert [ipv4.parse(answer).header[0]["opcode"] for answer in said(b)] == [Opcode.ACK]
    assert link.peer == "10.0.0.2 vc 0"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64])
def test_lengths_of_every_burst(size):
    """Rows are reused for control and PAYLOAD frames: lengths and checksum are set anew each time."""
    config = EndpointConfig(mtu_bytes=64, window_bytes=1024, send_buffer_bytes=4096, receive_buffer_bytes=4096)
    a, b = make_pair(config)
    link = a.connect(MAC_B, 2, 0, peer_ip=IP_B)
    b.receive(said(a), 0)
    a.receive(said(b), 0)
    link.submit(bytes(range(200))[: 64 + size])
    frames = said(a)
    parsed = [ipv4.parse(sent) for sent in frames]
    assert [len(one.payload) for one in parsed] == [64, size]
    assert [int(one.header[0]["total_length"]) for one in parsed] == [110, max(50, 46 + size)]
    assert [len(sent) for sent in frames] == [124, max(64, 60 + size)]
    b.receive(frames, 0)
    peer = b.accept()
    assert peer is not None
    assert peer.read() == bytes(range(200))[: 64 + size]


def test_strangers_are_answered_at_their_addresses():
    _, b = make_pair()
    other = {"src_mac": MAC_A + 0x100, "src_ip": IP_A + 0x100}
    b.receive([frame(Opcode.PAYLOAD, payload=b"x"), frame(Opcode.PAYLOAD, payload=b"x", **other)], 0)
    rows = [ipv4.parse(answer).header[0] for answer in said(b)]
    assert [int(row["opcode"]) for row in rows] == [Opcode.NACK_NOLINK] * 2
    assert [(int(row["dst_mac"]), int(row["dst_ip"])) for row in rows] == [
        (MAC_A, IP_A), (MAC_A + 0x100, IP_A + 0x100)
    ]  # fmt: skip
    b.is_listening = False
    b.receive([frame(Opcode.OPEN, **other)], 0)
    [row] = [ipv4.parse(answer).header[0] for answer in said(b)]
    assert (row["opcode"], row["dst_mac"], row["dst_ip"]) == (Opcode.OPEN_NACK, MAC_A + 0x100, IP_A + 0x100)


def test_a_link_is_its_address_not_its_router():
    """Two peers behind one router are two links; one peer whose frames come by another MAC is still one."""
    _, b = make_pair()
    b.receive([frame(Opcode.OPEN), frame(Opcode.OPEN, src_ip=IP_A + 5)], 0)
    assert len(b.links) == 2
    b.receive([frame(Opcode.OPEN, src_mac=MAC_A + 7)], 0)
    assert [link.peer_ip for link in b.links] == [IP_A, IP_A + 5]


@pytest.mark.parametrize(
    ("fields", "drop"),
    [
        ({"dst_ip": IP_B + 1}, "foreign_destination"),
        ({"dst_ip": 0x0A0000FF}, "foreign_destination"),
        ({"dst_mac": MAC_B + 2}, "foreign_destination"),
        ({"src_ip": IP_B}, "bad_source"),
        ({"src_ip": 0}, "bad_source"),
        ({"src_ip": 0x7F000001}, "bad_source"),
        ({"src_ip": 0xE0000001}, "bad_source"),
        ({"src_ip": 0xFFFFFFFF}, "bad_source"),
        ({"src_mac": MAC_B}, "bad_source"),
        ({"src_mac": 0xFFFFFFFFFFFF}, "bad_source"),
    ],
)
def test_addresses_that_are_refused(fields, drop):
    _, b = make_pair()
    b.receive([frame(Opcode.OPEN, **fields)], 0)
    assert b.drops() == {drop: 1}
    assert said(b) == []


def test_modes_do_not_mix():
    a, b = make_pair()
    plain = Endpoint(MAC_B)
    plain.is_listening = True
    a.connect(MAC_B, 2, 0, peer_ip=IP_B)
    plain.receive(said(a), 0)
    assert plain.drops() == {"not_ttpoe": 1}
    other = Endpoint(MAC_A)
    other.connect(MAC_B, 2, 0)
    b.receive(said(other), 0)
    assert b.drops() == {"not_ttpoe": 1}


@pytest.mark.parametrize("ip", [0, IP_A, 0x7F000001, 0xE0000001, 0xFFFFFFFF, -1, 1 << 32])
def test_connect_refuses_addresses_of_nobody(ip):
    a, _ = make_pair()
    with pytest.raises(LocalProtocolError, match=r"is not the address of one peer|needs the peer's IPv4"):
        a.connect(MAC_B, 2, 0, peer_ip=ip)
    assert a.links == []


def test_connect_wants_the_address_of_its_mode():
    a, _ = make_pair()
    with pytest.raises(LocalProtocolError, match="needs the peer's IPv4 address"):
        a.connect(MAC_B, 2, 0)
    with pytest.raises(LocalProtocolError, match="needs the peer's IPv4 address"):
        Endpoint(MAC_A).connect(MAC_B, 2, 0, peer_ip=IP_B)


def test_one_link_for_a_peer_and_channel():
    a, _ = make_pair()
    a.connect(MAC_B, 2, 0, peer_ip=IP_B)
    with pytest.raises(LocalProtocolError, match=r"a link to 10\.0\.0\.2 vc 2 is there already"):
        a.connect(MAC_B + 2, 2, 0, peer_ip=IP_B)
    a.connect(MAC_B, 2, 0, peer_ip=IP_B + 1)  # by the same router


# The kernel's filter


def interpret(program: bytes, data: bytes, *, is_outgoing: bool = False, is_tagged: bool = False) -> bool:
    """What the kernel does with a program; a load beyond the frame drops it."""
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    beside = {0xFFFFF004: 4 if is_outgoing else 0, 0xFFFFF030: int(is_tagged)}
    a = x = at = 0
    while True:
        op, if_true, if_false, k = code[at]
        at += 1
        if op == 0x06:
            return k > 0
        if op in (0x15, 0x45):
            at += if_true if (a == k if op == 0x15 else a & k) else if_false
        elif op == 0xB1:
            x = 4 * (data[k] & 0x0F)
        else:
            size = {0x20: 4, 0x28: 2, 0x30: 1, 0x48: 2}[op]
            start = k + (x if op == 0x48 else 0)
            if k not in beside and start + size > len(data):
                return False
            a = beside[k] if k in beside else int.from_bytes(data[start : start + size], "big")


OPEN = frame(Opcode.OPEN)
OPTIONS = with_checksum(OPEN[:14] + b"\x46" + OPEN[15:34] + b"\1\1\1\1" + OPEN[34:])


@pytest.mark.parametrize(
    ("data", "passes"),
    [
        (OPEN, True),
        (OPTIONS, True),  # for the endpoint to count
        (patched(OPEN, 34, "ffff"), True),  # a foreign source port too
        (patched(OPEN, 20, "2000"), True),  # the first fragment has ports
        (patched(OPEN, 36, "01a5"), False),
        (patched(OPEN, 20, "2001"), False),
        (patched(OPEN, 23, "06"), False),
        (patched(OPEN, 12, "86dd"), False),
        (patched(OPEN, 12, "9ac6"), False),
        (OPEN[:36], False),
    ],
)
def test_filter_of_ipv4_mode(data, passes):
    from ttpoe.rawsock import _filter_program

    plain, tagged = (_filter_program(Mode.IPV4, is_tagged=is_tagged) for is_tagged in (False, True))
    assert interpret(plain, data) == passes
    assert interpret(tagged, data, is_tagged=True) == passes
    assert not interpret(plain, data, is_tagged=True)
    assert not interpret(tagged, data)
    assert not interpret(plain, data, is_outgoing=True)
    assert not interpret(bpf.assemble(), data)


# On a veth pair


@pytest.fixture(autouse=True)
async def bounded():
    """No test may hang."""
    async with asyncio.timeout(60):
        yield


@pytest.fixture
def sides(veth) -> tuple[Side, Side]:
    veth[0].add_ipv4("10.0.0.1/24")
    veth[1].add_ipv4("10.0.0.2/24")
    return veth


def raw(side: Side, mode: Mode = Mode.IPV4) -> RawSocket:
    return side.call(lambda: RawSocket(side.interface, mode=mode))


@contextmanager
def watching(side: Side):
    """A packet socket on everything that the interface sends and receives."""
    sock = side.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sock.bind((side.interface, 3))
    with sock:
        yield sock


def seen(sock: socket.socket) -> list[bytes]:
    frames = []
    while True:
        try:
            frames.append(sock.recv(2000))
        except BlockingIOError:
            return frames


@pytest.mark.root
async def test_a_transfer_without_a_word_of_icmp(sides):
    data = os.urandom(300_001)
    with watching(sides[1]) as sock:
        async with ttpoe.open_endpoint(raw(sides[0])) as a, ttpoe.open_endpoint(raw(sides[1])) as b:
            assert (a.address, b.address) == ("10.0.0.1", "10.0.0.2")
            incoming = b.listen()
            stream = await a.connect(b.address)
            other = await anext(incoming)
            stream.write(data)
            other.write(b"x")  # a payload of one byte, padded
            assert await other.readexactly(len(data)) == data
            assert await stream.readexactly(1) == b"x"
            assert (stream.peer_mac, stream.peer_ip, other.peer_ip) == (b.mac, IP_B, IP_A)
            assert (a.drops(), b.drops()) == ({}, {})
            await asyncio.gather(stream.close(), other.close())
            with pytest.raises(BlockingIOError):  # what comes to the port we hold is not kept
                b._sock._neighbours._socks[0].recv(2000)
        frames = [data for data in seen(sock) if data[12:14] == b"\x08\x00"]
    assert sum(1 for data in frames if data[23] == 17 and data[36:38] == b"\x01\xa4") > 500
    probes = [data for data in frames if data[23] == 17 and data[36:38] == b"\x00\x09"]
    unreachable = [data for data in frames if data[23] == 1]
    assert len(unreachable) <= len(probes) <= 1, "the probe's port may be told unreachable, ours never"
    assert all(len(data) >= 64 for data in frames if data[36:38] == b"\x01\xa4")


IMPAIRMENTS = {
    "lost": {"loss": 0.01}, "lost_in_bursts": {"burst_loss": 0.01, "burst_frames": 4}, "lost_every": {"loss_every": 50},
    "lost_by_name": {"lose_frames": (1, 2, 5, 9)}, "bad_fcs": {"bad_fcs": 0.01},
    "bit_errors": {"bit_error_rate": 2e-6}, "duplicated": {"duplicate": 0.05},
    "reordered": {"reorder": 0.05}, "delayed": {"delay_ps": 3 * PS_PER_MS, "jitter_ps": 3 * PS_PER_MS},
    "link_down": {"rate_bps": 10**8, "flap_up_ps": 8 * PS_PER_MS, "flap_down_ps": 5 * PS_PER_MS},
    "queue_full": {"rate_bps": 10**8, "queue_bytes": 20_000},
}  # fmt: skip
"""By the counter that tells of it."""


@pytest.mark.root
@pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("fate", list(IMPAIRMENTS))
async def test_a_transfer_on_a_bad_line(sides, mode, fate):
    """Each impairment alone, both ways, in both modes."""
    data = os.urandom(1_000_000 if fate == "link_down" else 300_000)
    lines = [Impairment(seed, ImpairmentConfig(**IMPAIRMENTS[fate])) for seed in (1, 2)]
    config = EndpointConfig(window_bytes=100_000, rto_initial_ps=50 * PS_PER_MS)
    a, b = (
        ttpoe.open_endpoint(raw(side, mode=mode), config, impairment=line)
        for side, line in zip(sides, lines, strict=True)
    )
    async with a, b:
        incoming = b.listen()
        stream = await a.connect(b.address)
        other = await anext(incoming)
        stream.write(data)

        async def receive() -> None:
            assert await other.readexactly(len(data)) == data
            await other.close()

        async with asyncio.TaskGroup() as tasks:  # a sender that fails ends the reader, which would never know
            tasks.create_task(receive())
            tasks.create_task(stream.close())
    assert sum(getattr(line.counters, fate) for line in lines) > 0


@pytest.mark.root
async def test_a_host_without_an_endpoint_answers_by_icmp_only(sides):
    with watching(sides[0]) as sock:
        async with ttpoe.open_endpoint(raw(sides[0]), IMPATIENT) as a:
            with pytest.raises(PeerUnreachableError, match=r"10\.0\.0\.2 vc 2 answered nothing"):
                await a.connect("10.0.0.2")
        assert [data for data in seen(sock) if data[12:14] == b"\x08\x00" and data[23] == 1]


@pytest.mark.root
async def test_a_peer_that_does_not_listen_refuses(sides):
    async with ttpoe.open_endpoint(raw(sides[0])) as a, ttpoe.open_endpoint(raw(sides[1])):
        with pytest.raises(LinkRefusedError):
            await a.connect("10.0.0.2")


@pytest.mark.root
async def test_nobody_answers_for_the_address(sides, monkeypatch):
    monkeypatch.setattr("ttpoe.neighbour._PROBES", 1)
    async with ttpoe.open_endpoint(raw(sides[0])) as a:
        with pytest.raises(InterfaceError, match=r"nobody on ttpoe-a answers for 10\.0\.0\.77 \(no reply to ARP\)"):
            await a.connect("10.0.0.77")
        for text in ("10.0.0.1", "127.0.0.1", "224.0.0.1"):
            with pytest.raises(LocalProtocolError, match="not the address of one peer"):
                await a.connect(text)
        with pytest.raises(ValueError, match="is not an IPv4 address"):
            await a.connect("98:ed:5c:00:00:01")
        with pytest.raises(InterfaceError, match=r"cannot reach 10\.0\.0\.255 by ttpoe-a"):
            await a.connect("10.0.0.255")
        assert a.sans_io.links == []


@pytest.mark.root
async def test_a_forged_probe_leads_nowhere(sides, monkeypatch):
    """A frame that comes in, however like ours, does not say where frames must go."""
    monkeypatch.setattr("ttpoe.neighbour._PROBES", 1)
    a, forger = raw(sides[0]), sides[1].call(lambda: RawSocket("ttpoe-b"))
    task = asyncio.create_task(a.resolve(0x0A00004D))
    await asyncio.sleep(0.1)
    ports = struct.pack(">HH", a._neighbours._probe.getsockname()[1], 9)
    forged = frame(Opcode.OPEN, dst_mac=a.mac, src_mac=forger.mac, dst_ip=0x0A00004D)
    forger.send(forged[:34] + ports + forged[38:])
    with pytest.raises(InterfaceError, match="no reply to ARP"):
        await task
    a.close()
    forger.close()


@pytest.mark.root
async def test_frames_to_another_network_go_to_the_router(sides):
    def add_route() -> None:
        from pyroute2 import IPRoute

        with IPRoute() as route:
            route.route("add", dst="10.9.0.0/16", gateway="10.0.0.2")

    sides[0].call(add_route)
    a = raw(sides[0])
    assert await a.resolve(ipv4.parse_ipv4("10.9.1.2")) == sides[1].mac
    assert await a.resolve(ipv4.parse_ipv4("10.0.0.2")) == sides[1].mac
    a.close()


@pytest.mark.root
async def test_finding_a_peer_while_the_endpoint_closes(sides):
    endpoint = ttpoe.open_endpoint(raw(sides[0]))
    task = asyncio.create_task(endpoint.connect("10.0.0.77"))
    await asyncio.sleep(0.05)
    endpoint.abort()
    with pytest.raises((LocalProtocolError, InterfaceError)):
        await task


@pytest.mark.root
def test_an_interface_without_an_address(veth):
    with pytest.raises(InterfaceError, match=r"ttpoe-a has no IPv4 address: run `ip address add 10\.0\.0\.1/24 dev"):
        raw(veth[0])


@pytest.mark.root
def test_the_port_is_held_once(sides):
    first = raw(sides[0])
    with pytest.raises(InterfaceError, match=r"UDP port 420 of 10\.0\.0\.1 is held by another program"):
        raw(sides[0])
    first.close()
    raw(sides[0]).close()


@pytest.mark.root
def test_without_the_right_to_the_port(sides):
    """CAP_NET_RAW alone: the sentence says what else is needed."""
    if os.geteuid() != 0:
        pytest.skip("only root can drop capabilities by setpriv")
    code = ("from ttpoe.rawsock import RawSocket; from ttpoe.wire import Mode; "
            "RawSocket('ttpoe-a', mode=Mode.IPV4)")  # fmt: skip
    drop = ["setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-all", "--ambient-caps=-all"]
    run = subprocess.run(
        ["nsenter", f"--net=/proc/{os.getpid()}/fd/{sides[0].fd}", *drop, sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    message = run.stderr.strip().splitlines()[-1]
    assert message.startswith("ttpoe.errors.InterfaceError: IPv4 mode holds UDP port 420, which needs")
    assert "ip_unprivileged_port_start=420" in message


@pytest.mark.root
def test_what_the_socket_takes(sides):
    """Frames of our port, whatever else is wrong with them; tagged ones are counted."""
    a, b = sides[0].call(lambda: RawSocket("ttpoe-a")), raw(sides[1])
    whole = frame(Opcode.OPEN, dst_mac=b.mac, src_mac=a.mac)
    options = with_checksum(whole[:14] + b"\x46" + whole[15:34] + b"\1\1\1\1" + whole[34:])
    for data in (
        whole, options, patched(whole, 36, "01a5"), patched(whole, 20, "0001"), whole[:12] + b"\x9a\xc6" + whole[14:],
        whole[:12] + b"\x81\x00\x00\x05" + whole[12:],
    ):  # fmt: skip
        a.send(data)
    buffer = bytearray(2000)
    taken = []
    for _ in range(2):
        taken.append(bytes(buffer[: b.recv_into(buffer)]))
    assert taken == [whole, options]
    with pytest.raises(BlockingIOError):
        b.recv_into(buffer)
    assert b.vlan_tagged == 1
    a.close()
    b.close()


def test_a_mode_that_is_none():
    with pytest.raises(ValueError, match="mode is 'ip'; it must be 'ethernet' or 'ipv4'"):
        ttpoe.open_endpoint("eth0", mode="ip")

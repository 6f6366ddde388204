"""Captured rows of the emulator become frames, byte for byte as on the line less preamble and FCS, and pcapng files.

Owns what the emulator does not model and a frame still needs: addresses, QP numbers, entropy, payload, checksums.
Knows nothing of queues or of the engine; rows come in, bytes go out.

Conventions, the same in every run:

- Host h: MAC 98:ed:5c and h + 1 in three bytes; IPv4 address 10.x.y.z with h + 1 in x.y.z. Port p of a switch:
  MAC 02:53:57 and p + 1 in three bytes, p its index over all ports; locally administered.
- Payload: eight-byte words that repeat, flow number and id (TTPoE tx sequence, RoCEv2 PSN), four big-endian bytes each;
  so a resent frame equals the first, and a frame in the wrong flow shows.
- A frame that an impaired line corrupted has one bit of its payload flipped.
- No 802.1Q tags, so TTPoE frames show no priority; RoCEv2 frames do: DSCP = 8 x priority, the class selectors, which
  switches map back so by default.
- IPv4: no fragments, identification 0 (RFC 6864), TTL 64; ECN as the frame had it where it was captured.
- TTPoE in IPv4 mode: as :mod:`ttpoe.ipv4` has it, TTL 9 and DSCP 0, so no priority either.
- RoCEv1: a GRH in place of IPv4 and UDP; link-local GIDs made of the MACs (EUI-64), traffic class 32 x priority, flow
  label the entropy that would be the UDP port, hop limit 64.
- UDP: source port 0xC000 to 0xFFFF, by seed and end of flow; checksum 0, as annex A17 allows.
- BTH: QP number 256 + end (end 2f sends flow f, 2f + 1 receives it), migrated, default P_Key; the acknowledge request
  on the last packet of a message. RETH: virtual address (flow + 1) << 40, R_Key 0x10000 + flow. Where NICs place
  packets in any order, each is a WRITE of its own, at its place behind that address.
- CNP: BECN set, PSN 0, 16 bytes reserved.

Source: InfiniBand Architecture Specification 1.4 chapter 9, its annex A17 (RoCEv2); IEEE 802.1Qbb, 802.3 annex 31D.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from emulator.packet import PFC
from emulator.roce import ACKNOWLEDGE, CNP, PSN_MASK, WRITE_FIRST, WRITE_LAST, WRITE_ONLY
from emulator.selective import SACK_SHIFT
from emulator.world import ROCE, TCP, TTPOE
from traces.dissect import ETHERTYPE_IPV4, ETHERTYPE_ROCEV1, ROCEV2_PORT, UDP, icrc_head, icrc_head_v1
from traces.pcap import PcapngWriter
from traces.tcp_frames import PAYLOAD_OFFSET as TCP_PAYLOAD_OFFSET
from traces.tcp_frames import TcpFrames
from ttpoe import ipv4, wire
from ttpoe.constants import MIN_ETHERNET_BYTES, TESLA_OUI
from ttpoe.fsm import Opcode
from ttpoe.pause import build_pause
from ttpoe.state import HEADER_MARKS

SWITCH_OUI = 0x025357
FIRST_QPN = 256
MAX_DMA_BYTES = 2**31
"""IBTA's longest message. A longer one would be several WRITEs on a NIC; its RETH says this."""
RESOLUTION_DIGITS = {"ns": 9, "ps": 12}

_WORD = struct.Struct(">I").pack
_TWO_WORDS = struct.Struct(">II").pack
_ICRC = struct.Struct("<I").pack
_PAYLOAD = int(Opcode.PAYLOAD)
_ACK_REQUEST = 1 << 31
_BECN = 1 << 30
_NEXT_IS_BTH = 0x1B


def host_mac(host: int) -> int:
    """MAC address of host ``host`` as a 48-bit integer."""
    return TESLA_OUI << 24 | (host + 1)


def host_ipv4(host: int) -> int:
    """IPv4 address of host ``host`` as a 32-bit integer."""
    return 10 << 24 | (host + 1)


def switch_mac(port: int) -> int:
    """MAC address of switch port ``port`` (its index over all ports) as a 48-bit integer."""
    return SWITCH_OUI << 24 | (port + 1)


def _ipv4_checksum(header: bytes) -> int:
    total = sum(struct.unpack(">10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def _ipv4_udp(source: int, destination: int, traffic_class: int, source_port: int, udp_bytes: int) -> bytes:
    """Both headers of a RoCEv2 frame between two hosts."""
    ip = struct.pack(
        ">BBHHHBBHII", 0x45, traffic_class, 20 + udp_bytes, 0, 0x4000, 64, UDP, 0, host_ipv4(source),
        host_ipv4(destination),
    )  # fmt: skip
    ip = ip[:10] + _ipv4_checksum(ip).to_bytes(2, "big") + ip[12:]
    return ip + struct.pack(">4H", source_port, ROCEV2_PORT, udp_bytes, 0)


def _gid(host: int) -> bytes:
    """The link-local GID that a port has by its MAC."""
    mac = host_mac(host).to_bytes(6, "big")
    return bytes.fromhex("fe80000000000000") + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]


class FrameBuilder:
    """Turns TRACE rows into frames without FCS; as long as the emulator's wire bytes less 24.

    Parameters
    ----------
    port_names : sequence of str
        All ports, in the order of the run.
    port_nic : int array, shape (ports,)
        The host a port belongs to, or -1 for a switch's.
    ends : END array, shape (2 * flows,)
        Only ``host`` is read.
    protocol : int
        `emulator.world.TTPOE`, `ROCE` or `TCP`.
    seed : int
        Decides the UDP source ports.
    message_bytes : int array, shape (flows,)
        Message of each flow, for RETH and TCP's sequence numbers.
    version : int
        Of RoCE.
    first_psns : int array, shape (flows,), optional
        Given where each packet is a WRITE of its own: the PSN of each flow's first.
    mtu_bytes : int
        Of TCP, and with ``first_psns``: payload from one packet's place to the next one's.
    window_bytes : int
        TCP's receive window.
    is_ipv4 : bool
        TTPoE in IPv4 mode.
    """

    def __init__(
        self, port_names: Sequence[str], port_nic: np.ndarray, ends: np.ndarray, protocol: int, *, seed: int,
        message_bytes: np.ndarray, version: int = 2, first_psns: np.ndarray | None = None, mtu_bytes: int = 0,
        window_bytes: int = 0, is_ipv4: bool = False,
    ) -> None:
        if protocol not in (TTPOE, ROCE, TCP):
            raise ValueError(f"protocol is {protocol}; it must be emulator.world.TTPOE, ROCE or TCP")
        if protocol == TCP and mtu_bytes < 1:
            raise ValueError(f"mtu_bytes is {mtu_bytes}; TCP's sequence numbers need it")
        if len(message_bytes) * 2 != len(ends):
            raise ValueError(f"{len(ends)} ends need {len(ends) // 2} message_bytes; {len(message_bytes)} were given")
        self.port_names = tuple(port_names)
        owners = enumerate(np.asarray(port_nic).tolist())
        self._port_macs = [host_mac(host) if host >= 0 else switch_mac(port) for port, host in owners]
        self._nics: list[int] = ends["nic"].tolist()
        self._protocol = int(protocol)
        self._seed = seed
        self._message_bytes: list[int] = np.asarray(message_bytes).tolist()
        self._tcp = TcpFrames(
            seed=seed, mtu_bytes=mtu_bytes or 1, window_bytes=window_bytes, message_bytes=self._message_bytes
        )
        self._version = version
        self._is_ipv4 = is_ipv4
        self._first_psns: list[int] | None = None if first_psns is None else np.asarray(first_psns).tolist()
        self._mtu_bytes = mtu_bytes
        self._pfc: dict[tuple[int, int, int], bytes] = {}
        self._ttpoe: dict[tuple[int, int, int, int, int, int], bytes] = {}
        self._roce: dict[tuple[int, int, int, int], tuple[bytes, int, int, bytes, int]] = {}

    def build(self, row: np.void) -> bytes:
        """Bytes of the frame of one TRACE row."""
        fields: Any = row.item()
        return self.build_fields(fields)

    def build_fields(self, fields: tuple[Any, ...]) -> bytes:
        """As :meth:`build`, from the row's values as ``rows.tolist()`` gives them: a fifth of the time."""
        _, cookie, port, is_out, kind, priority, ecn, is_corrupted, end, frame = fields
        if kind == PFC:
            key = (port if is_out else port ^ 1, priority, cookie)
            built = self._pfc.get(key)
            if built is None:
                built = self._pfc[key] = self._build_pfc(*key)
            return built
        opcode, marks, *rest = frame
        if self._protocol == TTPOE:
            built, first = self._build_ttpoe(end, ecn, marks & HEADER_MARKS, opcode, *rest), wire.HEADER_BYTES
        elif self._protocol == TCP:
            built, first = self._build_tcp(end, priority << 5 | ecn, opcode, *rest), TCP_PAYLOAD_OFFSET
        else:
            built = self._build_roce(end, priority << 5 | ecn, opcode, *rest)
            first = len(built) - 4 - (rest[3] + 3 & ~3)
        return _flip_bit(built, first, *rest[1:]) if is_corrupted else built

    def _build_pfc(self, port: int, priority: int, quanta: int) -> bytes:
        return build_pause(self._port_macs[port], {priority: quanta})

    def _build_ttpoe(
        self, end: int, ecn: int, marks: int, opcode: int, vc: int, tx_seq: int, rx_seq: int, payload_bytes: int
    ) -> bytes:
        key = (end, ecn, marks, opcode, vc, payload_bytes)
        head = self._ttpoe.get(key)
        if head is None:
            source, destination = self._nics[end ^ 1], self._nics[end]
            macs = {"dst_mac": host_mac(destination), "src_mac": host_mac(source)}
            about = {"opcode": opcode, "vc": vc, "tx_seq": 0, "rx_seq": 0, "payload_bytes": payload_bytes}
            if self._is_ipv4:
                ips = {"dst_ip": host_ipv4(destination), "src_ip": host_ipv4(source)}
                head = ipv4.build(ipv4.make_header(**macs, **ips, **about, marks=marks, ecn=ecn))
            else:
                head = wire.build(wire.make_header(**macs, **about))
            head = self._ttpoe[key] = head[:52]  # up to the sequence ids
        ids = _TWO_WORDS(tx_seq, rx_seq)
        if not payload_bytes:
            return head + ids + bytes(4)  # 64 bytes, the minimum
        payload = _payload(end >> 1, tx_seq, payload_bytes)
        return head + ids + payload if payload_bytes >= 4 else (head + ids + payload).ljust(64, b"\0")

    def _build_roce(
        self, end: int, traffic_class: int, opcode: int, syndrome: int, psn: int, msn: int, payload_bytes: int
    ) -> bytes:
        key = (end, traffic_class, opcode, payload_bytes)
        template = self._roce.get(key)
        if template is None:
            template = self._roce[key] = self._roce_template(*key)
        head, head_crc, ack_request, reth, pad = template
        if opcode == ACKNOWLEDGE:
            rest = _TWO_WORDS(psn, syndrome << 24 | msn & 0xFFFFFF)
            if payload_bytes:
                rest += _WORD(msn >> SACK_SHIFT & PSN_MASK)
        elif opcode == CNP:
            rest = bytes(20)
        else:
            if self._first_psns is not None:
                place = (psn - self._first_psns[end >> 1] & PSN_MASK) * self._mtu_bytes
                reth = struct.pack(">Q", ((end >> 1) + 1 << 40) + place) + reth[8:12] + _WORD(payload_bytes)
            rest = _WORD(ack_request | psn) + reth + _payload(end >> 1, psn, payload_bytes) + bytes(pad)
        return head + rest + _ICRC(zlib.crc32(rest, head_crc))

    def _build_tcp(
        self, end: int, traffic_class: int, flags: int, third_block: int, index: int, blocks: int, payload_bytes: int
    ) -> bytes:
        source, destination = self._nics[end ^ 1], self._nics[end]
        packet = self._tcp.build(
            host_ipv4(source), host_ipv4(destination), end, traffic_class, flags, third_block, index, blocks,
            _payload(end >> 1, index & 0xFFFFFFFF, payload_bytes),
        )
        ethernet = host_mac(destination).to_bytes(6, "big") + host_mac(source).to_bytes(6, "big")
        return (ethernet + ETHERTYPE_IPV4.to_bytes(2, "big") + packet).ljust(MIN_ETHERNET_BYTES, b"\0")

    def _roce_template(
        self, end: int, traffic_class: int, opcode: int, payload_bytes: int
    ) -> tuple[bytes, int, int, bytes, int]:
        """Bytes up to the PSN's word, their ICRC so far, the acknowledge request, RETH, and bytes of padding."""
        flow, source, destination = end >> 1, self._nics[end ^ 1], self._nics[end]
        pad = -payload_bytes % 4
        extended = 4 if opcode == ACKNOWLEDGE else 16 if opcode in (WRITE_FIRST, WRITE_ONLY, CNP) else 0
        bth_bytes = 12 + extended + payload_bytes + pad + 4
        entropy = zlib.crc32(f"{self._seed} {end ^ 1}".encode()) & 0x3FFF
        becn = _BECN if opcode == CNP else 0
        bth = struct.pack(">BBHI", opcode, 0x40 | pad << 4, 0xFFFF, becn | FIRST_QPN + end)
        ethernet = host_mac(destination).to_bytes(6, "big") + host_mac(source).to_bytes(6, "big")
        if self._version == 1:
            ethertype = ETHERTYPE_ROCEV1
            start = 6 << 28 | traffic_class << 20 | 0xC000 | entropy
            network = struct.pack(">IHBB", start, bth_bytes, _NEXT_IS_BTH, 64) + _gid(source) + _gid(destination)
        else:
            ethertype = ETHERTYPE_IPV4
            network = _ipv4_udp(source, destination, traffic_class, 0xC000 | entropy, 8 + bth_bytes)
        reth = b""
        if opcode in (WRITE_FIRST, WRITE_ONLY):
            reth = struct.pack(
                ">QII", (flow + 1) << 40, 0x10000 + flow, min(self._message_bytes[flow], MAX_DMA_BYTES)
            )
        ack_request = _ACK_REQUEST if opcode in (WRITE_LAST, WRITE_ONLY) else 0
        head = ethernet + ethertype.to_bytes(2, "big") + network + bth
        crc = icrc_head_v1(head[14:]) if self._version == 1 else icrc_head(head[14:])
        return head, crc, ack_request, reth, pad


def _payload(flow: int, ident: int, payload_bytes: int) -> bytes:
    """The documented pattern: flow number and id, repeated."""
    words = _TWO_WORDS(flow, ident) * ((payload_bytes + 7) >> 3)
    return words if len(words) == payload_bytes else words[:payload_bytes]


def _flip_bit(frame: bytes, first: int, ident: int, _: int, payload_bytes: int) -> bytes:
    """What an impaired line left of a frame: one bit of its payload flipped, the same at all ports.

    ``first`` is where the payload begins; without one, a bit of the byte there: TTPoE's pad, RoCEv2's ICRC.
    """
    bit = (ident * 0x9E3779B1 & 0xFFFFFFFF) % (8 * max(payload_bytes, 1))
    damaged = bytearray(frame)
    damaged[first + (bit >> 3)] ^= 1 << (bit & 7)
    return bytes(damaged)


class CaptureWriter:
    """A sink of the emulator's rows that keeps one pcapng file for each port, ``<port>.pcapng`` in a directory.

    Interface name and bit rate are the port's; each frame has its direction, out of the port or into it. Stamps are
    the first bit of an outgoing frame and the last bit of an incoming one, since the start of the run.

    Parameters
    ----------
    path : str or PathLike
        Directory, made if need be. Files get their names by `close`, and keep what was captured on Ctrl-C.
    builder : FrameBuilder
    ports : iterable of str
        Names of the ports to keep; rows of others are ignored.
    resolution : {'ns', 'ps'}
        Unit of the stamps. Nanoseconds are floored; picoseconds are read wrongly by tshark before 4.2.
    rate_bps : int array, shape (ports,), optional
        Bit rate of each port of the run, to be told in the files.

    Examples
    --------
    >>> with CaptureWriter("out/capture", builder, ["h0", "s0.p0"]) as writer:  # doctest: +SKIP
    ...     fabric.run(sink=writer.sink)
    """

    def __init__(
        self, path: str | os.PathLike[str], builder: FrameBuilder, ports: Iterable[str], *, resolution: str = "ns",
        rate_bps: np.ndarray | None = None,
    ) -> None:
        if resolution not in RESOLUTION_DIGITS:
            raise ValueError(f"resolution is {resolution!r}; it must be 'ns' or 'ps'")
        self.paths: dict[str, Path] = {}
        self.frames_written = 0
        self._builder = builder
        self._writers: dict[int, PcapngWriter] = {}
        wanted = list(dict.fromkeys(ports))
        known = {name: port for port, name in enumerate(builder.port_names)}
        unknown = [name for name in wanted if name not in known]
        if unknown:
            some = ", ".join(builder.port_names[:4])
            raise ValueError(f"there is no port {unknown[0]!r}; ports are {some} and so on")
        directory = Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        _allow_files(len(wanted))
        try:
            for name in wanted:
                port = known[name]
                self.paths[name] = directory / f"{name}.pcapng"
                writer = self._writers[port] = PcapngWriter(self.paths[name])
                writer.add_interface(
                    name, resolution_digits=RESOLUTION_DIGITS[resolution],
                    rate_bps=None if rate_bps is None else int(rate_bps[port]),
                )
        except BaseException:
            self.discard()
            raise

    def sink(self, rows: np.ndarray) -> None:
        """Append the frames of TRACE rows, in their order; what :meth:`emulator.fabric.Fabric.run` wants."""
        writers, build = self._writers, self._builder.build_fields
        for fields in rows.tolist():
            writer = writers.get(fields[2])
            if writer is not None:
                writer.write(0, fields[0], build(fields), direction="out" if fields[3] else "in")
                self.frames_written += 1

    __call__ = sink

    def close(self) -> None:
        """Write what is buffered and give the files their names; a second call does nothing."""
        failed: OSError | None = None
        for writer in self._writers.values():
            try:
                writer.close()
            except OSError as error:  # the others are still worth keeping
                failed = failed or error
        if failed is not None:
            raise failed

    def discard(self) -> None:
        """Drop the files; others that had their names before are left as they were."""
        for writer in self._writers.values():
            writer.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, Exception):
            self.close()
        else:
            self.discard()


def _allow_files(count: int) -> None:
    """Let the process open ``count`` more files where its soft limit is lower and the system allows."""
    try:
        import resource
    except ImportError:  # not a Unix system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 64
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))

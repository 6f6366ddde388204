"""What a frame is, in a row of plain values: TTPoE, RoCEv2, PFC, PAUSE, or something else.

Owns names for people and the checks that need a frame's bytes only. TTPoE is judged by `ttpoe.wire`, as an endpoint
would. Knows no files and no links; a frame is looked at alone, and nothing in it can make this raise.

Source: IEEE 802.3 annex 31B and 802.1Qbb for MAC control; InfiniBand Architecture Specification 1.4 chapter 9 and
annex A17 for RoCEv2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import NamedTuple

import numpy as np

from ttpoe import ipv4, wire
from ttpoe.constants import (
    ECN_MASK,
    ETHERNET_HEADER_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_MAC_CONTROL,
    ETHERTYPE_QINQ,
    ETHERTYPE_TTPOE,
    ETHERTYPE_VLAN,
    HEADER_BYTES,
    MARK_BITS_SHIFT,
    MAX_PAYLOAD_BYTES,
    OPCODE_PAUSE,
    OPCODE_PFC,
    UDP_PORT,
)
from ttpoe.constants import IP_PROTOCOL_UDP as UDP
from ttpoe.fsm import Opcode
from ttpoe.pause import parse_mac_control
from ttpoe.state import HEADER_MARKS

ETHERTYPE_IPV6, ETHERTYPE_ROCEV1 = 0x86DD, 0x8915
ROCEV2_PORT = 4791

KINDS = ("ttpoe", "rocev2", "pfc", "pause", "other")

_ETHERTYPES = {
    0x0806: "ARP", ETHERTYPE_IPV4: "IPv4", ETHERTYPE_IPV6: "IPv6", ETHERTYPE_ROCEV1: "RoCEv1", 0x88CC: "LLDP",
}  # fmt: skip
_IP_PROTOCOLS = {1: "ICMP", 2: "IGMP", 6: "TCP", UDP: "UDP", 58: "ICMPv6", 146: "TTP gateway"}
_TRANSPORTS = ("RC", "UC", "RD", "UD", "CNP", "XRC")
_OPERATIONS = (
    "SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_LAST_IMM", "SEND_ONLY", "SEND_ONLY_IMM", "WRITE_FIRST",
    "WRITE_MIDDLE", "WRITE_LAST", "WRITE_LAST_IMM", "WRITE_ONLY", "WRITE_ONLY_IMM", "READ_REQUEST", "READ_FIRST",
    "READ_MIDDLE", "READ_LAST", "READ_ONLY", "ACK", "ATOMIC_ACK", "COMPARE_SWAP", "FETCH_ADD", "RESYNC",
    "SEND_LAST_INV", "SEND_ONLY_INV",
)  # fmt: skip
_EXTENDED_BYTES = {
    "SEND_LAST_IMM": 4, "SEND_ONLY_IMM": 4, "WRITE_FIRST": 16, "WRITE_LAST_IMM": 4, "WRITE_ONLY": 16,
    "WRITE_ONLY_IMM": 20, "READ_REQUEST": 16, "READ_FIRST": 4, "READ_LAST": 4, "READ_ONLY": 4, "ACK": 4,
    "ATOMIC_ACK": 12, "COMPARE_SWAP": 28, "FETCH_ADD": 28, "SEND_LAST_INV": 4, "SEND_ONLY_INV": 4,
}  # fmt: skip
_HAS_AETH = {"READ_FIRST", "READ_LAST", "READ_ONLY", "ACK", "ATOMIC_ACK"}
_CNP = 0x81
_NAK_CODES = ("PSN_SEQUENCE", "INVALID_REQUEST", "REMOTE_ACCESS", "REMOTE_OPERATION", "INVALID_RD_REQUEST")
_OPCODE_NAMES = {int(opcode): opcode.name for opcode in Opcode}
_REASON_TEXT = {reason: reason.name.lower().replace("_", " ") for reason in wire.Reason} | {
    wire.Reason.GATEWAY: "gateway bit", wire.Reason.VLAN_TAGGED: "VLAN tagged",
    wire.Reason.IP_OPTIONS: "IPv4 options", wire.Reason.IP_LENGTH: "IPv4 length does not fit",
    wire.Reason.IP_FRAGMENT: "IPv4 fragment", wire.Reason.IP_CHECKSUM: "wrong IPv4 checksum",
    wire.Reason.UDP_TOO_SHORT: "UDP length below its headers",
    wire.Reason.UDP_BEYOND_PACKET: "UDP length beyond the packet",
}  # fmt: skip
_ECN_NAMES = (None, "ECT(1)", "ECT(0)", "CE")
_MARK_NAMES = (None, "echo", "reduced", "reduced echo")
_CUT = "cut in the header by the capture"
_MAX_CACHED = 65_536


class Dissection(NamedTuple):
    """One frame as values; None where the kind has no such field or the frame does not hold it.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    opcode : str
        Name of the opcode; of what is inside for 'other'.
    src, dst : str
        IP addresses of RoCEv2 frames and of TTPoE in IPv4 mode, else MAC addresses.
    vc, tx, rx : int or None
        TTPoE.
    dest_qp, psn, msn : int or None
        RoCEv2; the MSN of acknowledgements.
    pause : dict of int to int, or None
        Quanta by priority: each priority that a PFC frame names; priority -1 for a PAUSE, which means all.
    payload_bytes : int or None
        Bytes that the transport carries, without padding.
    ecn : str or None
        ``ECT(0)``, ``ECT(1)`` or ``CE``, of RoCEv2 over IPv4 and of TTPoE in IPv4 mode.
    congestion : str or None
        What TTPoE's transport header says in IPv4 mode: ``echo`` (the PAYLOAD that this answers came marked),
        ``reduced`` (the sender has reduced its window), or both.
    note : str or None
        Why an endpoint would refuse the frame, or what is wrong with it.
    """

    kind: str
    opcode: str
    src: str
    dst: str
    vc: int | None = None
    tx: int | None = None
    rx: int | None = None
    dest_qp: int | None = None
    psn: int | None = None
    msn: int | None = None
    pause: dict[int, int] | None = None
    payload_bytes: int | None = None
    ecn: str | None = None
    congestion: str | None = None
    note: str | None = None


def icrc(ip_packet: bytes | memoryview) -> bytes:
    """The four ICRC bytes of a RoCEv2 packet over IPv4.

    Parameters
    ----------
    ip_packet : bytes
        From the first byte of the IPv4 header (20 bytes, no options) to the last byte before the ICRC; at least 37.

    Notes
    -----
    Source: IBTA annex A17: the CRC of Ethernet over 64 ones and the packet, where type of service, TTL, both
    checksums and the BTH's resv8a count as ones; least significant byte first.
    """
    return struct.pack("<I", zlib.crc32(ip_packet[37:], icrc_head(bytes(ip_packet[:37]))))


def icrc_head(head: bytes) -> int:
    """CRC over 64 ones and the first bytes of an IPv4 packet, 37 or more; they hold all fields that are masked."""
    masked = bytearray(head)
    masked[1] = masked[8] = 0xFF
    masked[10:12] = masked[26:28] = b"\xff\xff"
    masked[32] = 0xFF
    return zlib.crc32(masked, zlib.crc32(b"\xff" * 8))


def icrc_head_v1(head: bytes) -> int:
    """As `icrc_head`, of RoCEv1: the first bytes of a GRH and its BTH, 45 or more.

    Source: IBTA 7.8.1 and annex A16: traffic class, flow label, hop limit and the BTH's resv8a count as ones.
    """
    masked = bytearray(head)
    masked[0] |= 0x0F
    masked[1:4] = b"\xff\xff\xff"
    masked[7] = masked[44] = 0xFF
    return zlib.crc32(masked, zlib.crc32(b"\xff" * 8))


class Dissector:
    """Turns frames into `Dissection` rows; one per thread, since it reuses a scratch row.

    Parameters
    ----------
    max_payload_bytes : int
        TTPoE payload above which a frame is noted as too long.
    """

    def __init__(self, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._header = np.zeros(1, wire.HEADER)
        told = ["opcode", "vc", "tx_seq", "rx_seq", "payload_bytes", "ip_tos", "version_bits"]
        self._told = self._header[told]  # a view: one read for all
        self._macs: dict[bytes, tuple[str, str]] = {}

    def dissect(self, data: bytes, original_bytes: int | None = None) -> Dissection:
        """Look at one Ethernet frame.

        Parameters
        ----------
        data : bytes
            From the destination MAC on, without FCS.
        original_bytes : int, optional
            Length of the frame on the link, if ``data`` is only its beginning.
        """
        length = max(len(data), original_bytes or 0)
        if len(data) < ETHERNET_HEADER_BYTES:
            return Dissection("other", "Ethernet", "?", "?", note="too short: no whole Ethernet header")
        addresses = data[:12]
        macs = self._macs.get(addresses)
        if macs is None:
            if len(self._macs) >= _MAX_CACHED:
                self._macs.clear()
            macs = self._macs[addresses] = (addresses[6:].hex(":"), addresses[:6].hex(":"))
        src, dst = macs
        ethertype = data[12] << 8 | data[13]
        start = ETHERNET_HEADER_BYTES
        while ethertype in (ETHERTYPE_VLAN, ETHERTYPE_QINQ) and len(data) >= start + 4:
            ethertype = data[start + 2] << 8 | data[start + 3]
            start += 4
        if ethertype == ETHERTYPE_TTPOE:
            return self._ttpoe(data, length, start, src, dst, wire.parse_header_at)
        if ethertype == ETHERTYPE_MAC_CONTROL:
            return _mac_control(data, start, src, dst)
        if ethertype == ETHERTYPE_IPV4 and len(data) >= start + 20:
            return self._ipv4(data, length, start, src, dst)
        if ethertype == ETHERTYPE_IPV6 and len(data) >= start + 40:
            return _ipv6(data, length, start, src, dst)
        name = _ETHERTYPES.get(ethertype, f"EtherType 0x{ethertype:04x}" if ethertype >= 0x600 else "802.3")
        return Dissection("other", name, src, dst)

    def _ipv4(self, data: bytes, length: int, start: int, src: str, dst: str) -> Dissection:
        header_bytes = (data[start] & 0x0F) * 4
        fragment = (data[start + 6] << 8 | data[start + 7]) & 0x1FFF
        protocol = data[start + 9]
        at = start + header_bytes
        if protocol != UDP or fragment or header_bytes < 20 or len(data) < at + 8:
            return Dissection("other", f"IPv4 {_IP_PROTOCOLS.get(protocol, f'protocol {protocol}')}", src, dst)
        ports = struct.unpack_from(">HH", data, at)
        a = data[start + 12 : start + 20]
        source, destination = f"{a[0]}.{a[1]}.{a[2]}.{a[3]}", f"{a[4]}.{a[5]}.{a[6]}.{a[7]}"
        if ports == (UDP_PORT, UDP_PORT):
            return self._ttpoe(data, length, start, source, destination, ipv4.parse_ipv4_header_at)
        if ports[1] != ROCEV2_PORT:
            return Dissection("other", _udp_name("IPv4", data, at), src, dst)
        row = _rocev2(data, length, at, source, destination)._replace(ecn=_ECN_NAMES[data[start + 1] & ECN_MASK])
        if row.note is None and header_bytes == 20:
            end = at + (data[at + 4] << 8 | data[at + 5])
            if end <= len(data) and data[end - 4 : end] != icrc(data[start : end - 4]):
                return row._replace(note="wrong ICRC")
        return row

    def _ttpoe(
        self, data: bytes, length: int, start: int, src: str, dst: str, parse_header_at: Callable[..., int]
    ) -> Dissection:
        is_tagged = start > ETHERNET_HEADER_BYTES
        if is_tagged:
            data = data[:12] + data[start - 2 :]
            length -= start - ETHERNET_HEADER_BYTES
        if len(data) < HEADER_BYTES:
            is_cut = length >= HEADER_BYTES
            return Dissection("ttpoe", "?", src, dst, note=_CUT if is_cut else _REASON_TEXT[wire.Reason.TOO_SHORT])
        # the kernel reads only the headers, so a frame cut behind them is judged by its whole length
        array = np.frombuffer(data, np.uint8)
        reason = wire.Reason(parse_header_at(array, length, self._max_payload_bytes, self._header, 0))
        if reason is wire.Reason.TOO_SHORT:
            return Dissection("ttpoe", "?", src, dst, note=_REASON_TEXT[reason])
        if reason is wire.Reason.IP_OPTIONS:  # the transport header is not where it was read
            return Dissection("ttpoe", "?", src, dst, note=_REASON_TEXT[reason])
        if is_tagged:
            reason = wire.Reason.VLAN_TAGGED
        opcode, vc, tx, rx, payload_bytes, tos, version_bits = self._told.item()
        if parse_header_at is wire.parse_header_at:  # no such field, and bits that peers need not set to anything
            tos = version_bits = 0
        return Dissection(
            "ttpoe", _OPCODE_NAMES.get(opcode) or f"opcode {opcode}", src, dst, vc=vc, tx=tx, rx=rx,
            payload_bytes=payload_bytes if payload_bytes >= 0 else None, ecn=_ECN_NAMES[tos & ECN_MASK],
            congestion=_MARK_NAMES[version_bits >> MARK_BITS_SHIFT & HEADER_MARKS],
            note=_REASON_TEXT[reason] if reason else None,
        )


def _mac_control(data: bytes, start: int, src: str, dst: str) -> Dissection:
    opcode, pause = parse_mac_control(data[start:])
    if opcode == OPCODE_PAUSE:
        return Dissection("pause", "PAUSE", src, dst, pause=pause, note="too short" if pause is None else None)
    if opcode == OPCODE_PFC:
        note = "too short" if pause is None else None if pause else "names no priority"
        return Dissection("pfc", "PFC", src, dst, pause=pause, note=note)
    if opcode < 0:
        return Dissection("other", "MAC control", src, dst, note="too short")
    return Dissection("other", f"MAC control 0x{opcode:04x}", src, dst)


def _ipv6(data: bytes, length: int, start: int, src: str, dst: str) -> Dissection:
    protocol, at = data[start + 6], start + 40
    if protocol != UDP or len(data) < at + 8:
        return Dissection("other", f"IPv6 {_IP_PROTOCOLS.get(protocol, f'protocol {protocol}')}", src, dst)
    if (data[at + 2] << 8 | data[at + 3]) != ROCEV2_PORT:
        return Dissection("other", _udp_name("IPv6", data, at), src, dst)
    source, destination = (str(IPv6Address(data[start + k : start + k + 16])) for k in (8, 24))
    return _rocev2(data, length, at, source, destination)


def _udp_name(ip: str, data: bytes, at: int) -> str:
    return f"{ip} UDP {data[at] << 8 | data[at + 1]} > {data[at + 2] << 8 | data[at + 3]}"


def _rocev2(data: bytes, length: int, udp: int, src: str, dst: str) -> Dissection:
    """From the UDP header at ``udp`` on."""
    at = udp + 8
    udp_bytes = data[udp + 4] << 8 | data[udp + 5]
    if len(data) < at + 12:
        return Dissection("rocev2", "?", src, dst, note=_CUT if length > len(data) else "too short")
    opcode, flags, _, qp, psn = struct.unpack_from(">BBHII", data, at)
    qp, psn = qp & 0xFFFFFF, psn & 0xFFFFFF
    transport, operation = opcode >> 5, opcode & 0x1F
    if opcode == _CNP:
        return Dissection("rocev2", "CNP", src, dst, dest_qp=qp, psn=psn)
    if transport >= len(_TRANSPORTS) or _TRANSPORTS[transport] == "CNP" or operation >= len(_OPERATIONS):
        return Dissection("rocev2", f"opcode 0x{opcode:02x}", src, dst, dest_qp=qp, psn=psn, note="unknown opcode")
    name = _OPERATIONS[operation]
    extended = _EXTENDED_BYTES.get(name, 0) + {"RD": 12, "UD": 8, "XRC": 4}.get(_TRANSPORTS[transport], 0)
    payload_bytes = udp_bytes - 8 - 12 - extended - (flags >> 4 & 3) - 4
    note: str | None = None
    if payload_bytes < 0:
        note = "UDP length below its headers"
    elif udp + udp_bytes > length:
        note = "UDP length beyond the frame"
    msn = None
    shown = f"{_TRANSPORTS[transport]} {name}"
    if name in _HAS_AETH and transport == 0 and len(data) >= at + 16:
        syndrome, msn = data[at + 12], int.from_bytes(data[at + 13 : at + 16], "big")
        shown = shown.replace("ACK", _syndrome_text(syndrome)) if syndrome >> 5 else shown
    return Dissection(
        "rocev2", shown, src, dst, dest_qp=qp, psn=psn, msn=msn,
        payload_bytes=payload_bytes if payload_bytes >= 0 else None, note=note,
    )


def _syndrome_text(syndrome: int) -> str:
    """What to say in place of ACK where the AETH's syndrome is not one of a positive acknowledgement."""
    kind, value = syndrome >> 5, syndrome & 0x1F
    if kind == 1:
        return "RNR_NAK"
    if kind == 3:
        return f"NAK {_NAK_CODES[value]}" if value < len(_NAK_CODES) else f"NAK {value}"
    return f"ACK with syndrome 0x{syndrome:02x}"

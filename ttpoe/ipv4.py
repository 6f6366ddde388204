"""The IPv4-mode frame, byte for byte: Ethernet, IPv4, UDP 420 to 420, and the transport header of :mod:`ttpoe.wire`.

A row of the same HEADER as in Ethernet mode, with every bit of the IPv4 and UDP headers a field. The UDP length says
where the payload ends; what follows it, inside the IPv4 packet or behind it, is padding. Knows nothing of link state.

Source: IPv4 as RFC 791, UDP as RFC 768; TTL, flags, id, version bits and padding as the reference module sends them.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address

import numpy as np

from ttpoe._jit import kernel
from ttpoe.constants import (
    ECN_CE,
    ECN_ECT,
    ECN_MASK,
    ETHERNET_HEADER_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_QINQ,
    ETHERTYPE_VLAN,
    HEADER_BYTES,
    IP_PROTOCOL_UDP,
    IPV4_DONT_FRAGMENT,
    IPV4_HEADER_BYTES,
    IPV4_TTL,
    IPV4_VERSION_BITS,
    MARK_BITS_SHIFT,
    MAX_PAYLOAD_BYTES,
    MIN_FRAME_BYTES,
    MIN_IPV4_BYTES,
    TOTAL_LENGTH_BASE,
    UDP_HEADER_BYTES,
    UDP_LENGTH_BASE,
    UDP_PORT,
)
from ttpoe.state import HEADER_MARKS, Mark
from ttpoe.wire import (
    HEADER,
    Frame,
    FrameError,
    Mode,
    Reason,
    big_endian,
    build_transport,
    check_transport,
    parse_transport,
    put_big_endian,
)

_IPV4 = int(Mode.IPV4)
_HEADER_MARKS, _CE, _ECT = int(HEADER_MARKS), int(Mark.CE), int(Mark.ECT)
_TOO_SHORT, _NOT_TTPOE, _VLAN_TAGGED = int(Reason.TOO_SHORT), int(Reason.NOT_TTPOE), int(Reason.VLAN_TAGGED)
_NOT_IPV4, _IP_OPTIONS, _IP_LENGTH = int(Reason.NOT_IPV4), int(Reason.IP_OPTIONS), int(Reason.IP_LENGTH)
_IP_FRAGMENT, _IP_CHECKSUM, _NOT_UDP = int(Reason.IP_FRAGMENT), int(Reason.IP_CHECKSUM), int(Reason.NOT_UDP)
_UDP_PORTS, _UDP_TOO_SHORT = int(Reason.UDP_PORTS), int(Reason.UDP_TOO_SHORT)
_UDP_BEYOND_PACKET = int(Reason.UDP_BEYOND_PACKET)
_VERSION_BYTE = 0x45
_ECTS = (1, ECN_ECT)
_ETHERTYPE = ETHERTYPE_IPV4.to_bytes(2, "big")
_MORE_FRAGMENTS_AND_OFFSET = 0x3FFF


@kernel
def ipv4_checksum(header):
    """Checksum of the IPv4 header in a HEADER row, whatever its ``ip_checksum`` says. *Source*: RFC 1071."""
    src, dst = header["src_ip"], header["dst_ip"]
    total = (
        (int(header["ip_version"]) << 8) + int(header["ip_tos"]) + int(header["total_length"]) + int(header["ip_id"])
        + int(header["ip_fragment"]) + (int(header["ip_ttl"]) << 8) + int(header["ip_protocol"])
        + (src >> 16) + (src & 0xFFFF) + (dst >> 16) + (dst & 0xFFFF)
    )  # fmt: skip
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@kernel(inline=True)
def set_ipv4_lengths(header, payload_bytes):
    """Lengths and checksum of a HEADER row, modified in place, for a payload: the pad to 64 bytes counts as IPv4's."""
    header["udp_length"] = UDP_LENGTH_BASE + payload_bytes
    header["total_length"] = max(TOTAL_LENGTH_BASE + payload_bytes, MIN_IPV4_BYTES)
    header["ip_checksum"] = ipv4_checksum(header)


@kernel(inline=True)
def marks_of(header):
    """`ttpoe.state.Mark` bits of a received HEADER row: what its transport header says, and whether it came marked."""
    marks = (int(header["version_bits"]) >> MARK_BITS_SHIFT) & _HEADER_MARKS
    return marks | _CE if int(header["ip_tos"]) & ECN_MASK == ECN_CE else marks


@kernel(inline=True)
def set_marks(header, marks):
    """Have a HEADER row, modified in place, tell the `ttpoe.state.Mark` bits ``marks``; lengths are set after it."""
    header["ip_tos"] = ECN_ECT if marks & _ECT != 0 else 0
    header["version_bits"] = IPV4_VERSION_BITS | (marks & _HEADER_MARKS) << MARK_BITS_SHIFT


@kernel
def parse_ipv4_header(data, n_bytes, max_payload_bytes, header):
    """Read the header of one frame, refusing what an endpoint in IPv4 mode must not take.

    Parameters
    ----------
    data : uint8 array
        The frame from its destination MAC on, without FCS; only the first ``n_bytes`` are read.
    n_bytes : int64
        Length of the frame, trailing padding included.
    max_payload_bytes : int64
        1024 by the specification; more for jumbo experiments.
    header : HEADER row, modified in place
        Untouched if the result is NOT_TTPOE, VLAN_TAGGED or TOO_SHORT, else whole.

    Returns
    -------
    int64
        A `Reason`.

    Notes
    -----
    A UDP checksum is neither made nor checked: the reference module sends 0, and on a virtual link the kernel leaves it
    unfinished. The end-to-end digest of the commands is what catches changed bytes.
    """
    if n_bytes < ETHERNET_HEADER_BYTES:
        return _TOO_SHORT
    ethertype = big_endian(data, 12, 2)
    if ethertype == ETHERTYPE_VLAN or ethertype == ETHERTYPE_QINQ:
        return _VLAN_TAGGED
    if ethertype != ETHERTYPE_IPV4:
        return _NOT_TTPOE
    if n_bytes < MIN_FRAME_BYTES:
        return _TOO_SHORT
    header["mode"] = _IPV4
    header["dst_mac"] = big_endian(data, 0, 6)
    header["src_mac"] = big_endian(data, 6, 6)
    header["ip_version"] = data[14]
    header["ip_tos"] = data[15]
    total_length = big_endian(data, 16, 2)
    header["total_length"] = total_length
    header["ip_id"] = big_endian(data, 18, 2)
    header["ip_fragment"] = big_endian(data, 20, 2)
    header["ip_ttl"] = data[22]
    header["ip_protocol"] = data[23]
    header["ip_checksum"] = big_endian(data, 24, 2)
    header["src_ip"] = big_endian(data, 26, 4)
    header["dst_ip"] = big_endian(data, 30, 4)
    header["src_port"] = big_endian(data, 34, 2)
    header["dst_port"] = big_endian(data, 36, 2)
    udp_length = big_endian(data, 38, 2)
    header["udp_length"] = udp_length
    header["udp_checksum"] = big_endian(data, 40, 2)
    parse_transport(data, header)
    payload_bytes = udp_length - UDP_LENGTH_BASE
    header["payload_bytes"] = payload_bytes
    if int(data[14]) >> 4 != 4:
        return _NOT_IPV4
    if int(data[14]) != _VERSION_BYTE:
        return _IP_OPTIONS
    if total_length < IPV4_HEADER_BYTES + UDP_HEADER_BYTES or ETHERNET_HEADER_BYTES + total_length > n_bytes:
        return _IP_LENGTH
    if int(header["ip_fragment"]) & _MORE_FRAGMENTS_AND_OFFSET != 0:
        return _IP_FRAGMENT
    if (int(header["ip_checksum"]) - ipv4_checksum(header)) % 0xFFFF != 0:  # 0 and 0xFFFF are one number there
        return _IP_CHECKSUM
    if int(header["ip_protocol"]) != IP_PROTOCOL_UDP:
        return _NOT_UDP
    if int(header["src_port"]) != UDP_PORT or int(header["dst_port"]) != UDP_PORT:
        return _UDP_PORTS
    if payload_bytes < 0:
        return _UDP_TOO_SHORT
    if IPV4_HEADER_BYTES + udp_length > total_length:
        return _UDP_BEYOND_PACKET
    return check_transport(header, max_payload_bytes)


@kernel
def build_ipv4_header(header, data):
    """Write the 60 bytes before the payload. ``header``: HEADER row; ``data``: uint8 array, modified in place."""
    put_big_endian(data, 0, 6, header["dst_mac"])
    put_big_endian(data, 6, 6, header["src_mac"])
    put_big_endian(data, 12, 2, ETHERTYPE_IPV4)
    data[14] = header["ip_version"]
    data[15] = header["ip_tos"]
    put_big_endian(data, 16, 2, int(header["total_length"]))
    put_big_endian(data, 18, 2, int(header["ip_id"]))
    put_big_endian(data, 20, 2, int(header["ip_fragment"]))
    data[22] = header["ip_ttl"]
    data[23] = header["ip_protocol"]
    put_big_endian(data, 24, 2, int(header["ip_checksum"]))
    put_big_endian(data, 26, 4, header["src_ip"])
    put_big_endian(data, 30, 4, header["dst_ip"])
    put_big_endian(data, 34, 2, int(header["src_port"]))
    put_big_endian(data, 36, 2, int(header["dst_port"]))
    put_big_endian(data, 38, 2, int(header["udp_length"]))
    put_big_endian(data, 40, 2, int(header["udp_checksum"]))
    build_transport(header, data)


@kernel(export=True)
def parse_ipv4_header_at(data, n_bytes, max_payload_bytes, headers, i):
    """:func:`parse_ipv4_header` into ``headers[i]``."""
    return parse_ipv4_header(data, n_bytes, max_payload_bytes, headers[i])


@kernel(export=True)
def build_ipv4_header_at(headers, i, data):
    """:func:`build_ipv4_header` from ``headers[i]``."""
    build_ipv4_header(headers[i], data)


@kernel(export=True)
def set_ipv4_lengths_at(headers, i, payload_bytes):
    """:func:`set_ipv4_lengths` of ``headers[i]``."""
    set_ipv4_lengths(headers[i], payload_bytes)


def parse(data: bytes | bytearray | memoryview, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> Frame:
    """Parse one frame (without FCS); raises FrameError with the reason if it is refused."""
    header = np.zeros(1, HEADER)
    array = np.frombuffer(data, np.uint8)
    reason = Reason(parse_ipv4_header_at(array, array.size, max_payload_bytes, header, 0))
    if reason is not Reason.OK:
        raise FrameError(reason)
    end = HEADER_BYTES + int(header[0]["payload_bytes"])
    return Frame(header, array[HEADER_BYTES:end].tobytes(), array[end:].tobytes())


def build(header: np.ndarray, payload: bytes = b"", trailing: bytes | None = None) -> bytes:
    """Bytes of one frame.

    Parameters
    ----------
    header : HEADER array, shape (1,)
        Written as it is, lengths and checksum included; :func:`make_header` sets them for a payload.
    payload : bytes
    trailing : bytes, optional
        What follows the payload; by default zeros up to 64 bytes.
    """
    head = np.empty(HEADER_BYTES, np.uint8)
    build_ipv4_header_at(header, 0, head)
    frame = head.tobytes() + payload
    return frame.ljust(MIN_FRAME_BYTES, b"\0") if trailing is None else frame + trailing


def marked(frame: bytes) -> bytes | None:
    """The frame with CE in its IPv4 header, if that says ECT; None for any other frame. *Source*: RFC 3168, 5."""
    is_whole = len(frame) >= ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES
    if not is_whole or frame[12:14] != _ETHERTYPE or frame[14] >> 4 != 4 or frame[15] & ECN_MASK not in _ECTS:
        return None
    before, after = int.from_bytes(frame[14:16], "big"), frame[14] << 8 | frame[15] | ECN_CE
    total = (int.from_bytes(frame[24:26], "big") ^ 0xFFFF) + (before ^ 0xFFFF) + after  # RFC 1624, (3)
    total = (total & 0xFFFF) + (total >> 16)
    checksum = (total & 0xFFFF) + (total >> 16) ^ 0xFFFF
    return frame[:15] + bytes([after & 0xFF]) + frame[16:24] + checksum.to_bytes(2, "big") + frame[26:]


def make_header(
    *, dst_mac: int, src_mac: int, dst_ip: int, src_ip: int, opcode: int, vc: int, tx_seq: int, rx_seq: int,
    payload_bytes: int = 0, marks: int = 0, ecn: int = 0,
) -> np.ndarray:  # fmt: skip
    """HEADER array of shape (1,) as the reference module would send it; addresses are integers.

    ``marks``: `ttpoe.state.Mark` bits of the transport header; ``ecn``: the IPv4 header's field, 0 to 3.
    """
    if not 0 <= payload_bytes <= 0xFFFF - TOTAL_LENGTH_BASE:
        raise ValueError(f"payload_bytes is {payload_bytes}; the length fields hold 0 to {0xFFFF - TOTAL_LENGTH_BASE}")
    header = np.zeros(1, HEADER)
    row = header[0]
    row["mode"] = Mode.IPV4
    row["dst_mac"], row["src_mac"] = dst_mac, src_mac
    row["dst_ip"], row["src_ip"] = dst_ip, src_ip
    row["ip_version"], row["ip_fragment"] = _VERSION_BYTE, IPV4_DONT_FRAGMENT
    row["ip_ttl"], row["ip_protocol"] = IPV4_TTL, IP_PROTOCOL_UDP
    row["src_port"] = row["dst_port"] = UDP_PORT
    row["version_bits"] = IPV4_VERSION_BITS | (marks & HEADER_MARKS) << MARK_BITS_SHIFT
    row["ip_tos"] = ecn
    row["opcode"], row["vc"] = opcode, vc
    row["tx_seq"], row["rx_seq"], row["payload_bytes"] = tx_seq, rx_seq, payload_bytes
    set_ipv4_lengths_at(header, 0, payload_bytes)
    return header


def format_ipv4(address: int) -> str:
    """``10.0.0.1`` from 0x0A000001."""
    return str(IPv4Address(address))


def parse_ipv4(text: str) -> int:
    """0x0A000001 from ``10.0.0.1``; raises ValueError naming the fix."""
    try:
        return int(IPv4Address(text))
    except AddressValueError:
        raise ValueError(f"{text!r} is not an IPv4 address; write four numbers as in 10.0.0.1") from None


def is_unicast(address: int) -> bool:
    """Whether an IPv4 address can be that of one host: not 0.x, loopback, multicast or reserved (RFC 1122, 1112)."""
    return 1 <= address >> 24 < 224 and address >> 24 != 127

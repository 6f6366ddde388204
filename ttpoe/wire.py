"""The Ethernet-mode frame, byte for byte: header rows from bytes and bytes from header rows.

Every bit before the payload is a field of HEADER, reserved bits and pad included, so that a parsed frame builds back
to its own bytes. :mod:`ttpoe.ipv4` does the same for IPv4 mode, whose transport header is this one. Knows nothing of
link state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ttpoe._jit import kernel
from ttpoe.constants import (
    ETHERNET_HEADER_BYTES,
    ETHERTYPE_QINQ,
    ETHERTYPE_TTPOE,
    ETHERTYPE_VLAN,
    GATEWAY_BIT,
    HEADER_BYTES,
    MAX_OPCODE,
    MAX_PAYLOAD_BYTES,
    MAX_VC,
    MIN_FRAME_BYTES,
    SHIM_LENGTH_BASE,
    TOTAL_LENGTH_BASE,
    TTH_BYTE,
)


class Mode(IntEnum):
    """What carries the transport header."""

    ETHERNET = 0  # EtherType 0x9AC6, type header and shim
    IPV4 = 1  # UDP 420


class Reason(IntEnum):
    """Why a frame is refused; `OK` if it is not."""

    OK = 0
    TOO_SHORT = 1  # below 64 bytes: the headers are not all there, or a peer did not pad
    NOT_TTPOE = 2  # another EtherType
    VLAN_TAGGED = 3  # a tag lies between us and the EtherType
    GATEWAY = 4  # gateway bit: announcements and forwarded frames, not for an endpoint in Ethernet mode
    SHIM_TOO_SHORT = 5  # shim length below its own headers (26)
    SHIM_BEYOND_FRAME = 6  # shim length says more than the frame holds
    PAYLOAD_TOO_LONG = 7  # above the payload limit
    UNKNOWN_OPCODE = 8
    UNKNOWN_VC = 9
    # IPv4 mode
    NOT_IPV4 = 10  # the version in the IPv4 header is not 4
    IP_OPTIONS = 11  # a header length other than 5 words
    IP_LENGTH = 12  # total length below its headers, or beyond the frame
    IP_FRAGMENT = 13
    IP_CHECKSUM = 14
    NOT_UDP = 15
    UDP_PORTS = 16  # one of them is not 420
    UDP_TOO_SHORT = 17  # UDP length below its own headers (26)
    UDP_BEYOND_PACKET = 18  # UDP length says more than the IPv4 packet holds


HEADER = np.dtype(
    [
        ("dst_mac", "i8"), ("src_mac", "i8"), ("tx_seq", "i8"), ("rx_seq", "i8"), ("payload_bytes", "i8"),
        ("src_node", "i4"), ("dst_node", "i4"), ("total_length", "i4"), ("shim_length", "i4"),
        ("tth", "u1"), ("gateway", "u1"),  # type header byte; gateway bit and 7 reserved
        ("opcode", "u1"), ("opcode_reserved", "u1"),  # low 6 and high 2 bits of byte 42
        ("vc", "u1"), ("extension", "u1"), ("congestion", "u1"), ("tx_v1", "u1"),
        ("rx_v1", "u1"), ("padding", "u1", (16,)), ("epoch", "i4"), ("version_bits", "i4"),  # bytes 49 and 50
        # IPv4 mode, in place of type header and shim; total_length is the IPv4 packet's there
        ("src_ip", "i8"), ("dst_ip", "i8"), ("ip_id", "i4"), ("ip_fragment", "i4"), ("ip_checksum", "i4"),
        ("src_port", "i4"), ("dst_port", "i4"), ("udp_length", "i4"), ("udp_checksum", "i4"),
        ("ip_version", "u1"), ("ip_tos", "u1"), ("ip_ttl", "u1"), ("ip_protocol", "u1"),  # version: its byte, 0x45
        ("mode", "u1"),  # a `Mode`; fields of the other mode mean nothing
    ],
    align=True,
)
"""Everything before the payload. ``payload_bytes`` is the shim's or UDP's length less 26, kept for convenience."""

_ETHERNET = int(Mode.ETHERNET)
_OK, _TOO_SHORT, _NOT_TTPOE = int(Reason.OK), int(Reason.TOO_SHORT), int(Reason.NOT_TTPOE)
_VLAN_TAGGED, _GATEWAY = int(Reason.VLAN_TAGGED), int(Reason.GATEWAY)
_SHIM_TOO_SHORT, _SHIM_BEYOND_FRAME = int(Reason.SHIM_TOO_SHORT), int(Reason.SHIM_BEYOND_FRAME)
_PAYLOAD_TOO_LONG = int(Reason.PAYLOAD_TOO_LONG)
_UNKNOWN_OPCODE, _UNKNOWN_VC = int(Reason.UNKNOWN_OPCODE), int(Reason.UNKNOWN_VC)


@kernel(inline=True)
def big_endian(data, at, count):
    """The integer in ``count`` bytes from ``at`` on."""
    value = 0
    for k in range(count):
        value = (value << 8) | int(data[at + k])
    return value


@kernel(inline=True)
def put_big_endian(data, at, count, value):
    """Write ``value`` into ``count`` bytes from ``at`` on."""
    for k in range(count):
        data[at + count - 1 - k] = (value >> (8 * k)) & 0xFF


@kernel(inline=True)
def parse_transport(data, header):
    """Bytes 42 to 59, which both modes share, into ``header`` (HEADER row, modified in place)."""
    header["opcode"] = data[42] & 0x3F
    header["opcode_reserved"] = data[42] >> 6
    header["vc"] = data[43]
    header["tx_v1"] = data[44]
    header["rx_v1"] = data[45]
    header["epoch"] = big_endian(data, 46, 2)
    header["congestion"] = data[48]
    header["version_bits"] = big_endian(data, 49, 2)
    header["extension"] = data[51]
    header["tx_seq"] = big_endian(data, 52, 4)
    header["rx_seq"] = big_endian(data, 56, 4)


@kernel(inline=True)
def check_transport(header, max_payload_bytes):
    """`Reason` to refuse a HEADER row for its payload's length, opcode or channel, whatever carries it; else OK."""
    if header["payload_bytes"] > max_payload_bytes:
        return _PAYLOAD_TOO_LONG
    if int(header["opcode"]) > MAX_OPCODE:
        return _UNKNOWN_OPCODE
    if int(header["vc"]) > MAX_VC:
        return _UNKNOWN_VC
    return _OK


@kernel(inline=True)
def build_transport(header, data):
    """Write bytes 42 to 59."""
    data[42] = ((int(header["opcode_reserved"]) << 6) & 0xC0) | (int(header["opcode"]) & 0x3F)
    data[43] = header["vc"]
    data[44] = header["tx_v1"]
    data[45] = header["rx_v1"]
    put_big_endian(data, 46, 2, int(header["epoch"]))
    data[48] = header["congestion"]
    put_big_endian(data, 49, 2, int(header["version_bits"]))
    data[51] = header["extension"]
    put_big_endian(data, 52, 4, header["tx_seq"])
    put_big_endian(data, 56, 4, header["rx_seq"])


@kernel
def parse_header(data, n_bytes, max_payload_bytes, header):
    """Read the header of one frame, refusing what an endpoint must not take.

    Parameters
    ----------
    data : uint8 array
        The frame from its destination MAC on, without FCS; only the first ``n_bytes`` are read.
    n_bytes : int64
        Length of the frame, trailing padding included. The payload's length is taken from the shim, never from this.
    max_payload_bytes : int64
        1024 by the specification; more for jumbo experiments.
    header : HEADER row, modified in place
        Whole if the result is OK, else as far as it was read.

    Returns
    -------
    int64
        A `Reason`.

    Notes
    -----
    Source: frame layout of the specification; the minimum of 64 and what is ignored as the reference module does.
    """
    if n_bytes < ETHERNET_HEADER_BYTES:
        return _TOO_SHORT
    ethertype = big_endian(data, 12, 2)
    if ethertype == ETHERTYPE_VLAN or ethertype == ETHERTYPE_QINQ:
        return _VLAN_TAGGED
    if ethertype != ETHERTYPE_TTPOE:
        return _NOT_TTPOE
    if n_bytes < MIN_FRAME_BYTES:
        return _TOO_SHORT
    header["mode"] = _ETHERNET
    header["dst_mac"] = big_endian(data, 0, 6)
    header["src_mac"] = big_endian(data, 6, 6)
    header["tth"] = data[14]
    header["gateway"] = data[15]
    header["total_length"] = big_endian(data, 16, 2)
    for k in range(16):
        header["padding"][k] = data[18 + k]
    header["src_node"] = big_endian(data, 34, 3)
    header["dst_node"] = big_endian(data, 37, 3)
    shim_length = big_endian(data, 40, 2)
    header["shim_length"] = shim_length
    parse_transport(data, header)
    payload_bytes = shim_length - SHIM_LENGTH_BASE
    header["payload_bytes"] = payload_bytes
    if int(data[15]) & GATEWAY_BIT:
        return _GATEWAY
    if payload_bytes < 0:
        return _SHIM_TOO_SHORT
    if HEADER_BYTES + payload_bytes > n_bytes:
        return _SHIM_BEYOND_FRAME
    return check_transport(header, max_payload_bytes)


@kernel
def build_header(header, data):
    """Write the 60 bytes before the payload. ``header``: HEADER row; ``data``: uint8 array, modified in place."""
    put_big_endian(data, 0, 6, header["dst_mac"])
    put_big_endian(data, 6, 6, header["src_mac"])
    put_big_endian(data, 12, 2, ETHERTYPE_TTPOE)
    data[14] = header["tth"]
    data[15] = header["gateway"]
    put_big_endian(data, 16, 2, int(header["total_length"]))
    for k in range(16):
        data[18 + k] = header["padding"][k]
    put_big_endian(data, 34, 3, int(header["src_node"]))
    put_big_endian(data, 37, 3, int(header["dst_node"]))
    put_big_endian(data, 40, 2, int(header["shim_length"]))
    build_transport(header, data)


@kernel(export=True)
def parse_header_at(data, n_bytes, max_payload_bytes, headers, i):
    """:func:`parse_header` into ``headers[i]``."""
    return parse_header(data, n_bytes, max_payload_bytes, headers[i])


@kernel(export=True)
def build_header_at(headers, i, data):
    """:func:`build_header` from ``headers[i]``."""
    build_header(headers[i], data)


@dataclass(frozen=True)
class Frame:
    """A parsed frame: its header row, its payload, and the padding behind it."""

    header: np.ndarray
    """HEADER array, shape (1,)."""
    payload: bytes
    trailing: bytes


class FrameError(ValueError):
    """A frame that an endpoint refuses; ``reason`` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"frame refused: {reason.name}")
        self.reason = reason


def parse(data: bytes | bytearray | memoryview, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> Frame:
    """Parse one frame (without FCS); raises FrameError with the reason if it is refused."""
    header = np.zeros(1, HEADER)
    array = np.frombuffer(data, np.uint8)
    reason = Reason(parse_header_at(array, array.size, max_payload_bytes, header, 0))
    if reason is not Reason.OK:
        raise FrameError(reason)
    end = HEADER_BYTES + int(header[0]["payload_bytes"])
    return Frame(header, array[HEADER_BYTES:end].tobytes(), array[end:].tobytes())


def build(header: np.ndarray, payload: bytes = b"", trailing: bytes | None = None) -> bytes:
    """Bytes of one frame.

    Parameters
    ----------
    header : HEADER array, shape (1,)
        Written as it is, lengths included; :func:`make_header` sets them for a payload.
    payload : bytes
    trailing : bytes, optional
        What follows the payload; by default zeros up to 64 bytes.
    """
    head = np.empty(HEADER_BYTES, np.uint8)
    build_header_at(header, 0, head)
    frame = head.tobytes() + payload
    return frame.ljust(MIN_FRAME_BYTES, b"\0") if trailing is None else frame + trailing


def make_header(
    *, dst_mac: int, src_mac: int, opcode: int, vc: int, tx_seq: int, rx_seq: int, payload_bytes: int = 0
) -> np.ndarray:
    """HEADER array of shape (1,) as the reference module would send it; node ids are the MACs' low three bytes."""
    if not 0 <= payload_bytes <= 0xFFFF - TOTAL_LENGTH_BASE:
        raise ValueError(f"payload_bytes is {payload_bytes}; the length fields hold 0 to {0xFFFF - TOTAL_LENGTH_BASE}")
    header = np.zeros(1, HEADER)
    row = header[0]
    row["dst_mac"], row["src_mac"] = dst_mac, src_mac
    row["tth"] = TTH_BYTE
    row["src_node"], row["dst_node"] = src_mac & 0xFFFFFF, dst_mac & 0xFFFFFF
    row["total_length"] = TOTAL_LENGTH_BASE + payload_bytes
    row["shim_length"] = SHIM_LENGTH_BASE + payload_bytes
    row["opcode"], row["vc"] = opcode, vc
    row["tx_seq"], row["rx_seq"], row["payload_bytes"] = tx_seq, rx_seq, payload_bytes
    return header


def format_mac(mac: int) -> str:
    """``98:ed:5c:00:00:01`` from 0x98ED5C000001."""
    return mac.to_bytes(6, "big").hex(":")


def parse_mac(text: str) -> int:
    """0x98ED5C000001 from ``98:ed:5c:00:00:01`` (or with dashes); raises ValueError naming the fix."""
    digits = text.replace("-", ":").split(":")
    if len(digits) != 6 or not all(len(d) == 2 and set(d.lower()) <= set("0123456789abcdef") for d in digits):
        raise ValueError(f"{text!r} is not a MAC address; write six hex pairs as in 98:ed:5c:00:00:01")
    return int("".join(digits), 16)


def is_unicast_mac(mac: int) -> bool:
    """Whether a MAC address can be that of one station: 48 bits, no group address, not zero."""
    return 0 < mac < 1 << 48 and not mac >> 40 & 1

"""Scapy layers for TTPoE, in Ethernet and IPv4 mode. The only module that imports scapy (which is GPL-2.0-only).

>>> from traces.layers import TTH, TTPoE, TTPShim, pad
>>> from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
>>> frame = pad(Ether() / TTH() / TTPShim(src_node=1, dst_node=2) / TTPoE(opcode="OPEN", tx_seq=1))
>>> len(frame)
64

>>> from scapy.layers.inet import IP
>>> frame = pad(Ether() / IP(src="10.0.0.1", dst="10.0.0.2", **IPV4_MODE) / UDP_420 / TTPoE(opcode="OPEN", tx_seq=1))
>>> len(frame)
64

Importing this binds them to EtherType 0x9AC6 and UDP port 420, so that scapy's own readers and sniffers show them.
Every bit of a frame is a field, reserved ones included, and a dissected frame builds back to its bytes. What lies
behind the shim's or UDP's length is scapy's Padding.

Source: the frame layout of Tesla's public specification, rev 2.0.
"""

from __future__ import annotations

from typing import Any

from scapy.error import Scapy_Exception
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    IntField,
    ShortField,
    X3BytesField,
    XByteField,
    XStrFixedLenField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Padding, bind_layers

from ttpoe.constants import (
    ETHERTYPE_TTPOE,
    IPV4_TTL,
    IPV4_VERSION_BITS,
    MIN_FRAME_BYTES,
    SHIM_BYTES,
    TTH_BYTES,
    UDP_PORT,
)
from ttpoe.fsm import Opcode

OPCODES = {int(opcode): opcode.name for opcode in Opcode}
VIRTUAL_CHANNELS = {0: "REQ_LO", 1: "REQ_HI", 2: "DATA"}


class TTH(Packet):
    """Type header, 20 bytes, in the place of an IPv4 header; ``total_length`` is filled in unless given."""

    name = "TTPoE type header"
    fields_desc = (
        BitField("subtype", 0, 2),
        BitField("version", 0, 2),
        BitField("header_words", TTH_BYTES // 4, 4),
        BitField("gateway", 0, 1),
        BitField("reserved", 0, 7),
        ShortField("total_length", None),
        XStrFixedLenField("padding", bytes(16), 16),
    )

    def pre_dissect(self, s: bytes) -> bytes:
        """Leave a cut header to scapy's Raw, since the pad field would grow when built."""
        if len(s) < TTH_BYTES:
            raise Scapy_Exception(f"a type header has {TTH_BYTES} bytes, {len(s)} are there")
        return s

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in the length: this header, the shim and what the shim counts."""
        if self.total_length is None:
            pkt = pkt[:2] + (len(pkt) + len(pay)).to_bytes(2, "big") + pkt[4:]
        return pkt + pay


class TTPShim(Packet):
    """Node ids and the length that counts: shim, transport header and payload; filled in unless given."""

    name = "TTPoE shim"
    fields_desc = (X3BytesField("src_node", 0), X3BytesField("dst_node", 0), ShortField("shim_length", None))

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in the length."""
        if self.shim_length is None:
            pkt = pkt[:6] + (len(pkt) + len(pay)).to_bytes(2, "big")
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Split what follows at the shim's length."""
        inside = max(int(self.shim_length) - SHIM_BYTES, 0)
        return s[:inside], s[inside:]


class TTPoE(Packet):
    """Transport header, 18 bytes; its payload follows."""

    name = "TTPoE"
    fields_desc = (
        BitField("opcode_reserved", 0, 2),
        BitEnumField("opcode", Opcode.PAYLOAD, 6, OPCODES),
        ByteEnumField("vc", 2, VIRTUAL_CHANNELS),
        ByteField("tx_v1", 0),
        ByteField("rx_v1", 0),
        ShortField("epoch", 0),
        ByteField("congestion", 0),
        BitField("reserved_1", 0, 6),
        BitField("reduced", 0, 1),  # CR
        BitField("echo", 0, 1),  # CE
        BitField("version", 0, 4),
        BitField("reserved_2", 0, 4),
        XByteField("extension", 0),
        IntField("tx_seq", 0),
        IntField("rx_seq", 0),
    )

    def mysummary(self) -> str:
        """One line: opcode, channel, ids."""
        text: str = self.sprintf("TTPoE %TTPoE.opcode% vc %TTPoE.vc% tx %TTPoE.tx_seq% rx %TTPoE.rx_seq%")
        return text + " echo" * self.echo + " reduced" * self.reduced


bind_layers(Ether, TTH, type=ETHERTYPE_TTPOE)  # scapy's Dot1Q follows it
bind_layers(TTH, TTPShim)
bind_layers(TTPShim, TTPoE)
bind_layers(UDP, TTPoE, sport=UDP_PORT, dport=UDP_PORT)

IPV4_MODE = {"ttl": IPV4_TTL, "flags": "DF", "id": 0}
"""For IP(): the fields as the reference module sends them."""
UDP_420 = UDP(sport=UDP_PORT, dport=UDP_PORT, chksum=0)


def pad(frame: Any) -> Any:
    """The frame with zeros behind it up to 64 bytes, below which peers drop it; as scapy's Padding.

    In IPv4 mode the packet's length counts the padding, and a version that is not given is told.
    """
    missing = MIN_FRAME_BYTES - len(frame)
    if IP in frame:
        frame = frame.copy()
        if TTPoE in frame and "version" not in frame[TTPoE].fields:
            frame[TTPoE].version = IPV4_VERSION_BITS >> 4
        if frame[IP].len is None:
            frame[IP].len = len(frame[IP]) + max(missing, 0)
    return frame / Padding(bytes(missing)) if missing > 0 else frame

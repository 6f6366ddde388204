"""Numbers of the wire and of the protocol, each with its source. Knows no code."""

from __future__ import annotations

ETHERTYPE_TTPOE = 0x9AC6
"""Tesla's public TTPoE specification, rev 2.0."""
ETHERTYPE_VLAN = 0x8100
ETHERTYPE_QINQ = 0x88A8
TESLA_OUI = 0x98ED5C
"""IEEE registry; a node id is the low three bytes of a MAC under it."""

ETHERNET_HEADER_BYTES = 14
FCS_BYTES = 4
PREAMBLE_AND_GAP_BYTES = 20
"""IEEE 802.3: preamble and start delimiter 8, inter-packet gap 12."""
MIN_FRAME_BYTES = 64
"""Without FCS. The reference module drops shorter TTPoE frames, so a builder pads to this (802.3 asks for 60)."""
MIN_ETHERNET_BYTES = 60
"""Without FCS: IEEE 802.3's minimum of 64 less the FCS."""

TTH_BYTES = 20
SHIM_BYTES = 8
TRANSPORT_BYTES = 18
HEADER_BYTES = ETHERNET_HEADER_BYTES + TTH_BYTES + SHIM_BYTES + TRANSPORT_BYTES
"""60: where the payload of an Ethernet-mode frame begins."""
TOTAL_LENGTH_BASE = TTH_BYTES + SHIM_BYTES + TRANSPORT_BYTES
SHIM_LENGTH_BASE = SHIM_BYTES + TRANSPORT_BYTES
TTH_BYTE = 0x05
"""Subtype 0, version 0, header length 5 words: what the reference module sends."""
GATEWAY_BIT = 0x80

ETHERTYPE_IPV4 = 0x0800
IP_PROTOCOL_UDP = 17
ETHERTYPE_MAC_CONTROL = 0x8808
OPCODE_PAUSE, OPCODE_PFC = 0x0001, 0x0101
PAUSE_DESTINATION = 0x0180C2000001
"""IEEE 802.3 annex 31B and 802.1Q clause 36: a group address that no bridge forwards."""
PAUSE_QUANTUM_BITS = 512
UDP_PORT = 420
"""Of both ends, in IPv4 mode. Below 1024, so binding it is a privilege."""
IPV4_TTL = 9
"""As the reference module sends it."""
IPV4_DONT_FRAGMENT = 0x4000
IPV4_HEADER_BYTES = 20
UDP_HEADER_BYTES = 8
UDP_LENGTH_BASE = UDP_HEADER_BYTES + TRANSPORT_BYTES
"""26, as the shim's: both IPv4 headers are as long as type header and shim, so the payload is at 60 too."""
MIN_IPV4_BYTES = MIN_FRAME_BYTES - ETHERNET_HEADER_BYTES
"""50: the total length of a minimum frame; it counts the pad behind the UDP datagram, as that module's does."""
IPV4_VERSION_BITS = 0x0020
"""Bytes 49 and 50 in IPv4 mode: version 2 in the high nibble of the second, as the reference module sends it."""
MARK_BITS_SHIFT = 8
"""Of the bits in bytes 49 and 50 that tell of congestion: CE (an echo) is bit 0 of byte 49, CR (reduced) bit 1."""
ECN_MASK = 3
ECN_ECT, ECN_CE = 2, 3
"""In the IPv4 header's type of service: ECT(0) and CE of RFC 3168."""

MAX_PAYLOAD_BYTES = 1024
"""Specification: 1 to 16 beats of 64 bytes. More is our jumbo variant."""
MAX_VC = 2
MAX_OPCODE = 10

SEQ_MASK = 0xFFFFFFFF
SEQ_HALF = 0x80000000

WINDOW_BYTES = 1_000_000
"""Published context: the transmit window is bounded by 1 MB of SRAM."""

"""The frame, byte for byte: written out by hand, cut off everywhere, and as a real peer sent it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttpoe import wire
from ttpoe.constants import HEADER_BYTES, MAX_OPCODE, MAX_VC
from ttpoe.wire import HEADER, FrameError, Reason

IPV4_FIELDS = {
    "src_ip", "dst_ip", "ip_id", "ip_fragment", "ip_checksum", "src_port", "dst_port", "udp_length", "udp_checksum",
    "ip_version", "ip_tos", "ip_ttl", "ip_protocol",
}  # fmt: skip
CAPTURES = Path(__file__).parent / "data" / "captures"


def octets(text: str) -> bytes:
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))


OPEN = octets("""
    98 ed 5c 00 00 02   # destination
    98 ed 5c 00 00 01   # source
    9a c6
    05 00               # type header: 5 words; no gateway
    00 2e               # total length 46
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 01 00 00 02   # shim: source node, destination node
    00 1a               # shim length 26
    00 02               # opcode OPEN, virtual channel DATA
    00 00 00 00 00 00 00 00
    11 22 33 44         # tx
    55 66 77 88         # rx
    00 00 00 00         # padding to 64
""")
PAYLOAD = octets("""
    98 ed 5c 0a 0b 0c  98 ed 5c 01 02 03  9a c6  05 00
    00 33               # 46 + 5
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    01 02 03 0a 0b 0c
    00 1f               # 26 + 5
    06 01
    00 00 00 00 00 00 00 00
    ff ff ff ff  00 00 00 00
    68 65 6c 6c 6f      # 65 bytes: nothing to pad
""")
EVERY_BIT = octets("""
    01 02 03 04 05 06  07 08 09 0a 0b 0c  9a c6
    a5                  # subtype 2, version 2, length 5
    7f                  # reserved bits, gateway bit clear
    fe dc
    e0 e1 e2 e3 e4 e5 e6 e7 e8 e9 ea eb ec ed ee ef
    f1 f2 f3 f4 f5 f6
    00 1c               # 26 + 2: this length counts, not the total
    c7 02               # reserved 3, opcode ACK
    d1 d2 d3 d4 d5 d6 d7 d8
    80 00 00 01  7f ff ff fe
    aa bb               # payload
    cc dd               # trailing, not payload
""")


def test_open_as_bytes():
    frame = wire.parse(OPEN)
    header = frame.header[0]
    assert (header["dst_mac"], header["src_mac"]) == (0x98ED5C000002, 0x98ED5C000001)
    assert (header["src_node"], header["dst_node"]) == (1, 2)
    assert (header["opcode"], header["vc"], header["payload_bytes"]) == (0, 2, 0)
    assert (header["tx_seq"], header["rx_seq"]) == (0x11223344, 0x55667788)
    assert (frame.payload, frame.trailing) == (b"", b"\0\0\0\0")
    made = wire.make_header(
        dst_mac=0x98ED5C000002, src_mac=0x98ED5C000001, opcode=0, vc=2, tx_seq=0x11223344, rx_seq=0x55667788
    )
    assert wire.build(made) == OPEN


def test_payload_as_bytes():
    frame = wire.parse(PAYLOAD)
    header = frame.header[0]
    assert (header["opcode"], header["vc"], header["payload_bytes"]) == (6, 1, 5)
    assert (header["tx_seq"], header["rx_seq"]) == (0xFFFFFFFF, 0)
    assert (header["src_node"], header["dst_node"]) == (0x010203, 0x0A0B0C)
    assert (frame.payload, frame.trailing) == (b"hello", b"")
    made = wire.make_header(
        dst_mac=0x98ED5C0A0B0C, src_mac=0x98ED5C010203, opcode=6, vc=1, tx_seq=0xFFFFFFFF, rx_seq=0, payload_bytes=5
    )
    assert wire.build(made, b"hello") == PAYLOAD


def test_every_bit_has_a_field():
    frame = wire.parse(EVERY_BIT)
    row = frame.header[0]
    assert {name: row[name].tolist() for name in HEADER.names if name not in IPV4_FIELDS} == {
        "dst_mac": 0x010203040506, "src_mac": 0x0708090A0B0C, "tx_seq": 0x80000001, "rx_seq": 0x7FFFFFFE,
        "payload_bytes": 2, "src_node": 0xF1F2F3, "dst_node": 0xF4F5F6, "total_length": 0xFEDC, "shim_length": 28,
        "tth": 0xA5, "gateway": 0x7F, "opcode": 7, "opcode_reserved": 3, "vc": 2, "extension": 0xD8,
        "congestion": 0xD5, "tx_v1": 0xD1, "rx_v1": 0xD2, "padding": list(range(0xE0, 0xF0)), "epoch": 0xD3D4,
        "version_bits": 0xD6D7, "mode": wire.Mode.ETHERNET,
    }  # fmt: skip
    assert (frame.payload, frame.trailing) == (b"\xaa\xbb", b"\xcc\xdd")
    assert wire.build(frame.header, frame.payload, frame.trailing) == EVERY_BIT


def refused(data: bytes, **limits: int) -> Reason:
    with pytest.raises(FrameError) as caught:
        wire.parse(data, **limits)
    assert caught.value.reason.name in str(caught.value)
    return caught.value.reason


def patched(data: bytes, at: int, text: str) -> bytes:
    new = bytes.fromhex(text)
    return data[:at] + new + data[at + len(new) :]


def test_every_truncation():
    frame = patched(PAYLOAD, 40, "0043") + bytes(range(36))  # 41 bytes of payload, 101 in all
    assert len(wire.parse(frame).payload) == 41
    for length in range(len(frame)):
        reason = refused(frame[:length])
        if length < 64:
            assert reason is Reason.TOO_SHORT
        else:
            assert reason is Reason.SHIM_BEYOND_FRAME


def test_nothing_beyond_the_frame_is_read():
    """The same answer whatever lies behind."""
    frame = patched(PAYLOAD, 40, "0043") + bytes(range(36))
    for length in range(len(frame) + 1):
        answers = set()
        for poison in (b"", b"\xff" * 64, b"\x9a\xc6" * 32, b"\x00" * 64):
            header = np.zeros(1, HEADER)
            data = np.frombuffer(frame[:length] + poison, np.uint8)
            answers.add((wire.parse_header_at(data, length, 1024, header, 0), header.tobytes()))
        assert len(answers) == 1


BOUNDS_CHECKED = """
import numpy as np
from ttpoe import wire
from test_wire import PAYLOAD, patched

frame = np.frombuffer(patched(PAYLOAD, 40, "0043") + bytes(range(36)), np.uint8)
for length in range(len(frame) + 1):
    end = frame[:length].copy()
    wire.parse_header_at(end, length, 1024, np.zeros(1, wire.HEADER), 0)
try:
    wire.parse_header_at(frame[:50].copy(), 64, 1024, np.zeros(1, wire.HEADER), 0)
except IndexError:
    print("checked")
"""


def test_bounds_checked():
    """Every truncation in a buffer that ends with it; and the check does bite."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDS_CHECKED], capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.TOO_SHORT),
        (OPEN[:60], Reason.TOO_SHORT),  # what a NIC's own padding gives; the reference module drops it too
        (OPEN[:63], Reason.TOO_SHORT),
        (patched(OPEN, 12, "0800"), Reason.NOT_TTPOE),
        (patched(OPEN, 12, "9ac5")[:14], Reason.NOT_TTPOE),
        (OPEN[:12] + bytes.fromhex("81002005") + OPEN[12:], Reason.VLAN_TAGGED),
        (OPEN[:12] + bytes.fromhex("88a80005 81000007") + OPEN[12:], Reason.VLAN_TAGGED),
        (patched(OPEN, 15, "80"), Reason.GATEWAY),
        (patched(patched(OPEN, 15, "80"), 40, "0002"), Reason.GATEWAY),  # an announcement has no transport
        (patched(OPEN, 40, "0000"), Reason.SHIM_TOO_SHORT),
        (patched(OPEN, 40, "0019"), Reason.SHIM_TOO_SHORT),
        (patched(OPEN, 40, "001f"), Reason.SHIM_BEYOND_FRAME),  # 5 bytes of payload, 4 are there
        (patched(OPEN, 40, "ffff"), Reason.SHIM_BEYOND_FRAME),
        (patched(PAYLOAD, 40, "041b") + bytes(1020), Reason.PAYLOAD_TOO_LONG),
        (patched(OPEN, 42, "0b"), Reason.UNKNOWN_OPCODE),
        (patched(OPEN, 42, "3f"), Reason.UNKNOWN_OPCODE),
        (patched(OPEN, 43, "03"), Reason.UNKNOWN_VC),
        (patched(OPEN, 43, "ff"), Reason.UNKNOWN_VC),
    ],
)
def test_refusals(data, reason):
    assert refused(data) is reason


def test_limits_that_are_still_good():
    assert len(wire.parse(patched(PAYLOAD, 40, "041a") + bytes(1019)).payload) == 1024
    assert len(wire.parse(patched(OPEN, 40, "001e")).payload) == 4  # the padding's place, when the shim says so
    assert wire.parse(patched(OPEN, 42, "0a")).header[0]["opcode"] == MAX_OPCODE
    assert wire.parse(patched(OPEN, 43, "02")).header[0]["vc"] == MAX_VC
    assert wire.parse(patched(OPEN, 15, "7f")).header[0]["gateway"] == 0x7F  # reserved bits are ignored
    assert wire.parse(patched(OPEN, 16, "ffff")).payload == b""  # the total length too


def test_payload_limit_is_the_callers():
    jumbo = patched(PAYLOAD, 40, "101a") + bytes(4091)
    assert refused(jumbo) is Reason.PAYLOAD_TOO_LONG
    assert len(wire.parse(jumbo, max_payload_bytes=4096).payload) == 4096
    assert refused(PAYLOAD, max_payload_bytes=4) is Reason.PAYLOAD_TOO_LONG


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1024])
def test_padding_to_64(size):
    payload = bytes(range(256)) * 4
    header = wire.make_header(
        dst_mac=2, src_mac=1, opcode=6, vc=2, tx_seq=1, rx_seq=0, payload_bytes=size
    )
    data = wire.build(header, payload[:size])
    assert len(data) == max(64, 60 + size)
    assert data[60:] == payload[:size].ljust(4, b"\0")
    assert wire.parse(data).payload == payload[:size]


@pytest.mark.parametrize("size", [-1, 65490])
def test_a_length_that_no_field_holds(size):
    with pytest.raises(ValueError, match="the length fields hold 0 to 65489"):
        wire.make_header(dst_mac=2, src_mac=1, opcode=6, vc=2, tx_seq=1, rx_seq=0, payload_bytes=size)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(data).cast("I")])
def test_any_buffer(kind):
    assert wire.parse(kind(OPEN)).trailing == bytes(4)


@given(st.binary(min_size=60, max_size=60), st.binary(max_size=80), st.sampled_from([1024, 20]))
def test_any_header_builds_back(head, tail, limit):
    """Every bit of an accepted frame, and every bit of the header of one that is refused."""
    data = patched(head, 12, "9ac6") + tail.ljust(4, b"\0")
    header = np.zeros(1, HEADER)
    reason = wire.parse_header_at(np.frombuffer(data, np.uint8), len(data), limit, header, 0)
    assert wire.build(header, data[HEADER_BYTES:], b"") == data
    if reason == 0:
        frame = wire.parse(data, max_payload_bytes=limit)
        assert wire.build(frame.header, frame.payload, frame.trailing) == data


@st.composite
def headers(draw) -> np.ndarray:
    header = np.zeros(1, HEADER)
    bits = {
        "dst_mac": 48, "src_mac": 48, "tx_seq": 32, "rx_seq": 32, "src_node": 24, "dst_node": 24, "total_length": 16,
        "tth": 8, "gateway": 7, "opcode_reserved": 2, "extension": 8, "congestion": 8, "tx_v1": 8, "rx_v1": 8,
        "epoch": 16, "version_bits": 16,
    }  # fmt: skip
    for name, width in bits.items():
        header[name] = draw(st.integers(0, 2**width - 1))
    header["padding"] = np.frombuffer(draw(st.binary(min_size=16, max_size=16)), np.uint8)
    header["opcode"] = draw(st.integers(0, MAX_OPCODE))
    header["vc"] = draw(st.integers(0, MAX_VC))
    header["payload_bytes"] = draw(st.integers(0, 200))
    header["shim_length"] = 26 + header["payload_bytes"]
    return header


@given(headers())
def test_fields_survive_the_wire(header):
    size = int(header["payload_bytes"][0])
    data = wire.build(header, b"\x5a" * size)
    frame = wire.parse(data)
    assert frame.header.tobytes() == header.tobytes()
    assert wire.build(frame.header, frame.payload) == data


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: OPEN[:14] + tail))
def test_arbitrary_bytes_raise_nothing_else(data):
    try:
        frame = wire.parse(data)
    except FrameError:
        return
    assert len(data) == HEADER_BYTES + len(frame.payload) + len(frame.trailing)


def captured(name: str) -> list[tuple[int, bytes]]:
    """Frames of a classic pcap file with their numbers, from 1."""
    data = (CAPTURES / f"{name}.pcap").read_bytes()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at, frames = 24, []
    while at < len(data):
        size = struct.unpack_from(order + "I", data, at + 8)[0]
        frames.append((len(frames) + 1, data[at + 16 : at + 16 + size]))
        at += 16 + size
    return frames


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("modttpoe_open_payload_ack", 19), ("modttpoe_reopen_drop5", 227), ("modttpoe_three_vcs", 27),
        ("modttpoe_prober_active_peer", 150), ("modttpoe_prober_passive_peer", 95), ("modttpoe_gateway_zone1", 26),
        ("modttpoe_gateway_zone2", 0), ("modttpoe_gateway_ip_segment", 0), ("modttpoe_ipv4_mode", 11),
    ],
)  # fmt: skip
def test_frames_of_the_reference_module(name, taken):
    """Each parses and builds back to its own bytes; those that our prober broke on purpose are refused as such."""
    refusals: dict[Reason, list[int]] = {}
    for number, data in captured(name):
        try:
            frame = wire.parse(data)
        except FrameError as error:
            refusals.setdefault(error.reason, []).append(number)
            continue
        assert wire.build(frame.header, frame.payload, frame.trailing) == data
        taken -= 1
    assert taken == 0
    for reason in (Reason.GATEWAY, Reason.NOT_TTPOE, Reason.VLAN_TAGGED):
        refusals.pop(reason, None)
    expected = {Reason.PAYLOAD_TOO_LONG: [45], Reason.UNKNOWN_VC: [88, 89, 90, 91, 92],
                Reason.UNKNOWN_OPCODE: [93, 94, 95]}  # fmt: skip
    assert refusals == (expected if name == "modttpoe_prober_passive_peer" else {})


def test_the_long_frame_of_the_prober():
    data = dict(captured("modttpoe_prober_passive_peer"))[45]
    frame = wire.parse(data, max_payload_bytes=1440)
    assert len(frame.payload) == 1440
    assert wire.build(frame.header, frame.payload, frame.trailing) == data


def test_macs():
    assert wire.format_mac(0x98ED5C000001) == "98:ed:5c:00:00:01"
    assert wire.parse_mac("98:ed:5c:00:00:01") == wire.parse_mac("98-ED-5C-00-00-01") == 0x98ED5C000001
    for text in ("", "98:ed:5c:00:00", "98:ed:5c:00:00:001", "98:ed:5c:00:00:0g", "98ed5c000001", "+1:00:00:00:00:00"):
        with pytest.raises(ValueError, match="write six hex pairs"):
            wire.parse_mac(text)

"""The IPv4-mode frame, byte for byte: written out by hand, cut off everywhere, and as the reference module sent it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_wire import captured, octets, patched

from ttpoe import ipv4
from ttpoe.constants import HEADER_BYTES, MAX_OPCODE, MAX_VC
from ttpoe.wire import HEADER, FrameError, Mode, Reason

OPEN = octets("""
    98 ed 5c 00 00 03  98 ed 5c 00 00 01  08 00
    45 00 00 32         # version 4, 5 words; total length 50: the pad counts
    00 00 40 00         # id 0, do not fragment
    09 11 5d b8         # TTL 9, UDP, checksum
    0a 00 00 01  0a 00 00 03
    01 a4 01 a4         # 420 > 420
    00 1a 00 00         # UDP length 26, no checksum
    00 02               # OPEN, virtual channel DATA
    00 00 00 00 00 00 20 00  # version 2 in the high nibble of byte 50
    11 22 33 44  55 66 77 88
    00 00 00 00         # padding to 64
""")
PAYLOAD = octets("""
    98 ed 5c 00 00 01  98 ed 5c 00 00 03  08 00
    45 00 00 33  00 00 40 00  09 11 5d b7  0a 00 00 03  0a 00 00 01
    01 a4 01 a4  00 1f 00 00
    06 01  00 00 00 00 00 00 20 00  ff ff ff ff  00 00 00 00
    68 65 6c 6c 6f
""")
EVERY_BIT = octets("""
    01 02 03 04 05 06  07 08 09 0a 0b 0c  08 00
    45 e1 00 33         # type of service e1; 51: one byte of padding belongs to the packet
    e2 e3 c0 00         # id; reserved bit and do not fragment
    e4 11 8f 4d
    e5 e6 e7 e8  e9 ea eb ec
    01 a4 01 a4  00 1e ed ee
    c7 02  d1 d2 d3 d4 d5 d6 d7 d8  80 00 00 01  7f ff ff fe
    aa bb cc dd         # payload
    f1                  # padding inside the packet
    f2 f3               # and behind it
""")


def header_of(data: bytes) -> dict[str, int]:
    row = ipv4.parse(data).header[0]
    return {name: row[name].tolist() for name in HEADER.names}


def rfc1071(header: bytes) -> int:
    """The textbook sum over the 20 bytes, checksum included: 0xFFFF if it is right."""
    total = sum(int.from_bytes(header[k : k + 2], "big") for k in range(0, 20, 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def with_checksum(data: bytes) -> bytes:
    blank = patched(data, 24, "0000")
    return patched(blank, 24, f"{rfc1071(blank[14:34]) ^ 0xFFFF:04x}")


def test_open_as_bytes():
    fields = header_of(OPEN)
    assert (fields["dst_mac"], fields["src_mac"], fields["mode"]) == (0x98ED5C000003, 0x98ED5C000001, Mode.IPV4)
    assert (fields["src_ip"], fields["dst_ip"]) == (0x0A000001, 0x0A000003)
    assert (fields["opcode"], fields["vc"], fields["payload_bytes"]) == (0, 2, 0)
    assert (fields["tx_seq"], fields["rx_seq"]) == (0x11223344, 0x55667788)
    assert ipv4.parse(OPEN).trailing == bytes(4)
    made = ipv4.make_header(
        dst_mac=0x98ED5C000003, src_mac=0x98ED5C000001, dst_ip=0x0A000003, src_ip=0x0A000001, opcode=0, vc=2,
        tx_seq=0x11223344, rx_seq=0x55667788,
    )  # fmt: skip
    assert ipv4.build(made) == OPEN


def test_payload_as_bytes():
    frame = ipv4.parse(PAYLOAD)
    assert (frame.payload, frame.trailing) == (b"hello", b"")
    made = ipv4.make_header(
        dst_mac=0x98ED5C000001, src_mac=0x98ED5C000003, dst_ip=0x0A000001, src_ip=0x0A000003, opcode=6, vc=1,
        tx_seq=0xFFFFFFFF, rx_seq=0, payload_bytes=5,
    )  # fmt: skip
    assert ipv4.build(made, b"hello") == PAYLOAD


def test_every_bit_has_a_field():
    assert with_checksum(EVERY_BIT) == EVERY_BIT
    frame = ipv4.parse(EVERY_BIT)
    assert (frame.payload, frame.trailing) == (b"\xaa\xbb\xcc\xdd", b"\xf1\xf2\xf3")
    assert header_of(EVERY_BIT) == {
        "dst_mac": 0x010203040506, "src_mac": 0x0708090A0B0C, "tx_seq": 0x80000001, "rx_seq": 0x7FFFFFFE,
        "payload_bytes": 4, "total_length": 51, "opcode": 7, "opcode_reserved": 3, "vc": 2, "extension": 0xD8,
        "congestion": 0xD5, "tx_v1": 0xD1, "rx_v1": 0xD2, "epoch": 0xD3D4, "version_bits": 0xD6D7,
        "src_ip": 0xE5E6E7E8, "dst_ip": 0xE9EAEBEC, "ip_id": 0xE2E3, "ip_fragment": 0xC000, "ip_checksum": 0x8F4D,
        "src_port": 420, "dst_port": 420, "udp_length": 30, "udp_checksum": 0xEDEE, "ip_version": 0x45,
        "ip_tos": 0xE1, "ip_ttl": 0xE4, "ip_protocol": 17, "mode": Mode.IPV4,
        "src_node": 0, "dst_node": 0, "shim_length": 0, "tth": 0, "gateway": 0, "padding": [0] * 16,
    }  # fmt: skip
    assert ipv4.build(frame.header, frame.payload, frame.trailing) == EVERY_BIT


def refused(data: bytes, **limits: int) -> Reason:
    with pytest.raises(FrameError) as caught:
        ipv4.parse(data, **limits)
    return caught.value.reason


LONG = with_checksum(patched(patched(PAYLOAD, 16, "0057"), 38, "0043")) + bytes(range(36))
"""41 bytes of payload, 101 in all."""


def test_every_truncation():
    assert len(ipv4.parse(LONG).payload) == 41
    for length in range(len(LONG)):
        assert refused(LONG[:length]) is (Reason.TOO_SHORT if length < 64 else Reason.IP_LENGTH)


def test_nothing_beyond_the_frame_is_read():
    """The same answer whatever lies behind."""
    for length in range(len(LONG) + 1):
        answers = set()
        for poison in (b"", b"\xff" * 64, b"\x08\x00" * 32, b"\x00" * 64):
            header = np.zeros(1, HEADER)
            data = np.frombuffer(LONG[:length] + poison, np.uint8)
            answers.add((ipv4.parse_ipv4_header_at(data, length, 1024, header, 0), header.tobytes()))
        assert len(answers) == 1


BOUNDS_CHECKED = """
import numpy as np
from ttpoe import ipv4
from ttpoe.wire import HEADER
from test_ipv4 import LONG

frame = np.frombuffer(LONG, np.uint8)
for length in range(len(frame) + 1):
    ipv4.parse_ipv4_header_at(frame[:length].copy(), length, 1024, np.zeros(1, HEADER), 0)
try:
    ipv4.parse_ipv4_header_at(frame[:50].copy(), 64, 1024, np.zeros(1, HEADER), 0)
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
        (OPEN[:60], Reason.TOO_SHORT),
        (OPEN[:63], Reason.TOO_SHORT),
        (patched(OPEN, 12, "9ac6"), Reason.NOT_TTPOE),
        (OPEN[:12] + bytes.fromhex("81002005") + OPEN[12:], Reason.VLAN_TAGGED),
        (OPEN[:12] + bytes.fromhex("88a80005 81000007") + OPEN[12:], Reason.VLAN_TAGGED),
        (with_checksum(patched(OPEN, 14, "65")), Reason.NOT_IPV4),
        (with_checksum(patched(OPEN, 14, "05")), Reason.NOT_IPV4),
        (with_checksum(patched(OPEN, 14, "46")), Reason.IP_OPTIONS),
        (with_checksum(patched(OPEN, 14, "44")), Reason.IP_OPTIONS),
        (with_checksum(patched(OPEN, 16, "001b")), Reason.IP_LENGTH),
        (with_checksum(patched(OPEN, 16, "0033")), Reason.IP_LENGTH),  # one byte more than there is
        (with_checksum(patched(OPEN, 16, "ffff")), Reason.IP_LENGTH),
        (with_checksum(patched(OPEN, 20, "2000")), Reason.IP_FRAGMENT),  # more fragments
        (with_checksum(patched(OPEN, 20, "0001")), Reason.IP_FRAGMENT),
        (with_checksum(patched(OPEN, 20, "1000")), Reason.IP_FRAGMENT),
        (patched(OPEN, 25, "b9"), Reason.IP_CHECKSUM),
        (patched(OPEN, 29, "02"), Reason.IP_CHECKSUM),  # another source, which the sum does not fit
        (patched(OPEN, 22, "08"), Reason.IP_CHECKSUM),  # a router that forgot the sum
        (with_checksum(patched(OPEN, 23, "92")), Reason.NOT_UDP),  # what gateways speak between themselves
        (with_checksum(patched(OPEN, 23, "01")), Reason.NOT_UDP),
        (patched(OPEN, 34, "01a5"), Reason.UDP_PORTS),
        (patched(OPEN, 36, "12b7"), Reason.UDP_PORTS),
        (patched(OPEN, 38, "0000"), Reason.UDP_TOO_SHORT),
        (patched(OPEN, 38, "0019"), Reason.UDP_TOO_SHORT),
        (patched(OPEN, 38, "001f"), Reason.UDP_BEYOND_PACKET),
        (with_checksum(patched(patched(OPEN, 16, "0031"), 38, "001e")), Reason.UDP_BEYOND_PACKET),
        (patched(OPEN, 38, "ffff"), Reason.UDP_BEYOND_PACKET),
        (with_checksum(patched(patched(PAYLOAD, 16, "042f"), 38, "041b")) + bytes(1020), Reason.PAYLOAD_TOO_LONG),
        (patched(OPEN, 42, "0b"), Reason.UNKNOWN_OPCODE),
        (patched(OPEN, 43, "03"), Reason.UNKNOWN_VC),
    ],
)
def test_refusals(data, reason):
    assert refused(data) is reason


def test_limits_that_are_still_good():
    full = with_checksum(patched(patched(PAYLOAD, 16, "042e"), 38, "041a")) + bytes(1019)
    assert len(ipv4.parse(full).payload) == 1024
    assert len(ipv4.parse(patched(OPEN, 38, "001e")).payload) == 4  # the padding's place, when UDP says so
    assert ipv4.parse(patched(OPEN, 42, "0a")).header[0]["opcode"] == MAX_OPCODE
    assert ipv4.parse(patched(OPEN, 43, "02")).header[0]["vc"] == MAX_VC
    assert ipv4.parse(patched(OPEN, 40, "1234")).payload == b""  # a UDP checksum is not looked at
    assert ipv4.parse(with_checksum(patched(OPEN, 16, "002e"))).trailing == bytes(4)  # a pad outside the packet
    assert ipv4.parse(with_checksum(patched(OPEN, 20, "8000"))).payload == b""  # fragments allowed, but it is whole
    assert ipv4.parse(with_checksum(patched(OPEN, 22, "01"))).payload == b""  # any TTL: the frame is here


def test_payload_limit_is_the_callers():
    assert refused(PAYLOAD, max_payload_bytes=4) is Reason.PAYLOAD_TOO_LONG


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1024])
def test_padding_counts_as_the_packets(size):
    header = ipv4.make_header(
        dst_mac=2, src_mac=1, dst_ip=2, src_ip=1, opcode=6, vc=2, tx_seq=1, rx_seq=0, payload_bytes=size
    )
    data = ipv4.build(header, b"\x5a" * size)
    assert len(data) == max(64, 60 + size)
    assert int.from_bytes(data[16:18], "big") == len(data) - 14
    assert int.from_bytes(data[38:40], "big") == 26 + size
    assert rfc1071(data[14:34]) == 0xFFFF
    assert ipv4.parse(data).payload == b"\x5a" * size


@pytest.mark.parametrize("size", [-1, 65490])
def test_a_length_that_no_field_holds(size):
    with pytest.raises(ValueError, match="the length fields hold 0 to 65489"):
        ipv4.make_header(
            dst_mac=2, src_mac=1, dst_ip=2, src_ip=1, opcode=6, vc=2, tx_seq=1, rx_seq=0, payload_bytes=size
        )


@given(st.binary(min_size=60, max_size=60), st.binary(max_size=80), st.booleans(), st.booleans())
def test_any_header_builds_back(head, tail, is_plain, has_good_sum):
    """Every bit of an accepted frame, and every bit of the header of one that is refused."""
    data = patched(head, 12, "0800") + tail.ljust(4, b"\0")
    if is_plain:  # likely to be accepted
        data = data[:14] + OPEN[14:24] + data[24:34] + OPEN[34:40] + data[40:42] + b"\x06\x02" + data[44:]
    if has_good_sum:
        data = with_checksum(data)
    header = np.zeros(1, HEADER)
    reason = ipv4.parse_ipv4_header_at(np.frombuffer(data, np.uint8), len(data), 1024, header, 0)
    assert ipv4.build(header, data[HEADER_BYTES:], b"") == data
    assert reason == 0 or not (is_plain and has_good_sum)
    if reason == 0:
        frame = ipv4.parse(data)
        assert ipv4.build(frame.header, frame.payload, frame.trailing) == data


def test_checksum_with_a_second_carry():
    """The sum is 0x1FFFF before it is folded: the first fold gives 0x10000."""
    header = ipv4.make_header(
        dst_mac=2, src_mac=1, dst_ip=0xFFFF0000, src_ip=0, opcode=7, vc=2, tx_seq=0, rx_seq=0
    )
    header["ip_id"] = (0x1FFFF - 0x4500 - 50 - 0x4000 - 0x0911 - 0xFFFF) & 0xFFFF
    ipv4.set_ipv4_lengths_at(header, 0, 0)
    data = ipv4.build(header)
    assert data[24:26] == b"\xff\xfe"
    assert rfc1071(data[14:34]) == 0xFFFF


@given(st.binary(min_size=20, max_size=20))
def test_checksum_is_the_textbooks(head):
    data = with_checksum(OPEN[:14] + b"\x45" + head[1:16] + OPEN[30:])
    header = np.zeros(1, HEADER)
    assert ipv4.parse_ipv4_header_at(np.frombuffer(data, np.uint8), 64, 1024, header, 0) != Reason.IP_CHECKSUM
    ipv4.set_ipv4_lengths_at(header, 0, 0)
    built = ipv4.build(header)
    assert rfc1071(built[14:34]) == 0xFFFF
    assert int.from_bytes(built[16:18], "big") == 50


@given(
    st.binary(max_size=200)
    | st.binary(max_size=100).map(lambda tail: OPEN[:14] + tail)
    | st.binary(max_size=100).map(lambda tail: OPEN[:38] + tail)
)
def test_arbitrary_bytes_raise_nothing_else(data):
    try:
        frame = ipv4.parse(data)
    except FrameError:
        return
    assert len(data) == HEADER_BYTES + len(frame.payload) + len(frame.trailing)


def test_frames_of_the_reference_module():
    """All nine parse and build back, and those without payload we would send ourselves, to the byte."""
    frames = [data for _, data in captured("modttpoe_ipv4_mode") if data[12:14] == b"\x08\x00" and data[23] == 17]
    assert len(frames) == 9
    opcodes = []
    for data in frames:
        frame = ipv4.parse(data)
        row = frame.header[0]
        assert ipv4.build(frame.header, frame.payload, frame.trailing) == data
        made = ipv4.make_header(
            payload_bytes=len(frame.payload),
            **{name: int(row[name]) for name in ("dst_mac", "src_mac", "dst_ip", "src_ip", "opcode", "vc", "tx_seq",
                                                 "rx_seq")},
        )  # fmt: skip
        made["opcode_reserved"] = row["opcode_reserved"]  # uninitialised there
        assert ipv4.build(made, frame.payload) == data
        opcodes.append(int(row["opcode"]))
    assert sorted(set(opcodes)) == [0, 1, 3, 4, 6, 7]


def test_its_other_frames_are_refused():
    for _, data in captured("modttpoe_ipv4_mode"):
        if data[12:14] == b"\x08\x06" or data[12:14] == b"\x9a\xc6":
            assert refused(data) in (Reason.NOT_TTPOE, Reason.TOO_SHORT)
        elif data[23] == 1:
            assert refused(data) is Reason.NOT_UDP


def test_addresses():
    assert ipv4.format_ipv4(0x0A000001) == "10.0.0.1"
    assert ipv4.parse_ipv4("10.0.0.1") == 0x0A000001
    for text in ("", "10.0.0", "10.0.0.256", "10.0.0.1/24", "::1", "98:ed:5c:00:00:01", "host"):
        with pytest.raises(ValueError, match="write four numbers"):
            ipv4.parse_ipv4(text)
    assert [ipv4.is_unicast(ipv4.parse_ipv4(text)) for text in ("10.0.0.1", "1.0.0.0", "223.255.255.255")] == [True] * 3
    for text in ("0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"):
        assert not ipv4.is_unicast(ipv4.parse_ipv4(text))


def test_a_checksum_of_zero_has_two_forms():
    """One's complement arithmetic has two zeros, and RFC 1624 tells of routers that write the other one."""
    bare = patched(patched(OPEN, 24, "0000"), 18, "0000")
    zero = patched(bare, 18, f"{0xFFFF - rfc1071(bare[14:34]):04x}")
    assert with_checksum(zero) == zero
    for checksum in ("0000", "ffff"):
        assert ipv4.build(ipv4.parse(patched(zero, 24, checksum)).header) == patched(zero, 24, checksum)
    with pytest.raises(FrameError, match="IP_CHECKSUM"):
        ipv4.parse(patched(zero, 24, "0001"))

"""Captures: literal bytes both ways, every truncation, hostile bytes, and agreement with tshark, editcap and scapy."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.captureio import CHUNK_BYTES, MAX_RECORD_BYTES
from traces.pcap import CaptureError, LinkType, PcapngWriter, PcapWriter, open_capture

CAPTURES = Path(__file__).parent / "data" / "captures"
S = 10**12

FRAME = bytes.fromhex("98ed5c000002 98ed5c000001 9ac6 05")  # 15 bytes, so that padding shows

PCAP_US_LITTLE = bytes.fromhex(
    "d4c3b2a1 0200 0400 00000000 00000000 00000400 01000000"
    "0100000002000000 0f00000040000000") + FRAME
PCAP_US_BIG = bytes.fromhex(
    "a1b2c3d4 0002 0004 00000000 00000000 00040000 00000001"
    "0000000100000002 0000000f00000040") + FRAME
PCAP_NS_LITTLE = bytes.fromhex(
    "4d3cb2a1 0200 0400 00000000 00000000 00000400 01000000"
    "01000000ffc99a3b 0f00000040000000") + FRAME
PCAP_NS_BIG = bytes.fromhex(
    "a1b23c4d 0002 0004 00000000 00000000 00040000 00000001"
    "000000013b9ac9ff 0000000f00000040") + FRAME

PCAPNG_LITTLE = bytes.fromhex(
    "0a0d0d0a 24000000 4d3c2b1a 0100 0000 ffffffffffffffff"
    "0400 0300 74747000"                                         # shb_userappl "ttp", no end of options
    "24000000"
    "01000000 34000000 0100 0000 00000400"
    "0200 0400 65746830"                                         # if_name eth0
    "0900 0100 09000000"                                         # if_tsresol 9
    "0e00 0800 0200000000000000"                                 # if_tsoffset 2 s
    "0000 0000"
    "34000000"
    "06000000 48000000 00000000 a2249717 ff41ca13"
    "0f000000 40000000") + FRAME + b"\0" + bytes.fromhex(
    "0200 0400 01000000"                                         # epb_flags inbound
    "0400 0800 0300000000000000"                                 # epb_dropcount 3
    "0000 0000"
    "48000000")
PCAPNG_BIG = bytes.fromhex(
    "0a0d0d0a 00000024 1a2b3c4d 0001 0000 ffffffffffffffff"
    "0004 0003 74747000"
    "00000024"
    "00000001 00000034 0001 0000 00040000"
    "0002 0004 65746830"
    "0009 0001 09000000"
    "000e 0008 0000000000000002"
    "0000 0000"
    "00000034"
    "00000006 00000048 00000000 179724a2 13ca41ff"
    "0000000f 00000040") + FRAME + b"\0" + bytes.fromhex(
    "0002 0004 00000001"
    "0004 0008 0000000000000003"
    "0000 0000"
    "00000048")
PCAPNG_TICKS = 0x179724A2_13CA41FF


def frames_of(data: bytes) -> list:
    with open_capture(io.BytesIO(data)) as capture:
        return list(capture)


def frames_and_error(data: bytes) -> tuple[list, CaptureError | None]:
    """Frames until the end or the error; any exception other than CaptureError fails the test."""
    frames: list = []
    try:
        with open_capture(io.BytesIO(data)) as capture:
            for frame in capture:
                frames.append(frame)
    except CaptureError as error:
        return frames, error
    return frames, None


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + length + body + length


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str) -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str, *options: bytes, link_type: int = 1, snaplen: int = 0) -> bytes:
    return block(order, 1, struct.pack(order + "HHI", link_type, 0, snaplen) + b"".join(options))


def packet(order: str, interface_id: int, ticks: int, frame: bytes, *options: bytes) -> bytes:
    head = struct.pack(order + "5I", interface_id, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
    return block(order, 6, head + frame + bytes(-len(frame) % 4) + b"".join(options))


# --- literal bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "time_ns", "per_second"), [
    (PCAP_US_LITTLE, 1_000_002_000, 10**6), (PCAP_US_BIG, 1_000_002_000, 10**6),
    (PCAP_NS_LITTLE, 1_999_999_999, 10**9), (PCAP_NS_BIG, 1_999_999_999, 10**9),
], ids=["us-little", "us-big", "ns-little", "ns-big"])
def test_classic_header_of_each_kind(data, time_ns, per_second):
    with open_capture(io.BytesIO(data)) as capture:
        assert (capture.format, capture.application, capture.comment) == ("pcap", None, None)
        port, = capture.interfaces
        assert (port.link_type, port.snaplen_bytes, port.ticks_per_second, port.fcs_bytes) == (1, 262144, per_second,
                                                                                               None)
        frame, = capture
    assert frame.number == 1
    assert frame.time_ns == time_ns
    assert frame.time_ps == time_ns * 1000
    assert frame.ticks == time_ns * per_second // 10**9
    assert frame.interface_id == 0
    assert frame.data == FRAME
    assert frame.original_bytes == 64
    assert (frame.flags, frame.direction, frame.comment, frame.dropped_frames) == (None, None, None, None)


def test_classic_link_type_may_tell_the_fcs_length():
    data = bytearray(PCAP_US_LITTLE)
    data[20:24] = struct.pack("<I", 0x24000001)
    with open_capture(io.BytesIO(data)) as capture:
        assert (capture.interfaces[0].link_type, capture.interfaces[0].fcs_bytes) == (LinkType.ETHERNET, 4)


@pytest.mark.parametrize("data", [PCAPNG_LITTLE, PCAPNG_BIG], ids=["little", "big"])
def test_pcapng_of_each_byte_order(data):
    with open_capture(io.BytesIO(data)) as capture:
        assert (capture.format, capture.application, capture.interfaces) == ("pcapng", "ttp", [])
        frame, = capture
        port, = capture.interfaces
    assert (port.id, port.name, port.link_type, port.snaplen_bytes) == (0, "eth0", 1, 262144)
    assert (port.ticks_per_second, port.offset_s) == (10**9, 2)
    assert frame.interface is port
    assert frame.ticks == PCAPNG_TICKS
    assert frame.time_ns == PCAPNG_TICKS + 2 * 10**9
    assert frame.data == FRAME
    assert frame.original_bytes == 64
    assert (frame.flags, frame.direction, frame.dropped_frames) == (1, "in", 3)


def test_sections_may_differ_in_byte_order_and_interface_ids_start_anew():
    second = section(">") + interface(">", option(">", 2, b"b")) + interface(">", option(">", 2, b"c"))
    with open_capture(io.BytesIO(PCAPNG_LITTLE + second + packet(">", 1, 7, b"xyz"))) as capture:
        frames = list(capture)
        assert [(port.id, port.name, port.section, port.id_in_section) for port in capture.interfaces] == [
            (0, "eth0", 0, 0), (1, "b", 1, 0), (2, "c", 1, 1)]
    assert [(f.number, f.interface_id, f.data, f.time_ps) for f in frames[1:]] == [(2, 2, b"xyz", 7_000_000)]


def test_interface_of_an_earlier_section_is_unknown():
    frames, error = frames_and_error(PCAPNG_LITTLE + section("<") + packet("<", 0, 7, b"xyz"))
    assert len(frames) == 1
    assert error is not None
    assert "names interface 0, and its section has 0 so far (1 whole frame read before it)" in str(error)


@pytest.mark.parametrize("order", "<>")
def test_other_blocks(order):
    data = (section(order) + interface(order, snaplen=5)
            + block(order, 0x0BAD, b"what is this") + block(order, 0x0BAD, bytes(20))  # as long as an empty packet
            + block(order, 3, struct.pack(order + "I", 9) + b"hello\0\0\0")  # a simple packet, cut to the snap length
            + block(order, 2, struct.pack(order + "HHIIII", 0, 4, 1, 2, 3, 70) + b"abc\0" + option(
                order, 2, struct.pack(order + "I", 2)))
            + block(order, 2, struct.pack(order + "HHIIII", 0, 0xFFFF, 1, 2, 3, 70) + b"abc\0")
            + block(order, 5, struct.pack(order + "III", 0, 0, 0) + option(order, 4, struct.pack(order + "Q", 2**40))
                    + option(order, 5, struct.pack(order + "Q", 17)) + option(order, 0, b"")))
    with open_capture(io.BytesIO(data)) as capture:
        simple, old, old_unknown_drops = capture
        assert (capture.interfaces[0].received_frames, capture.interfaces[0].dropped_frames) == (2**40, 17)
    assert (simple.data, simple.original_bytes, simple.ticks, simple.time_ps) == (b"hello", 9, None, 0)
    assert (old.data, old.original_bytes, old.dropped_frames, old.direction) == (b"abc", 70, 4, "out")
    assert old.time_ps == (2**32 + 2) * 10**6
    assert (old_unknown_drops.dropped_frames, old_unknown_drops.flags) == (None, None)
    assert [f.number for f in (simple, old, old_unknown_drops)] == [1, 2, 3]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("resolution", "ticks", "time_ps"), [
    (None, 1_700_000_000_123_456, 1_700_000_000_123_456 * 10**6),
    (0, 5, 5 * S), (3, 5, 5 * 10**9),
    (9, 2**64 - 1, (2**64 - 1) * 1000),
    (12, 1_234_567_890_123, 1_234_567_890_123),
    (15, 1_999, 1), (127, 2**64 - 1, 0),
    (0x80 | 0, 3, 3 * S), (0x80 | 10, 1, 976_562_500), (0x80 | 20, 3, 2_861_022), (0x80 | 64, 2**63, S // 2),
])
def test_resolutions_are_exact_and_floor(order, resolution, ticks, time_ps):
    options = [] if resolution is None else [option(order, 9, bytes([resolution]))]
    for offset in (0, 3, -2):
        data = section(order) + interface(order, *options, option(order, 14, struct.pack(order + "q", offset)))
        frame, = frames_of(data + packet(order, 0, ticks, b""))
        assert frame.time_ps == time_ps + offset * S
        assert frame.time_ns == (time_ps + offset * S) // 1000
        assert frame.ticks == ticks


def test_options_of_interfaces_and_packets():
    data = section("<") + interface(
        "<", option("<", 2, b"swp1\0"), option("<", 3, "port é".encode()),
        option("<", 8, struct.pack("<Q", 400 * 10**9)), option("<", 13, b"\4"),
        option("<", 2988, b"custom"), option("<", 0, b""), b"junk after the end", link_type=276)
    data += packet("<", 0, 0, b"12345", option("<", 1, b"first"), option("<", 1, b"second \xff"), option("<", 0, b""))
    data += packet("<", 0, 0, b"12345", option("<", 1, b"flagless"))  # 12 bytes, as the flags alone have
    data += packet("<", 0, 0, b"12345", option("<", 2, bytes.fromhex("1e000001")), option("<", 0, b""))
    data += packet("<", 0, 0, b"12345", option("<", 2, bytes.fromhex("03000000")), option("<", 0, b""))
    data += packet("<", 0, 0, b"12345", option("<", 1, b"four"), option("<", 0, b""))
    data += packet("<", 0, 0, b"12345", option("<", 2, bytes.fromhex("01000000")), option("<", 1, b""))
    with open_capture(io.BytesIO(data)) as capture:
        first, second, out, reserved, third, fourth = capture
    port = capture.interfaces[0]
    assert (port.name, port.description, port.rate_bps, port.fcs_bytes) == ("swp1", "port é", 400 * 10**9, 4)
    assert port.link_type == LinkType.LINUX_SLL2
    assert (first.comment, first.flags) == ("first\nsecond \N{REPLACEMENT CHARACTER}", None)
    assert (second.comment, second.flags) == ("flagless", None)
    assert (out.flags, out.direction, reserved.direction) == (0x0100001E, "out", None)
    assert [(f.comment, f.direction) for f in (third, fourth)] == [("four", None), ("", "in")]


# --- broken files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "words"), [
    (b"", "is empty"),
    (b"\x89PNG\r\n", "is not a capture that this reads: it begins with 89504e47, a pcap begins with"),
    (b"\xa1\xb2", "it begins with a1b2,"),
    (b"\x28\xb5\x2f\xfd----", "zstd -d"),
    (b"\x34\xcd\xb2\xa1----", "editcap -F pcapng"),
    (PCAP_US_LITTLE[:23], "the file ends inside its header, 23 of 24 bytes are there"),
    (PCAP_US_LITTLE[:4] + b"\1" + PCAP_US_LITTLE[5:], "pcap version 1.4"),
    (PCAP_US_LITTLE[:30], "byte 24: the file ends inside the header of a frame, 6 of its 16 bytes are there"),
    (PCAP_US_LITTLE[:-1], "byte 24: the file ends inside a frame, 14 of its 15 bytes are there (0 whole frames"),
    (PCAP_US_LITTLE + b"\0", "byte 55: the file ends inside the header of a frame, 1 of its 16 bytes are there (1 "),
    (PCAP_US_LITTLE + b"\0" * 8 + b"\xff" * 8, "byte 55: a frame claims an absurd length of 4294967295 bytes"),
    (PCAPNG_LITTLE[:11], "byte 0: the file ends inside a block, 11 bytes"),
    (PCAPNG_LITTLE[:20], "byte 0: the file ends inside the section header block, 20 of its 36 bytes"),
    (PCAPNG_LITTLE[:8] + b"abcd" + PCAPNG_LITTLE[12:], "byte order mark 61626364"),
    (block("<", 0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 2, 0, -1)), "pcapng version 2.0"),
    (PCAPNG_LITTLE[:-1], "byte 88: the file ends inside the enhanced packet block, 71 of its 72 bytes are there (0 "),
    (PCAPNG_LITTLE[:-4] + b"\x50\0\0\0", "begins with the length 72 and ends with the length 80"),
    (PCAPNG_LITTLE + struct.pack("<III", 77, 13, 0), "type 0x4d block claims an absurd length of 13 bytes"),
    (PCAPNG_LITTLE + struct.pack("<III", 77, 8, 0), "absurd length of 8"),
    (PCAPNG_LITTLE + struct.pack("<III", 6, 28, 0), "absurd length of 28"),
    (PCAPNG_LITTLE + struct.pack("<7IxI", 6, 33, 0, 0, 0, 0, 0, 33), "absurd length of 33"),
    (PCAPNG_LITTLE + struct.pack("<III", 6, 0xFFFFFFFC, 0), "absurd length of 4294967292 bytes"),
    (PCAPNG_LITTLE + struct.pack("<III", 77, MAX_RECORD_BYTES + 4, 0), "absurd length"),
    (PCAPNG_LITTLE + block("<", 6, struct.pack("<5I", 0, 0, 0, 5, 5) + b"1234"), "claims 5 captured bytes and has"),
    (PCAPNG_LITTLE + block("<", 6, struct.pack("<5I", 0, 0, 0, 0xFFFFFFFF, 5) + b"1234"), "claims 4294967295 captured"),
    (PCAPNG_LITTLE + block("<", 2, struct.pack("<HHIIII", 0, 0, 0, 0, 5, 5) + b"1234"), "claims 5 captured bytes"),
    (PCAPNG_LITTLE + block("<", 2, struct.pack("<HHIIII", 9, 0, 0, 0, 4, 4) + b"1234"), "names interface 9"),
    (section("<") + interface("<") + block("<", 3, struct.pack("<I", 5) + b"1234"), "claims 5 captured bytes"),
    (section("<") + block("<", 3, struct.pack("<I", 4) + b"1234"), "names interface 0, and its section has 0"),
    (PCAPNG_LITTLE + packet("<", 1, 0, b""), "names interface 1, and its section has 1"),
    (PCAPNG_LITTLE + block("<", 5, struct.pack("<III", 1, 0, 0)), "statistics block names interface 1"),
    (PCAPNG_LITTLE + packet("<", 0, 0, b"", struct.pack("<HH", 1, 5)), "byte 160: option 1 of 5 bytes does not fit"),
    (PCAPNG_LITTLE + packet("<", 0, 0, b"", option("<", 2, b"12")), "option 2 has 2 bytes, it must have 4"),
    (section("<") + interface("<", option("<", 9, b"12")), "option 9 has 2 bytes, it must have 1"),
])
def test_broken_files_are_told_in_one_sentence(tmp_path, data, words):
    path = tmp_path / "broken.anything"
    path.write_bytes(data)
    with pytest.raises(CaptureError) as told, open_capture(path) as capture:
        list(capture)
    text = str(told.value)
    assert words in text
    assert text.startswith(str(path))
    assert told.value.path == str(path)
    assert "\n" not in text
    assert isinstance(told.value, ValueError)


def test_unreadable_files(tmp_path):
    for path, words in [(tmp_path / "none.pcap", "cannot be opened: No such file"), ("a\0b", "cannot be opened"),
                        (tmp_path, "cannot be opened: Is a directory")]:
        with pytest.raises(CaptureError, match=words):
            open_capture(path)


def test_a_read_that_fails_later_keeps_the_frames_before_it():
    class Failing(io.BytesIO):
        def read1(self, _size=-1):
            if self.tell() >= len(PCAP_US_LITTLE):
                raise OSError(5, "Input/output error")
            return super().read1(10)

    with open_capture(Failing(PCAP_US_LITTLE)) as capture:
        assert next(capture).data == FRAME
        with pytest.raises(CaptureError) as told:
            next(capture)
    assert "byte 55: reading on failed, Input/output error (1 whole frame read before it)" in str(told.value)


def test_absurd_length_is_not_allocated():
    data = PCAPNG_LITTLE + struct.pack("<II", 6, MAX_RECORD_BYTES)
    tracemalloc.start()
    try:
        frames, error = frames_and_error(data + bytes(100))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(frames) == 1
    assert error is not None
    assert peak < 1_000_000


@pytest.mark.parametrize("make", [
    lambda size: PCAP_US_LITTLE[:24] + struct.pack("<4I", 0, 0, size, size) + bytes(size),
    lambda size: section("<") + interface("<") + packet("<", 0, 0, bytes(size)),
], ids=["pcap", "pcapng"])
def test_the_limit_does_not_depend_on_what_is_in_memory(make):
    class Greedy(io.BytesIO):
        def read1(self, _size=-1):
            return self.read()

    with open_capture(Greedy(make(MAX_RECORD_BYTES - 32))) as capture:
        assert len(next(capture).data) == MAX_RECORD_BYTES - 32
    with open_capture(Greedy(make(MAX_RECORD_BYTES + 1))) as capture, pytest.raises(CaptureError, match="absurd"):
        next(capture)


def test_closing_ends_the_iteration(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(PCAP_US_LITTLE)
    capture = open_capture(path)
    capture.close()
    assert list(capture) == []
    with open_capture(path) as capture:
        assert next(capture).number == 1
        assert capture.bytes_read == len(PCAP_US_LITTLE)


# --- properties ------------------------------------------------------------------------------------------------------

HEADS = [b"", PCAP_US_LITTLE[:24], PCAP_US_BIG, PCAP_NS_LITTLE, section("<"), section(">"), PCAPNG_LITTLE, PCAPNG_BIG,
         section(">") + interface(">"), b"\x1f\x8b\x08\x00", gzip.compress(PCAPNG_LITTLE)[:-9]]


@given(st.sampled_from(HEADS), st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_arbitrary_bytes_raise_only_capture_errors(head, tail):
    frames_and_error(head + tail)


@st.composite
def hostile_pcapng(draw):
    """Blocks with an honest frame around bodies that lie, which plain random bytes never reach."""
    order = draw(st.sampled_from("<>"))
    data = section(order) + interface(order)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from([0x0A0D0D0A, 1, 2, 3, 5, 6, 77]))
        words = draw(st.lists(st.one_of(st.integers(0, 12), st.sampled_from([0x1A2B3C4D, 0x00010000, 0x00010004,
                                                                              2**32 - 1])), max_size=12))
        data += block(order, kind, struct.pack(f"{order}{len(words)}I", *words) + draw(st.binary(max_size=20)))
    return data


@given(hostile_pcapng())
@settings(max_examples=500, deadline=None)
def test_hostile_blocks_raise_only_capture_errors(data):
    frames_and_error(data)


RECORDS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2**64 - 1), st.binary(max_size=90), st.integers(0, 2000),
                             st.sampled_from([None, "in", "out"]), st.none() | st.text(max_size=9)), max_size=12)


@given(RECORDS)
@settings(max_examples=100, deadline=None)
def test_pcapng_round_trip(records):
    file = io.BytesIO()
    with PcapngWriter(file, comment="a run") as writer:
        ids = [writer.add_interface("h0.eth0", resolution_digits=12, rate_bps=400 * 10**9),
               writer.add_interface("sw", link_type=101, description="a switch")]
        for port, time_ps, frame, extra, direction, comment in records:
            writer.write(ids[port], time_ps, frame, original_bytes=len(frame) + extra, comment=comment,
                         direction=direction)
    with open_capture(io.BytesIO(file.getvalue())) as capture:
        assert capture.application is not None
        assert capture.application.startswith("ttpoe ")
        assert capture.comment == "a run"
        got = list(capture)
    ports = [(p.name, p.link_type, p.rate_bps, p.description, p.ticks_per_second) for p in capture.interfaces]
    assert ports == [("h0.eth0", 1, 400 * 10**9, None, 10**12), ("sw", 101, None, "a switch", 10**9)]
    assert [(f.interface_id, f.time_ps, f.data, f.original_bytes, f.direction, f.comment) for f in got] == [
        (port, time_ps if port == 0 else time_ps // 1000 * 1000, frame, len(frame) + extra, direction,
         None if comment is None else comment.rstrip("\0"))
        for port, time_ps, frame, extra, direction, comment in records]
    assert [f.number for f in got] == list(range(1, len(records) + 1))


@given(st.lists(st.tuples(st.integers(0, 2**32 * S - 1), st.binary(max_size=90), st.integers(0, 2000)), max_size=12),
       st.sampled_from([6, 9]))
@settings(max_examples=100, deadline=None)
def test_classic_round_trip(records, digits):
    file = io.BytesIO()
    with PcapWriter(file, resolution_digits=digits) as writer:
        for time_ps, frame, extra in records:
            writer.write(time_ps, memoryview(frame), original_bytes=len(frame) + extra)
    unit = 10 ** (12 - digits)
    assert [(f.time_ps, f.data, f.original_bytes) for f in frames_of(file.getvalue())] == [
        (time_ps // unit * unit, frame, len(frame) + extra) for time_ps, frame, extra in records]


def valid_files() -> dict[str, tuple[bytes, set[int]]]:
    """Files with the places where each may be cut without harm."""
    files = {}
    file = io.BytesIO()
    with PcapWriter(file) as classic:
        borders = {file.tell()}
        for i in range(4):
            classic.write(i, bytes(i * 7))
            borders.add(file.tell())
    files["pcap"] = file.getvalue(), borders
    for order in "<>":
        data, borders = b"", set()
        for part in (section(order), interface(order, option(order, 2, b"a")), packet(order, 0, 1, b"12345"),
                     packet(order, 0, 2, b"1", option(order, 1, b"words")),
                     block(order, 3, struct.pack(order + "I", 2) + b"ab"),
                     block(order, 2, struct.pack(order + "HHIIII", 0, 0, 0, 9, 2, 2) + b"ab"),
                     block(order, 99, b"1234"),
                     section("<"), interface("<"), packet("<", 0, 3, b"abcd")):
            data += part
            borders.add(len(data))
        files["pcapng " + order] = data, borders
    return files


@pytest.mark.parametrize("name", valid_files())
def test_every_truncation_gives_the_frames_before_it(name):
    data, borders = valid_files()[name]
    whole = [tuple(f)[:3] + tuple(f)[4:] for f in frames_of(data)]
    for size in range(len(data) + 1):
        frames, error = frames_and_error(data[:size])
        assert [tuple(f)[:3] + tuple(f)[4:] for f in frames] == whole[:len(frames)]
        assert (error is None) == (size in borders), size
        if error is not None and size >= min(borders):
            assert error.frames_read == len(frames)
            assert error.offset_bytes == max(b for b in borders if b <= size)
    assert len(frames) == len(whole)


@pytest.mark.parametrize("size", [1, 3, 7, 64])
def test_the_chunks_of_a_pipe_do_not_matter(size):
    class Dribble(io.BytesIO):
        def read1(self, _size=-1):
            return super().read1(size)

    for data, _ in valid_files().values():
        with open_capture(Dribble(data)) as capture:
            assert [f.data for f in capture] == [f.data for f in frames_of(data)]


def test_frames_across_chunks_and_longer_than_one(tmp_path):
    rng = random.Random(7)
    sizes = [rng.choice([0, 60, 1514, 9000, 65_535]) for _ in range(60)] + [3 * CHUNK_BYTES + 1, 1]
    frames = [rng.randbytes(size) for size in sizes]
    path = tmp_path / "x"
    with PcapngWriter(path) as writer:
        port = writer.add_interface("a")
        for i, frame in enumerate(frames):
            writer.write(port, i * 1000, frame, direction="out" if i % 3 else None)
    with open_capture(path) as capture:
        assert [f.data for f in capture] == frames
    with PcapWriter(path, snaplen=2**20) as classic:
        for i, frame in enumerate(frames):
            classic.write(i * 1000, frame)
    with open_capture(path) as capture:
        assert [f.data for f in capture] == frames


# --- gzip and standard input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("squeeze", [
    gzip.compress,
    lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]) + bytes(7),  # two members and padding
    lambda data: gzip.compress(data) + bytes(2 * CHUNK_BYTES),
], ids=["one", "two", "padded"])
def test_gzip_is_read_as_what_is_inside(squeeze):
    data, _ = valid_files()["pcapng <"]
    assert [f.data for f in frames_of(squeeze(data))] == [f.data for f in frames_of(data)]


def test_gzip_that_is_cut_or_damaged():
    rng = random.Random(1)
    file = io.BytesIO()
    with PcapWriter(file) as writer:
        for i in range(2000):
            writer.write(i, rng.randbytes(200))
    squeezed = bytearray(gzip.compress(file.getvalue()))
    whole = frames_of(bytes(squeezed))
    frames, error = frames_and_error(bytes(squeezed[:-8]))
    assert [f.data for f in frames] == [f.data for f in whole]
    assert error is not None
    assert "of the gunzipped data: reading on failed, the gzip data ends early (2000 whole frames" in str(error)
    frames, error = frames_and_error(bytes(squeezed[:len(squeezed) // 2]))
    assert 900 < len(frames) < 1000
    assert error is not None
    squeezed[-5] ^= 1  # the check sum
    frames, error = frames_and_error(bytes(squeezed))
    assert error is not None
    for data, words in [(gzip.compress(b""), "is empty"),
                        (gzip.compress(b"text"), "gunzipped, it begins with 74657874"),
                        (b"\x1f\x8b\x08", "the gzip data ends early")]:
        frames, error = frames_and_error(data)
        assert error is not None
        assert words in str(error)


def test_cut_gzip_gives_all_that_it_holds():
    squeezed = gzip.compress(PCAP_US_LITTLE[:24] + bytes(CHUNK_BYTES + 288))  # frames of length 0
    for size in range(len(squeezed) - 20, len(squeezed)):
        held = len(zlib.decompressobj(31).decompress(squeezed[:size]))
        assert len(frames_and_error(squeezed[:size])[0]) == (held - 24) // 16


def test_gzip_bomb_in_flat_memory():
    file = io.BytesIO()
    with gzip.open(file, "wb") as squeezed:
        squeezed.write(PCAP_US_LITTLE[:24])
        for _ in range(50):
            squeezed.write(struct.pack("<4I", 0, 0, 1_000_000, 1_000_000) + bytes(1_000_000))
    file.seek(0)
    tracemalloc.start()
    try:
        with open_capture(file) as capture:
            count = sum(1 for _ in capture)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 50
    assert peak < 6_000_000


def test_standard_input_and_output():
    code = ("import sys; from traces.pcap import open_capture, PcapngWriter\n"
            "with open_capture('-') as source, PcapngWriter('-') as sink:\n"
            "    port = sink.add_interface('copy')\n"
            "    for f in source: sink.write(port, f.time_ps, f.data, original_bytes=f.original_bytes)\n")
    done = subprocess.run([sys.executable, "-c", code], input=PCAP_NS_BIG, capture_output=True, check=True)
    frame, = frames_of(done.stdout)
    assert (frame.time_ns, frame.data, frame.original_bytes) == (1_999_999_999, FRAME, 64)
    done = subprocess.run([sys.executable, "-c", code], input=b"", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"CaptureError: standard input is empty" in done.stderr


# --- the writer and its file -----------------------------------------------------------------------------------------


def test_writer_bytes_are_as_specified():
    file = io.BytesIO()
    with PcapngWriter(file) as writer:
        start = file.tell()
        port = writer.add_interface("eth0", snaplen=262144, rate_bps=100 * 10**9)
        writer.write(port, 1_000_000_002_999, FRAME, original_bytes=64, direction="in", comment="hi")
        writer.write(port, 2**32 * 1000, FRAME[:4])
        writer.write_statistics(port, 0, dropped_frames=5)
    assert file.getvalue()[start:] == bytes.fromhex(
        "01000000 34000000 0100 0000 00000400 0200 0400 65746830 0800 0800 00e8764817000000 0900 0100 09000000"
        "00000000 34000000"
        "06000000 44000000 00000000 00000000 02ca9a3b 0f000000 40000000") + FRAME + b"\0" + bytes.fromhex(
        "0200 0400 01000000 0100 0200 68690000 00000000 44000000"
        "06000000 24000000 00000000 01000000 00000000 04000000 04000000 98ed5c00 24000000"
        "05000000 28000000 00000000 00000000 00000000 0500 0800 0500000000000000 00000000 28000000")
    file = io.BytesIO()
    with PcapWriter(file) as classic:
        classic.write(1_999_999_999_999, FRAME, original_bytes=64)
    assert file.getvalue() == PCAP_NS_LITTLE
    file = io.BytesIO()
    with PcapWriter(file, resolution_digits=6) as classic:
        classic.write(1_000_002_999_999, FRAME, original_bytes=64)
    assert file.getvalue() == PCAP_US_LITTLE


def test_writer_cuts_to_the_snap_length():
    file = io.BytesIO()
    with PcapngWriter(file) as writer:
        writer.write(writer.add_interface("a", snaplen=5), 0, bytearray(b"123456789"))
    frame, = frames_of(file.getvalue())
    assert (frame.data, frame.original_bytes) == (b"12345", 9)
    file = io.BytesIO()
    with PcapWriter(file, snaplen=5) as classic:
        classic.write(0, b"123456789", original_bytes=70)
    frame, = frames_of(file.getvalue())
    assert (frame.data, frame.original_bytes) == (b"12345", 70)


def test_writers_refuse_what_a_file_cannot_hold():
    writer = PcapngWriter(io.BytesIO())
    port = writer.add_interface("a", resolution_digits=12)
    for call, words in [
        (lambda: writer.write(1, 0, b""), "interface 1 is unknown"),
        (lambda: writer.write(-1, 0, b""), "interface -1 is unknown"),
        (lambda: writer.write(port, -1, b""), "must not be negative"),
        (lambda: writer.write(port, 2**64, b""), "213 days"),
        (lambda: writer.write(port, 0, b"ab", original_bytes=1), "cannot be shorter"),
        (lambda: writer.write(port, 0, bytes(MAX_RECORD_BYTES)), "too long"),
        (lambda: writer.write(port, 0, bytes(MAX_RECORD_BYTES - 2000), comment="x" * 5000), "with its comment is too"),
        (lambda: writer.write(port, 0, b"", direction="up"), "must be 'in', 'out' or None"),
        (lambda: writer.write(port, 0, b"", comment="x" * 70_000), "too long"),
        (lambda: writer.write(port, 0, memoryview(b"abcd").cast("H")), "single bytes"),
        (lambda: writer.add_interface("a", resolution_digits=13), "from 0 to 12"),
        (lambda: writer.add_interface("a", link_type=-1), "out of range"),
        (lambda: PcapWriter(io.BytesIO(), resolution_digits=12), "6 or 9"),
        (lambda: PcapWriter(io.BytesIO(), snaplen=0), "out of range"),
        (lambda: PcapWriter(io.BytesIO()).write(2**32 * S, b""), "32 bits of seconds"),
        (lambda: PcapWriter(io.BytesIO()).write(-1, b""), "32 bits of seconds"),
        (lambda: PcapWriter(io.BytesIO()).write(0, memoryview(b"abcd").cast("H")), "single bytes"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    writer.close()
    with pytest.raises(ValueError, match="is closed"):
        writer.write(port, 0, b"")


def test_times_are_integers_of_any_kind_and_no_floats():
    ng, classic = PcapngWriter(io.BytesIO()), PcapWriter(io.BytesIO())
    port = ng.add_interface("a")
    ng.write(port, np.int64(2**62), b"")
    classic.write(np.int64(2**62), b"")
    for writer, ids in ((ng, (port,)), (classic, ())):
        assert frames_of(writer._file.getvalue())[0].time_ps == 2**62 // 1000 * 1000
        with pytest.raises(TypeError):
            writer.write(*ids, 1e12, b"")


@pytest.mark.parametrize("make", [PcapngWriter, PcapWriter])
def test_file_has_its_name_only_when_it_is_whole(tmp_path, make):
    path = tmp_path / "run.pcapng"
    path.write_bytes(b"the one before")
    with make(path):
        assert path.read_bytes() == b"the one before"
        assert len(os.listdir(tmp_path)) == 2
        assert all(name.startswith("run.pcapng") for name in os.listdir(tmp_path))
    assert frames_of(path.read_bytes()) == []
    assert os.listdir(tmp_path) == ["run.pcapng"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_long_name_is_no_obstacle(tmp_path):
    path = tmp_path / ("é" * 124 + ".pcap")
    with PcapWriter(path):
        pass
    assert path.exists()


def test_ctrl_c_keeps_the_frames_so_far(tmp_path):
    path = tmp_path / "run.pcapng"
    code = ("import signal, sys\n"
            "from traces.pcap import PcapngWriter\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "with PcapngWriter(sys.argv[1]) as writer:\n"
            "    port = writer.add_interface('a')\n"
            "    for i in range(200_000):\n"
            "        writer.write(port, i * 1000, bytes(500))\n"
            "        if i == 1000: print('ready', flush=True)\n")
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
    assert os.listdir(tmp_path) == ["run.pcapng"]
    with open_capture(path) as capture:
        numbers = [frame.ticks for frame in capture]
    assert 1000 < len(numbers) < 200_000
    assert numbers == list(range(len(numbers)))


def test_an_error_discards_and_an_interrupt_keeps(tmp_path):
    path = tmp_path / "run.pcap"
    path.write_bytes(b"the one before")
    with pytest.raises(ZeroDivisionError), PcapWriter(path) as writer:  # noqa: PT012
        writer.write(0, b"abc")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["run.pcap"]
    assert path.read_bytes() == b"the one before"
    for leave in (KeyboardInterrupt, SystemExit):
        with pytest.raises(leave), PcapWriter(path) as writer:  # noqa: PT012
            writer.write(0, b"abc")
            writer._file.write(b"half a record")  # as Ctrl-C inside a long write leaves it
            raise leave
        assert [f.data for f in frames_of(path.read_bytes())] == [b"abc"]
        assert os.listdir(tmp_path) == ["run.pcap"]


def test_links_stay_and_devices_are_not_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with PcapWriter(tmp_path / "link"):
        pass
    assert (tmp_path / "link").is_symlink()
    assert frames_of((tmp_path / "real").read_bytes()) == []
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with PcapWriter(fifo) as writer:
            writer.write(5000, b"abc")
            writer.flush()
            assert [f.time_ns for f in frames_of(os.read(reader, 1000))] == [5]
    finally:
        os.close(reader)
    assert fifo.is_fifo()


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as told:
        PcapWriter(tmp_path / "none" / "x.pcap")
    assert told.value.filename == str(tmp_path / "none" / "x.pcap")
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here to fill")
    writer = PcapWriter("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        writer.close()


# --- other tools -----------------------------------------------------------------------------------------------------


def tool(name: str, *arguments: object) -> str:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed, so nothing is compared with it")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def tshark_rows(path: Path) -> list[list[str]]:
    fields = ("frame.number", "frame.time_epoch", "frame.len", "frame.cap_len", "frame.interface_id",
              "frame.interface_name")
    out = tool("tshark", "-r", path, "-T", "fields", *(word for field in fields for word in ("-e", field)))
    return [line.split("\t") for line in out.splitlines()]


def rows_of(path: Path) -> list[list[str]]:
    with open_capture(path) as capture:
        return [[str(f.number), f"{f.time_ns // 10**9}.{f.time_ns % 10**9:09}", str(f.original_bytes), str(len(f.data)),
                 str(f.interface_id), f.interface.name] for f in capture]


TIME_PS = 1_700_000_000_123_456_789_987  # a nanosecond that no float holds


@pytest.fixture
def written(tmp_path) -> Path:
    """A pcapng file with two interfaces and all that the writer can say."""
    path = tmp_path / "written.pcapng"
    with PcapngWriter(path, comment="a run of the tests") as writer:
        a = writer.add_interface("h0.eth0", rate_bps=400 * 10**9, description="host 0")
        b = writer.add_interface("sw1.port9", snaplen=64)
        for i in range(20):
            writer.write(a if i % 3 else b, TIME_PS + i * 81_920, bytes([i]) * (60 + 7 * i),
                         original_bytes=60 + 7 * i + (100 if i == 5 else 0), comment="five" if i == 5 else None,
                         direction=(None, "in", "out")[i % 3])
        writer.write_statistics(a, TIME_PS, received_frames=20, dropped_frames=2)
    return path


def test_tshark_reads_what_was_written(written):
    rows = tshark_rows(written)
    assert rows == rows_of(written)
    assert rows[0][:2] == ["1", "1700000000.123456789"]
    assert {tuple(row[4:]) for row in rows} == {("0", "h0.eth0"), ("1", "sw1.port9")}
    out = tool("tshark", "-r", written, "-Y", "frame.comment", "-T", "fields", "-e", "frame.number", "-e",
               "frame.comment", "-e", "frame.packet_flags_direction")
    assert out.split() == ["6", "five", "0x00000002"]


def test_tshark_reads_picoseconds(tmp_path):
    path = tmp_path / "ps.pcapng"
    with PcapngWriter(path) as writer:
        writer.write(writer.add_interface("h0", resolution_digits=12), 1_000_000_081_920, bytes(64))
    assert tshark_rows(path) == [["1", "1.000000081", "64", "64", "0", "h0"]] == rows_of(path)


def test_capinfos_agrees(written):
    out = tool("capinfos", written)
    for words in ("Number of packets:   20", "File encapsulation:  Ethernet", "Number of interfaces in file: 2",
                  "Capture application: ttpoe ", "Capture comment:     a run of the tests", "Name = h0.eth0",
                  "Description = host 0", "Speed = 400000000000", "Time precision = nanoseconds",
                  "Packet size limit:   inferred: 64 bytes", "Strict time order:   True"):
        assert words in out


@pytest.mark.parametrize("kind", ["pcapng", "nsecpcap", "pcap"])
def test_editcap_copies_read_back_equal(written, tmp_path, kind):
    copy = tmp_path / "a copy with the wrong name.txt"
    # classic pcap has one snap length and no interfaces: editcap keeps bytes, lengths and times
    tool("editcap", "-F", kind, written, copy)
    unit = 10**6 if kind == "pcap" else 10**3
    with open_capture(written) as original, open_capture(copy) as copied:
        assert copied.format == ("pcapng" if kind == "pcapng" else "pcap")
        for one, two in zip(original, copied, strict=True):
            assert (two.number, two.data, two.original_bytes) == (one.number, one.data, one.original_bytes)
            assert two.time_ps == one.time_ps // unit * unit
            if kind == "pcapng":
                assert (two.interface.name, two.direction, two.comment) == (one.interface.name, one.direction,
                                                                            one.comment)


def test_mergecap_keeps_interfaces_apart(written, tmp_path):
    merged = tmp_path / "merged"
    tool("mergecap", "-a", "-w", merged, written, CAPTURES / "modttpoe_three_vcs.pcap")
    with open_capture(merged) as capture:
        frames = list(capture)
    assert len(frames) == 20 + 27
    assert len({f.interface_id for f in frames}) == 3


def test_scapy_agrees(written, tmp_path):
    scapy = pytest.importorskip("scapy.utils")
    with open_capture(written) as capture, scapy.RawPcapNgReader(str(written)) as reader:
        for ours, (data, about) in zip(capture, reader, strict=True):
            assert (data, about.wirelen, about.ifname.decode()) == (ours.data, ours.original_bytes, ours.interface.name)
            assert (about.tshigh << 32 | about.tslow) == ours.ticks
    classic = tmp_path / "x.pcap"
    with PcapWriter(classic) as writer:
        writer.write(TIME_PS, FRAME)
    with scapy.RawPcapReader(str(classic)) as reader:
        (data, about), = reader
    assert (data, about.sec, about.usec) == (FRAME, 1_700_000_000, 123_456_789)


REAL = {"gateway_ip_segment": 80, "gateway_zone1": 53, "gateway_zone2": 24, "ipv4_mode": 31, "open_payload_ack": 19,
        "prober_active_peer": 150, "prober_passive_peer": 104, "reopen_drop5": 227, "three_vcs": 27}


@pytest.mark.parametrize("name", REAL)
def test_real_captures(name):
    path = CAPTURES / f"modttpoe_{name}.pcap"
    with open_capture(path) as capture:
        frames = list(capture)
    assert len(frames) == REAL[name]
    assert all(len(f.data) == f.original_bytes for f in frames)
    rows = tshark_rows(path)
    assert [row[:4] for row in rows] == [row[:4] for row in rows_of(path)]

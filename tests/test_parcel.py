"""A file inside a link's bytes: as bytes, in any pieces, cut anywhere, changed anywhere, and under any name."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttpoe.parcel import (
    KEEPALIVE,
    MAX_RECORD_BYTES,
    Decoder,
    End,
    Header,
    ParcelError,
    Reply,
    Verdict,
    decode_reply,
    encode_data,
    encode_end,
    encode_header,
    encode_reply,
    safe_name,
)

HEADER = bytes.fromhex("54545046 01 00 0003 0000000000000005 612e62 dd41da23")
DATA = bytes.fromhex("01 00000005") + b"hello"
END = bytes.fromhex("02 00000028 0000000000000005") + hashlib.sha256(b"hello").digest()
WHOLE = HEADER + DATA + bytes.fromhex("03 00000000") + END
ITEMS = [Header("a.b", 5), b"hello", End(5, hashlib.sha256(b"hello").digest())]
STORED = bytes.fromhex("54545052 01 00 0005") + b"in/ab"


def decoded(*pieces: bytes) -> list:
    decoder = Decoder()
    return [item for piece in pieces for item in decoder.feed(piece)]


def joined(items: list) -> list:
    """Neighbouring pieces of data as one."""
    out: list = []
    for item in items:
        if isinstance(item, bytes) and out and isinstance(out[-1], bytes):
            out[-1] += item
        else:
            out.append(item)
    return out


def test_as_bytes():
    assert encode_header(ITEMS[0]) + encode_data(b"hello") + KEEPALIVE + encode_end(ITEMS[2]) == WHOLE
    assert decoded(WHOLE) == ITEMS


def test_size_and_name_that_are_not_known():
    head = encode_header(Header("", None))
    assert head[:16] == bytes.fromhex("54545046 01 00 0000 ffffffffffffffff")
    assert decoded(head) == [Header("", None)]


def test_byte_by_byte():
    decoder = Decoder()
    items = []
    for k in range(len(WHOLE)):
        assert not decoder.has_ended
        items += decoder.feed(WHOLE[k : k + 1])
    assert joined(items) == ITEMS
    assert decoder.has_ended
    assert list(decoder.feed(KEEPALIVE)) == []


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.data())
def test_any_pieces(chunks, data):
    stream = encode_header(Header("n\u00e4me", None))
    for chunk in chunks:
        stream += encode_data(chunk)
    whole = b"".join(chunks)
    end = End(len(whole), hashlib.sha256(whole).digest())
    stream += encode_end(end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    items = decoded(*pieces)
    assert items[0] == Header("n\u00e4me", None)
    assert items[-1] == end
    assert b"".join(items[1:-1]) == whole


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_every_truncation_is_a_beginning(length):
    items = joined(decoded(WHOLE[:length]))
    assert items == (ITEMS[:1] if length >= len(HEADER) else []) + (
        [b"hello"[: min(length, len(HEADER) + 10) - len(HEADER) - 5]] if length > len(HEADER) + 5 else []
    )


@pytest.mark.parametrize("at", range(len(HEADER)))
def test_every_bit_of_the_header_is_guarded(at):
    for bit in range(8):
        changed = bytearray(WHOLE)
        changed[at] ^= 1 << bit
        decoder = Decoder()
        try:
            assert list(decoder.feed(bytes(changed))) == [], "waits for a longer name"
        except ParcelError:
            continue
        assert at in (6, 7)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET ", "does not speak the format"),
        (b"TTPR", "does not speak the format"),
        (b"X", "does not speak the format"),
        (HEADER[:4] + b"\2" + HEADER[5:], "version 2"),
        (HEADER[:5] + b"\1" + HEADER[6:], r"flags 1"),
        (HEADER[:6] + b"\1\0" + HEADER[8:], "name has 256 bytes"),
        (HEADER[:16] + b"b" + HEADER[17:], "header arrived changed"),
        (encode_header(Header("ab", 1))[:16], None),
        (HEADER + b"\0\0\0\0\0", "record arrived changed"),
        (HEADER + b"\4\0\0\0\0", "record arrived changed"),
        (HEADER + b"\1\0\0\0\0", "record arrived changed"),
        (HEADER + b"\3\0\0\0\1", "record arrived changed"),
        (HEADER + b"\1" + (MAX_RECORD_BYTES + 1).to_bytes(4, "big"), "record arrived changed"),
        (HEADER + b"\1" + MAX_RECORD_BYTES.to_bytes(4, "big"), None),
        (HEADER + b"\2\0\0\0\x27", "record arrived changed"),
        (WHOLE + DATA, "more behind the end"),
        (WHOLE + END, "more behind the end"),
    ],
)
def test_what_is_no_parcel(data, message):
    if message is None:
        decoded(data)
        return
    with pytest.raises(ParcelError, match=message):
        decoded(data)


def test_a_name_that_is_not_utf8():
    import zlib

    head = HEADER[:16] + b"\xff.b"
    with pytest.raises(ParcelError, match="not UTF-8"):
        decoded(head + zlib.crc32(head).to_bytes(4, "big"))


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: HEADER + tail))
def test_arbitrary_bytes_raise_nothing_else(data):
    decoder = Decoder()
    try:
        for k in range(0, len(data), 7):
            list(decoder.feed(data[k : k + 7]))
    except ParcelError:
        return
    assert len(decoder._buffer) < 16 + 255 + 4


# The answer


def test_reply_as_bytes():
    assert encode_reply(Reply(Verdict.STORED, "in/ab")) == STORED
    assert decode_reply(STORED) == Reply(Verdict.STORED, "in/ab")
    for length in range(len(STORED)):
        assert decode_reply(STORED[:length]) is None


@pytest.mark.parametrize(
    "data", [b"X", b"TTPF", STORED[:4] + b"\2\0\0\0", STORED[:5] + b"\4\0\0", STORED[:6] + b"\3\xe9"]
)
def test_what_is_no_reply(data):
    with pytest.raises(ParcelError):
        decode_reply(data)


def test_reply_texts_steer_no_terminal():
    assert decode_reply(encode_reply(Reply(Verdict.REFUSED, "a\x1b[31m\nb"))) == Reply(Verdict.REFUSED, "a?[31m?b")
    long = decode_reply(encode_reply(Reply(Verdict.FAILED, "\u00e4" * 999)))
    assert long == Reply(Verdict.FAILED, "\u00e4" * 500)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: STORED[:5] + tail))
def test_arbitrary_replies_raise_nothing_else(data):
    try:
        decode_reply(data)
    except ParcelError:
        return


# Names


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a.b", "a.b"), ("/etc/passwd", "passwd"), ("../../etc/shadow", "shadow"), ("..\\..\\boot.ini", "boot.ini"),
        ("C:\\x", "x"), ("a/../b", "b"), ("n\u00e4me with space", "n\u00e4me with space"), ("-rf", "-rf"),
        ("x" * 240, "x" * 240),
    ],
)  # fmt: skip
def test_the_last_part_of_a_name_is_taken(name, safe):
    assert safe_name(name) == safe


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "/", "a/", "../..", "a/..", "a\\", ".bashrc", "x/.ssh", "a\0b", "a\nb", "a\x1b[2J", "a\u202eb",
     "x" * 241, "\u00e4" * 121],
)  # fmt: skip
def test_names_that_are_refused(name):
    with pytest.raises(ParcelError, match="give --out a file name"):
        safe_name(name)


@given(st.text(max_size=300))
def test_no_name_leaves_the_directory(name):
    try:
        safe = safe_name(name)
    except ParcelError:
        return
    assert "/" not in safe
    assert "\\" not in safe
    assert not safe.startswith(".")
    assert 0 < len(safe.encode()) <= 240

"""Quantities that users type, and the time a frame takes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttpoe import units
from ttpoe._jit import kernel


@kernel(export=True)
def _serialization_ps(size_bytes, rate_bps):
    return units.serialization_ps(size_bytes, rate_bps)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0), ("1500", 1500), ("1500B", 1500), ("1kB", 1000), ("1KB", 1000), ("1KiB", 1024), ("1MB", 10**6),
        ("2MiB", 2 * 2**20), ("1.5GB", 1_500_000_000), ("1TB", 10**12), ("1TiB", 2**40), ("1e6", 10**6),
        ("1_000_000", 10**6), (" 12 MB ", 12 * 10**6), ("0.5KiB", 512), ("25e-1kB", 2500),
    ],
)  # fmt: skip
def test_sizes(text, size_bytes):
    assert units.parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("100G", 10**11), ("25Gbps", 25 * 10**9), ("400Gbit/s", 4 * 10**11), ("1T", 10**12), ("10Mb/s", 10**7),
        ("9600", 9600), ("9600bps", 9600), ("1.6Tbps", 16 * 10**11),
    ],
)  # fmt: skip
def test_rates(text, rate_bps):
    assert units.parse_rate_bps(text) == rate_bps


@pytest.mark.parametrize(
    ("text", "time_ps"),
    [
        ("1ps", 1), ("1ns", 1000), ("1us", 10**6), ("1\u00b5s", 10**6), ("1\u03bcs", 10**6), ("2.5ms", 25 * 10**8),
        ("1s", 10**12), ("0.001ns", 1), ("4611686s", 4_611_686 * 10**12),
    ],
)  # fmt: skip
def test_times(text, time_ps):
    assert units.parse_time_ps(text) == time_ps


@pytest.mark.parametrize(
    ("text", "fraction"), [("0", 0.0), ("1", 1.0), ("1%", 0.01), ("100%", 1.0), ("0.5 %", 0.005), ("1e-6", 1e-6)]
)
def test_fractions(text, fraction):
    assert units.parse_fraction(text) == fraction


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (units.parse_size_bytes, "", "'' is not a size; write a number with one of B, kB,"),
        (units.parse_size_bytes, "-5kB", "'-5kB' is not a size"),
        (units.parse_size_bytes, "5 bananas", "as in 12MB or 1MiB"),
        (units.parse_size_bytes, "5mb", "is not a size"),
        (units.parse_size_bytes, "1.5B", "not a whole number of the size's smallest unit"),
        (units.parse_size_bytes, "9e18", "too large a size"),
        (units.parse_size_bytes, "1e999999MB", "is not a size"),  # and no megabytes of digits to find out
        (units.parse_size_bytes, "5_", "is not a size"),
        (units.parse_size_bytes, "nan", "is not a size"),
        (units.parse_rate_bps, "100GB", "'100GB' is not a rate; write a number with one of bps, k,"),
        (units.parse_rate_bps, "1e7T", "too large a rate"),
        (units.parse_time_ps, "5", "'5' is not a time; write a number with one of ps, ns, us, ms, s, as in 1us or"),
        (units.parse_time_ps, "0.5ps", "not a whole number of the time's smallest unit"),
        (units.parse_time_ps, "1.0000000000000000000000000001s", "not a whole number"),
        (units.parse_time_ps, "4611687s", "too large a time"),
        (units.parse_time_ps, "\u0661s", "is not a time"),  # a digit, but none of ours
        (units.parse_fraction, "101%", "'101%' is not a fraction; write 0.01 or 1%, from 0 to 100%"),
        (units.parse_fraction, "-0.1", "is not a fraction"),
        (units.parse_fraction, "1__0", "is not a fraction"),
        (units.parse_fraction, "1 kB", "is not a fraction"),
    ],
)
def test_bad_input_is_told_with_the_fix(parse, text, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        parse(text)


@given(st.text(alphabet="0123456789.eE+-_ %kKMGTiBbpsnum/\u00b5", max_size=12))
def test_nothing_but_a_number_or_a_value_error(text):
    for parse in (units.parse_size_bytes, units.parse_rate_bps, units.parse_time_ps, units.parse_fraction):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert 0 <= value < units.NEVER


def test_serialization_is_exact_and_rounds_up():
    assert _serialization_ps(1108, 100_000_000_000) == 88_640  # a full PAYLOAD at 100G: 80 ps a byte
    assert _serialization_ps(88, 400_000_000_000) == 1_760
    assert _serialization_ps(1, 3_000_000_000_000) == 3  # 2.67 ps
    assert _serialization_ps(0, 1) == 0


@given(st.integers(0, units.MAX_FRAME_BYTES), st.integers(1, 10**13))
def test_serialization_is_the_ceiling(size_bytes, rate_bps):
    assert _serialization_ps(size_bytes, rate_bps) == -(-size_bytes * 8 * units.PS_PER_S // rate_bps)


def test_never_leaves_room_for_a_delay():
    assert 2 * units.NEVER - 1 < 2**63

"""Conversions between picoseconds, bytes and bit rates, and the parsing of quantities with units.

Owns every unit suffix that a user may type. Knows nothing of frames or links.
"""

from __future__ import annotations

import re
from fractions import Fraction

from ttpoe._jit import kernel

PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_MS = 1_000_000_000
PS_PER_S = 1_000_000_000_000

NEVER = 2**62
"""The deadline that never comes; adding a delay to it cannot wrap an int64."""

MAX_FRAME_BYTES = 1_000_000
"""Above 1.15 MB the product in :func:`serialization_ps` leaves int64."""

_SIZES = {"": 1, "B": 1, **{f"{p}B": 1000**i for i, p in enumerate(("k", "M", "G", "T"), 1)},
          "KB": 1000, **{f"{p}iB": 1024**i for i, p in enumerate(("K", "M", "G", "T"), 1)}}
_RATES = {"": 1, "bps": 1, **{f"{p}{s}": 1000**i for i, p in enumerate(("k", "M", "G", "T"), 1)
                              for s in ("", "bps", "bit/s", "b/s")}}
_TIMES = {"ps": 1, "ns": PS_PER_NS, "us": PS_PER_US, "\u00b5s": PS_PER_US, "\u03bcs": PS_PER_US,  # micro sign, Greek mu
          "ms": PS_PER_MS, "s": PS_PER_S}

# An exponent of two digits reaches beyond every quantity here, and keeps the arithmetic small.
_QUANTITY = re.compile(
    r"\s*([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-z\u00b5\u03bc/%]*)\s*")


@kernel
def serialization_ps(size_bytes, rate_bps):
    """Exact time a frame occupies a line, rounded up to a picosecond.

    Parameters
    ----------
    size_bytes : int64
        Bytes on the line, preamble, FCS and gap included; at most `MAX_FRAME_BYTES`.
    rate_bps : int64
        Line rate in bit/s, above zero.

    Returns
    -------
    int64
        Picoseconds.
    """
    return (size_bytes * 8_000_000_000_000 + rate_bps - 1) // rate_bps


def _parse(text: str, units: dict[str, int], what: str, example: str) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit.isascii() and unit)
        raise ValueError(f"{text!r} is not a {what}; write a number with one of {known}, as in {example}")
    value = Fraction(match[1]) * units[match[2]]
    if value >= NEVER:
        raise ValueError(f"{text!r} is too large a {what}; it must stay below 2**62 of its smallest unit")
    if value.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of the {what}'s smallest unit")
    return int(value)


def parse_size_bytes(text: str) -> int:
    """Bytes from text such as ``1MB`` (10^6), ``2MiB`` (2^20) or ``1500``; raises ValueError naming the fix."""
    return _parse(text, _SIZES, "size", "12MB or 1MiB")


def parse_rate_bps(text: str) -> int:
    """Bit/s from text such as ``100G`` (10^11 bit/s) or ``25Gbps``; raises ValueError naming the fix."""
    return _parse(text, _RATES, "rate", "100G or 25Gbps")


def parse_time_ps(text: str) -> int:
    """Picoseconds from text such as ``1us`` or ``2.5ms``; a unit is required; raises ValueError naming the fix."""
    return _parse(text, _TIMES, "time", "1us or 2.5ms")


def _share(text: str) -> Fraction | None:
    match = _QUANTITY.fullmatch(text)
    return Fraction(match[1]) / (100 if match[2] else 1) if match is not None and match[2] in ("", "%") else None


def parse_fraction(text: str) -> float:
    """A probability from ``1%`` or ``0.01``; raises ValueError naming the fix."""
    value = _share(text)
    if value is None or value > 1:
        raise ValueError(f"{text!r} is not a fraction; write 0.01 or 1%, from 0 to 100%")
    return float(value)


def parse_load(text: str) -> float:
    """A load from ``150%`` or ``1.5``; raises ValueError naming the fix."""
    value = _share(text)
    if value is None:
        raise ValueError(f"{text!r} is not a load; write 0.4 or 40%, and above 100% to overload")
    return float(value)


def parse_ratio(text: str) -> Fraction:
    """A ratio from ``4:1``, ``3:2`` or ``4``; raises ValueError naming the fix."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(?::([0-9]{1,6}))?", text.strip())
    if match is None or not Fraction(match[1]) or not int(match[2] or 1):
        raise ValueError(f"{text!r} is not a ratio; write 4:1, 3:2 or 4, without zeros")
    return Fraction(match[1]) / int(match[2] or 1)

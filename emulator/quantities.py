"""The types of a scenario's fields: quantities with units, and their limits.

A quantity may be a number in the unit of its name or text with a unit of its own: ``rate_bps = "100G"``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, create_model

from ttpoe import units
from ttpoe.impairments import FRACTIONS, ImpairmentConfig

STRICT = ConfigDict(extra="forbid")
"""Of every room of a scenario."""


class ConfigError(ValueError):
    """A scenario that cannot be run; the message is one sentence that names the field and the fix."""


def quantity(parse: Callable[[str], float]) -> BeforeValidator:
    """Reads text by ``parse``; other values pass."""

    def convert(value: Any) -> Any:
        return parse(value) if isinstance(value, str) else value

    return BeforeValidator(convert)


Bytes = Annotated[int, quantity(units.parse_size_bytes), Field(gt=0, lt=2**50, strict=True)]
Mtu = Annotated[int, quantity(units.parse_size_bytes), Field(ge=1, le=9_000, strict=True)]
MAX_HOSTS = 65_536
Host = Annotated[int, Field(ge=0, lt=MAX_HOSTS, strict=True)]


def _expanded(value: Any) -> Any:
    """Numbers of hosts in place of ranges such as ``"128-255"``; what is neither is left to be refused."""
    if not isinstance(value, list | tuple):
        return value
    numbers: list[Any] = []
    for item in value:
        if not isinstance(item, str):
            numbers.append(item)
            continue
        first, _, last = (part.strip() for part in item.partition("-"))
        are_short = max(len(first), len(last)) <= len(str(MAX_HOSTS))  # which int() takes, whatever they are
        if not (are_short and first.isdecimal() and last.isdecimal() and int(first) <= int(last) < MAX_HOSTS):
            text = repr(item if len(item) <= 40 else f"{item[:40]}...")
            raise ValueError(f'{text} is no range of hosts; give the first and the last, as in "128-255"')
        numbers += range(int(first), int(last) + 1)
    return numbers


Hosts = Annotated[tuple[Host, ...], BeforeValidator(_expanded), Field(min_length=1)]
Bps = Annotated[int, quantity(units.parse_rate_bps), Field(ge=1_000_000, le=10**13, strict=True)]
LONGEST_PS = 3600 * units.PS_PER_S
"""Of any time that a scenario names. Sums of a thousand stay within int64."""
Picoseconds = Annotated[int, quantity(units.parse_time_ps), Field(ge=0, le=LONGEST_PS, strict=True)]
PositivePicoseconds = Annotated[int, quantity(units.parse_time_ps), Field(gt=0, le=LONGEST_PS, strict=True)]
Priority = Annotated[int, Field(ge=0, le=7, strict=True)]
Ordinal = Annotated[int, Field(ge=1, lt=2**62, strict=True)]


def _type_of(name: str, default: Any) -> Any:
    """What an impairment takes, by the unit in its name."""
    if name in FRACTIONS:
        return Annotated[float, quantity(units.parse_fraction), Field(ge=0, le=1, strict=True)]
    if name.endswith("_ps"):
        return Picoseconds
    if name.endswith("_bps"):
        return Annotated[int, quantity(units.parse_rate_bps), Field(ge=0, strict=True)]
    if name.endswith("_bytes"):
        return Bytes if default else Annotated[int, quantity(units.parse_size_bytes), Field(ge=0, strict=True)]
    if isinstance(default, tuple):
        return tuple[Ordinal, ...]
    if isinstance(default, float):
        return Annotated[float, Field(strict=True)]
    return Annotated[int, Field(ge=0, lt=2**31, strict=True)]


_PLAIN_FIELDS: Any = {f.name: (_type_of(f.name, f.default), f.default) for f in fields(ImpairmentConfig)}
_PLAIN_IMPAIRMENTS = create_model("Impairments", __config__=STRICT, **_PLAIN_FIELDS)


MAX_OVERTAKING = 1000
"""Ours: a frame that passes looks at all that are held, which are as many at most."""


def _impairments(value: Any) -> Any:
    """Take the fields of an ImpairmentConfig, or one; what is neither is left to be refused."""
    values = asdict(value) if isinstance(value, ImpairmentConfig) else value
    if not isinstance(values, dict):
        return value
    if values.get("mark_above_bytes"):
        raise ValueError("mark_above_bytes: frames for an emulated link wait in a switch; set switch.ecn in its place")
    config = ImpairmentConfig(**_PLAIN_IMPAIRMENTS.model_validate(values).model_dump())
    if config.rate_bps:
        raise ValueError("rate_bps: an emulated link has a rate already; set rate_bps of the link in its place")
    if config.max_overtaking > MAX_OVERTAKING:
        raise ValueError(f"max_overtaking: must be at most {MAX_OVERTAKING} (given {config.max_overtaking})")
    return config


Impairments = Annotated[ImpairmentConfig, BeforeValidator(_impairments)]
OptionalImpairments = Annotated[ImpairmentConfig | None, BeforeValidator(_impairments)]

"""The types of a scenario's fields: quantities with units, and their limits.

A quantity may be a number in the unit of its name or text with a unit of its own: ``rate_bps = "100G"``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from ttpoe import units

STRICT = ConfigDict(extra="forbid")
"""Of every room of a scenario."""


class ConfigError(ValueError):
    """A scenario that cannot be run; the message is one sentence that names the field and the fix."""


def quantity(parse: Callable[[str], int]) -> BeforeValidator:
    """Reads text by ``parse``; other values pass."""

    def convert(value: Any) -> Any:
        return parse(value) if isinstance(value, str) else value

    return BeforeValidator(convert)


Bytes = Annotated[int, quantity(units.parse_size_bytes), Field(gt=0, lt=2**50, strict=True)]
Mtu = Annotated[int, quantity(units.parse_size_bytes), Field(ge=1, le=9_000, strict=True)]
Host = Annotated[int, Field(ge=0, lt=65_536, strict=True)]
Bps = Annotated[int, quantity(units.parse_rate_bps), Field(ge=1_000_000, le=10**13, strict=True)]
Picoseconds = Annotated[int, quantity(units.parse_time_ps), Field(ge=0, le=3600 * units.PS_PER_S, strict=True)]
PositivePicoseconds = Annotated[int, quantity(units.parse_time_ps), Field(gt=0, le=3600 * units.PS_PER_S, strict=True)]
Priority = Annotated[int, Field(ge=0, le=7, strict=True)]

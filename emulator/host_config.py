"""The fields of hosts: who reads what they receive, and which of them are faulty."""

from __future__ import annotations

from math import gcd
from typing import Annotated

from pydantic import AfterValidator, model_validator
from pydantic.dataclasses import dataclass

from emulator.quantities import STRICT, Bps, Bytes, Host, Picoseconds, PositivePicoseconds, Priority
from ttpoe import units


def drain_ratio(rate_bps: int) -> tuple[int, int]:
    """A rate as bytes in picoseconds, in lowest terms; ValueError if their product leaves int64."""
    common = gcd(rate_bps, 8 * units.PS_PER_S)
    n_bytes, n_ps = rate_bps // common, 8 * units.PS_PER_S // common
    if n_bytes * n_ps >= 2**62:
        raise ValueError("this rate cannot be counted to the byte; round it to a few digits")
    return n_bytes, n_ps


def _countable(rate_bps: int) -> int:
    drain_ratio(rate_bps)
    return rate_bps


@dataclass(frozen=True, config=STRICT)
class PauseStormConfig:
    """A faulty host: all its NICs pause their switch, and renew the pause, under transports with PFC."""

    host: Host
    start_ps: Picoseconds = 0
    end_ps: PositivePicoseconds | None = None
    """None: never."""
    priority: Priority | None = None
    """None: the scenario's."""

    @model_validator(mode="after")
    def _check(self) -> PauseStormConfig:
        if self.end_ps is not None and self.end_ps <= self.start_ps:
            raise ValueError(f"end_ps {self.end_ps} is not after start_ps {self.start_ps}; raise it")
        return self


@dataclass(frozen=True, config=STRICT)
class HostConfig:
    """What reads a host's TTPoE links: one reader for each. RoCE writes to memory that is always there."""

    rx_buffer_bytes: Bytes = 256_000
    """In order and not yet read, per link; a PAYLOAD beyond it is refused with NACK_FULL."""
    drain_rate_bps: Annotated[Bps, AfterValidator(_countable)] | None = None
    """Of each reader; None: it reads at once, and the buffer never fills."""
    pause_storms: tuple[PauseStormConfig, ...] = ()
    """Faulty hosts, one storm each at most."""

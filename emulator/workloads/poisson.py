"""Messages of random size at random times: Poisson arrivals, sizes from published distributions."""

from __future__ import annotations

import heapq
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from emulator.quantities import STRICT, Bytes, PositivePicoseconds
from emulator.workloads.message import (
    Message,
    Numbering,
    Setting,
    Workload,
    below,
    check_size,
    name_hash,
    require_hosts,
)
from ttpoe.units import PS_PER_S

Distribution = tuple[tuple[int, int], ...]
"""Points (bytes, share of messages up to this size in 1/10000), from (0, 0) to 10000; straight lines between them."""

_PERCENT = 100
WEB_SEARCH: Distribution = tuple((size, share * _PERCENT) for size, share in (
    (0, 0), (10_000, 15), (20_000, 20), (30_000, 30), (50_000, 40), (80_000, 53), (200_000, 60), (1_000_000, 70),
    (2_000_000, 80), (5_000_000, 90), (10_000_000, 97), (30_000_000, 100),
))  # fmt: skip
"""Web search (Alizadeh et al., DCTCP, 2010), in the points of HPCC's traffic generator (Li et al., 2019)."""

HADOOP: Distribution = (
    (0, 0), (100, 100), (200, 200), (300, 500), (350, 1500), (400, 2000), (500, 3000), (600, 4000), (700, 5000),
    (1_000, 6000), (2_000, 6700), (7_000, 7000), (30_000, 7200), (50_000, 8200), (80_000, 8700), (120_000, 9000),
    (300_000, 9500), (1_000_000, 9750), (2_000_000, 9900), (10_000_000, 10_000),
)  # fmt: skip
"""Facebook's Hadoop (Roy et al., "Inside the social network's datacenter network", 2015), as HPCC has it."""

ALI_STORAGE: Distribution = (
    (0, 0), (4_000, 2293), (8_000, 6921), (16_000, 8061), (32_000, 9047), (64_000, 9353), (128_000, 9677),
    (256_000, 9753), (2_000_000, 10_000),
)  # fmt: skip
"""Alibaba's distributed storage, 2019, published with HPCC's traffic generator."""

DISTRIBUTIONS: dict[str, Distribution] = {"websearch": WEB_SEARCH, "hadoop": HADOOP, "alistorage": ALI_STORAGE}
_WHOLE = 10_000


def draw_size(points: Distribution, draw: int) -> int:
    """Bytes of a message, at least 1: the inverse of the distribution at ``draw`` / 2**64, in integers."""
    at = draw * _WHOLE  # in 1/10000 of 2**64
    for (low, below_share), (high, share) in pairwise(points):
        if at < share << 64:
            return max(1, low + (high - low) * (at - (below_share << 64)) // ((share - below_share) << 64))
    raise AssertionError("a distribution ends at 10000")


def mean_size(points: Distribution) -> Fraction:
    """Mean of a distribution, bytes, exactly (but for rounding down to whole bytes)."""
    total = sum((b[1] - a[1]) * (a[0] + b[0]) for a, b in pairwise(points))
    return Fraction(total, 2 * _WHOLE)


_DECIMAL = Context(prec=28)
_LN_2_64 = _DECIMAL.ln(Decimal(2**64))


def draw_gap_ps(mean_ps: Fraction, draw: int) -> int:
    """Time to the next arrival: -ln((draw + 1) / 2**64) means, rounded down.

    Decimal logarithms are rounded correctly, so they are the same on every machine; those of a C library are not.
    """
    nats = Fraction(_LN_2_64 - _DECIMAL.ln(Decimal(draw + 1)))
    return int(mean_ps * nats)


@dataclass(frozen=True, config=STRICT)
class PoissonConfig:
    """Each host sends messages to random others, at random times that do not depend on each other."""

    kind: Literal["poisson"] = "poisson"
    load: Annotated[float, Field(gt=0, le=4, strict=True)] = 0.5
    """Payload that a host offers, over its line rate (``link.rate_bps``), in steps of 1/10**6; headers come on top."""
    distribution: Literal["websearch", "hadoop", "alistorage"] | None = None
    """Of sizes; None: websearch, unless ``size_bytes`` is given."""
    size_bytes: Bytes | None = None
    """All of one size instead."""
    messages: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = None
    """The first so many; None: 1000, unless ``duration_ps`` is given."""
    duration_ps: PositivePicoseconds | None = None
    """All that arrive within it."""

    @model_validator(mode="after")
    def _check(self) -> PoissonConfig:
        if self.distribution is not None and self.size_bytes is not None:
            raise ValueError("distribution and size_bytes both say how large messages are; give one of them")
        if self.messages is not None and self.duration_ps is not None:
            raise ValueError("messages and duration_ps both say where to end; give one of them")
        if round(self.load * 10**6) == 0:
            raise ValueError("load is below 1/10**6; raise it")
        return self

    def make(self, setting: Setting) -> Workload:
        """The messages, in order of time."""
        hosts, seed = setting.host_count("Poisson traffic"), setting.seed
        require_hosts(hosts, 2, "Poisson traffic")
        points = DISTRIBUTIONS[self.distribution or "websearch"]
        mean_bytes = Fraction(self.size_bytes) if self.size_bytes else mean_size(points)
        rate = Fraction(round(self.load * 10**6), 10**6) * setting.rate_bps
        mean_ps = mean_bytes * 8 * PS_PER_S / rate
        if self.duration_ps is not None:
            check_size(int(hosts * self.duration_ps / mean_ps))
        most = (self.messages or 1000) if self.duration_ps is None else 1_000_000
        turns = [0] * hosts
        due = [(draw_gap_ps(mean_ps, name_hash(seed, "gap", f"h{h}", "0")), h) for h in range(hosts)]
        heapq.heapify(due)
        numbering = Numbering()
        messages: list[Message] = []
        while len(messages) < most and (self.duration_ps is None or due[0][0] < self.duration_ps):
            at_ps, src = due[0]
            names = (f"h{src}", str(turns[src]))
            dst = (src + 1 + below(hosts - 1, seed, "to", *names)) % hosts
            size = self.size_bytes or draw_size(points, name_hash(seed, "size", *names))
            messages.append(Message(src, dst, size, at_ps, numbering.next(src, dst)))
            turns[src] += 1
            gap_ps = draw_gap_ps(mean_ps, name_hash(seed, "gap", f"h{src}", str(turns[src])))
            heapq.heapreplace(due, (at_ps + gap_ps, src))
        return Workload(messages, hosts)

"""One claim to hold the emulator to: what others or theory say, how it is measured here, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from emulator.config import make_scenario
from emulator.fabric import Fabric
from emulator.results import RunResult


class Verdict(Enum):
    """Of a row."""

    PASS = "pass"
    FAIL = "fail"
    NOT_YET = "not yet"


@dataclass(frozen=True)
class Check:
    """One measured figure and the range that it must lie in, tolerance included."""

    what: str
    value: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether it does; never for NaN."""
        return self.low <= self.value <= self.high


@dataclass(frozen=True)
class Measured:
    """What a row measured."""

    ours: str
    """As the peer counts (or theory), in a table's cell."""
    checks: tuple[Check, ...]
    """All must hold."""
    real: str = ""
    """The same with everything that is really on the line, where that makes a difference."""

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("a row without a check cannot fail")


@dataclass(frozen=True)
class Row:
    """One row of docs/validation.md."""

    name: str
    what: str
    setup: str
    expected: str
    source: str
    tolerance: str
    measure: Callable[[], Measured] | None = None
    """None: it waits for ``needs``."""
    needs: str = ""
    """What must exist before it can be measured."""
    note: str = ""
    """Where we differ and why, or what the figures mean."""
    is_quick: bool = False
    """A few seconds; the tests run these."""

    def __post_init__(self) -> None:
        if (self.measure is None) == (not self.needs):
            raise ValueError(f"{self.name}: give either what measures it or what it waits for")


@dataclass(frozen=True)
class Outcome:
    """A row with what came of it."""

    row: Row
    verdict: Verdict
    measured: Measured | None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        row = self.row
        told = {name: getattr(row, name) for name in ("name", "what", "setup", "expected", "source", "tolerance")}
        told |= {"verdict": self.verdict.value, "ours": None, "real": None, "checks": []}
        if self.measured is not None:
            told |= {"ours": self.measured.ours, "real": self.measured.real or None}
            told["checks"] = [asdict(check) | {"holds": check.holds} for check in self.measured.checks]
        return told | {"needs": row.needs or None, "note": row.note or None}


def evaluate(row: Row) -> Outcome:
    """Measure a row and judge it."""
    if row.measure is None:
        return Outcome(row, Verdict.NOT_YET, None)
    measured = row.measure()
    return Outcome(row, Verdict.PASS if all(check.holds for check in measured.checks) else Verdict.FAIL, measured)


# --- what rows measure with -------------------------------------------------------------------------------------------

US = 10**6
"""Picoseconds."""


def build(values: dict[str, Any], transport: str, seed: int = 1) -> Fabric:
    """A fabric about to run, from plain values."""
    return Fabric(make_scenario(values), transport, seed)


def finish(values: dict[str, Any], transport: str, seed: int = 1) -> RunResult:
    """A run in which every flow must finish and every promise hold; else the row cannot be measured."""
    return all_done(build(values, transport, seed))


def all_done(fabric: Fabric) -> RunResult:
    """As :func:`finish`, of a fabric that is about to run."""
    result = fabric.run()
    if result.unfinished or result.errors:
        raise RuntimeError(f"{fabric.transport}, seed {fabric.seed}: {(result.errors + result.unfinished)[0]}")
    return result


def flows(*rows: tuple[int, ...]) -> dict[str, Any]:
    """Plain values of a workload of single messages: (src, dst, size_bytes[, start_ps])."""
    names = ("src", "dst", "size_bytes", "start_ps")
    return {"kind": "flows", "flows": [dict(zip(names, row, strict=False)) for row in rows]}


def last_us(result: RunResult, field: str = "fct_tx_ps") -> float:
    """The last completion, at the sender (where htsim stamps it) unless said otherwise."""
    return float(result.flows[field].max()) / US


def delivered_bytes(fabric: Fabric) -> np.ndarray:
    """Payload in order at each flow's receiver so far, int64, of a run that may not have ended."""
    w = fabric.world
    rows = w.links if fabric.profile.is_ttpoe else w.tcps if fabric.profile.is_tcp else w.qps
    return rows["rx_bytes"][1::2].astype(np.int64)


def delivered_gbps(fabric: Fabric, time_ps: int) -> list[float]:
    """The same over a time."""
    return (delivered_bytes(fabric) * 8_000 / time_ps).tolist()

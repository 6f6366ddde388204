"""The drivers' clock: monotonic picoseconds in int64, and the event loop's time for them."""

from __future__ import annotations

import time

from ttpoe.units import PS_PER_NS, PS_PER_S

_EPOCH_NS = time.monotonic_ns()


def now_ps() -> int:
    """Since this process began: `ttpoe.units.NEVER` is 53 days, and machines are up for longer."""
    return (time.monotonic_ns() - _EPOCH_NS) * PS_PER_NS


def loop_time_s(time_ps: int) -> float:
    """The same moment by the clock of asyncio's event loops."""
    return _EPOCH_NS / 1e9 + time_ps / PS_PER_S

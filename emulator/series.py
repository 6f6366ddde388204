"""Queue depth and pauses over time, in buckets that are wider the later they are: flat memory, no sampling events.

1024 buckets hold what has been so far; when they are full they are merged in pairs. The later half of what is merged is
kept besides, so that the beginning of a long run is told as finely as that of a short one. The maximum in a bucket is
exact.
"""

from __future__ import annotations

import numpy as np

from ttpoe._jit import kernel

BUCKETS = 1024
FIRST_BUCKET_PS = 100_000
"""0.1 us: 102 us in all before the first doubling."""
ROWS = 16 * BUCKETS
"""The buckets that are merged, then those that are kept, in the order of time: room for 15 hours."""


def edges_ps(count: int) -> np.ndarray:
    """int64 (count + 1,): where ``count`` buckets from the start of a run begin, and where the last one ends."""
    doublings = np.maximum(np.arange(count) // (BUCKETS // 2) - 1, 0)
    return np.concatenate([[0], np.cumsum(FIRST_BUCKET_PS << doublings)])


def collect_series(kept: int, series: np.ndarray, end_ps: int) -> np.ndarray:
    """The buckets up to ``end_ps``, the finest of each time; ``kept`` is the engine's ``series_kept``."""
    live = series[BUCKETS // 2 : BUCKETS] if kept else series[:BUCKETS]
    rows = np.concatenate([series[BUCKETS : BUCKETS + kept], live])
    return rows[: np.searchsorted(edges_ps(len(rows)), end_ps, side="right")]


def carry_on(rows: np.ndarray) -> np.ndarray:
    """Give buckets without a sample the last values before them; returns ``rows``, modified."""
    for name, bit in (("depth_bytes", 1), ("paused", 2)):
        touched = (rows["is_touched"] & bit) != 0
        source = np.maximum.accumulate(np.where(touched, np.arange(len(rows)), -1))
        carried = np.where(source >= 0, rows[name][source], 0)
        before = np.concatenate([[0], carried[:-1]])
        rows[name] = carried
        peak = "depth_max_bytes" if bit == 1 else "paused_max"
        rows[peak] = np.maximum(rows[peak], before)  # what held when the bucket began counts as well
    return rows


@kernel
def _double(engine, series):
    """Merge buckets in pairs; a bucket without a sample holds nothing until results carry the last value on."""
    for k in range(BUCKETS // 2 if engine["series_kept"] else 0, BUCKETS):
        kept = series[BUCKETS + engine["series_kept"]]
        kept["depth_max_bytes"] = series[k]["depth_max_bytes"]
        kept["depth_bytes"] = series[k]["depth_bytes"]
        kept["paused_max"] = series[k]["paused_max"]
        kept["paused"] = series[k]["paused"]
        kept["is_touched"] = series[k]["is_touched"]
        engine["series_kept"] += 1
    for k in range(BUCKETS):
        into = series[k]
        if 2 * k >= BUCKETS:
            into["depth_max_bytes"] = 0
            into["depth_bytes"] = 0
            into["paused_max"] = 0
            into["paused"] = 0
            into["is_touched"] = 0
            continue
        first = series[2 * k]
        second = series[2 * k + 1]
        depth_max = max(first["depth_max_bytes"], second["depth_max_bytes"])
        paused_max = max(first["paused_max"], second["paused_max"])
        touched = first["is_touched"] | second["is_touched"]
        depth = second["depth_bytes"] if second["is_touched"] & 1 else first["depth_bytes"]
        paused = second["paused"] if second["is_touched"] & 2 else first["paused"]
        into["depth_max_bytes"] = depth_max
        into["paused_max"] = paused_max
        into["depth_bytes"] = depth
        into["paused"] = paused
        into["is_touched"] = touched
    engine["series_bucket_ps"] *= 2


@kernel(inline=True)
def _bucket(engine, series, now_ps):
    if now_ps >= engine["series_until_ps"]:  # time never runs back
        while now_ps // engine["series_bucket_ps"] >= BUCKETS:
            _double(engine, series)
        engine["series_index"] = now_ps // engine["series_bucket_ps"]
        engine["series_until_ps"] = (engine["series_index"] + 1) * engine["series_bucket_ps"]
    return engine["series_index"]


@kernel(export=True)
def extend(engines, series, end_ps):
    """Make room up to ``end_ps``, so that the last values can be carried on to the end of a run."""
    _bucket(engines[0], series, end_ps)


@kernel
def sample(engine, series, depth_bytes, now_ps):
    """The watched queue holds ``depth_bytes`` from now on. Both arrays modified in place."""
    row = series[_bucket(engine, series, now_ps)]
    row["is_touched"] |= 1
    row["depth_bytes"] = depth_bytes
    row["depth_max_bytes"] = max(row["depth_max_bytes"], depth_bytes)


@kernel
def sample_paused(engine, series, now_ps):
    """``engine["paused_count"]`` pairs of port and priority are paused from now on."""
    row = series[_bucket(engine, series, now_ps)]
    row["is_touched"] |= 2
    row["paused"] = engine["paused_count"]
    row["paused_max"] = max(row["paused_max"], engine["paused_count"])

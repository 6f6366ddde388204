"""Queue depth and pauses over time, in a fixed number of buckets whose width doubles as a run grows.

Flat memory and no sampling events; the maximum in a bucket is exact.
"""

from __future__ import annotations

from ttpoe._jit import kernel

BUCKETS = 1024
FIRST_BUCKET_PS = 100_000
"""0.1 us: 102 us in all before the first doubling."""


@kernel
def _double(engine, series):
    """Merge buckets in pairs; a bucket without a sample holds nothing until results carry the last value on."""
    for k in range(len(series)):
        into = series[k]
        if 2 * k >= len(series):
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
        while now_ps // engine["series_bucket_ps"] >= len(series):
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

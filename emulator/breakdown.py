"""What is told of some workloads besides: slowdown by size, results of groups of flows, bandwidths of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ttpoe.units import PS_PER_US

if TYPE_CHECKING:
    from emulator.workloads import Collective

_EDGES = ((10_000, "to 10 kB"), (100_000, "to 100 kB"), (1_000_000, "to 1 MB"), (2**62, "above 1 MB"))
"""Bins of size, by their upper ends, inclusive; decades, as studies of these distributions use them."""


def quantile(values: np.ndarray, q: float) -> float | None:
    """Nearest rank: always the value of some flow; None without any."""
    return float(np.quantile(values, q, method="inverted_cdf")) if values.size else None


def _slowdown(flows: np.ndarray) -> np.ndarray:
    return flows["fct_rx_ps"] / np.maximum(flows["ideal_ps"], 1)


def size_bins(done: np.ndarray) -> list[dict[str, Any]]:
    """Slowdown of finished flows (FLOW_RESULT) by their size; nothing where they are all in one bin."""
    bins = []
    low = 0
    for high, label in _EDGES:
        mine = done[(done["size_bytes"] > low) & (done["size_bytes"] <= high)]
        low = high
        if mine.size:
            slowdown = _slowdown(mine)
            row = {"bin": label, "flows": int(mine.size)}
            bins.append(row | {"slowdown_p50": quantile(slowdown, 0.5), "slowdown_p99": quantile(slowdown, 0.99)})
    return bins if len(bins) > 1 else []


def groups(flows: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """Results of each named group of flows (FLOW_RESULT)."""
    of = np.array(names)
    rows = []
    for name in dict.fromkeys(name for name in names if name):
        mine = flows[of == name]
        done = mine[mine["fct_rx_ps"] >= 0]
        fct_us = done["fct_rx_ps"] / PS_PER_US
        rows.append({
            "group": name,
            "flows": len(mine),
            "finished": len(done),
            "fct_us": {"p50": quantile(fct_us, 0.5), "p99": quantile(fct_us, 0.99), "max": quantile(fct_us, 1.0)},
            "slowdown_p50": quantile(_slowdown(done), 0.5),
        })  # fmt: skip
    return rows


def bandwidths(collective: Collective | None, span_ps: int) -> dict[str, Any] | None:
    """Algorithm and bus bandwidth of a collective that took ``span_ps``; None in them if it did not end (0)."""
    if collective is None:
        return None
    algorithm = collective.size_bytes * 8_000 / span_ps if span_ps else None
    return {
        "operation": collective.operation,
        "ranks": collective.ranks,
        "size_bytes": collective.size_bytes,
        "algorithm_gbps": algorithm,
        "bus_gbps": None if algorithm is None else algorithm * collective.bus_factor,
    }


def metrics(run: dict[str, Any]) -> dict[str, float | None]:
    """Of a run's JSON row, for the summary over seeds: what its workload has to tell."""
    told: dict[str, float | None] = {}
    for row in run["groups"]:
        told[f"fct_us_p50_{row['group']}"] = row["fct_us"]["p50"]
        told[f"fct_us_max_{row['group']}"] = row["fct_us"]["max"]
        told[f"slowdown_p50_{row['group']}"] = row["slowdown_p50"]
    for row in run["size_bins"]:
        for name in ("slowdown_p50", "slowdown_p99"):
            told[f"{name}_{row['bin'].replace(' ', '_')}"] = row[name]
    if run["collective"]:
        told["bandwidth_gbps_algorithm"] = run["collective"]["algorithm_gbps"]
        told["bandwidth_gbps_bus"] = run["collective"]["bus_gbps"]
    return told

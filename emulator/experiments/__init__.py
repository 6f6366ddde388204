"""Experiments: a scenario in, results out, one run for each transport and seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from emulator.config import ScenarioConfig
from emulator.fabric import Fabric, Progress, TraceSink
from emulator.results import RunResult

METRICS: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "fct_us_p50": lambda run: run["fct_us"]["p50"],
    "fct_us_p99": lambda run: run["fct_us"]["p99"],
    "fct_us_max": lambda run: run["fct_us"]["max"],
    **{
        name: (lambda run, name=name: run[name])  # type: ignore[misc]
        for name in (
            "makespan_us", "goodput_gbps", "slowdown_p99", "drops", "lost", "corrupted", "pauses", "paused_us",
            "resent_packets", "timeouts", "nack_fulls", "marks", "cnps", "jain",
        )
    },
    "max_queue_kb": lambda run: run["max_queue_bytes"] / 1000,
}
"""Metrics of the summary over seeds, read off a run's JSON row."""

_RESAMPLES = 2_000


def run_all(
    scenario: ScenarioConfig,
    *,
    capture: frozenset[str] = frozenset(),
    open_sink: Callable[[Fabric], TraceSink] | None = None,
    on_run: Callable[[str, int], None] | None = None,
    on_slice: Callable[[Progress], None] | None = None,
) -> Iterator[RunResult]:
    """A result for each of the paired seeds and, within it, each transport and routing, as they are asked for.

    Parameters
    ----------
    scenario : ScenarioConfig
    capture : frozenset of str
        Ports to capture, in the first seed's runs, under the first routing.
    open_sink : callable, optional
        Given the fabric about to run, returns what takes its captured rows.
    on_run : callable, optional
        Told what is about to run, and the seed.
    on_slice : callable, optional
        Told the progress between slices.

    Raises
    ------
    ConfigError
        At once, if any of the runs cannot be built.
    """
    for transport in scenario.transports:
        Fabric(scenario, transport, scenario.seed, capture=capture)
    return _runs(scenario, capture, open_sink, on_run, on_slice)


def _runs(
    scenario: ScenarioConfig,
    capture: frozenset[str],
    open_sink: Callable[[Fabric], TraceSink] | None,
    on_run: Callable[[str, int], None] | None,
    on_slice: Callable[[Progress], None] | None,
) -> Iterator[RunResult]:
    for seed in range(scenario.seed, scenario.seed + scenario.repeat):
        for transport, routing in scenario.runs:
            routings = scenario.routings_of(transport)
            if on_run is not None:
                on_run(transport if len(routings) == 1 else f"{transport}, {routing}", seed)
            is_captured = bool(capture) and seed == scenario.seed and routing == routings[0]
            ports = capture if is_captured else frozenset()
            fabric = Fabric(scenario, transport, seed, routing=routing, capture=ports)
            sink = open_sink(fabric) if is_captured and open_sink is not None else None
            yield fabric.run(sink=sink, on_slice=on_slice)


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median and bootstrap 95 % interval of each metric over the seeds of a transport and routing.

    The interval is None for one seed.

    Source: percentile bootstrap of the median (Efron), with a fixed generator so that it can be repeated.
    """
    rows = []
    for transport, routing in dict.fromkeys((run["transport"], run["routing"]) for run in runs):
        mine = [run for run in runs if (run["transport"], run["routing"]) == (transport, routing)]
        which = {"transport": transport, "routing": routing}
        for metric, read in METRICS.items():
            values = np.array([value for run in mine if (value := read(run)) is not None], float)
            if not values.size:
                rows.append({**which, "metric": metric, "median": None, "ci95": None})
                continue
            interval = None
            if values.size > 1:
                picks = np.random.default_rng(0).integers(0, values.size, (_RESAMPLES, values.size))
                interval = np.quantile(np.median(values[picks], axis=1), [0.025, 0.975]).tolist()
            median = float(np.median(values))
            rows.append({**which, "metric": metric, "median": median, "ci95": interval})
    return rows

"""The comparison as a table: a row a measure, a column a transport, so that four transports fit 80 columns."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

# label, metric of the summary, decimals
_ROWS = (
    ("FCT p50, us", "fct_us_p50", 1),
    ("FCT p99, us", "fct_us_p99", 1),
    ("FCT max, us", "fct_us_max", 1),
    ("all done after, us", "makespan_us", 1),
    ("goodput, Gb/s", "goodput_gbps", 2),
    ("slowdown p99", "slowdown_p99", 2),
    ("Jain's index", "jain", 4),
    ("drops, frames", "drops", 0),
    ("lost on lines, frames", "lost", 0),
    ("arrived changed, frames", "corrupted", 0),
    ("resent, frames", "resent_packets", 0),
    ("timeouts", "timeouts", 0),
    ("refused (NACK_FULL)", "nack_fulls", 0),
    ("pauses (XOFF)", "pauses", 0),
    ("paused, sum of ports, us", "paused_us", 1),
    ("peak queue, kB", "max_queue_kb", 0),
)
_UNLESS_ALL_ZERO = {"nack_fulls", "lost", "corrupted"}
"""Rows of what needs a scenario of its own to happen."""
_AFTER = {
    "makespan_us": ("  wire bound, us", "wire_bound_us", 1),
    "goodput_gbps": ("  of at most, Gb/s", "goodput_limit_gbps", 2),
}
"""Rows that hold for every seed alike, below the measure that they bound."""


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _cell(row: dict[str, Any], digits: int) -> str:
    text = _number(row["median"], digits)
    if row["ci95"]:
        low, high = (_number(bound, digits) for bound in row["ci95"])
        text += f"\n{low} - {high}"
    return text


def comparison(title: str, told: dict[str, Any]) -> Table:
    """What ``--json`` tells, as a table: medians over seeds, and 95 % intervals below them where there are several."""
    table = Table(title=Text(title), title_justify="left", caption_justify="left")
    table.add_column("", no_wrap=True)
    transports = list(dict.fromkeys(run["transport"] for run in told["runs"]))
    runs = {name: [run for run in told["runs"] if run["transport"] == name] for name in transports}
    summary = {(row["transport"], row["metric"]): row for row in told["summary"]}
    for name in transports:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(
        "flows finished",
        *(f"{sum(r['finished'] for r in runs[name])}/{sum(r['flows'] for r in runs[name])}" for name in transports),
    )
    for label, metric, digits in _ROWS:
        if metric in _UNLESS_ALL_ZERO and not any(run[metric] for name in transports for run in runs[name]):
            continue
        table.add_row(label, *(_cell(summary[name, metric], digits) for name in transports))
        if metric in _AFTER:
            bound, key, places = _AFTER[metric]
            if any(runs[name][0][key] is not None for name in transports):
                table.add_row(bound, *(_number(runs[name][0][key], places) for name in transports))
        if metric == "drops":
            for cause in runs[transports[0]][0]["drop_causes"] if transports else ():
                counts = [sum(run["drop_causes"][cause] for run in runs[name]) for name in transports]
                if any(counts):
                    table.add_row(f"  {cause}, all runs", *(f"{count:,}" for count in counts))
    table.caption = _caption(runs)
    return table


def _caption(runs: dict[str, list[dict[str, Any]]]) -> str:
    seeds = max((len(mine) for mine in runs.values()), default=0)
    if seeds < 2:
        return ""
    caption = f"medians over {seeds} seeds, and bootstrap 95 % intervals"
    if any(len({(run["fct_us"]["p50"], run["fct_us"]["max"], run["drops"]) for run in mine}) == 1
           for mine in runs.values()):  # fmt: skip
        caption += (
            "; some seeds give the same figures: without --jitter a seed decides only who comes first among equals"
        )
    return caption

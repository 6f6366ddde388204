"""The comparison as a table: a row a measure, a column a transport (and routing), as many as the width has room for."""

from __future__ import annotations

from typing import Any

from rich.table import Column, Table
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
    ("ECN marks received", "marks", 0),
    ("  CNPs in answer", "cnps", 0),
    ("pauses (XOFF)", "pauses", 0),
    ("paused, sum of ports, us", "paused_us", 1),
    ("peak queue, kB", "max_queue_kb", 0),
)
_OPTIONAL = (
    ("FCT p50, {}, us", "fct_us_p50_", 1),
    ("FCT max, {}, us", "fct_us_max_", 1),
    ("slowdown p50, {}", "slowdown_p50_", 2),
    ("slowdown p99, {}", "slowdown_p99_", 2),
    ("{} bandwidth, Gb/s", "bandwidth_gbps_", 2),
)
"""Rows of some workloads: label, start of the metric, decimals; what follows in the metric goes into the label."""
_UNLESS_ALL_ZERO = {"nack_fulls", "lost", "corrupted", "marks", "cnps"}
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


_EDGES = 3
"""What the edge and the padding of a column take."""


def comparison(title: str, told: dict[str, Any], width: int = 80) -> list[Table]:
    """What ``--json`` tells, as tables no wider than ``width``: medians over seeds, and 95 % intervals below them.

    Each transport has a table of its own where one has several routings and not all fit one.
    """
    columns = list(dict.fromkeys((run["transport"], run["routing"]) for run in told["runs"]))
    label, *figures = (_width(column) for column in _table("", told, columns).columns)
    widths = {c: max(_EDGES + max(map(len, c)), figure) for c, figure in zip(columns, figures, strict=True)}
    room = width - label - 1
    groups: list[list[tuple[str, str]]] = [columns]
    if sum(widths.values()) > room and len(columns) > len({name for name, _ in columns}):
        groups = [[c for c in columns if c[0] == name] for name in dict.fromkeys(name for name, _ in columns)]
    parts: list[list[tuple[str, str]]] = []
    for group in groups:
        parts.append([])
        for column in group:
            if parts[-1] and sum(widths[c] for c in [*parts[-1], column]) > room:
                parts.append([])
            parts[-1].append(column)
    return [_table(title if k == 0 else "", told, part) for k, part in enumerate(parts)]


def _width(column: Column) -> int:
    """Of its longest line, with what edge and padding take."""
    return _EDGES + max((len(line) for cell in column.cells for line in str(cell).splitlines()), default=0)


def _table(title: str, told: dict[str, Any], columns: list[tuple[str, str]]) -> Table:
    several = len({run["routing"] for run in told["runs"]}) > 1
    is_one_transport = len(columns) > 1 and len({name for name, _ in columns}) == 1
    heading = ", ".join(part for part in (title, columns[0][0] if is_one_transport else "") if part)
    table = Table(title=Text(heading) if heading else None, title_justify="left", caption_justify="left")
    table.add_column("", no_wrap=True)
    runs = {c: [run for run in told["runs"] if (run["transport"], run["routing"]) == c] for c in columns}
    summary = {((row["transport"], row["routing"]), row["metric"]): row for row in told["summary"]}
    for name, routing in columns:
        head = routing if is_one_transport else f"{name}\n{routing}" if several else name
        table.add_column(head, justify="right", no_wrap=True)
    table.add_row(
        "flows finished",
        *(f"{sum(r['finished'] for r in runs[c])}/{sum(r['flows'] for r in runs[c])}" for c in columns),
    )
    for label, metric, digits in _ROWS:
        if metric in _UNLESS_ALL_ZERO and not any(run[metric] for run in told["runs"]):
            continue
        table.add_row(label, *(_cell(summary[c, metric], digits) for c in columns))
        if metric in _AFTER:
            bound, key, places = _AFTER[metric]
            if any(runs[c][0][key] is not None for c in columns):
                table.add_row(bound, *(_number(runs[c][0][key], places) for c in columns))
        if metric == "drops":
            for cause in runs[columns[0]][0]["drop_causes"] if columns else ():
                counts = [sum(run["drop_causes"][cause] for run in runs[c]) for c in columns]
                if any(counts):
                    table.add_row(f"  {cause}, all runs", *(f"{count:,}" for count in counts))
    for metric in dict.fromkeys(metric for c, metric in summary if c in columns):
        for label, start, digits in _OPTIONAL:
            if metric.startswith(start):
                row = [summary.get((c, metric), {"median": None, "ci95": None}) for c in columns]
                words = metric.removeprefix(start).replace("_", " ")
                table.add_row(label.format(words), *(_cell(cell, digits) for cell in row))
    table.caption = _caption(runs)
    return table


def _caption(runs: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
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

"""Results as files: results.json and flows.csv. Each appears whole or not at all."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emulator.config import ScenarioConfig
from emulator.experiments import summarize
from emulator.failures import failure_name
from emulator.results import RunResult
from ttpoe.files import replacing

FLOW_COLUMNS = (
    "transport", "routing", "seed", "flow", "group", "sender", "receiver", "size_bytes", "start_us", "fct_rx_us",
    "fct_tx_us", "ideal_us", "slowdown", "goodput_gbps", "drops", "resent_packets", "timeouts", "nack_fulls",
    "corrupted", "failure",
)  # fmt: skip


def exact_us(ps: int) -> str:
    """Microseconds with every picosecond kept; empty for a time that never came (below zero)."""
    return "" if ps < 0 else f"{ps // 1_000_000}.{ps % 1_000_000:06d}"


def write_flows(path: Path, results: list[RunResult]) -> None:
    """One row a flow and run; docs/formats.md describes the columns."""
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FLOW_COLUMNS)
        for result in results:
            named = zip(result.flow_names, result.flow_groups, result.flows.tolist(), strict=True)
            for name, group, flow in named:
                src, dst, size, start, fct_rx, fct_tx, ideal, drops, resent, timeouts, fulls, corrupted, failure = flow
                is_done = fct_rx > 0
                writer.writerow((
                    result.transport, result.routing, result.seed, name, group, f"h{src}", f"h{dst}", size,
                    exact_us(start), exact_us(fct_rx), exact_us(fct_tx), exact_us(ideal),
                    f"{fct_rx / ideal:.6f}" if is_done else "", f"{size * 8000 / fct_rx:.6f}" if is_done else "",
                    drops, resent, timeouts, fulls, corrupted, failure_name(failure),
                ))  # fmt: skip


def report(results: list[RunResult]) -> dict[str, Any]:
    """What ``--json`` prints: a row for each run, and the summary over seeds."""
    runs = [result.summary() for result in results]
    return {"runs": runs, "summary": summarize(runs)}


def write_ports(path: Path, results: list[RunResult]) -> None:
    """One row a port, of the first run of each transport and routing; docs/formats.md describes the columns."""
    first = {(result.transport, result.routing): result for result in reversed(results)}
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        for k, (which, result) in enumerate(reversed(first.items())):
            if k == 0:
                writer.writerow(["transport", "routing", "seed", *result.ports[0]])
            writer.writerows([*which, result.seed, *port.values()] for port in result.ports)


def write_results(
    path: Path, scenario: ScenarioConfig, results: list[RunResult], *, version: str, is_interrupted: bool,
    captures: list[str],
) -> None:  # fmt: skip
    """The scenario, every run with its counters, the ports of the first one of a transport and routing, captures."""
    told = report(results)
    seen: set[tuple[str, str]] = set()
    for row, result in zip(told["runs"], results, strict=True):
        row["status"] = result.status.name.lower()
        row["setup_s"] = result.setup_s
        row["unfinished"] = result.unfinished
        row["errors"] = result.errors
        row["warnings"] = result.warnings
        row["deadlock"] = result.deadlock
        row["incidents"] = result.incidents
        row["changes"] = result.changes
        row["counters"] = result.counters
        if (result.transport, result.routing) not in seen:
            seen.add((result.transport, result.routing))
            row["ports"] = result.ports
    with replacing(path) as file:
        head = {"ttpoe": version, "scenario": asdict(scenario), "is_interrupted": is_interrupted,
                "captures": captures}  # fmt: skip
        json.dump({**head, **told}, file, indent=1)
        file.write("\n")

#!/usr/bin/env python3
"""Write the table of what goes with what into docs/model.md: ``python docs/combinations.py``.

Each cell is tried, with a short run beside one without the feature: it is refused, changes nothing, or acts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from emulator.config import ConfigError, ScenarioConfig, make_scenario
from emulator.fabric import Fabric
from emulator.results import RunResult
from emulator.transports import PROFILES
from ttpoe.cli.experiment import captured_ports

TARGET = Path(__file__).with_name("model.md")
BEGIN, END = "<!-- begin: docs/combinations.py -->", "<!-- end: docs/combinations.py -->"
TRANSPORTS = ("ttpoe", "roce", "irn", "spectrum", "ib", "iwarp")
"""One of each kind; the others differ from these by rows of the table."""

_BASE: dict[str, Any] = {
    "topology": {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 2},
    "workload": {"kind": "incast", "senders": 7, "size_bytes": 150_000},
    "switch": {"buffer_bytes": 700_000}, "until_ps": "5ms",
}  # fmt: skip
_MARKING = {"ecn": {"kmin_bytes": 20_000, "kmax_bytes": 60_000, "pmax": 0.5}}
_LOSS = {"loss": 0.01}
_LOSING = {"link": {"impairments": _LOSS}}
_FAILURE = [{"at_ps": "20us", "what": "fail", "link": "l0.p4"}]
_UNEVEN = {
    "kind": "graph",
    "nodes": [{"name": f"h{k}", "kind": "host"} for k in range(8)]
    + [{"name": name, "kind": "switch"} for name in ("l0", "l1", "s0", "s1")],
    "links": [{"a": f"h{k}", "b": f"l{k // 4}"} for k in range(8)]
    + [{"a": leaf, "b": "s0"} for leaf in ("l0", "l1")]
    + [{"a": leaf, "b": "s1", "rate_bps": "200G"} for leaf in ("l0", "l1")],
}  # fmt: skip
"""One way is twice as wide as the other."""


@dataclass(frozen=True)
class Feature:
    """A row: what differs from a run without it. Nested values are merged."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    """Of the scenario."""
    profile: dict[str, str] = field(default_factory=dict)
    """Of a profile that is based on the transport."""
    beside: dict[str, Any] = field(default_factory=dict)
    """What both runs have, so that the feature has something to do."""
    is_captured: bool = False


FEATURES = (
    Feature("PFC", profile={"flow_control": "pfc"}),
    Feature("credits", profile={"flow_control": "credits"}),
    Feature("drop-tail (flow control `none`)", profile={"flow_control": "none"}),
    Feature("DCQCN", profile={"congestion_control": "dcqcn"}, beside={"switch": _MARKING}),
    Feature("DCTCP", profile={"congestion_control": "dctcp"}, beside={"switch": _MARKING}),
    Feature("Reno", profile={"congestion_control": "reno"}, beside=_LOSING),
    Feature("CUBIC", profile={"congestion_control": "cubic"}, beside=_LOSING),
    Feature("swift", profile={"congestion_control": "swift"}, beside=_LOSING),
    Feature("go-back-0", profile={"recovery": "go-back-0"}, beside=_LOSING),
    Feature("selective recovery", profile={"recovery": "selective"}, beside=_LOSING),
    Feature("in-NIC reordering", profile={"recovery": "reordering"}, beside=_LOSING),
    Feature("a window of one BDP", profile={"window": "bdp"}),
    Feature("`ecmp`", profile={"routing": "ecmp"}),
    Feature("`weighted`", profile={"routing": "weighted"}, beside={"topology": _UNEVEN}),
    Feature("`flowlet`", profile={"routing": "flowlet"}),
    Feature("`random`, `round-robin`", profile={"routing": "random"}),
    Feature("`adaptive`", profile={"routing": "adaptive"}),
    Feature("ECN marks (`switch.ecn`)", {"switch": _MARKING}),
    Feature("trimming (`switch.trim_priority`)", {"switch": {"trim_priority": 5}}),
    Feature(
        "PFC watchdog (`switch.watchdog`)", {"switch": {"watchdog": {"detect_ps": "100us", "restore_ps": "1ms"}}},
        beside={"hosts": {"pause_storms": [{"host": 0}]}},
    ),
    Feature("faulty NICs (`hosts.pause_storms`)", {"hosts": {"pause_storms": [{"host": 0, "end_ps": "200us"}]}}),
    Feature("pools (`switch.lossy_fraction`)", {"switch": {"lossy_fraction": 0.4}}),
    Feature("thresholds by priority (`switch.priorities`)", {"switch": {"priorities": {"3": {"alpha": 0.25}}}}),
    Feature("losing lines (`link.impairments`)", {"link": {"impairments": _LOSS}}),
    Feature("doubling lines (`duplicate`)", {"link": {"impairments": {"duplicate": 0.01}}}),
    Feature(
        "link-level retry (`link.retry_bytes`)", {"link": {"retry_bytes": 100_000}}, beside=_LOSING,
    ),
    Feature("the same on lines with jitter", {"link": {"retry_bytes": 100_000, "impairments": {"jitter_ps": "1us"}}}),
    Feature("`[[events]]`", {"events": _FAILURE}),
    Feature("the same with link-level retry", {"events": _FAILURE, "link": {"retry_bytes": 100_000}}),
    Feature("slow readers (`hosts.drain_rate_bps`)", {"hosts": {"drain_rate_bps": "100M", "rx_buffer_bytes": 20_000}}),
    Feature('`frame_overhead = "peer"`', {"frame_overhead": "peer"}),
    Feature("RoCEv1 (`roce.version`)", {"roce": {"version": 1}}),
    Feature("captures", is_captured=True),
    Feature("captures of frames without headers", {"frame_overhead": "peer"}, is_captured=True),
)  # fmt: skip


def _merged(*parts: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(value, dict) and isinstance(whole.get(name), dict) and "kind" not in value
            whole[name] = _merged(whole[name], value) if both else value
    return whole


def _scenario(feature: Feature, transport: str, is_with: bool) -> tuple[ScenarioConfig, str]:
    """The scenario and the name of what runs in it."""
    values = _merged(_BASE, feature.beside, feature.fields if is_with else {})
    name = transport
    if feature.profile:
        name = "own"
        values["profiles"] = [{"name": name, "base": transport, **(feature.profile if is_with else {})}]
    return make_scenario({**values, "transports": [name]}), name


def _seen(result: RunResult) -> tuple[object, ...]:
    """What of a run a feature can change."""
    return result.flows.tobytes(), result.counters, result.drop_causes, result.frames_impaired


def try_cell(feature: Feature, transport: str) -> str:
    """``yes``; ``own`` if the transport has it anyway; ``-`` if it changes nothing; or the sentence of a refusal."""
    base = PROFILES[transport]
    if feature.profile and all(getattr(base, name) == value for name, value in feature.profile.items()):
        return "own"
    without = Fabric(*_scenario(feature, transport, False), 1).run()  # so that a refusal is the feature's
    try:
        scenario, name = _scenario(feature, transport, True)
        if feature.is_captured:
            capture = captured_ports("h0", Path(), scenario)
            return "yes" if Fabric(scenario, name, 1, capture=capture).run(sink=lambda rows: None).flows.size else "-"
        result = Fabric(scenario, name, 1).run()
    except ConfigError as error:
        return str(error).removeprefix("profiles.0.")
    except click.UsageError as error:
        return error.message
    return "yes" if _seen(result) != _seen(without) else "-"


def cells() -> Iterator[tuple[Feature, list[str]]]:
    """Each row of the table."""
    for feature in FEATURES:
        yield feature, [try_cell(feature, transport) for transport in TRANSPORTS]


def table() -> str:
    """The table and the sentences of refusals, as Markdown."""
    sentences: list[str] = []
    lines = ["| | " + " | ".join(f"`{name}`" for name in TRANSPORTS) + " |", "|---" * (len(TRANSPORTS) + 1) + "|"]
    for feature, row in cells():
        told = []
        for cell in row:
            if cell not in ("yes", "own", "-"):
                if cell not in sentences:
                    sentences.append(cell)
                cell = f"no ({sentences.index(cell) + 1})"  # noqa: PLW2901
            told.append(cell)
        lines.append(f"| {feature.name} | " + " | ".join(told) + " |")
    return "\n".join([*lines, "", *(f"{k}. `{sentence}`" for k, sentence in enumerate(sentences, 1))]) + "\n"


def page(text: str) -> str:
    """The page with its table made anew."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.write_text(page(TARGET.read_text(encoding="utf-8")), encoding="utf-8")

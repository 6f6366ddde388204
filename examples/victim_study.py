#!/usr/bin/env python3
"""A victim beside a growing remote incast: who is hurt, by what, and what the near sender gets.

    python examples/victim_study.py [--senders 0,1,2,4,8,16] [--seeds 9] [--out victim-study.png] [--json]

One network of hosts at 100G, leaves l0, l1, l2 and two spines at 400G, and on it at once:

- the incast: one sender on the receiver's leaf l0 (near), and so many on l1 (far), all without end;
- the flow: from another host of l1 to l2, without end. It shares an uplink of l1 with far senders, and no bottleneck;
- the burst: four hosts of l0 send to a fifth one of l0, all at once, again and again. It shares the memory of l0 with
  the incast, and no line.

docs/studies.md explains what comes of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table

from emulator.bounds import frames_of
from emulator.config import ConfigError, ScenarioConfig, make_scenario
from emulator.fabric import Fabric, Progress
from emulator.validation.row import delivered_bytes
from ttpoe.units import PS_PER_MS, PS_PER_US, parse_size_bytes

HOSTS, SPINES = 18, 2
RECEIVER, NEAR, BURST_TO, BURST_FROM = 0, 1, 2, (3, 4, 5, 6)
FLOW_FROM, FLOW_TO = HOSTS, 2 * HOSTS
MOST_FAR = HOSTS - 1
UPLINKS = [f"l1.p{HOSTS + k}" for k in range(SPINES)]
FLOW_PS, WARM_PS, END_PS = 2 * PS_PER_MS, 4 * PS_PER_MS, 20 * PS_PER_MS
"""The flow begins when the first burst of the incast is over; what is measured, is measured between the last two."""
BURST_BYTES, BURST_EVERY_PS = 400_000, PS_PER_MS
FOREVER = 10**9
FLOW_PRIORITY = 4
"""Of the flow where it has one of its own."""


@dataclass(frozen=True)
class Variant:
    """A transport, and what is changed for it."""

    transport: str
    values: dict[str, Any] = field(default_factory=dict)
    flow_priority: int | None = None
    colour: str = ""
    marker: str = ""
    is_remedy: bool = False
    """Not drawn, and run with the largest incast alone: one thing is changed, and the harm is gone."""


_LOSSY = {"buffer_bytes": "4MB", "alpha": 8.0}
"""2^3, ``dynamic_th`` 3 of a lossy queue's profile that SONiC publishes; others have less."""
_LOSSLESS = {"buffer_bytes": "4MB"}
VARIANTS = {
    "roce-pfc": Variant("roce-pfc", {"switch": _LOSSLESS}, None, "#009E73", "s"),
    "roce-dcqcn": Variant("roce-dcqcn", {"switch": _LOSSLESS}, None, "#000000", "X"),
    "roce-dcqcn, paper": Variant(
        "roce-dcqcn", {"switch": _LOSSLESS, "dcqcn": {"preset": "paper"}}, None, "#999999", "P"
    ),
    "ib": Variant("ib", {"switch": _LOSSLESS}, None, "#CC79A7", "D"),
    "ttpoe": Variant("ttpoe", {"switch": _LOSSY}, None, "#0072B2", "o"),
    "ttpoe-swift": Variant("ttpoe-swift", {"switch": _LOSSY}, None, "#56B4E9", "v"),
    "irn": Variant("irn", {"switch": _LOSSY}, None, "#D55E00", "^"),
    "roce-pfc, own priority": Variant("roce-pfc", {"switch": _LOSSLESS}, FLOW_PRIORITY, is_remedy=True),
    "ttpoe, queues <= 1.5 MB": Variant(
        "ttpoe", {"switch": {**_LOSSY, "static_threshold_bytes": "1.5MB"}}, is_remedy=True
    ),
}  # fmt: skip


def scenario(variant: Variant, far: int, flow_ps: int = FLOW_PS, end_ps: int = END_PS) -> ScenarioConfig:
    """The incast comes first, then the flow, then the bursts."""
    flows: list[dict[str, Any]] = [
        {"src": src, "dst": RECEIVER, "size_bytes": FOREVER}
        for src in (NEAR, *range(FLOW_FROM + 1, FLOW_FROM + 1 + far))
    ]
    flows.append({"src": FLOW_FROM, "dst": FLOW_TO, "size_bytes": FOREVER, "start_ps": flow_ps,
                  "priority": variant.flow_priority})  # fmt: skip
    flows += [
        {"src": src, "dst": BURST_TO, "size_bytes": BURST_BYTES, "start_ps": start_ps}
        for start_ps in range(WARM_PS, END_PS - BURST_EVERY_PS + 1, BURST_EVERY_PS)
        for src in BURST_FROM
    ]
    return make_scenario({
        "topology": {"kind": "leaf-spine", "leaves": 3, "hosts_per_leaf": HOSTS, "spines": SPINES,
                     "uplink": {"rate_bps": "400G"}},
        "workload": {"kind": "flows", "flows": flows}, "until_ps": end_ps, **variant.values,
    })  # fmt: skip


@cache
def uplinks_taken(far: int, seed: int) -> dict[int, int]:
    """Which uplink of l1 each flow (by index) takes: read off a capture, as ECMP depends on the seed alone."""
    taken: dict[int, int] = {}

    def look(rows: np.ndarray) -> None:
        for row in rows[rows["is_out"] == 1]:  # nothing but data: l1 receives none, so it acknowledges none
            taken[int(row["end"]) // 2] = int(row["port"])

    start = scenario(VARIANTS["roce-pfc"], far, 0, 20 * PS_PER_US)
    Fabric(start, "roce-pfc", seed, capture=frozenset(UPLINKS)).run(sink=look)
    return taken


def expected(fabric: Fabric, far: int) -> dict[str, float]:
    """Shares of the receiver's line, by what each ingress port of a switch may hold of a queue that is always full.

    A queue is served in order, so what an ingress gets of the line is what it holds of the queue. Under PFC all
    ingress ports have one threshold; under credits each has the buffer of its line.
    """
    taken = uplinks_taken(far, fabric.seed)
    used = len({taken[k] for k in range(1, far + 1)})
    beside = sum(taken[k] == taken[far + 1] for k in range(1, far + 1))
    near = uplink = 1.0
    if fabric.profile.flow_control == "credits":
        held = fabric.world.credits["buffer_blocks"].reshape(-1, 8)[:, fabric.scenario.priority]
        names = fabric.topology.port_names
        near, uplink = (float(held[names.index(name)]) for name in (f"l0.p{NEAR}", f"l0.p{HOSTS}"))
    whole = near + used * uplink
    return {"near": near / whole, "flow": uplink / whole / beside if beside else 1.0}


def squeezed() -> tuple[float, float]:
    """What becomes of a TTPoE burst that finds the pool B filled by one queue: its queue at its end, bytes; its loss.

    That queue holds alpha B / (1 + alpha), and drains by a line while it is above the threshold T. The burst comes in
    by n lines and leaves by one, so its queue q grows by n - 1 lines until it meets T; then it follows T = q, which is
    alpha / (1 + alpha) of what the other one leaves, and so grows by that share of a line.
    """
    alpha, n = float(_LOSSY["alpha"]), len(BURST_FROM)
    held = -(-BURST_BYTES // 1024) * (60 + 4) + BURST_BYTES  # headers and FCS
    free = parse_size_bytes(str(_LOSSY["buffer_bytes"])) / (1 + alpha)
    meet = alpha * free / (n - 1 + 2 * alpha)  # all times as bytes of one line
    rest = max(held - meet, 0)
    growth = alpha / (1 + alpha)
    return (n - 1) * meet + growth * rest, rest * (n - 1 - growth) / (n * held)


def measure(name: str, far: int, seed: int) -> dict[str, Any]:
    """One run: what the three got between WARM_PS and END_PS, and what was done to them."""
    variant = VARIANTS[name]
    fabric = Fabric(scenario(variant, far), variant.transport, seed)
    l0 = fabric.topology.switch_names.index("l0")
    pool = fabric.world.shared[int(fabric.world.rules["shared"][fabric.scenario.priority, l0])]
    samples: list[tuple[int, np.ndarray, float]] = []

    def sample(at: Progress) -> None:
        if at.now_ps >= WARM_PS:
            samples.append((at.now_ps, delivered_bytes(fabric), int(pool["bytes"]) / int(pool["limit_bytes"])))

    result = fabric.run(max_events=2_000, on_slice=sample)
    if result.errors:
        raise RuntimeError(f"{name}, {far} far senders, seed {seed}: {result.errors[0]}")
    (begin_ps, before, _), (end_ps, after, _) = samples[0], samples[-1]
    gbps = (after - before) * 8_000 / (end_ps - begin_ps)
    ports = {port["name"]: port for port in result.ports}
    flow, bursts = result.flows[far + 1], result.flows[far + 2 :].reshape(-1, len(BURST_FROM))
    done_ps = np.where(bursts["fct_rx_ps"] < 0, END_PS - bursts["start_ps"], bursts["fct_rx_ps"]).max(axis=1)
    row = {
        "variant": name, "far": far, "seed": seed,
        "incast_gbps": float(gbps[: far + 1].sum()),
        "near_share": float(gbps[0] / gbps[: far + 1].sum()),
        "flow_gbps": float(gbps[far + 1]),
        "flow_drops": int(flow["drops"]),
        "flow_nic_paused": ports[f"h{FLOW_FROM}"]["paused_us"] * PS_PER_US / END_PS,
        "burst_us": float(np.median(done_ps)) / PS_PER_US,
        "burst_drops": int(bursts["drops"].sum()),
        "burst_drop_share": float(bursts["drops"].sum() / (bursts.size * frames_of(fabric, BURST_BYTES).count)),
        "burst_nics_paused": max(ports[f"h{h}"]["paused_us"] for h in BURST_FROM) * PS_PER_US / END_PS,
        "burst_queue_kb": ports[f"l0.p{BURST_TO}"]["max_queue_bytes"] / 1000,
        "pauses": result.counters["pauses"], "drops": result.counters["drops"], "drop_causes": result.drop_causes,
    }  # fmt: skip
    if variant.transport in ("roce-pfc", "ib") and not variant.is_remedy:
        row |= {f"{what}_expected": share for what, share in expected(fabric, far).items()}
    if variant.transport != "ib":  # whose lines have buffers of their own
        row["pool_used"] = float(np.mean([used for _, _, used in samples]))
    uplink = fabric.topology.port_names[uplinks_taken(far, seed)[far + 1]]
    return row | {"uplink_paused": ports[uplink]["paused_us"] * PS_PER_US / END_PS}


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median, least and most over seeds; harm is told against the same variant without far senders."""
    alone = {row["variant"]: row for row in rows if row["far"] == 0}
    told = []
    for name, far in dict.fromkeys((row["variant"], row["far"]) for row in rows):
        mine = [row for row in rows if (row["variant"], row["far"]) == (name, far)]
        base = alone[name.partition(",")[0] if VARIANTS[name].is_remedy else name]
        for row in mine:
            row["flow_slowdown"] = base["flow_gbps"] / max(row["flow_gbps"], 1e-9)
            row["burst_slowdown"] = row["burst_us"] / base["burst_us"]
        metrics = [metric for metric, value in mine[0].items() if isinstance(value, float | int) and metric != "seed"]
        values = {metric: sorted(row[metric] for row in mine) for metric in metrics if metric != "far"}
        told.append(
            {"variant": name, "far": far, "seeds": len(mine)}
            | {metric: {"median": median(v), "min": v[0], "max": v[-1]} for metric, v in values.items()}
        )
    return told


def table(summary: list[dict[str, Any]]) -> Table:
    """Medians; of what hurts, the range over seeds as well."""

    def spread(cell: dict[str, float], digits: int = 1) -> str:
        low, middle, high = (f"{cell[which]:.{digits}f}" for which in ("min", "median", "max"))
        return middle if low == high else f"{middle} ({low}-{high})"

    drawn = Table(title="medians over seeds (least to most); paused: share of the time; drops of that victim alone")
    drawn.add_column("transport")
    for heading in ("far", "incast Gb/s", "near's share", "flow Gb/s", "uplink paused", "NIC paused", "drops",
                    "burst us", "NICs paused", "dropped", "pool used"):  # fmt: skip
        drawn.add_column(heading, justify="right")
    before = ""
    for row in summary:
        name = row["variant"]

        def share(metric: str, row: dict[str, Any] = row) -> str:
            return f"{row[metric]['median']:.0%}" if metric in row else "-"

        drawn.add_row(
            name if name != before else "", str(row["far"]), f"{row['incast_gbps']['median']:.1f}",
            spread(row["near_share"], 2), spread(row["flow_gbps"]), share("uplink_paused"), share("flow_nic_paused"),
            f"{row['flow_drops']['median']:,.0f}", spread(row["burst_us"], 0), share("burst_nics_paused"),
            share("burst_drop_share"), share("pool_used"),
        )  # fmt: skip
        before = name
    return drawn


def draw(summary: list[dict[str, Any]], path: Path) -> None:
    """Four panels: the flow, the burst, the near sender, and which of the two mechanisms was at work."""
    figure = Figure(figsize=(11, 8.2), layout="constrained")
    panels = figure.subplots(2, 2)
    (flow, burst), (near, causes) = panels
    most = max(row["far"] for row in summary)
    names = [name for name in dict.fromkeys(row["variant"] for row in summary) if not VARIANTS[name].is_remedy]
    for name in names:
        mine = sorted((row for row in summary if row["variant"] == name), key=lambda row: row["far"])
        style = {"color": VARIANTS[name].colour, "marker": VARIANTS[name].marker, "markersize": 5, "linewidth": 1.6}
        x = [row["far"] for row in mine]
        for panel, metric in ((flow, "flow_gbps"), (burst, "burst_slowdown"), (near, "near_share")):
            panel.fill_between(x, [row[metric]["min"] for row in mine], [row[metric]["max"] for row in mine],
                               color=style["color"], alpha=0.12, linewidth=0)  # fmt: skip
            panel.plot(x, [row[metric]["median"] for row in mine], label=name if panel is flow else None, **style)
        for panel, metric, scale in ((flow, "flow_expected", 1), (near, "near_expected", 0)):
            if metric in mine[0]:
                y = [row[metric]["median"] * (mine[0]["flow_gbps"]["median"] if scale else 1) for row in mine]
                panel.plot(x, y, color="#000000", linestyle=":", linewidth=1.2, zorder=5)
        frames = [100 * row["burst_drop_share"]["median"] for row in mine]
        causes.plot([100 * row["uplink_paused"]["median"] for row in mine], frames, **(style | {"linewidth": 0.6}))
    fair = np.linspace(0, most, 100)
    near.plot(fair, 1 / (1 + fair), color="#666666", linestyle="--", linewidth=1.2)
    for panel in (flow, burst, near):
        panel.set(xlabel="far senders of the incast", xlim=(0, most))
    flow.set(title="The flow across the fabric; dotted: theory", ylabel="goodput (Gb/s)", ylim=(0, None))
    causes.axhline(100 * squeezed()[1], color="#000000", linestyle=":", linewidth=1.2)
    burst.set(title="The burst beside the incast's receiver", ylabel="time over that without far senders",
              ylim=(0, None))  # fmt: skip
    near.set(title="The near sender; dashed: fair, dotted: theory", ylabel="share of the incast", ylim=(0, 1.02))
    causes.set(title="Pauses, or memory; dotted: theory of a full pool",
               xlabel="time that the flow's uplink is paused (%)", ylabel="burst frames dropped (%)")  # fmt: skip
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#DDDDDD", linewidth=0.6)
    figure.legend(loc="outside lower center", ncols=len(names), frameon=False, fontsize=9)
    whole, small = BytesIO(), BytesIO()
    figure.savefig(whole, format="png", dpi=90)
    Image.open(whole).convert("RGB").quantize(48).save(small, format="PNG", optimize=True)
    path.write_bytes(small.getvalue())


def numbers(text: str) -> list[int]:
    """``0,1,4``: far senders, with 0 among them, as harm is told against it."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers with commas between them, as in 0,4,16") from None
    if found[0] < 0 or found[-1] > MOST_FAR:
        raise argparse.ArgumentTypeError(f"{text!r}: from 0 to {MOST_FAR}, which is what the leaf holds besides")
    return sorted({0, *found})


def runs(names: list[str], senders: list[int], seeds: int) -> Iterator[tuple[str, int, int]]:
    """Variant, far senders and seed of each; remedies with the largest incast alone."""
    for name in names:
        for far in senders[-1:] if VARIANTS[name].is_remedy else senders:
            yield from ((name, far, seed) for seed in range(1, seeds + 1))


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senders", type=numbers, default=[0, 1, 2, 3, 4, 6, 8, 12, 16], help="far senders [0,...,16]")
    parser.add_argument("--seeds", type=int, default=9, choices=range(1, 1001), metavar="N", help="ECMP's draws [9]")
    parser.add_argument("--out", type=Path, help="a PNG file for the figure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.out is not None and not options.out.parent.is_dir():
        parser.error(f"--out: there is no directory {options.out.parent}; make it")
    todo = list(runs(list(VARIANTS), options.senders, options.seeds))
    show = Console(stderr=True)
    rows = [measure(*one) for one in track(todo, "runs", console=show, transient=True, disable=not show.is_terminal)]
    summary = summarize(rows)
    if options.out is not None:
        draw(summary, options.out)
    if options.json:
        print(json.dumps({"runs": rows, "summary": summary}))
    else:
        Console(width=190).print(table(summary))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (ConfigError, OSError) as error:
        sys.exit(f"{error}")

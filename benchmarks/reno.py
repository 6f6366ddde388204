#!/usr/bin/env python3
"""Reno beside its theory: the sawtooth before a slower line, and goodput beside the square-root law.

``python benchmarks/reno.py`` prints the table of docs/validation.md and draws docs/reno.png.

The law (Mathis, Semke, Mahdavi, Ott 1997): goodput = C mtu / (rtt sqrt(p)), C = sqrt(3/2) for periodic losses, 1.31
for random ones. Ours besides loses a round trip at each loss, since with go-back-N what is sent between a loss and its
NACK is of no use: in payloads a round trip,

    w = 1 / (sqrt(p) / 1.31 + p).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from emulator.config import make_scenario
from emulator.fabric import Fabric
from ttpoe.units import PS_PER_MS, PS_PER_US

MTU, WIRE_BYTES, CONTROL_BYTES, PS_PER_BYTE = 1024, 1108, 88, 80
DELAY_PS = 100 * PS_PER_US
RTT_PS = 4 * DELAY_PS + 2 * (WIRE_BYTES + CONTROL_BYTES) * PS_PER_BYTE
"""Through the switch and back without a queue, and 1 MB in flight would take 80 us of it: the line never limits."""
PERIODIC = 1.5**0.5
FRACTIONS = (0.001, 0.002, 0.005, 0.01)


def random_constant(losses: int = 10**6) -> float:
    """C for random losses, from the process itself: w**2 / 2 grows by a payload a payload, and w halves at a loss."""
    between = np.random.default_rng(1).exponential(1.0, losses)
    w, rounds = 1.0, 0.0
    for payloads in between.tolist():
        start, w = w / 2, (w * w / 4 + 2 * payloads) ** 0.5
        rounds += w - start
    return float(between.sum()) / rounds


def law(p: Any, constant: float) -> Any:
    """Payloads a round trip of our sender: the law with a round trip lost at each loss."""
    return 1 / (p**0.5 / constant + p)


def measure(p: float, losses: int, seed: int) -> dict[str, float]:
    """One flow over a long path whose line loses payloads at random."""
    payloads = round(losses / p)
    line = {"hosts": [1], "impaired_ways": "from_host", "impairments": {"loss": p}}
    values: dict[str, Any] = {
        "workload": {"kind": "incast", "senders": 1, "size_bytes": payloads * MTU}, "until_ps": "3600s",
        "link": {"delay_ps": DELAY_PS}, "topology": {"links": [line]}, "ttpoe": {"congestion_control": "reno"},
    }  # fmt: skip
    fabric = Fabric(make_scenario(values), "ttpoe", seed)
    link, at_ps, area = fabric.world.links[0], 0, 0

    def sample(at: Any) -> None:
        nonlocal at_ps, area
        area += (at.now_ps - at_ps) * int(link["cwnd_bytes"])
        at_ps = at.now_ps

    result = fabric.run(max_events=499, on_slice=sample)
    return {
        "w": payloads / (result.flows["fct_rx_ps"][0] / RTT_PS), "cwnd": area / at_ps / MTU,
        "timeouts": int(link["timeouts"]), "lost": result.counters["lost"],
    }  # fmt: skip


def sawtooth() -> tuple[np.ndarray, np.ndarray]:
    """Milliseconds and congestion window in payloads of one flow from 100G into 10G."""
    values: dict[str, Any] = {
        "workload": {"kind": "incast", "senders": 1, "size_bytes": 30_000_000},
        "ttpoe": {"congestion_control": "reno"}, "switch": {"buffer_bytes": 200_000},
        "topology": {"links": [{"hosts": [0], "rate_bps": "10G", "delay_ps": "20us"}]},
    }  # fmt: skip
    fabric = Fabric(make_scenario(values), "ttpoe", 1)
    rows: list[tuple[int, int]] = []
    link = fabric.world.links[0]
    fabric.run(max_events=25, on_slice=lambda at: rows.append((at.now_ps, int(link["cwnd_bytes"]))))
    told = np.array(rows)
    return told[:, 0] / PS_PER_MS, told[:, 1] / MTU


def draw(path: Path, measured: dict[float, list[float]], constant: float) -> None:
    """Both as one figure."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*sawtooth(), color="#0072B2", linewidth=1.5, drawstyle="steps-post")
    full = 100_000 / (MTU + 64) + 44 * PS_PER_US / (WIRE_BYTES * 800)  # half of the buffer, and the path
    for height, text in ((full, "queue and path are full"), (full / 2, "half of that")):
        left.axhline(height, color="#666666", linestyle=":", linewidth=1.2)
        left.annotate(text, (1, height), xycoords=("axes fraction", "data"), xytext=(-4, 3), fontsize=9,
                      textcoords="offset points", ha="right", color="#444444")  # fmt: skip
    left.set(title="One reno flow from 100G into 10G, 200 kB of buffer", xlabel="time (ms)",
             ylabel="congestion window (payloads)", ylim=(0, None), xlim=(0, None))  # fmt: skip
    p = np.geomspace(min(measured) / 1.5, max(measured) * 1.5, 100)
    right.fill_between(p, 0.9 * PERIODIC / p**0.5, 1.1 * PERIODIC / p**0.5, color="#999999", alpha=0.25, linewidth=0)
    right.plot(p, PERIODIC / p**0.5, color="#666666", linewidth=1.2, label=r"$\sqrt{3/2}\,/\sqrt{p}$, and 10 % around")
    right.plot(p, law(p, constant), color="#D55E00", linewidth=1.5, linestyle=(0, (5, 1.5)),
               label=r"$1/(\sqrt{p}/1.31 + p)$: a round trip lost at each loss")  # fmt: skip
    for k, (fraction, values) in enumerate(measured.items()):
        right.plot([fraction] * len(values), values, "o", color="#0072B2", markersize=5, alpha=0.8,
                   label=f"measured, {len(values)} seeds" if k == 0 else None)  # fmt: skip
    right.set(title="Goodput under random loss", xlabel="probability of loss p", xscale="log", yscale="log",
              ylabel="payloads delivered a round trip")  # fmt: skip
    right.set_xticks(list(measured), [f"{100 * fraction:g} %" for fraction in measured])
    right.set_yticks([10, 20, 30, 40, 50], ["10", "20", "30", "40", "50"])
    right.minorticks_off()
    right.legend(frameon=False)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", type=int, default=4000, help="expected losses of a run [4000]")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "reno.png")
    options = parser.parse_args()
    constant = random_constant()
    table = Table(title=f"reno under random loss, mean of {options.seeds} seeds; C for random losses {constant:.3f}")
    headings = ("p", "payloads a round trip", "/ (sqrt(3/2) / sqrt(p))", "/ (C / sqrt(p))", "/ (1 / (sqrt(p) / C + p))",
                "mean window / (C / sqrt(p))", "timeouts")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    measured: dict[float, list[float]] = {}
    for p in FRACTIONS:
        runs = [measure(p, options.losses, seed) for seed in range(1, options.seeds + 1)]
        measured[p] = [run["w"] for run in runs]
        w, cwnd = (float(np.mean([run[name] for run in runs])) for name in ("w", "cwnd"))
        ratios = (w * p**0.5 / PERIODIC, w * p**0.5 / constant, w / law(p, constant), cwnd * p**0.5 / constant)
        timeouts = sum(int(run["timeouts"]) for run in runs)
        table.add_row(f"{100 * p:g} %", f"{w:.2f}", *(f"{ratio:.3f}" for ratio in ratios), str(timeouts))
    draw(options.out, measured, constant)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()

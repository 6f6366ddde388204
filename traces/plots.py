"""Figures of runs, as PNG files. The only module that imports matplotlib; no global state of it is touched.

Owns how results look. Knows nothing of the engine: it reads `emulator.results.RunResult` and
`emulator.topology.Topology`, and nothing else.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ttpoe.units import PS_PER_MS, PS_PER_US

if TYPE_CHECKING:
    from emulator.results import RunResult
    from emulator.topology import Topology

_Style = tuple[str, Any, str]
"""Colour, dashes, marker."""

# Okabe and Ito's palette, told apart by the colour-blind as well; dashes tell lines apart in grey.
_STYLES: dict[str, _Style] = {
    "ttpoe": ("#0072B2", "-", "o"),
    "ttpoe-pfc": ("#CC79A7", (0, (5, 1.5)), "D"),
    "roce-pfc": ("#009E73", (0, (3, 1, 1, 1)), "s"),
    "roce": ("#D55E00", (0, (6, 1, 1, 1, 1, 1)), "^"),
}
_OTHERS: tuple[_Style, ...] = (
    ("#E69F00", "-", "v"),
    ("#56B4E9", (0, (4, 2)), "P"),
    ("#000000", (0, (2, 1)), "X"),
    *_STYLES.values(),
)
"""For transports and routings without a style of their own, as long as they last: seven colours."""
_AGAIN: tuple[tuple[Any, str], ...] = (("-", "<"), ((0, (1, 1)), ">"), ((0, (8, 2)), "h"), ((0, (4, 1, 1, 1)), "*"))
"""Dashes and marker of the second, third, ... curve of one colour."""
_LOG_RATIO = 20
"""Values that differ by more than this share a logarithmic axis."""
_CHANGE = {"color": "#999999", "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 0}
"""A line where events change links."""
_POINTS = 250
"""Points of a curve over time; each is the maximum of its buckets, so a queue that fills and drains stays a line."""


def plot_incast(results: Sequence[RunResult], path: str | os.PathLike[str]) -> None:
    """Write one PNG: completion CDF, the watched queue and the pauses over time, goodput of each sender.

    Parameters
    ----------
    results : sequence of RunResult
        Runs of one scenario. Runs of the same transport and routing are pooled over their seeds in the CDF and the
        goodput; the panels over time show the first seed of each.
    path : str or PathLike
        Written beside and renamed.

    Notes
    -----
    The CDF counts all flows, so a curve that ends below 1 has unfinished ones. Queue depth and pauses are the maxima
    of each bucket of time, grey lines where events change links. The dotted lines are the wire bound of all flows
    together and the fair share of the bottleneck's goodput limit; they are drawn where all flows start together and end
    at one host.
    """
    if not results:
        raise ValueError("there is no result to plot; give at least one")
    groups: dict[str, list[RunResult]] = {}
    several = len({result.routing for result in results}) > 1
    for result in results:
        label = f"{result.transport}, {result.routing}" if several else result.transport
        groups.setdefault(label, []).append(result)
    styles = _styles({label: runs[0].transport for label, runs in groups.items()})

    figure = Figure(figsize=(12, 8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    _plot_completion(axes[0, 0], groups, styles)
    _plot_goodput(axes[0, 1], groups, styles)
    _plot_series(axes[1, 0], axes[1, 1], groups, styles)
    for panel in axes.flat:
        panel.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.suptitle(_title(results), fontsize=13, fontweight="bold")
    handles = [_key(*styles[name], _legend_text(name, runs)) for name, runs in groups.items()]
    columns = len(handles) if len(handles) <= 3 and all(len(str(handle.get_label())) < 50 for handle in handles) else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
    _save(figure, path)


def _styles(transports: dict[str, str]) -> dict[str, _Style]:
    """A style for each label: its transport's for the first label of that transport, else one that is free.

    No two labels share a style before all colours are used five times over; jumbo frames look like the others.
    """
    styles: dict[str, _Style] = {}
    for label, transport in transports.items():
        name = transport.replace("-jumbo", "")
        if name in _STYLES and (name != transport or _STYLES[name] not in styles.values()):
            styles[label] = _STYLES[name]
    free = [style for style in _OTHERS if style not in styles.values()]
    free += [(colour, *again) for again in _AGAIN for colour, _, _ in _OTHERS]
    rest = [label for label in transports if label not in styles]
    styles.update(zip(rest, cycle(free)))
    return styles


_NAMED_HOSTS, _NAMED_SWITCHES = 40, 40
"""So many in a row can be told by name."""


def plot_topology(topology: Topology, title: str, path: str | os.PathLike[str]) -> None:
    """Write one PNG: hosts and switches by tier, and every cable, faster ones thicker.

    Networks without tiers, whose switches are cabled to others of their own tier, are drawn in a circle.

    Parameters
    ----------
    topology : Topology
    title : str
    path : str or PathLike
        Written beside and renamed.
    """
    firsts = np.arange(0, len(topology.port_switch), 2)
    ends = np.array([[_node(topology, int(port)) for port in (first, first + 1)] for first in firsts])
    level = np.concatenate([np.zeros(topology.hosts, int), topology.switch_tiers])
    is_flat = bool((level[ends[:, 0]] == level[ends[:, 1]]).any())
    at = _on_a_circle(topology, ends) if is_flat else _by_level(level)
    widest = int(np.bincount(level).max())
    inches = (9.0, 9.0) if is_flat else (min(max(8.0, 0.4 * widest), 20.0), 2.0 + 1.7 * level.max())
    figure = Figure(figsize=inches, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rates = topology.rate_bps[firsts] / 1e9
    fastest = float(rates.max())
    for rate in np.unique(rates):
        mine = ends[rates == rate]
        lines = np.full((len(mine), 3, 2), np.nan)  # a gap after each, so that all of a rate are one line
        lines[:, :2] = at[mine]
        width = max(0.4, (2.0 if len(firsts) < 200 else 1.0) * (rate / fastest) ** 0.5)
        shade = "#0072B2" if rate == fastest else "#E69F00"
        label = f"{rate:g} Gb/s, {len(mine):,} {'cable' if len(mine) == 1 else 'cables'}"
        axes.plot(*lines.reshape(-1, 2).T, color=shade, linewidth=width, alpha=0.55, zorder=1, label=label)
    names = [*topology.host_names, *topology.switch_names]
    for which in np.unique(level):
        mine = np.flatnonzero(level == which)
        colour = "#000000" if which == 0 else "#009E73"
        size = 60 if len(mine) <= _NAMED_SWITCHES else 12
        marker = "o" if which == 0 else "s"
        axes.scatter(at[mine, 0], at[mine, 1], s=size, marker=marker, color=colour, zorder=2)
        if len(mine) <= (_NAMED_HOSTS if which == 0 else _NAMED_SWITCHES):
            for node in mine.tolist():
                below = (0, -13) if which == 0 or is_flat else (0, 7)
                axes.annotate(
                    names[node], at[node], xytext=below, textcoords="offset points", ha="center", fontsize=8, zorder=3,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
                )  # fmt: skip
        if not is_flat:
            text = f"{len(mine):,} hosts" if which == 0 else f"tier {which}: {len(mine):,}"
            axes.text(-0.02, at[mine[0], 1], text, transform=axes.get_yaxis_transform(), ha="right", va="center")
    axes.set_axis_off()
    axes.set_aspect("equal" if is_flat else "auto")
    axes.margins(0.06 if is_flat else 0.02, 0.14)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=10)
    _save(figure, path)


def _node(topology: Topology, port: int) -> int:
    """Hosts by number, switches behind them."""
    switch = int(topology.port_switch[port])
    return topology.hosts + switch if switch >= 0 else int(topology.nic_host[topology.port_nic[port]])


def _by_level(level: np.ndarray) -> np.ndarray:
    """Places of nodes, each level spread over the width."""
    at = np.zeros((len(level), 2))
    for which in np.unique(level):
        mine = np.flatnonzero(level == which)
        at[mine, 0] = (np.arange(len(mine)) + 0.5) / len(mine)
        at[mine, 1] = which
    return at


def _on_a_circle(topology: Topology, ends: np.ndarray) -> np.ndarray:
    """Places of nodes: switches on a circle, their hosts outside, beside the first switch that they are cabled to."""
    count = topology.hosts + topology.switches
    turn = np.zeros(count)
    turn[topology.hosts :] = np.arange(topology.switches) / topology.switches
    seen: dict[int, list[int]] = {}
    for a, b in ends.tolist():
        host, switch = min(a, b), max(a, b)
        if host < topology.hosts and not any(host in others for others in seen.values()):
            seen.setdefault(switch, []).append(host)
    for switch, hosts in seen.items():
        fan = (np.arange(len(hosts)) + 0.5) / len(hosts) - 0.5
        turn[hosts] = turn[switch] + 0.8 * fan / topology.switches
    radius = np.where(np.arange(count) < topology.hosts, 1.45, 1.0)
    return np.stack([radius * np.sin(2 * np.pi * turn), radius * np.cos(2 * np.pi * turn)], axis=1)


def _key(colour: str, dashes: Any, marker: str, label: str) -> Line2D:
    """A line of a transport's style, for the legend."""
    return Line2D([], [], color=colour, linestyle=dashes, marker=marker, linewidth=2, markersize=6, label=label)


def _title(results: Sequence[RunResult]) -> str:
    flows = results[0].flows
    sizes = np.unique(flows["size_bytes"])
    size = _bytes_text(int(sizes[0])) if sizes.size == 1 else f"{_bytes_text(int(sizes[0]))} to " \
        f"{_bytes_text(int(sizes[-1]))}"
    receivers = np.unique(flows["dst"])
    where = f"to h{receivers[0]}" if receivers.size == 1 else f"to {receivers.size} hosts"
    seeds = sorted({result.seed for result in results})
    told = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds from {seeds[0]}"
    return f"{len(flows)} {'flow' if len(flows) == 1 else 'flows'} of {size} {where}, {told}"


def _legend_text(name: str, runs: list[RunResult]) -> str:
    drops, pauses, resent = (
        round(float(np.median([run.counters[key] for run in runs]))) for key in ("drops", "pauses", "resent_packets")
    )
    flows = sum(len(run.flows) for run in runs)
    done = sum(int((run.flows["fct_rx_ps"] >= 0).sum()) for run in runs)
    lost = round(float(np.median([run.counters.get("lost", 0) for run in runs])))
    on_lines = f" {lost:,} lost," if lost else ""
    text = f"{name}: {drops:,} drops,{on_lines} {pauses:,} pauses, {resent:,} resent"
    if len(runs) > 1:
        text += " (median)"
    return text if done == flows else f"{text}, {flows - done:,} of {flows:,} flows unfinished"


def _completions_ps(runs: list[RunResult]) -> np.ndarray:
    fct = np.concatenate([run.flows["fct_rx_ps"] for run in runs])
    return np.sort(fct[fct >= 0])


def _time_unit(longest_ps: float) -> tuple[int, str]:
    return (PS_PER_MS, "ms") if longest_ps >= 10 * PS_PER_MS else (PS_PER_US, "us")


def _share(runs: list[RunResult]) -> tuple[float, float] | None:
    """Wire bound in ps and fair share in Gb/s, where all flows start together and end at one host."""
    run = runs[0]
    if run.wire_bound_ps is None or run.goodput_limit_gbps is None or np.unique(run.flows["start_ps"]).size > 1:
        return None
    return run.wire_bound_ps, run.goodput_limit_gbps / len(run.flows)


def _plot_completion(panel: Any, groups: dict[str, list[RunResult]], styles: dict[str, _Style]) -> None:
    completions = {name: _completions_ps(runs) for name, runs in groups.items()}
    finished = np.concatenate(list(completions.values()))
    unit, unit_name = _time_unit(float(finished.max()) if finished.size else 0)
    is_log = finished.size > 0 and finished.max() > _LOG_RATIO * max(int(finished.min()), 1)
    has_bound = False
    for name, runs in groups.items():
        colour, dashes, marker = styles[name]
        times = completions[name]
        total = sum(len(run.flows) for run in runs)
        if times.size:
            y = np.arange(1, times.size + 1) / total
            panel.step(
                np.concatenate([times[:1], times]) / unit, np.concatenate([[0], y]), where="post", color=colour,
                linestyle=dashes, linewidth=2,
            )
            panel.plot(times[-1] / unit, y[-1], color=colour, marker=marker, markersize=7, clip_on=False, zorder=5)
        if (share := _share(runs)) is not None:
            has_bound = True
            panel.axvline(share[0] / unit, color=colour, linestyle=":", linewidth=1.4)
    if is_log:
        _log_axis(panel.xaxis, panel.set_xscale)
    else:
        panel.set_xlim(left=0)
    panel.set_ylim(0, 1.03)
    if not finished.size:
        _say(panel, "no flow finished")
    panel.set(title="Completion times" + ("; dotted: wire bound of all" if has_bound else ""),
              xlabel=f"time to the last byte at the receiver ({unit_name})", ylabel="fraction of flows (CDF)")


def _plot_goodput(panel: Any, groups: dict[str, list[RunResult]], styles: dict[str, _Style]) -> None:
    has_share = False
    low, high = np.inf, 0.0
    for name, runs in groups.items():
        colour, _, marker = styles[name]
        fct = np.stack([run.flows["fct_rx_ps"] for run in runs])
        goodput = np.where(fct > 0, runs[0].flows["size_bytes"] * 8_000 / np.maximum(fct, 1), np.nan)
        is_done = ~np.isnan(goodput).all(axis=0)
        sender = runs[0].flows["src"][is_done]
        goodput = goodput[:, is_done]
        if sender.size == 0:
            continue
        middle, least, most = np.nanmedian(goodput, axis=0), np.nanmin(goodput, axis=0), np.nanmax(goodput, axis=0)
        size = float(np.clip(150 / np.sqrt(sender.size), 3, 40))
        if len(runs) > 1:
            panel.vlines(sender, least, most, color=colour, alpha=0.35, linewidth=1)
        panel.scatter(sender, middle, s=size, color=colour, marker=marker, alpha=0.85, linewidths=0)
        low, high = min(low, float(least.min())), max(high, float(most.max()))
        if (share := _share(runs)) is not None:
            has_share = True
            high = max(high, share[1])
            panel.axhline(share[1], color=colour, linestyle=":", linewidth=1.4)
    if high > _LOG_RATIO * low:
        _log_axis(panel.yaxis, panel.set_yscale)
    else:
        panel.set_ylim(0, 1.05 * high or 1)
    if not np.isfinite(low):
        _say(panel, "no flow finished")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    pooled = ", range of seeds" if max(map(len, groups.values())) > 1 else ""
    dotted = "; dotted: fair share" if has_share else ""
    panel.set(title=f"Goodput by sender{dotted}", xlabel="sender (host number)", ylabel=f"goodput (Gb/s){pooled}")


def _plot_series(depth: Any, pauses: Any, groups: dict[str, list[RunResult]], styles: dict[str, _Style]) -> None:
    ends = [runs[0].end_ps for runs in groups.values()]
    unit, unit_name = _time_unit(max(ends))
    is_log = max(ends) > _LOG_RATIO * max(min(ends), 1)
    deepest = max(int(runs[0].series["depth_max_bytes"].max(initial=0)) for runs in groups.values())
    depth_unit, depth_name = (1_000_000, "MB") if deepest >= 1_000_000 else (1_000, "kB")
    is_paused = False
    first_ps = max(ends)
    for name, runs in groups.items():
        colour, dashes, _ = styles[name]
        run = runs[0]
        edges = run.series_edges_ps.copy()
        edges[-1] = max(min(edges[-1], run.end_ps), edges[-2] + 1)
        begin = int(edges[np.argmax(run.series["depth_max_bytes"] > 0)]) or int(edges[1]) if is_log else 0
        first_ps = min(first_ps, begin)
        spaced = np.geomspace(edges[1], edges[-1], _POINTS) if is_log else np.linspace(0, edges[-1], _POINTS)
        starts = np.unique(np.searchsorted(edges[:-1], [0, *spaced[:-1]], side="right") - 1)
        edges = edges[np.append(starts, len(run.series))]
        for panel, values in (
            (depth, run.series["depth_max_bytes"] / depth_unit), (pauses, run.series["paused_max"]),
        ):
            if panel is pauses and not values.any():
                continue
            is_paused = is_paused or panel is pauses
            largest = np.maximum.reduceat(values, starts)
            panel.step(edges / unit, np.append(largest, largest[-1]), where="post", color=colour, linestyle=dashes,
                       linewidth=1.5, alpha=0.9)
    changes = {change["time_us"] * PS_PER_US / unit for runs in groups.values() for change in runs[0].changes}
    for panel in (depth, pauses):
        panel.vlines(sorted(changes), 0, 1, transform=panel.get_xaxis_transform(), **_CHANGE)
        if is_log:
            _log_axis(panel.xaxis, panel.set_xscale)
        panel.set_xlim(left=first_ps / unit, right=max(ends) * 1.02 / unit)
        panel.set_ylim(bottom=0)
        panel.set_xlabel(f"time since the start ({unit_name})")
    first = " (first seed)" if max(map(len, groups.values())) > 1 else ""
    marked = "; grey: links change" if changes else ""
    is_one = all(np.unique(runs[0].flows["dst"]).size == 1 for runs in groups.values())
    where = "the receiver" if is_one else "the NIC that is sent most"
    depth.set(title=f"Queue towards {where}{first}{marked}", ylabel=f"largest depth ({depth_name})")
    pauses.set(title=f"Paused (port, priority) pairs{first}", ylabel="pairs paused at once (count)")
    pauses.yaxis.set_major_locator(MaxNLocator(integer=True))
    if not is_paused:
        pauses.set_ylim(0, 1)
        _say(pauses, "no pauses")


def _say(panel: Any, text: str) -> None:
    panel.text(0.5, 0.5, text, ha="center", va="center", transform=panel.transAxes, color="#666666")


def _log_axis(axis: Any, set_scale: Any) -> None:
    set_scale("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def _bytes_text(size_bytes: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes} B"


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    final = Path(os.path.realpath(path))  # a symbolic link stays, and what it names is replaced
    beside = final.with_name(f".ttpoe-{secrets.token_hex(6)}.part")
    try:
        figure.savefig(beside, format="png")
        os.replace(beside, final)
    except BaseException:
        with suppress(FileNotFoundError):
            beside.unlink()
        raise

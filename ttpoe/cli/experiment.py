"""Running a scenario from the command line: progress, table, files, exit status. Shared by the experiment commands."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Collection
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from ttpoe.cli import ExitStatus
from ttpoe.cli.tables import comparison

if TYPE_CHECKING:
    from emulator.config import ScenarioConfig
    from emulator.fabric import Fabric, Progress, TraceSink
    from emulator.results import RunResult


_TELLING_S = 0.5
"""A run shorter than this has no progress worth reading."""


class _Status:
    """One line on a terminal: what compiles, what runs, how far, how fast; silent in a pipe."""

    def __init__(self, console: Console, runs: int) -> None:
        self._console = console
        self._runs = runs
        self._done = 0
        self._what = ""
        self._status = console.status("starting") if console.is_terminal else None
        self._started = time.monotonic()

    def __enter__(self) -> _Status:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def _say(self, text: str) -> None:
        if self._status:
            self._status.update(text)

    def on_compile(self, name: str) -> None:
        self._say(f"first use: compiling kernels ({name}), about a minute once")

    def on_run(self, transport: str, seed: int) -> None:
        self._done += 1
        left = ""
        if self._done > 1:
            per_run = (time.monotonic() - self._started) / (self._done - 1)
            left = f", about {per_run * (self._runs - self._done + 1):.0f} s left"
        self._what = f"run {self._done} of {self._runs}: {transport}, seed {seed}{left}"
        self._say(self._what)

    def on_slice(self, at: Progress) -> None:
        if at.wall_s < _TELLING_S:
            return
        rate = at.events / at.wall_s / 1e6 if at.wall_s else 0.0
        self._say(
            f"{self._what}; {at.now_ps / 1e6:,.0f} us, {at.unfinished} flows left, {at.events:,} events, {rate:.1f} M/s"
        )


def run_scenario(
    scenario: ScenarioConfig,
    *,
    out: Path | None,
    capture: str | None,
    timestamps: str,
    as_json: bool,
    option_names: dict[str, str] | None = None,
    origin: str = "",
    figure: str = "incast.png",
) -> ExitStatus:
    """Run every transport and seed, print the table or the JSON, write the files; returns the exit status.

    Parameters
    ----------
    scenario : ScenarioConfig
    out : Path, optional
        Directory for results.json, flows.csv, the figure and captures.
    capture : str, optional
        Port names with commas, or ``all``.
    timestamps : str
        ``ns`` or ``ps``, of captures.
    as_json : bool
        Print JSON instead of the table.
    option_names : dict, optional
        Option for a field's name, so that an error names what was typed.
    origin : str
        Put before an error of the scenario: the file it is from.
    figure : str
        Name of the figure's file.
    """
    from emulator.config import ConfigError
    from emulator.experiments import run_all
    from ttpoe._jit import compiling

    results: list[RunResult] = []
    captures: list[Path] = []
    interrupted = False
    try:
        ports = captured_ports(capture, out, scenario)
        with ExitStack() as stack:

            def open_sink(fabric: Fabric) -> TraceSink:
                return _open_capture(stack, fabric, out, ports, timestamps, captures)

            runs = len(scenario.runs) * scenario.repeat
            status = stack.enter_context(_Status(Console(stderr=True), runs))
            stack.enter_context(compiling(status.on_compile))
            todo = run_all(
                scenario, capture=ports, open_sink=open_sink, on_run=status.on_run, on_slice=status.on_slice,
                on_warning=lambda warning: click.echo(f"warning: {warning}", err=True),
            )  # fmt: skip
            if out is not None:
                _make_directory(out)  # only now that the scenario is known to be good
            try:
                for result in todo:
                    results.append(result)
            except KeyboardInterrupt:
                interrupted = True
            order = list(dict.fromkeys((result.transport, result.routing) for result in results))
            results.sort(key=lambda result: order.index((result.transport, result.routing)))
    except ConfigError as error:
        raise usage_error(origin + str(error), option_names or {}) from None
    return _tell(scenario, results, out, captures, as_json, interrupted, figure)


def usage_error(message: str, option_names: dict[str, str]) -> click.UsageError:
    """The error of a field, under the name of the option that set it: the field's, or that of what it is part of."""
    field, _, rest = message.partition(": ")
    inner, _, what = rest.partition(" ")  # a check of several fields begins with the one at fault
    if f"{field}.{inner}" in option_names:
        field, rest = f"{field}.{inner}", what
    matches = (name for known, name in option_names.items() if f"{field}.".startswith(f"{known}."))
    option = next(matches, None)
    return click.UsageError(f"{option}: {rest}" if option and rest else message)


def captured_ports(capture: str | None, out: Path | None, scenario: ScenarioConfig) -> frozenset[str]:
    """Ports that ``--capture`` names; a usage error where frames cannot be captured."""
    if capture is None:
        return frozenset()
    if out is None:
        raise click.UsageError("--capture needs --out DIR to write to")
    for name in scenario.transports:
        if scenario.profile(name).flow_control == "credits":
            raise click.UsageError(
                f"--capture: InfiniBand frames are no Ethernet frames; leave the transport {name} out"
            )
    if capture == "all":
        from emulator.fabric import Fabric

        return frozenset(Fabric(scenario, scenario.transports[0], scenario.seed).topology.port_names)
    ports = frozenset(name.strip() for name in capture.split(",") if name.strip())
    if not ports:
        raise click.UsageError("--capture names no port; give names with commas, such as h0,s0.p0, or all")
    return ports


def _make_directory(out: Path) -> None:
    """Make the directory and see that files can be made there, before hours are spent on results."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise click.UsageError(f"--out: cannot write to directory {out}: {error.strerror}") from None


def _open_capture(
    stack: ExitStack, fabric: Fabric, out: Path | None, ports: frozenset[str], timestamps: str, captures: list[Path]
) -> TraceSink:
    from emulator.collect import display_name
    from traces.frames import CaptureWriter, FrameBuilder

    assert out is not None
    world, topology = fabric.world, fabric.topology
    builder = FrameBuilder(
        topology.port_names, topology.port_nic, world.ends, int(world.engine[0]["protocol"]),
        seed=fabric.seed, message_bytes=world.flows["size_bytes"], version=fabric.scenario.roce.version,
        first_psns=world.qps["initial_psn"][0::2] if fabric.profile.is_selective else None,
        mtu_bytes=(fabric.scenario.tcp if fabric.profile.is_tcp else fabric.scenario.roce).mtu_bytes,
        window_bytes=fabric.scenario.tcp.window_bytes, is_ipv4=fabric.scenario.ttpoe.mode == "ipv4",
    )  # fmt: skip
    writer = CaptureWriter(
        out / display_name(fabric), builder, sorted(ports), resolution=timestamps, rate_bps=topology.rate_bps
    )
    captures += writer.paths.values()
    return stack.enter_context(writer).sink


def _write_files(
    out: Path, scenario: ScenarioConfig, results: list[RunResult], captures: list[Path], is_interrupted: bool,
    figure: str,
) -> None:
    from emulator.experiments.report import write_flows, write_ports, write_results
    from traces.plots import plot_incast

    write_results(
        out / "results.json", scenario, results, version=version("ttpoe"), is_interrupted=is_interrupted,
        captures=sorted(str(path.relative_to(out)) for path in captures),
    )  # fmt: skip
    write_flows(out / "flows.csv", results)
    write_ports(out / "ports.csv", results)
    plot_incast(results, out / figure)


def _listed(what: str, out: Path, paths: Collection[Path]) -> str:
    """A line that names the first few of ``paths`` below ``out``; nothing without any."""
    names = sorted(str(path.relative_to(out)) for path in paths)
    return f"{what}: {', '.join(names[:6])}{' and more' if len(names) > 6 else ''}\n" if names else ""


def _print(text: str) -> None:
    """Print to standard output, whose reader may be gone, as after ``| head``; the exit status still tells all."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains as it ends


def _tell(
    scenario: ScenarioConfig, results: list[RunResult], out: Path | None, captures: list[Path], as_json: bool,
    interrupted: bool, figure: str,
) -> ExitStatus:  # fmt: skip
    """Write and print what there is; decide the exit status."""
    from emulator.experiments.report import report

    status = ExitStatus.OK
    told = report(results)
    if as_json:
        text = json.dumps(told, allow_nan=False) + "\n"
    else:
        console = Console()
        with console.capture() as captured:
            bare = ", frames without headers" if scenario.frame_overhead == "peer" else ""
            for table in comparison(scenario.name + bare, told, console.width):
                console.print(table)
        text = captured.get()
    if out is not None and results:
        try:
            _write_files(out, scenario, results, captures, interrupted, figure)
            if not as_json:
                text += f"wrote results.json, flows.csv, ports.csv and {figure} to {out}\n"
                text += _listed("captures", out, captures)
                text += _listed("left there by earlier runs", out, set(out.glob("*/*.pcapng")).difference(captures))
        except OSError as failed:
            click.echo(f"error: --out: cannot write to directory {out}: {failed.strerror or failed}", err=True)
            status = ExitStatus.ERROR
    _print(text)
    told_of = {ExitStatus.OK}
    for result in results:
        is_told = len(scenario.runs) > len(scenario.transports)
        how = f"{result.transport}, {result.routing}" if is_told else result.transport
        name = f"{how}, seed {result.seed}"
        for error in result.errors:
            click.echo(f"error: {name}: {error}", err=True)
            told_of.add(ExitStatus.PROMISE_BROKEN)
        if result.deadlock:
            click.echo(
                f"deadlock: {name}: at {result.end_ps / 1e6:,.0f} us priority {result.deadlock['priority']} of "
                f"{', '.join(result.deadlock['switches'])} waits for itself: {result.deadlock_told}", err=True
            )  # fmt: skip
            told_of.add(ExitStatus.DEADLOCK)
        for what, flows in (("unfinished", result.unfinished), ("arrived changed", result.changed)):
            if flows:
                shown = ", ".join(flows[:8]) + (" and more" if len(flows) > 8 else "")
                click.echo(f"{what}: {name}: {len(flows)} of {len(result.flows)} flows: {shown}", err=True)
                told_of.add(ExitStatus.UNFINISHED)
        for reason in result.reasons:
            click.echo(f"why: {name}: {reason}", err=True)
    if interrupted:
        runs = len(scenario.runs) * scenario.repeat
        click.echo(f"interrupted: {len(results)} of {runs} runs are kept", err=True)
        return ExitStatus.INTERRUPTED
    return status or max(told_of)  # a deadlock before a broken promise before an unfinished flow

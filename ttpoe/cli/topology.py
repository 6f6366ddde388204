"""``ttpoe topology``: what a network is made of, what it can carry, and how it looks."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ttpoe.cli.networks import NETWORK_FIELDS, network_options, network_values
from ttpoe.cli.types import RATE, set_field

if TYPE_CHECKING:
    from emulator.config import ScenarioConfig


def _scenario(file: Path | None, rate: int | None, network: dict[str, Any]) -> ScenarioConfig:
    from emulator.config import ConfigError, load_scenario, make_scenario
    from ttpoe.cli.experiment import usage_error

    try:
        if file is None:
            values: dict[str, Any] = {"topology": network_values(rate, **network)}
            set_field(values, "link.rate_bps", rate)
            return make_scenario(values)
        if file.suffix.lower() in (".json", ".graphml"):
            return make_scenario({"topology": {"kind": "graph", "file": file.name}}, file.parent)
        return load_scenario(file)
    except ConfigError as error:
        raise usage_error(str(error), {**NETWORK_FIELDS, "link.rate_bps": "--rate"}) from None


def _stages(stack: ExitStack) -> Callable[[str], object]:
    """What to call as each stage of the work begins; shown on a terminal, silent elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    return stack.enter_context(console.status("building")).update if console.is_terminal else lambda stage: None


def _rate(bps: float) -> str:
    return f"{bps / 1e12:g} Tb/s" if bps >= 1e12 else f"{bps / 1e9:g} Gb/s"


def _rows(told: dict[str, Any]) -> list[tuple[str, str]]:
    tiers, worst = told["switches_per_tier"], told["oversubscription_per_tier"]
    rows = [
        ("hosts", f"{told['hosts']:,}"),
        ("NICs", f"{told['nics']:,}"),
        ("switches", f"{told['switches']:,}"),
        *((f"  tier {tier}", f"{count:,}") for tier, count in tiers.items()),
        ("cables to hosts", f"{told['cables']['host']:,}"),
        ("cables between switches", f"{told['cables']['switch']:,}"),
        ("optics between switches, 2 a cable", f"{told['optics']['switch']:,}"),
        ("optics to hosts, if not copper", f"{told['optics']['host']:,}"),
        *((f"oversubscription of tier {tier}", f"{ratio:g} : 1") for tier, ratio in worst.items() if ratio is not None),
        ("bisection, each way", _rate(told["bisection_bps"])),
        ("  of what half of the hosts can send", f"{100 * told['bisection_of_half']:.1f} %"),
    ]
    for key, label in (("paths", "equal paths a pair"), ("hops", "cables a path")):
        if (spread := told[key]) is not None:
            rows.append((f"{label}: min, median, max", f"{spread['min']}, {spread['median']}, {spread['max']}"))
    if told["pairs_cut_off"]:
        rows.append(("pairs of NICs without a way", f"{told['pairs_cut_off']:,}"))
    return rows


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@network_options
@click.option("--rate", type=RATE, help="Line rate of every link, or of hosts' beside --uplink-rate. [100G]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="PNG", help="Draw it there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(
    file: Path | None, rate: int | None, out: Path | None, as_json: bool, **network: Any
) -> int:
    """Count, measure and draw a network: that of a scenario FILE (TOML), a graph (JSON, GraphML), or a regular one.

    A tier is told by its distance from hosts. docs/model.md says how bisection is found.
    """
    from rich.console import Console
    from rich.table import Table

    from emulator.quantities import ConfigError
    from emulator.shapes import build_topology
    from emulator.survey import survey
    from emulator.workloads import Setting, make_workload

    for option, value in {**network, "rate": rate}.items():
        if file is not None and value is not None:
            raise click.UsageError(f"--{option.replace('_', '-')}: {file} says what network it is; leave it out")
    scenario = _scenario(file, rate, network)
    shape = scenario.topology
    with ExitStack() as stack:
        say = _stages(stack)
        try:
            count = 0
            if shape.kind == "star":
                setting = Setting(scenario.seed, shape.hosts, scenario.link.rate_bps)
                count = shape.hosts or make_workload(scenario.workload, setting).hosts_needed
            built = build_topology(shape, scenario.link, count)
        except ConfigError as error:
            raise click.UsageError(f"{file}: {error}" if file else str(error)) from None
        told = survey(built, is_regular=shape.kind != "graph", on_stage=say)
        name = f"{shape.kind} of {built.hosts} hosts" + (f", {file.name}" if file else "")
        if out is not None:
            from traces.plots import plot_topology

            say("drawing")
            try:
                plot_topology(built, name, out)
            except OSError as error:
                raise click.UsageError(f"--out: cannot write {out}: {error.strerror or error}") from None
    if as_json:
        click.echo(json.dumps({"name": name, **told}))
        return 0
    console = Console()
    table = Table(title=name, title_justify="left", show_header=False, caption=f"bisection: {told['bisection_method']}")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for row in _rows(told):
        table.add_row(*row)
    console.print(table)
    return 0

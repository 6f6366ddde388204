"""``ttpoe check``: every state that two ends can get into within bounds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from ttpoe.cli import ExitStatus

_PAIRS = {
    "opens": "Whether the owners of A and B may open: 0 or 1 each.",
    "submits": "Submits of each owner.",
    "closes": "Whether each owner may close.",
    "reader_bytes": "What may wait for each reader; 0: it reads at once.",
}
_NUMBERS = {
    "losses": "Frames lost.",
    "duplicates": "Frames that arrive again, at any time.",
    "delays": "Frames that any number of others overtake.",
    "early_timeouts": "Timers that run out too early.",
    "crashes": "Ends that forget all and begin anew.",
    "window": "Bytes that may be unacknowledged, up to 4.",
    "submit_bytes": "Bytes of each submit.",
    "mtu_bytes": "Bytes of the largest payload.",
    "retry_limit": "Timeouts in a row that are retried.",
    "line_frames": "A PAYLOAD goes on the line while it holds fewer.",
}


class _Pair(click.ParamType):
    name = "A,B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        try:
            first, second = (int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a number for A and one for B; write them as in 2,1", param, ctx)
        return first, second


def _bounds_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, text in reversed([*_PAIRS.items(), *_NUMBERS.items()]):
        kind = _Pair() if name in _PAIRS else click.INT
        command = click.option(f"--{name.replace('_', '-')}", name, type=kind, help=text)(command)
    return command


@dataclass
class _Job:
    """One search: what it is called, and the rule that it does without."""

    name: str
    bounds: Any
    number: int = 0
    says: str = ""


@click.command()
@click.argument("scenarios", nargs=-1)
@_bounds_options
@click.option("--tail-probe/--no-tail-probe", default=None, help="Whether a lost tail is probed.")
@click.option("--without", "rule", metavar="RULE", help="Take a rule out of the machine and show what breaks; or: all.")
@click.option("--max-states", type=click.IntRange(1), default=5_000_000, show_default=True, help="Stop beyond these.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(
    scenarios: tuple[str, ...], rule: str | None, max_states: int, as_json: bool, **changes: Any
) -> int:  # fmt: skip
    """Search every state that two ends can get into, with the machine's own kernels.

    SCENARIOS are transfer, duplex, crossing, reader, restart, probe and giving-up; without any, all of them. The other
    options change their bounds. A broken promise is shown as a message-sequence chart.
    """
    from ttpoe.check import draw_chart, removable
    from ttpoe.check import expand as kernels

    jobs = _list_jobs(scenarios, rule, {name: value for name, value in changes.items() if value is not None})
    if rule is not None:
        kernels = removable()
    results = []
    for job in jobs:
        result = _run(job, kernels, max_states)
        chart = draw_chart(result, kernels=kernels, removed_rule=job.number) if result.violation else ""
        results.append((job, result, chart))
        if result.violation and rule is None:
            break
    if as_json:
        click.echo(json.dumps([_tell(job, result, chart) for job, result, chart in results], indent=2))
    else:
        _print_table(results, with_charts=rule != "all")
    if rule is not None:
        return ExitStatus.OK if all(result.violation for _, result, _ in results) else ExitStatus.UNFINISHED
    if any(result.violation for _, result, _ in results):
        return ExitStatus.PROMISE_BROKEN
    return ExitStatus.OK if all(r.is_whole and not r.cut for _, r, _ in results) else ExitStatus.UNFINISHED


def _list_jobs(scenarios: tuple[str, ...], rule: str | None, changes: dict[str, Any]) -> list[_Job]:
    """What to search, or UsageError."""
    from ttpoe.check import REMOVALS, SCENARIOS

    for name in scenarios:
        if name not in SCENARIOS:
            raise click.UsageError(f"there is no scenario {name!r}; choose from {', '.join(SCENARIOS)}")
    numbers = {known.name: number for number, known in enumerate(REMOVALS, start=1)}
    says = {known.name: known.says for known in REMOVALS}
    if rule is not None and rule != "all" and rule not in numbers:
        raise click.UsageError(f"--without: there is no rule {rule!r}; choose from all, {', '.join(numbers)}")
    if rule is None:
        jobs = [_Job(name, SCENARIOS[name]) for name in scenarios or SCENARIOS]
    elif scenarios and rule == "all":
        raise click.UsageError("--without all searches each rule within bounds of its own; leave out the scenarios")
    elif scenarios:
        jobs = [_Job(f"{name} without {rule}", SCENARIOS[name], numbers[rule], says[rule]) for name in scenarios]
    else:
        jobs = [
            _Job(each.name, each.bounds, numbers[each.name], each.says)
            for each in REMOVALS
            if rule in ("all", each.name)
        ]
    try:
        return [replace(job, bounds=replace(job.bounds, **changes)) for job in jobs]
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _run(job: _Job, kernels: Any, max_states: int) -> Any:
    from ttpoe.check import Search

    with ExitStack() as stack:
        tell = None
        if sys.stderr.isatty():
            from rich.console import Console

            status = stack.enter_context(Console(stderr=True).status(f"{job.name}: compiling"))

            def tell(found: int, done: int) -> None:
                status.update(f"{job.name}: {found:,} states, {done:,} of them done")

        return Search(job.bounds, kernels=kernels, removed_rule=job.number).run(max_states, tell)


def _tell(job: _Job, result: Any, chart: str) -> dict[str, Any]:
    from ttpoe.check import SAYS

    return {
        "name": job.name, "without": job.says or None, "bounds": asdict(job.bounds),
        "states": result.states, "steps": result.steps,
        "depth": result.depth, "seconds": round(result.seconds, 3), "is_whole": result.is_whole, "cut": result.cut,
        "violation": result.violation.name if result.violation else None,
        "says": SAYS.get(result.violation), "chart": chart.splitlines(),
    }  # fmt: skip


def _print_table(results: list[tuple[_Job, Any, str]], *, with_charts: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from ttpoe.check import SAYS

    table = Table()
    table.add_column("", no_wrap=True)
    has_rules = any(job.number for job, _, _ in results)
    if has_rules:
        table.add_column("without the rule that", overflow="fold", min_width=30)
    for heading in ("states", "steps", "depth", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("broken promise", overflow="fold")
    for job, result, _ in results:
        verdict = SAYS.get(result.violation) or ("none" if result.is_whole else "none so far: --max-states")
        if result.cut:
            verdict += f"; {result.cut:,} steps were not followed, since a line was full"
        table.add_row(
            job.name,
            *[job.says] * has_rules,
            f"{result.states:,}",
            f"{result.steps:,}",
            str(result.depth),
            f"{result.seconds:.1f}",
            verdict,
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for job, _, chart in results if with_charts else ():
        if chart:
            click.echo(f"\n{job.name}\n\n{chart}")

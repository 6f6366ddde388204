"""``ttpoe validate``: the emulator beside theory and other tools' results, row by row."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ttpoe.cli import ExitStatus

if TYPE_CHECKING:
    from emulator.validation import Outcome, Row


@click.command()
@click.option("--row", "names", multiple=True, metavar="NAME", help="Only this row; may be given several times. [all]")
@click.option("--quick", is_flag=True, help="Only rows that take a few seconds.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the table between the marks in this Markdown file; needs all rows.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(names: tuple[str, ...], quick: bool, out: Path | None, as_json: bool) -> int:
    """Measure what theory and other tools say, and judge each row: pass, fail, or not yet.

    Exit status 1: a row failed. Some of the slow ones do, and docs/validation.md says why; --out writes that page.
    """
    from emulator.validation import ROWS, Verdict
    from emulator.validation.report import markdown, replace_part, tally
    from ttpoe.files import replacing

    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise click.UsageError(f"--row: there is no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    rows = [row for name, row in ROWS.items() if (not names or name in names) and (not quick or row.is_quick)]
    if not rows:
        raise click.UsageError("--quick: none of these rows is quick; leave it out")
    page = None
    if out is not None:
        if len(rows) < len(ROWS):
            raise click.UsageError("--out: the page has all rows; leave out --row and --quick")
        try:
            page = out.read_text(encoding="utf-8")
            replace_part(page, "")
        except OSError as error:
            raise click.UsageError(f"--out: {out}: {error.strerror or error}") from None
        except ValueError as error:
            raise click.UsageError(f"--out: {out}: {error}") from None
    outcomes = _measure(rows)
    if as_json:
        click.echo(json.dumps({"rows": [outcome.as_dict() for outcome in outcomes], "summary": tally(outcomes)}))
    else:
        _print(outcomes)
    if out is not None and page is not None:
        with replacing(out) as file:
            file.write(replace_part(page, markdown(outcomes)))
    return ExitStatus.ERROR if any(outcome.verdict is Verdict.FAIL for outcome in outcomes) else ExitStatus.OK


def _measure(rows: list[Row]) -> list[Outcome]:
    """Every row, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from emulator.validation import evaluate
    from ttpoe._jit import compiling

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    outcomes = []
    with ExitStack() as stack:
        stack.enter_context(bar)
        task = bar.add_task("", total=len(rows))
        stack.enter_context(compiling(lambda name: bar.update(task, description=f"compiling {name}")))
        for row in rows:
            bar.update(task, description=row.name)
            outcomes.append(evaluate(row))
            bar.advance(task)
    return outcomes


def _print(outcomes: list[Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from emulator.validation.report import told_tally

    table = Table()
    for heading in ("row", "expected", "ours", "verdict"):
        table.add_column(heading, overflow="fold")
    for outcome in outcomes:
        row, measured = outcome.row, outcome.measured
        ours = f"needs {row.needs}"
        if measured is not None:
            ours = measured.ours + (f"; with real overhead {measured.real}" if measured.real else "")
        table.add_row(*(Text(cell) for cell in (row.name, row.expected, ours, outcome.verdict.value)))
    console = Console()
    console.print(table)
    click.echo(told_tally(outcomes))
    for outcome in outcomes:
        for check in outcome.measured.checks if outcome.measured else ():
            if not check.holds:
                line = f"{outcome.row.name}: {check.what} is {check.value:g}, not in {check.low:g} to {check.high:g}"
                click.echo(line, err=True)

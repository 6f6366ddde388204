"""Option types of the command line: quantities with units, refused by name and with the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ttpoe import units


class Quantity(click.ParamType):
    """A number with a unit, parsed by one of the functions of :mod:`ttpoe.units`, within bounds."""

    def __init__(
        self, name: str, parse: Callable[[str], Any], minimum: float | None = None, maximum: float | None = None
    ) -> None:
        self.name = name
        self._parse = parse
        self._minimum = minimum
        self._maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            result = self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._minimum is not None and result < self._minimum:
            self.fail(f"{value!r} is too small; give at least {self._minimum}", param, ctx)
        if self._maximum is not None and result > self._maximum:
            self.fail(f"{value!r} is too large; give at most {self._maximum}", param, ctx)
        return result


SIZE = Quantity("size", units.parse_size_bytes, minimum=1)
RATE = Quantity("rate", units.parse_rate_bps, minimum=1)
TIME = Quantity("time", units.parse_time_ps)
DURATION = Quantity("time", units.parse_time_ps, minimum=1)
LOAD = Quantity("load", units.parse_load)
RATIO = Quantity("ratio", units.parse_ratio)
FRACTION = Quantity("fraction", units.parse_fraction)


def names(text: str | None) -> list[str] | None:
    """What a list with commas names; None if it was not given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def set_field(values: dict[str, Any], field: str, value: Any) -> None:
    """Set ``a.b`` in nested plain values, if an option was given."""
    if value is None:
        return
    *path, name = field.split(".")
    for part in path:
        values = values.setdefault(part, {})
    values[name] = value


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give an experiment command the options ``--out``, ``--capture``, ``--timestamps`` and ``--json``."""
    directory = click.Path(path_type=Path, file_okay=False)
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table."),
        click.option(
            "--timestamps", type=click.Choice(["ns", "ps"]), default="ns", help="Of captures; older tshark misreads ps."
        ),
        click.option("--capture", metavar="PORTS", help="pcapng files of ports (h0, s0.p0, ...), or all; needs --out."),
        click.option("--out", type=directory, help="Write results.json, flows.csv, ports.csv and a figure."),
    ):
        command = option(command)
    return command

"""``ttpoe run``: a scenario from a TOML file."""

from __future__ import annotations

from pathlib import Path

import click

from ttpoe.cli.types import output_options


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@output_options
def command(scenario: Path, out: Path | None, capture: str | None, timestamps: str, as_json: bool) -> int:
    """Run the scenario in the TOML file SCENARIO; docs/formats.md lists its fields.

    The figure in --out has the file's name.
    """
    from emulator.config import ConfigError, load_scenario
    from ttpoe.cli.experiment import run_scenario

    try:
        loaded = load_scenario(scenario)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return run_scenario(
        loaded, out=out, capture=capture, timestamps=timestamps, as_json=as_json, origin=f"{scenario}: ",
        figure=f"{scenario.stem}.png",
    )

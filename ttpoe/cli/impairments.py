"""Options for a bad line, shared by the commands that have one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ttpoe import units
from ttpoe.cli.types import FRACTION, RATE, SIZE, TIME

if TYPE_CHECKING:
    from ttpoe.impair import ImpairmentConfig


class Pair(click.ParamType):
    """Two quantities with a colon between them, or the first alone."""

    def __init__(
        self, name: str, first: Callable[[str], Any], second: Callable[[str], Any], default: Any = None
    ) -> None:
        self.name = name
        self._first, self._second, self._default = first, second, default

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        first, colon, second = value.partition(":")
        if not colon and self._default is None:
            self.fail(f"{value!r} lacks a colon; write it as {self.name}", param, ctx)
        try:
            return self._first(first), self._second(second) if colon else self._default
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Ordinals(click.ParamType):
    name = "N[,N]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} are not frames; write their numbers, from 1, as in 1,7", param, ctx)


def _burst_frames(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of frames; write 1%:20 for bursts of 20 on average") from None


_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--loss", "loss", {"type": FRACTION, "metavar": "FRACTION", "help": "Lose frames at random: 1% or 0.01."}),
    ("--loss-burst", "loss_burst", {
        "type": Pair("FRACTION:FRAMES", units.parse_fraction, _burst_frames, 10.0), "metavar": "FRACTION[:FRAMES]",
        "help": "Lose this many in bursts of FRAMES on average. [10]"}),
    ("--loss-every", "loss_every", {"type": click.IntRange(1), "metavar": "N", "help": "Lose every Nth frame."}),
    ("--lose-frames", "lose_frames", {
        "type": _Ordinals(), "metavar": "N[,N]", "help": "Lose these frames of each way, counted from 1."}),
    ("--bad-fcs", "bad_fcs", {
        "type": FRACTION, "metavar": "FRACTION", "help": "Damage frames; the FCS shows it, so they are dropped."}),
    ("--bit-error-rate", "bit_error_rate", {
        "type": FRACTION, "metavar": "RATE", "help": "Drop frames with a wrong bit; of so many bits one is: 1e-9."}),
    ("--corrupt-undetected", "corrupt_undetected", {
        "type": FRACTION, "metavar": "FRACTION", "help": "Flip bits and deliver: the SHA-256 must tell."}),
    ("--mark", "mark", {
        "type": FRACTION, "metavar": "FRACTION", "help": "Mark CE what ECN allows it for: `dctcp`'s data."}),
    ("--mark-above", "mark_above_bytes", {
        "type": SIZE, "metavar": "SIZE", "help": "Mark so what finds more than this waiting for --rate."}),
    ("--duplicate", "duplicate", {"type": FRACTION, "metavar": "FRACTION", "help": "Deliver frames twice."}),
    ("--reorder", "reorder", {"type": FRACTION, "metavar": "FRACTION", "help": "Let up to 8 frames overtake one."}),
    ("--delay", "delay_ps", {"type": TIME, "metavar": "TIME", "help": "Deliver later, each way; kept to about 1 ms."}),
    ("--jitter", "jitter_ps", {"type": TIME, "metavar": "TIME", "help": "And up to this much later, in order."}),
    ("--rate", "rate_bps", {"type": RATE, "metavar": "RATE", "help": "Limit the line, with a queue of 4 MB."}),
    ("--flap", "flap", {
        "type": Pair("UP:DOWN", units.parse_time_ps, units.parse_time_ps), "metavar": "UP:DOWN",
        "help": "Let the link fail and come back: 1s:200ms."}),
)  # fmt: skip


def impairment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a bad line; it gets one argument ``impairment`` for them, an ImpairmentConfig."""

    @wraps(command)
    def with_config(**arguments: Any) -> Any:
        given = {name: arguments.pop(name) for _, name, _ in _OPTIONS}
        return command(**arguments, impairment=_config(given))

    for flag, name, options in reversed(_OPTIONS):
        with_config = click.option(flag, name, **options)(with_config)
    return with_config


def _config(given: dict[str, Any]) -> ImpairmentConfig:
    from ttpoe.impair import ImpairmentConfig

    fields = {name: value for name, value in given.items() if value is not None}
    if burst := fields.pop("loss_burst", None):
        fields["burst_loss"], fields["burst_frames"] = burst
    if flap := fields.pop("flap", None):
        fields["flap_up_ps"], fields["flap_down_ps"] = flap
    try:
        return ImpairmentConfig(**fields)
    except ValueError as error:
        flags = {"burst_loss": "--loss-burst", "burst_frames": "--loss-burst", "flap_up_ps": "--flap",
                 "flap_down_ps": "--flap", **{name: flag for flag, name, _ in _OPTIONS}}  # fmt: skip
        name, _, rest = str(error).partition(" ")
        raise click.UsageError(f"{flags.get(name, name)}: {name} {rest}") from None

"""``ttpoe trace``: look into capture files. One line a frame, as a stream, whatever the size of the file."""

from __future__ import annotations

import datetime
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ttpoe.cli import ExitStatus
from ttpoe.cli.types import SIZE
from ttpoe.constants import MAX_PAYLOAD_BYTES

if TYPE_CHECKING:
    from traces.dissect import Dissection
    from traces.pcap import Frame

_KINDS = ("ttpoe", "rocev2", "pfc", "pause", "other")
_COLOURS = {"ttpoe": "cyan", "rocev2": "green", "pfc": "magenta", "pause": "magenta", "other": "dim"}
_NS_PER_S = 1_000_000_000


@click.group()
def command() -> None:
    """Look into capture files."""


class _Kinds(click.ParamType):
    name = "kinds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        kinds = frozenset(part.strip() for part in value.split(","))
        for kind in sorted(kinds - set(_KINDS)):
            self.fail(f"{kind!r} is not a kind; give some of {', '.join(_KINDS)}", param, ctx)
        return kinds


@command.command()
@click.argument("file")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N lines.")
@click.option("--kind", "kinds", type=_Kinds(), metavar="KIND[,KIND]", help=f"Only these: {', '.join(_KINDS)}.")
@click.option("--absolute", is_flag=True, help="Times of the day in UTC, not since the first frame.")
@click.option("--max-payload", type=SIZE, default=MAX_PAYLOAD_BYTES, show_default=True,
              help="TTPoE payload above which a frame is noted as too long.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with the fields above.")
def show(
    file: str, limit: int | None, kinds: frozenset[str] | None, absolute: bool, max_payload: int, as_json: bool
) -> ExitStatus:
    """Print a line for each frame of FILE, a pcap or pcapng, gzipped or not; - reads standard input.

    A line has the frame's number, its time in seconds to the nanosecond, interface and direction where the file tells
    them, source > destination, protocol, opcode, ids (tx and rx, or QP and PSN), bytes of payload, bytes of the frame
    without FCS, ECN field (ECT(0), CE) and congestion bits (echo, reduced) where they are set, and after ! why an
    endpoint would refuse it.

    \b
    --json has the fields number, time_ns (since the epoch of the capture), interface,
    direction (in, out), kind, opcode, src, dst, vc, tx, rx, dest_qp, psn, msn,
    pause (quanta by priority; "all" for PAUSE), payload_bytes, ecn, congestion,
    captured_bytes, original_bytes and note; what does not apply is null.

    A capture that is cut or broken: the frames before, then one sentence on standard error, and exit status 1.
    """
    from traces.pcap import CaptureError

    status = ExitStatus.OK
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an interface's name may be beyond the locale's characters
    try:
        try:
            _print_lines(_dissected(file, kinds, limit, max_payload), absolute, as_json)
        except CaptureError as error:
            sys.stdout.flush()
            click.echo(f"error: {error}", err=True)
            status = ExitStatus.ERROR
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `| head`; the interpreter would flush again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _dissected(
    file: str, kinds: frozenset[str] | None, limit: int | None, max_payload_bytes: int
) -> Iterator[tuple[Frame, int, Dissection]]:
    """Each frame to show, the time of the capture's first frame in ns, and what the frame is."""
    from traces.dissect import Dissection, Dissector
    from traces.pcap import LinkType, open_capture

    dissect = Dissector(max_payload_bytes=max_payload_bytes).dissect
    start_ns: int | None = None
    left = -1 if limit is None else limit
    with open_capture(file) as capture:
        for frame in capture:
            if start_ns is None and frame.ticks is not None:
                start_ns = frame.time_ns
            if frame.interface.link_type == LinkType.ETHERNET:
                row = dissect(frame.data, frame.original_bytes)
            else:
                row = Dissection("other", f"link type {frame.interface.link_type}", "?", "?", note="not Ethernet")
            if kinds is not None and row.kind not in kinds:
                continue
            yield frame, start_ns or 0, row
            left -= 1
            if left == 0:
                return


def _print_lines(rows: Iterator[tuple[Frame, int, Dissection]], absolute: bool, as_json: bool) -> None:
    if as_json:
        write = sys.stdout.write
        for frame, _, row in rows:
            write(_json_line(frame, row))
        return
    print_line: Callable[[str, Dissection], object] = lambda line, _: sys.stdout.write(line + "\n")  # noqa: E731
    if sys.stdout.isatty():
        print_line = _coloured()
    for frame, start_ns, row in rows:
        print_line(_line(frame, start_ns, row, absolute), row)


def _coloured() -> Callable[[str, Dissection], object]:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)

    def print_line(line: str, row: Dissection) -> None:
        # file names and such are of others' making: Text reads no markup, and control characters go
        text = Text(line, style=_COLOURS[row.kind])
        if row.note is not None:
            text.stylize("bold red", line.rindex("! "))
        console.print(text, highlight=False)

    return print_line


def _time_text(time_ns: int, absolute: bool) -> str:
    seconds, fraction = divmod(abs(time_ns), _NS_PER_S)
    if absolute:
        try:
            day = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
            return f"{day:%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"
        except (ValueError, OverflowError, OSError):  # beyond the year 9999
            return f"{seconds}.{fraction:09d}"
    return f"{'-' if time_ns < 0 else ''}{seconds}.{fraction:09d}"


def _line(frame: Frame, start_ns: int, row: Dissection, absolute: bool) -> str:
    """The frame's line, without its end."""
    if frame.ticks is None:
        time = "-"
    else:
        time = _time_text(frame.time_ns if absolute else frame.time_ns - start_ns, absolute)
    port = _printable(frame.interface.name) if frame.interface.name else str(frame.interface.id)
    direction = frame.direction
    if direction:
        port = f"{port} {direction}"
    where = f"{row.src} > {row.dst}"
    parts = [f"{frame.number:>6} {time:>13}  {port:<10} {where:<37}  {row.kind:<6} {row.opcode:<16}"]
    if row.vc is not None:
        parts.append(f"vc {row.vc} tx {row.tx} rx {row.rx}")
    elif row.psn is not None:
        parts.append(f"qp {row.dest_qp} psn {row.psn}" + ("" if row.msn is None else f" msn {row.msn}"))
    elif row.pause is not None:
        parts.append(", ".join(
            f"priority {'all' if priority < 0 else priority} {f'{quanta} quanta' if quanta else 'resume'}"
            for priority, quanta in row.pause.items()
        ))  # fmt: skip
    if row.payload_bytes is not None:
        parts.append(f"payload {row.payload_bytes}")
    captured = len(frame.data)
    cut = "" if captured == frame.original_bytes else f" captured {captured}"
    parts.append(f"frame {frame.original_bytes}{cut}")
    parts += [told for told in (row.ecn, row.congestion) if told is not None]
    if row.note is not None:
        parts.append(f"! {row.note}")
    return "  ".join(parts)


def _printable(text: str) -> str:
    """Text of others' making, such as an interface's name, without what would steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def _json_line(frame: Frame, row: Dissection) -> str:
    pause = row.pause
    values = {
        "number": frame.number,
        "time_ns": None if frame.ticks is None else frame.time_ns,
        "interface": frame.interface.name if frame.interface.name else str(frame.interface.id),
        "direction": frame.direction,
        "kind": row.kind, "opcode": row.opcode, "src": row.src, "dst": row.dst,
        "vc": row.vc, "tx": row.tx, "rx": row.rx,
        "dest_qp": row.dest_qp, "psn": row.psn, "msn": row.msn,
        "pause": None if pause is None else {("all" if k < 0 else str(k)): quanta for k, quanta in pause.items()},
        "payload_bytes": row.payload_bytes,
        "ecn": row.ecn, "congestion": row.congestion,
        "captured_bytes": len(frame.data), "original_bytes": frame.original_bytes,
        "note": row.note,
    }  # fmt: skip
    return json.dumps(values) + "\n"

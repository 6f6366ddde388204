"""``ttpoe loopback``: a file over raw sockets, from one network namespace to another.

Two endpoints share one process and one event loop: that is the least that can go wrong or be left behind, and on two
busy cores two processes were no faster.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ttpoe.cli import ExitStatus
from ttpoe.cli.impairments import Pair, impairment_options
from ttpoe.cli.progress import progress_bar
from ttpoe.cli.transfer import MTU, WINDOW, congestion_option, endpoint_config, profile_option
from ttpoe.cli.types import DURATION, RATE, SIZE
from ttpoe.units import PS_PER_MS, PS_PER_S, PS_PER_US, parse_time_ps

if TYPE_CHECKING:
    from ttpoe.aio import AsyncEndpoint, Tap
    from ttpoe.config import EndpointConfig
    from ttpoe.impair import Impairment, ImpairmentConfig
    from ttpoe.link import Link
    from ttpoe.netns import Side
    from ttpoe.stream import Stream

_CHUNK_BYTES = 1 << 18
_ADDRESSES = ("10.0.0.1/24", "10.0.0.2/24")
_DRAIN_BYTES = 1 << 16  # what a slow reader takes at a time
_MAX_PAUSE_PS = 3 * PS_PER_MS
"""65535 quanta are 3.36 ms at the 10 Gb/s that a veth pair says of itself."""
_UP_DOWN = Pair("TIME:TIME", parse_time_ps, parse_time_ps)


@dataclass
class Report:
    """What a transfer came to; every name carries its unit. Counters of frames are the sender's, unless named.

    ``seconds`` run from the first byte written to the last byte in order at the receiver, hashing included.
    """

    finished: bool = False
    reason: str | None = None
    bytes: int | None = None
    bytes_received: int = 0
    sha256_sent: str | None = None
    sha256_received: str | None = None
    seconds: float | None = None
    goodput_gbps: float | None = None
    packets_sent: int = 0
    resent_packets: int = 0
    timeouts: int = 0
    probes: int = 0
    nack_fulls: int = 0
    echoes: int = 0
    pauses: int = 0
    paused_us: float = 0.0
    rtt_min_us: float | None = None
    srtt_us: float | None = None
    kernel_drops: int = 0
    send_drops: int = 0
    dropped_at_sender: dict[str, int] = field(default_factory=dict)
    dropped_at_receiver: dict[str, int] = field(default_factory=dict)
    frames_impaired: dict[str, int] = field(default_factory=dict)


class _Transfer:
    """One transfer between two endpoints, and what is known of it at any time."""

    def __init__(
        self, chunks: Iterator[bytes], on_progress: Callable[[int], object], drain_rate_bps: int | None
    ) -> None:
        self.report = Report()
        self._drain_rate_bps = drain_rate_bps
        self._chunks = chunks
        self._on_progress = on_progress
        self._started_s = 0.0
        self._link: Link | None = None

    async def run(self, sender: AsyncEndpoint, receiver: AsyncEndpoint, vc: int) -> None:
        """Send everything; raises what ends it early."""
        try:
            async with receiver.listen() as incoming, asyncio.TaskGroup() as tasks:
                stream = await sender.connect(receiver.address, vc)
                self._link = stream.link
                tasks.create_task(self._receive(await anext(incoming)))
                tasks.create_task(self._send(stream))
        except* Exception as group:
            first = group.exceptions[0]
        else:
            return
        raise first

    async def _send(self, stream: Stream) -> None:
        digest, size = hashlib.sha256(), 0
        self._started_s = time.perf_counter()
        async with stream:
            for chunk in self._chunks:
                digest.update(chunk)
                size += len(chunk)
                stream.write(chunk)
                await stream.drain()
            self.report.bytes, self.report.sha256_sent = size, digest.hexdigest()

    async def _receive(self, stream: Stream) -> None:
        digest, report = hashlib.sha256(), self.report
        ended_s = self._started_s
        async with stream:
            while chunk := await stream.read(_DRAIN_BYTES if self._drain_rate_bps else 1 << 20):
                digest.update(chunk)
                report.bytes_received += len(chunk)
                ended_s = time.perf_counter()
                self._on_progress(report.bytes_received)
                if self._drain_rate_bps:
                    due_s = self._started_s + report.bytes_received * 8 / self._drain_rate_bps
                    await asyncio.sleep(due_s - ended_s)
        report.sha256_received = digest.hexdigest()
        report.seconds = seconds = max(ended_s - self._started_s, 1e-9)
        report.goodput_gbps = report.bytes_received * 8 / seconds / 1e9

    def conclude(
        self, reason: str | None, sender: AsyncEndpoint, receiver: AsyncEndpoint, impairments: list[Impairment]
    ) -> None:
        """Complete the report, from what the endpoints have counted."""
        report = self.report
        if reason is None and report.sha256_sent != report.sha256_received:
            reason = "the bytes that arrived differ from those that were sent"
        report.finished, report.reason = reason is None, reason
        if self._link is not None:
            link = self._link.counters()
            report.packets_sent, report.resent_packets = link["payloads_sent"], link["payloads_resent"]
            report.timeouts, report.probes = link["timeouts"], link["probes_sent"]
            report.nack_fulls, report.echoes = link["nack_fulls_received"], link["echoes_received"]
            if link["srtt_ps"]:
                report.rtt_min_us, report.srtt_us = link["min_rtt_ps"] / PS_PER_US, link["srtt_ps"] / PS_PER_US
        if sender.port.pause is not None:
            report.pauses, report.paused_us = sender.port.pause.pauses, sender.port.paused_ps / PS_PER_US
        report.dropped_at_sender, report.dropped_at_receiver = sender.drops(), receiver.drops()
        both = (report.dropped_at_sender, report.dropped_at_receiver)
        report.kernel_drops = sum(drops.pop("kernel", 0) for drops in both)
        report.send_drops = sender.send_drops + receiver.send_drops
        for impairment in impairments:
            for fate, count in asdict(impairment.counters).items():
                report.frames_impaired[fate] = report.frames_impaired.get(fate, 0) + count


def _generate(size_bytes: int, seed: int) -> Iterator[bytes]:
    """Bytes that depend on the seed, no two chunks alike, made fast enough not to be what is measured."""
    block = random.Random(seed).randbytes(_CHUNK_BYTES)
    for at in range(0, size_bytes, _CHUNK_BYTES):
        yield (at.to_bytes(8, "big") + block)[: min(_CHUNK_BYTES, size_bytes - at)]


def _read(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


@dataclass(frozen=True)
class _Options:
    config: EndpointConfig
    vc: int
    mode: str
    impairment: ImpairmentConfig
    seed: int
    timeout_s: float | None
    unplug_ps: tuple[int, int] | None
    pause_ps: tuple[int, int] | None


async def _unplug(side: Side, after_ps: int, for_ps: int) -> None:
    """Take the link down, and up again."""
    await asyncio.sleep(after_ps / PS_PER_S)
    await asyncio.to_thread(side.set_link, state="down")
    await asyncio.sleep(for_ps / PS_PER_S)
    await asyncio.to_thread(side.set_link, state="up")


async def _pause(receiver: AsyncEndpoint, every_ps: int, for_ps: int) -> None:
    """Have the receiver's port stop the sender's, again and again."""
    while True:
        await asyncio.sleep(every_ps / PS_PER_S)
        with suppress(OSError):  # a line that is down or full
            receiver.port.send_pause(for_ps, priority=0)


@asynccontextmanager
async def _trouble(sides: tuple[Side, Side], options: _Options, receiver: AsyncEndpoint) -> AsyncIterator[None]:
    """What happens to the line beside the transfer, until that has ended."""
    tasks = []
    if options.unplug_ps:
        tasks.append(asyncio.create_task(_unplug(sides[0], *options.unplug_ps)))
    if options.pause_ps:
        tasks.append(asyncio.create_task(_pause(receiver, *options.pause_ps)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(sides: tuple[Side, Side], options: _Options, transfer: _Transfer, tap: Tap | None) -> None:
    """Open both endpoints, transfer, and report; only Ctrl-C and faults of ours come out."""
    from ttpoe.aio import open_endpoint
    from ttpoe.errors import TTPoEError
    from ttpoe.impair import Impairment
    from ttpoe.rawsock import RawSocket
    from ttpoe.wire import Mode

    config = options.config
    impairments = []
    if options.impairment.is_active:
        impairments = [Impairment(2 * options.seed + way, options.impairment) for way in range(2)]

    def open_side(way: int) -> AsyncEndpoint:
        side = sides[way]
        mode = Mode[options.mode.upper()]
        sock = side.call(lambda: RawSocket(
            side.interface, mode=mode, payload_bytes=config.mtu_bytes, honour_pause=bool(options.pause_ps)
        ))  # fmt: skip
        return open_endpoint(
            sock, config, impairment=impairments[way] if impairments else None, tap=tap if way == 0 else None
        )

    reason = None
    async with open_side(0) as sender, open_side(1) as receiver:
        try:
            async with asyncio.timeout(options.timeout_s), _trouble(sides, options, receiver):
                await transfer.run(sender, receiver, options.vc)
        except TimeoutError:
            reason = f"not finished after {options.timeout_s:g} s, see --timeout"
        except TTPoEError as error:
            reason = str(error)
        transfer.conclude(reason, sender, receiver, impairments)
        if reason is not None:
            sender.abort()
            receiver.abort()


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option("--size", type=SIZE, help="Send this many generated bytes, without FILE. [50MB]")
@click.option("--ipv4", "is_ipv4", is_flag=True, help="IPv4 mode, UDP port 420, in place of our EtherType.")
@impairment_options
@click.option("--unplug", type=_UP_DOWN, metavar="AFTER:FOR", help="Take the interface down: 500ms:2s.")
@click.option("--pause", type=_UP_DOWN, metavar="EVERY:FOR",
              help="The receiver's port sends PFC, and the sender's honours it: 10ms:1ms.")
@click.option("--drain-rate", type=RATE, metavar="RATE", help="Read no faster than this.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), metavar="N", default=1, help="Of losses and bytes. [1]")
@click.option("--mtu", type=MTU, default="1024", help="Payload of a frame; above 1024 is ttpoe-jumbo. [1024]")
@click.option("--window", type=WINDOW, default="1MB", help="Payload that may wait for its ACK. [1MB]")
@congestion_option
@profile_option
@click.option("--vc", type=click.IntRange(0, 2), metavar="N", default=2, help="Virtual channel. [2]")
@click.option("--timeout", type=DURATION, help="Give up after this time. [the retry limit decides]")
@click.option("--capture", type=click.Path(dir_okay=False), metavar="FILE.pcapng", help="Write the sender's frames.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def command(
    file: Path | None, size: int | None, is_ipv4: bool, impairment: ImpairmentConfig, unplug: tuple[int, int] | None,
    pause: tuple[int, int] | None, drain_rate: int | None, seed: int, mtu: int, window: int, congestion_control: str,
    profile: str, vc: int, timeout: int | None, capture: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Move FILE, or generated bytes, over raw sockets between two network namespaces, and compare SHA-256.

    Makes the namespaces and a veth pair between them, which end with the command, however it ends. Needs root, or
    `unshare -rn`. Impairments act on both ways, each with a seed of its own. Exit status 3: it did not finish, or
    arrived changed.
    """
    if file is not None and size is not None:
        raise click.UsageError("--size is for generated bytes; leave it out with a FILE")
    mode = "ipv4" if is_ipv4 else "ethernet"
    config = endpoint_config(mtu, window, profile, congestion_control, mode)
    if pause and not 0 < pause[1] <= min(pause[0], _MAX_PAUSE_PS):
        raise click.UsageError("--pause: FOR must be above 0, at most EVERY, and at most the 3 ms of a PFC frame")
    timeout_s = timeout / PS_PER_S if timeout else None
    options = _Options(config, vc, mode, impairment, seed, timeout_s, unplug, pause)

    from ttpoe.constants import TOTAL_LENGTH_BASE
    from ttpoe.errors import InterfaceError
    from ttpoe.netns import veth_pair

    with ExitStack() as stack:
        try:
            if file is None:
                total = size or 50_000_000
                chunks = _generate(total, seed)
            else:
                opened = stack.enter_context(file.open("rb"))
                total = os.fstat(opened.fileno()).st_size
                chunks = _read(opened)
            transfer = _Transfer(chunks, progress_bar(total, stack), drain_rate)
            sides = stack.enter_context(veth_pair(max(1500, mtu + TOTAL_LENGTH_BASE)))
            if is_ipv4:
                for side, address in zip(sides, _ADDRESSES, strict=True):
                    side.add_ipv4(address)
            tap = None if capture is None else _open_tap(capture, sides[0], stack)
            asyncio.run(_run(sides, options, transfer, tap))
        except KeyboardInterrupt:
            kept = f"; the capture so far is in {capture}" if capture else ""
            click.echo(f"{transfer.report.bytes_received} bytes had arrived{kept}", err=True)
            raise
        except OSError as error:
            raise click.ClickException(f"{error.filename or file or 'loopback'}: {error.strerror or error}") from error
        except InterfaceError as error:
            raise click.ClickException(str(error)) from error
    report = transfer.report
    if as_json:
        import json

        click.echo(json.dumps(asdict(report), indent=2))
    else:
        _print_table(report)
    return ExitStatus.OK if report.finished else ExitStatus.UNFINISHED


def _open_tap(path: str, side: Side, stack: ExitStack) -> Tap:
    """Writer of the frames of one side; the file is complete when the stack ends."""
    from traces.pcap import PcapngWriter

    writer = stack.enter_context(PcapngWriter(path))
    interface = writer.add_interface(side.interface)

    def write(direction: str, frame: memoryview) -> None:
        writer.write(interface, time.time_ns() * 1000, frame, direction=direction)

    return write


def _print_table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, title="TTPoE over a veth pair")
    table.add_column(style="bold")
    table.add_column(justify="right")

    def add(name: str, value: Any, unit: str = "") -> None:
        text = "-" if value is None else f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
        table.add_row(name, f"{text} {unit}".rstrip())

    add("arrived", report.bytes_received, "bytes")
    add("time", report.seconds, "s")
    add("goodput", report.goodput_gbps, "Gb/s")
    add("PAYLOAD frames", report.packets_sent)
    add("resent", report.resent_packets)
    add("timeouts", report.timeouts)
    add("probes of a lost tail", report.probes)
    add("refused by a full receiver", report.nack_fulls)
    if report.echoes:
        add("acknowledged as marked", report.echoes)
    if report.pauses:
        add("pauses honoured", report.pauses)
        add("paused", report.paused_us, "us")
    add("RTT, least", report.rtt_min_us, "us")
    add("RTT, smoothed", report.srtt_us, "us")
    add("dropped by the kernel", report.kernel_drops)
    for fate, count in report.frames_impaired.items():
        if count and fate != "frames":
            add(f"{fate.replace('_', ' ')} on purpose", count)
    for name, drops in (("sender", report.dropped_at_sender), ("receiver", report.dropped_at_receiver)):
        for cause, count in drops.items():
            add(f"dropped at the {name}: {cause.replace('_', ' ')}", count)
    console = Console()
    console.print(table)
    if report.finished:
        console.print(f"SHA-256 equal: {report.sha256_received}", highlight=False)
    else:
        click.echo(f"not finished: {report.reason}", err=True)

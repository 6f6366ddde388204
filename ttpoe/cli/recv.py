"""``ttpoe recv``: files from ``ttpoe send`` on other machines."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import click

from ttpoe.cli import ExitStatus
from ttpoe.cli.bytestreams import write_all
from ttpoe.cli.progress import progress_bar
from ttpoe.cli.transfer import FAREWELL_S, FileReport, endpoint_config, endpoint_options
from ttpoe.cli.types import DURATION
from ttpoe.units import PS_PER_S

if TYPE_CHECKING:
    from ttpoe.config import EndpointConfig
    from ttpoe.parcel import Decoder, Header, Item, Verdict
    from ttpoe.stream import Stream


@dataclass(frozen=True)
class _Target:
    """Where files go: a directory (then the sender names them), one file, or standard output."""

    path: Path | None
    force: bool

    def of(self, name: str) -> Path | None:
        """Path for a file that its sender calls ``name``; None for standard output."""
        from ttpoe.parcel import safe_name

        if self.path is None or not self.path.is_dir():
            return self.path
        return self.path / safe_name(name)


class _RefusedError(Exception):
    """The parcel is not stored; the verdict goes to the sender, the words to both."""

    def __init__(self, verdict: Verdict, text: str, status: ExitStatus) -> None:
        super().__init__(text)
        self.verdict = verdict
        self.status = status


class _Receiver:
    """One parcel that comes in over one stream."""

    def __init__(self, stream: Stream, target: _Target, silence_s: float) -> None:
        self.report = FileReport(peer=stream.link.peer)
        self.status = ExitStatus.UNFINISHED
        self._stream = stream
        self._target = target
        self._silence_s = silence_s

    async def run(self) -> None:
        """Take the parcel, store it, tell the sender; what goes wrong is in the report."""
        from ttpoe.errors import RemoteProtocolError
        from ttpoe.parcel import ParcelError, Verdict

        report, started_s = self.report, time.perf_counter()
        try:
            await self._store()
            report.set_time(time.perf_counter() - started_s)
            report.finished, self.status = True, ExitStatus.OK
            await self._reply(Verdict.STORED, report.path or "")
            return
        except _RefusedError as error:
            verdict, reason, self.status = error.verdict, str(error), error.status
        except ParcelError as error:
            verdict, reason = Verdict.REFUSED, str(error)
        except RemoteProtocolError as error:
            report.reason = str(error)
            self._stream.abort()
            return
        except BrokenPipeError:
            await self._farewell(Verdict.FAILED, "nobody reads the output any more")
            raise
        except OSError as error:
            verdict, self.status = Verdict.FAILED, ExitStatus.ERROR
            reason = f"{error.filename or 'standard output'}: {error.strerror or error}"
        except asyncio.CancelledError:
            await self._farewell(Verdict.FAILED, "the receiver was stopped")
            raise
        report.reason = reason
        await self._reply(verdict, reason)

    async def _store(self) -> None:
        from ttpoe.files import arriving, check_target
        from ttpoe.parcel import Decoder, ParcelError, Verdict

        decoder = Decoder()
        header, rest = await self._read_header(decoder)
        self.report.name = header.name
        try:
            path = self._target.of(header.name)
            if path is not None:
                check_target(path, force=self._target.force)
        except (ParcelError, OSError) as error:
            text = f"{error.filename} {error.strerror}" if isinstance(error, OSError) else str(error)
            raise _RefusedError(Verdict.REFUSED, text, ExitStatus.ERROR) from error
        with ExitStack() as stack:
            file = None if path is None else stack.enter_context(arriving(path, force=self._target.force))
            await self._take(decoder, header, rest, file)
            await asyncio.to_thread(stack.close)  # a slow disk must not keep the peer from its ACKs
        self.report.path = None if path is None else str(path)

    async def _read_header(self, decoder: Decoder) -> tuple[Header, list[Item]]:
        """The header, and what came with it."""
        from ttpoe.parcel import Header

        while True:
            items = list(decoder.feed(await self._read()))
            if items:
                assert isinstance(items[0], Header)
                return items[0], items[1:]

    async def _take(self, decoder: Decoder, header: Header, items: list[Item], file: BinaryIO | None) -> None:
        """Write all data and compare; returns only if it is what was sent."""
        from ttpoe.parcel import End, Verdict

        report, digest = self.report, hashlib.sha256()
        with ExitStack() as stack:
            on_progress = progress_bar(header.size_bytes, stack)
            while True:
                for item in items:
                    if isinstance(item, bytes):
                        digest.update(item)
                        report.bytes += len(item)
                        if file is None:
                            await write_all(sys.stdout.fileno(), item)
                        else:
                            file.write(item)
                        continue
                    assert isinstance(item, End)
                    report.sha256 = digest.hexdigest()
                    sizes = (item.size_bytes, item.size_bytes if header.size_bytes is None else header.size_bytes)
                    if digest.digest() != item.sha256 or sizes != (report.bytes, report.bytes):
                        text = "the bytes that arrived differ from those that were sent"
                        raise _RefusedError(Verdict.CHANGED, text, ExitStatus.UNFINISHED)
                    return
                on_progress(report.bytes)
                items = list(decoder.feed(await self._read()))

    async def _read(self) -> bytes:
        """Bytes of the stream; raises where none come any more."""
        from ttpoe.parcel import Verdict

        try:
            async with asyncio.timeout(self._silence_s):
                data = await self._stream.read(1 << 20)
        except TimeoutError:
            self._stop(Verdict.FAILED, f"the sender was silent for {self._silence_s:g} s")
        if not data:
            self._stop(Verdict.FAILED, "the sender stopped before the end")
        return data

    def _stop(self, verdict: Verdict, text: str) -> NoReturn:
        raise _RefusedError(verdict, text, ExitStatus.UNFINISHED)

    async def _reply(self, verdict: Verdict, text: str) -> None:
        """Tell the sender, and give it time to hear it: what it still sends is thrown away."""
        from ttpoe.errors import TTPoEError
        from ttpoe.parcel import Reply, encode_reply

        with contextlib.suppress(TTPoEError, TimeoutError):
            async with asyncio.timeout(self._silence_s):
                self._stream.write(encode_reply(Reply(verdict, text)))
                await self._stream.drain()
                while await self._stream.read(1 << 20):
                    pass
                await self._stream.close()
                return
        if not self._stream.link.has_ended:
            self._stream.abort()

    async def _farewell(self, verdict: Verdict, text: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._reply(verdict, text)


class _Server:
    """Receives parcels until it is stopped, or one."""

    def __init__(self, target: _Target, silence_s: float, *, is_once: bool, as_json: bool) -> None:
        self.status = ExitStatus.OK
        self._target = target
        self._silence_s = silence_s
        self._is_once = is_once
        self._as_json = as_json

    async def run(self, interface: str, mode: str, config: EndpointConfig) -> None:
        """Listen; parcels come side by side, but one after the other to standard output."""
        from ttpoe.aio import open_endpoint

        async with open_endpoint(interface, config, mode=mode) as endpoint:
            if sys.stderr.isatty():
                click.echo(f"listening at {endpoint.address} on {interface}", err=True)
            try:
                async with endpoint.listen() as incoming, asyncio.TaskGroup() as tasks:
                    async for stream in incoming:
                        if self._is_once:
                            incoming.close()
                        task = tasks.create_task(self._receive(stream))
                        if self._is_once or self._target.path is None:
                            await task
            except* Exception as group:
                first = group.exceptions[0]
            else:
                return
            raise first

    async def _receive(self, stream: Stream) -> None:
        receiver = _Receiver(stream, self._target, self._silence_s)
        await receiver.run()
        if not self._is_once and not stream.link.field("payloads_received"):
            return  # a stranger's OPEN, or a sender that changed its mind: there was nothing to receive
        self.status = receiver.status
        receiver.report.tell("received", self._as_json, on_stderr=self._target.path is None)


@click.command()
@click.option("--out", type=click.Path(allow_dash=True), required=True, metavar="PATH",
              help="A directory, where senders name their files; a file; or - for standard output.")
@click.option("--once", is_flag=True, help="End after one file, with its exit status.")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@click.option("--ipv4", "is_ipv4", is_flag=True, help="IPv4 mode, UDP port 420, in place of our EtherType.")
@click.option("--timeout", type=DURATION, default="30s", help="Give up a sender that is silent for this long. [30s]")
@endpoint_options
def command(
    out: str, once: bool, force: bool, is_ipv4: bool, timeout: int, interface: str, mtu: int, window: int,
    congestion_control: str, profile: str, as_json: bool,
) -> int:  # fmt: skip
    """Receive files from `ttpoe send`, until Ctrl-C or, with --once, one.

    A file gets its name when all of it is on the disk and its SHA-256 is the sender's; until then it has a hidden name
    that ends in .part. What goes to standard output is out before it can be compared: look at the exit status.

    Exit status 1: it could not be stored. 3: it did not arrive whole.
    """
    mode = "ipv4" if is_ipv4 else "ethernet"
    config = endpoint_config(mtu, window, profile, congestion_control, mode)
    path = None if out == "-" else Path(out)
    if path is None and as_json:
        raise click.UsageError("--json and --out - would share standard output; leave one out")
    if not out:
        raise click.UsageError("--out is empty; write . for this directory")
    if path is not None and not path.is_dir():
        if out.endswith(os.sep) or not path.parent.is_dir():
            raise click.UsageError(f"--out is {out}; there is no such directory")

    from ttpoe.errors import InterfaceError

    server = _Server(_Target(path, force), timeout / PS_PER_S, is_once=once, as_json=as_json)
    try:
        asyncio.run(server.run(interface, mode, config))
    except InterfaceError as error:
        raise click.ClickException(str(error)) from None
    return server.status

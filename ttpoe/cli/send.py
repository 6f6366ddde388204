"""``ttpoe send``: a file, or standard input, to ``ttpoe recv`` on another machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from ttpoe.cli import ExitStatus
from ttpoe.cli.bytestreams import read_chunks
from ttpoe.cli.progress import progress_bar
from ttpoe.cli.transfer import FAREWELL_S, KEEPALIVE_S, FileReport, Peer, endpoint_config, endpoint_options

if TYPE_CHECKING:
    from ttpoe.config import EndpointConfig
    from ttpoe.parcel import Reply
    from ttpoe.stream import Stream


class _ChangedError(Exception):
    """The file is not what it was when its size was told."""


class _Sender:
    """One file on its way over one stream."""

    def __init__(self, fd: int, name: str, on_progress: Callable[[int], object]) -> None:
        self.report = FileReport(name=name)
        self._fd = fd
        self._on_progress = on_progress

    async def run(self, stream: Stream) -> None:
        """Send everything and wait for the verdict, which may come early."""
        from ttpoe.errors import RemoteProtocolError
        from ttpoe.parcel import Verdict

        started_s = time.perf_counter()
        pump = asyncio.create_task(self._pump(stream))
        verdict = asyncio.create_task(self._read_reply(stream))
        try:
            await asyncio.wait((pump, verdict), return_when=asyncio.FIRST_COMPLETED)
            if not verdict.done() and not isinstance(pump.exception(), RemoteProtocolError):
                pump.result()  # ours to tell; where the link has ended, the verdict says more, if it came
            reply = await verdict
        finally:
            pump.cancel()
            verdict.cancel()
            await asyncio.gather(pump, verdict, return_exceptions=True)
        report = self.report
        report.finished = reply.verdict is Verdict.STORED
        if report.finished:
            report.path = reply.text or None
            report.set_time(time.perf_counter() - started_s)
        else:
            report.reason = f"the receiver says: {reply.text}"

    async def _pump(self, stream: Stream) -> None:
        """Header, data, end, and then keepalives until the verdict is there."""
        from ttpoe.parcel import KEEPALIVE, End, Header, encode_data, encode_end, encode_header

        report = self.report
        status = os.fstat(self._fd)
        size = status.st_size if stat.S_ISREG(status.st_mode) else None
        digest = hashlib.sha256()
        stream.write(encode_header(Header(report.name or "", size)))
        await stream.drain()
        async for chunk in read_chunks(self._fd, KEEPALIVE_S):
            digest.update(chunk)
            report.bytes += len(chunk)
            stream.write(encode_data(chunk) if chunk else KEEPALIVE)
            await stream.drain()
            self._on_progress(report.bytes)
        if size is not None and size != report.bytes:
            raise _ChangedError(f"it had {size} bytes, then {report.bytes}: it changed while it was sent")
        report.sha256 = digest.hexdigest()
        stream.write(encode_end(End(report.bytes, digest.digest())))
        while True:
            await stream.drain()
            await asyncio.sleep(KEEPALIVE_S)
            stream.write(KEEPALIVE)  # a peer that died is noticed by what it does not acknowledge

    async def _read_reply(self, stream: Stream) -> Reply:
        from ttpoe.errors import ClosedByPeerError
        from ttpoe.parcel import decode_reply

        data = b""
        while chunk := await stream.read(2048):
            data += chunk
            if reply := decode_reply(data):
                return reply
        raise ClosedByPeerError(f"the peer {stream.link.peer} closed the link without a verdict")


async def _run(interface: str, mode: str, address: str, vc: int, config: EndpointConfig, sender: _Sender) -> None:
    """Connect, send, close; what ends it early is in the report."""
    from ttpoe.aio import open_endpoint
    from ttpoe.errors import RemoteProtocolError
    from ttpoe.parcel import ParcelError

    report = sender.report
    async with open_endpoint(interface, config, mode=mode) as endpoint:
        stream: Stream | None = None
        try:
            stream = await endpoint.connect(address, vc)
            report.peer = stream.link.peer
            await sender.run(stream)
            await _close(stream)
        except (RemoteProtocolError, ParcelError) as error:
            report.reason = str(error)
            endpoint.abort()
        except (asyncio.CancelledError, OSError, _ChangedError):
            if stream is not None:  # the receiver then knows that no more comes
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FAREWELL_S):
                        await _close(stream)
            raise
        finally:
            if stream is not None:
                link = stream.link.counters()
                report.packets_sent, report.resent_packets = link["payloads_sent"], link["payloads_resent"]


async def _close(stream: Stream) -> None:
    """Close in order; the verdict is there, so it matters no more how it goes."""
    from ttpoe.errors import TTPoEError

    with contextlib.suppress(TTPoEError):
        await stream.close()


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--to", "peer", type=Peer(), required=True, metavar="MAC|IPV4", help="Who runs `ttpoe recv`.")
@click.option("--vc", type=click.IntRange(0, 2), metavar="N", default=2, help="Virtual channel. [2]")
@endpoint_options
def command(
    file: str, peer: tuple[str, str], vc: int, interface: str, mtu: int, window: int, congestion_control: str,
    profile: str, as_json: bool,
) -> int:  # fmt: skip
    """Send FILE, or standard input for -, to a machine where `ttpoe recv` runs.

    An IPv4 address selects IPv4 mode, which the receiver must run with --ipv4. Done means that the receiver has
    compared SHA-256 and given the file its name. Exit status 3: it has not, and why.
    """
    config = endpoint_config(mtu, window, profile, congestion_control, peer[0])

    from ttpoe.errors import InterfaceError, LocalProtocolError

    with ExitStack() as stack:
        try:
            if file == "-":
                fd, name = sys.stdin.fileno(), ""
            else:
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                name = os.path.basename(file)
            status = os.fstat(fd)
            total = status.st_size if stat.S_ISREG(status.st_mode) else None
            sender = _Sender(fd, name, progress_bar(total, stack))
            asyncio.run(_run(interface, *peer, vc, config, sender))
        except _ChangedError as error:
            raise click.ClickException(f"{file}: {error}") from None
        except OSError as error:
            raise click.ClickException(f"{file}: {error.strerror or error}") from None
        except (InterfaceError, LocalProtocolError) as error:
            raise click.ClickException(str(error)) from None
    sender.report.tell("sent", as_json)
    return ExitStatus.OK if sender.report.finished else ExitStatus.UNFINISHED

"""One link as an asyncio stream, and the iterator over those that peers open.

Knows no sockets and no clock: :mod:`ttpoe.aio` drives the endpoint and tells streams what happened on their links.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ttpoe.batch import LinkEvent
from ttpoe.errors import ClosedByPeerError, LocalProtocolError, TTPoEError
from ttpoe.fsm import State
from ttpoe.link import Link

if TYPE_CHECKING:
    from ttpoe.aio import AsyncEndpoint

_ENDED = LinkEvent.CLOSED | LinkEvent.FAILED


class Closing:
    """As a context manager: closes in order, or at once if the body raised."""

    async def close(self) -> None:
        """End in order."""
        raise NotImplementedError

    def abort(self) -> None:
        """End at once."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort()


class Stream(Closing):
    """Bytes to and from one peer on one virtual channel, reliable and in order.

    Made by :meth:`ttpoe.aio.AsyncEndpoint.connect` and :meth:`ttpoe.aio.AsyncEndpoint.listen`. As a context manager
    it closes in order, or gives the link up if the body raised. Iterating gives the bytes as they come.

    Attributes
    ----------
    link : Link
        State and counters.
    """

    def __init__(self, endpoint: AsyncEndpoint, link: Link) -> None:
        self.link = link
        self._endpoint = endpoint
        self._unsubmitted: memoryview = memoryview(b"")  # what did not fit into the link's send buffer
        self._changed = asyncio.Event()
        self._error: TTPoEError | None = link.error

    def __repr__(self) -> str:
        return f"<Stream {self.link.peer} {self.link.state.name}>"

    @property
    def peer_mac(self) -> int:
        """MAC address of the peer, or of the router before it."""
        return self.link.peer_mac

    @property
    def peer_ip(self) -> int:
        """IPv4 address of the peer; 0 in Ethernet mode."""
        return self.link.peer_ip

    @property
    def vc(self) -> int:
        """Virtual channel."""
        return self.link.vc

    # Reading

    async def read(self, max_bytes: int = -1) -> bytes:
        """Bytes in order, as soon as there are some.

        Parameters
        ----------
        max_bytes : int
            At most this many; if negative, all until the peer closes.

        Returns
        -------
        bytes
            b"" once the peer has closed and all was read.

        Raises
        ------
        RemoteProtocolError, InterfaceError
            The link failed; what arrived before is given first. A peer that dies while nothing of ours waits for its
            answer is noticed after the config's ``idle_timeout_ps``.
        """
        if max_bytes < 0:
            return b"".join([chunk async for chunk in self])
        if max_bytes == 0:
            return b""
        while not self.link.readable_bytes:
            if self._error is not None:
                raise self._error
            if self.link.has_ended:
                return b""
            await self._wait()
        return self.link.read(max_bytes)

    async def readexactly(self, n_bytes: int) -> bytes:
        """Exactly ``n_bytes``; asyncio.IncompleteReadError with what there was if the peer closes before."""
        data = bytearray()
        while len(data) < n_bytes:
            chunk = await self.read(n_bytes - len(data))
            if not chunk:
                raise asyncio.IncompleteReadError(bytes(data), n_bytes)
            data += chunk
        return bytes(data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.read(self.link.readable_bytes or 1 << 20):
            yield chunk

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes; ``await drain()`` after it.

        What does not fit into the send buffer is kept, once: memory stays bounded by the buffer and one write.

        Raises
        ------
        LocalProtocolError
            The last write still waits for room, so drain was not awaited; or the stream is closed.
        RemoteProtocolError, InterfaceError
            The link failed, or the peer has closed it.
        """
        self._check_can_write()
        if self._unsubmitted:
            raise LocalProtocolError(f"{len(self._unsubmitted)} bytes wait for room; await drain() between writes")
        view = memoryview(data).cast("B")
        if taken := self.link.submit(view) if view else 0:
            self._endpoint.schedule_turn()
        if taken < len(view):
            self._unsubmitted = memoryview(bytes(view[taken:]))

    async def drain(self) -> None:
        """Wait until the last write is in the send buffer; errors as for :meth:`write`."""
        while self._unsubmitted:
            self._check_can_write()
            await self._wait()
        self._check_can_write()

    def _check_can_write(self) -> None:
        if self._error is not None:
            raise self._error
        if self.link.field("is_closing"):
            raise LocalProtocolError(f"the stream to {self.link.peer} is closed")
        if self.link.has_ended or self.link.state == State.CLOSE_RECD:
            raise ClosedByPeerError(f"the peer {self.link.peer} has closed the link")

    # The end

    async def close(self) -> None:
        """Send all that was written, wait for its acknowledgement, and close the link in order.

        Raises
        ------
        RemoteProtocolError, InterfaceError
            Not everything arrived, or the peer did not answer.
        """
        while self._unsubmitted and self._error is None:
            await self._wait()
        if self._error is None and not self.link.has_ended:
            self._endpoint.close_link(self.link)
            while not self.link.has_ended and self._error is None:
                await self._wait()
        if self._error is not None:
            raise self._error

    def abort(self) -> None:
        """Give the link up at once, without a word to the peer; pending calls raise LocalProtocolError."""
        self.fail(LocalProtocolError(f"the stream to {self.link.peer} was aborted"))
        self._endpoint.forget_link(self.link)

    # For the driver

    async def wait_open(self) -> None:
        """Wait for the answer to our OPEN; raises if the link failed."""
        while self.link.state == State.OPEN_SENT and self._error is None:
            await self._wait()
        if self._error is not None:
            raise self._error

    def on_events(self, events: LinkEvent) -> None:
        """React to news of the link."""
        if events & _ENDED and self._error is None:
            self._error = self.link.error
            if self._error is None and self._unsubmitted:
                self._error = ClosedByPeerError(f"the peer {self.link.peer} closed before it took all that was written")
        if self._unsubmitted and not self.link.has_ended and self.link.state != State.CLOSE_RECD:
            self._unsubmitted = self._unsubmitted[self.link.submit(self._unsubmitted) :]
        self._changed.set()

    def fail(self, error: TTPoEError) -> None:
        """End with an error that is not the link's own."""
        if self._error is None and not (self.link.has_ended and self.link.error is None):
            self._error = error
        self._changed.set()

    async def _wait(self) -> None:
        """Wait for the next news."""
        self._changed.clear()
        await self._changed.wait()


class Listener:
    """Streams that peers open, as an asynchronous iterator; see :meth:`AsyncEndpoint.listen`."""

    def __init__(self, endpoint: AsyncEndpoint) -> None:
        self._endpoint = endpoint

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Stream:
        stream = await self._endpoint.accept()
        if stream is None:
            raise StopAsyncIteration
        return stream

    def close(self) -> None:
        """Refuse peers from now on; streams given out live on."""
        self._endpoint.stop_listening()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

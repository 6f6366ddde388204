"""Reading and writing pipes and files beside a running event loop: a pipe that waits never holds the protocol up."""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator, Callable

CHUNK_BYTES = 1 << 18
_PIPE_BUF = 4096  # a pipe that is writable takes this much without waiting


async def _wait(add: Callable[..., object], remove: Callable[[int], object], fd: int) -> None:
    """Wait until the loop says that ``fd`` is ready; at once for files, which always are."""
    ready = asyncio.Event()
    try:
        add(fd, ready.set)
    except PermissionError:  # what epoll has for files and some devices
        return
    try:
        await ready.wait()
    finally:
        remove(fd)


async def read_chunks(fd: int, idle_s: float) -> AsyncIterator[bytes]:
    """What can be read from a descriptor until its end; b"" each ``idle_s`` in which nothing came."""
    loop = asyncio.get_running_loop()
    is_file = stat.S_ISREG(os.fstat(fd).st_mode)
    while True:
        if not is_file:
            try:
                async with asyncio.timeout(idle_s):
                    await _wait(loop.add_reader, loop.remove_reader, fd)
            except TimeoutError:
                yield b""
                continue
        chunk = os.read(fd, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def write_all(fd: int, data: bytes) -> None:
    """Write to a descriptor, waiting beside the loop where a pipe is full."""
    loop = asyncio.get_running_loop()
    view = memoryview(data)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        while view:
            view = view[os.write(fd, view) :]
        return
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while view:
        if not poll.poll(0):
            await _wait(loop.add_writer, loop.remove_writer, fd)
        view = view[os.write(fd, view[:_PIPE_BUF]) :]

"""Frames of stations that do not exist, by the thousand: into an endpoint, and onto a wire beside a transfer.

``python tests/strangers.py`` prints what they cost.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import resource
import socket
import time

import numpy as np

import ttpoe
from ttpoe.aio import AsyncEndpoint
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import BATCH_FRAMES, Endpoint
from ttpoe.fsm import Opcode
from ttpoe.netns import Side, veth_pair
from ttpoe.rawsock import RawSocket

ANY = -1
"""In place of an opcode: each frame has one at random."""


def fill(rng: np.random.Generator, slots: np.ndarray, dst_mac: int, opcode: int = ANY) -> None:
    """Write well-formed frames of 64 bytes into ``slots``, from random stations, random in every bit that may be."""
    n = len(slots)
    slots[:, :64] = rng.integers(0, 256, (n, 64), np.uint8)
    slots[:, :6] = np.frombuffer(dst_mac.to_bytes(6, "big"), np.uint8)
    slots[:, 6] &= 0xFE
    slots[:, 12:14] = (0x9A, 0xC6)
    slots[:, 15] = slots[:, 40] = 0
    slots[:, 41] = 26 + slots[:, 41] % 5
    slots[:, 42] = slots[:, 42] % len(Opcode) if opcode == ANY else opcode
    slots[:, 43] %= 3


def flood(endpoint: Endpoint, rng: np.random.Generator, n_frames: int, now_ps: int, opcode: int = ANY) -> int:
    """Give an endpoint such frames in batches, as the driver does, and take its links; returns how much it answered."""
    answers = 0
    for _ in range(n_frames // BATCH_FRAMES):
        fill(rng, endpoint._receive_slots, endpoint.mac, opcode)
        endpoint.receive_lengths[:] = 64
        endpoint.take_received(BATCH_FRAMES, now_ps)
        answers += endpoint.answers_waiting
        for _ in range(endpoint.answers_waiting):
            endpoint.poll_transmit(now_ps)
        while endpoint.accept():
            pass
        while endpoint.poll_event():
            pass
    return answers


def shout(side: Side, dst_mac: int, n_frames: int, opcode: int, seed: int, gap_s: float = 0.0) -> None:
    """Send such frames from the interface of a side, waiting a moment after each 64."""
    rng = np.random.default_rng(seed)
    frames = np.zeros((BATCH_FRAMES, 64), np.uint8)
    with side.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) as sock:
        side.call(lambda: sock.bind((side.interface, 0)))
        for _ in range(n_frames // BATCH_FRAMES):
            fill(rng, frames, dst_mac, opcode)
            for frame in frames:
                sock.send(frame)
            time.sleep(gap_s)


async def transfer_beside(
    sides: tuple[Side, Side], size_bytes: int, shouts: list[tuple[int, int]], gap_s: float = 0.0
) -> tuple[AsyncEndpoint, float, bool]:
    """Send random bytes while strangers shout at the receiver, given as frames and opcode, one after the other.

    Returns
    -------
    tuple
        The receiver's endpoint, seconds, and whether the SHA-256 is right.
    """
    data = random.Random(1).randbytes(size_bytes)
    config = EndpointConfig(receive_buffer_bytes=4_000_000)
    socks = [side.call(lambda side=side: RawSocket(side.interface)) for side in sides]
    tasks: set[asyncio.Task] = set()
    async with ttpoe.open_endpoint(socks[0], config) as sender, ttpoe.open_endpoint(socks[1], config) as receiver:
        arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def read(stream: ttpoe.stream.Stream) -> None:
            digest = hashlib.sha256()
            try:
                async for chunk in stream:
                    digest.update(chunk)
            except ConnectionError:
                return  # a stranger's
            if stream.peer_mac == sender.mac:
                arrived.set_result(digest.hexdigest())

        async def serve() -> None:
            async for stream in receiver.listen():
                task = asyncio.create_task(read(stream))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        def attack() -> None:
            for seed, (n_frames, opcode) in enumerate(shouts):
                shout(sides[0], receiver.mac, n_frames, opcode, seed, gap_s)

        server = asyncio.create_task(serve())
        stream = await sender.connect(receiver.mac)
        began_s = time.perf_counter()
        attacker = asyncio.create_task(asyncio.to_thread(attack))
        for at in range(0, size_bytes, 1 << 18):
            stream.write(data[at : at + (1 << 18)])
            await stream.drain()
        await stream.close()
        took_s = time.perf_counter() - began_s
        is_right = await arrived == hashlib.sha256(data).hexdigest()
        await attacker
        server.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(server, *tasks, return_exceptions=True)
        receiver.abort()
    return receiver, took_s, is_right


def main() -> None:
    """Print costs of frames, memory, and a transfer's speed."""
    endpoint = Endpoint(0x98ED5C000002)
    endpoint.is_listening = True
    rng = np.random.default_rng(1)
    flood(endpoint, rng, 20_000, 0, int(Opcode.OPEN))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, opcode, n_frames in (("OPEN", int(Opcode.OPEN), 100_000), ("random", ANY, 1_000_000)):
        began_s = time.perf_counter()
        answers = flood(endpoint, rng, n_frames, 1, opcode)
        took_s = time.perf_counter() - began_s
        print(f"{n_frames} {name} frames: {took_s / n_frames * 1e6:.2f} us each, {answers / n_frames:.2f} answers each")
    print(f"links {len(endpoint.links)}, victims {endpoint.victims}")
    print(f"memory grew by {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb} kB")
    size_bytes = 100_000_000
    for name, shouts, gap_s in (
        ("alone", [], 0.0),
        ("beside 10,000 OPENs", [(10_000, int(Opcode.OPEN))], 0.002),
        ("beside 100,000 random frames", [(100_000, ANY)], 0.002),
    ):
        with veth_pair() as sides:
            receiver, took_s, is_right = asyncio.run(transfer_beside(sides, size_bytes, shouts, gap_s))
        verdict = "right" if is_right else "WRONG"
        print(
            f"{size_bytes} bytes {name}: {size_bytes * 8 / took_s / 1e9:.2f} Gb/s, SHA-256 {verdict}, "
            f"links {len(receiver.sans_io.links)}, victims {receiver.sans_io.victims}, drops {receiver.drops()}"
        )


if __name__ == "__main__":
    main()

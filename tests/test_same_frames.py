"""One machine, two worlds: the emulator and raw sockets emit the same bytes for the same script."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from emulator.config import make_scenario
from emulator.fabric import Fabric
from traces.frames import FrameBuilder, host_mac
from ttpoe import wire
from ttpoe.aio import AsyncEndpoint
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import warm_up
from ttpoe.fsm import Opcode
from ttpoe.impair import Impairment, ImpairmentConfig
from ttpoe.rawsock import RawSocket

pytestmark = pytest.mark.root

MESSAGE_BYTES = 5_000
LOST = 4
"""The sender's fourth frame: OPEN, two PAYLOADs, then the one that is lost."""


def emulated() -> tuple[list[bytes], list[bytes], np.ndarray]:
    """Frames that the sender and the receiver put on the line, and both ends' opening ids."""
    scenario = make_scenario({
        "workload": {"kind": "flows", "flows": [{"src": 1, "dst": 0, "size_bytes": MESSAGE_BYTES}]},
        "topology": {"links": [{"hosts": [1], "bad_fcs_frames": [LOST]}]},
    })
    fabric = Fabric(scenario, "ttpoe", 7, capture=frozenset({"h0", "h1"}))
    rows: list[np.ndarray] = []
    seqs = fabric.world.links["initial_seq"].copy()
    result = fabric.run(sink=lambda batch: rows.append(batch.copy()))
    assert result.counters["lost"] == 1
    assert not result.unfinished
    topology, world = fabric.topology, fabric.world
    builder = FrameBuilder(
        topology.port_names, topology.port_nic, world.ends, 0, seed=7, message_bytes=world.flows["size_bytes"]
    )
    sent: dict[str, list[bytes]] = {"h0": [], "h1": []}
    for row in np.concatenate(rows):
        if row["is_out"]:
            sent[topology.port_names[row["port"]]].append(builder.build(row))
    return sent["h1"], sent["h0"], seqs


def readdressed(frames: list[bytes], macs: dict[int, int]) -> list[bytes]:
    """The same frames between other MAC addresses."""
    out = []
    for data in frames:
        frame = wire.parse(data)
        row = frame.header[0]
        for mac, node in (("dst_mac", "dst_node"), ("src_mac", "src_node")):
            row[mac] = macs[int(row[mac])]
            row[node] = row[mac] & 0xFFFFFF
        out.append(wire.build(frame.header, frame.payload, frame.trailing))
    return out


async def test_emulator_and_wire_emit_the_same_frames(veth):
    from_sender, from_receiver, seqs = emulated()
    opcodes = [wire.parse(frame).header[0]["opcode"] for frame in from_receiver]
    assert opcodes.count(Opcode.NACK) == 1
    parts = {
        int(parsed.header[0]["tx_seq"]): parsed.payload
        for parsed in map(wire.parse, from_sender)
        if parsed.header[0]["opcode"] == Opcode.PAYLOAD
    }
    message = b"".join(parts[seq] for seq in sorted(parts, key=lambda seq: (seq - int(seqs[0])) & 0xFFFFFFFF))
    assert len(message) == MESSAGE_BYTES

    warm_up()
    taps: dict[str, list[bytes]] = {"a": [], "b": []}

    def tap(name: str):
        return lambda direction, frame: taps[name].append(bytes(frame)) if direction == "out" else None

    sockets = [side.call(lambda side=side: RawSocket(side.interface)) for side in veth]
    a = AsyncEndpoint(sockets[0], EndpointConfig(), tap=tap("a"))
    line = Impairment(0, ImpairmentConfig(lose_frames=(LOST,)))
    b = AsyncEndpoint(sockets[1], EndpointConfig(), tap=tap("b"), impairment=line)
    a.sans_io._draw_seq = lambda: int(seqs[0])
    b.sans_io._draw_seq = lambda: int(seqs[1])
    async with asyncio.timeout(30), a, b:
        incoming = b.listen()
        stream = await a.connect(b.mac)
        peer = await anext(incoming)
        stream.write(message)
        assert await peer.readexactly(MESSAGE_BYTES) == message
        while len(taps["b"]) < len(from_receiver):
            await asyncio.sleep(0.001)
        sent_by_a, sent_by_b = list(taps["a"]), list(taps["b"])
        macs = {host_mac(1): a.mac, host_mac(0): b.mac}
    assert sent_by_a == readdressed(from_sender, macs)
    assert sent_by_b == readdressed(from_receiver, macs)

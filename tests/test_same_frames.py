"""One machine, two worlds: the emulator and raw sockets emit the same bytes for the same script."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from emulator.config import make_scenario
from emulator.fabric import Fabric
from traces.frames import FrameBuilder, host_ipv4, host_mac
from ttpoe import ipv4, wire
from ttpoe.aio import AsyncEndpoint
from ttpoe.config import EndpointConfig
from ttpoe.constants import ECN_ECT, MARK_BITS_SHIFT
from ttpoe.endpoint import warm_up
from ttpoe.fsm import Opcode
from ttpoe.impair import Impairment, ImpairmentConfig
from ttpoe.rawsock import RawSocket
from ttpoe.state import Mark

pytestmark = pytest.mark.root

MODES = {"ethernet": wire, "ipv4": ipv4}
MESSAGE_BYTES = 5_000
LOST = 4
"""The sender's fourth frame: OPEN, two PAYLOADs, then the one that is lost."""


def emulated(mode: str) -> tuple[list[bytes], list[bytes], np.ndarray]:
    """Frames that the sender and the receiver put on the line, and both ends' opening ids."""
    impairments = {"mark": 1.0} if mode == "ipv4" else {}
    links = [{"hosts": [1], "bad_fcs_frames": [LOST], "impairments": impairments, "impaired_ways": "from_host"}]
    scenario = make_scenario({
        "workload": {"kind": "flows", "flows": [{"src": 1, "dst": 0, "size_bytes": MESSAGE_BYTES}]},
        "topology": {"links": links}, "ttpoe": {"mode": mode},
    })
    transport = "ttpoe-dctcp" if mode == "ipv4" else "ttpoe"
    fabric = Fabric(scenario, transport, 7, capture=frozenset({"h0", "h1"}))
    rows: list[np.ndarray] = []
    seqs = fabric.world.links["initial_seq"].copy()
    result = fabric.run(sink=lambda batch: rows.append(batch.copy()))
    assert result.counters["lost"] == 1
    assert not result.unfinished
    topology, world = fabric.topology, fabric.world
    builder = FrameBuilder(
        topology.port_names, topology.port_nic, world.ends, 0, seed=7, message_bytes=world.flows["size_bytes"],
        is_ipv4=mode == "ipv4",
    )
    sent: dict[str, list[bytes]] = {"h0": [], "h1": []}
    for row in np.concatenate(rows):
        if row["is_out"]:
            sent[topology.port_names[row["port"]]].append(builder.build(row))
    return sent["h1"], sent["h0"], seqs


def readdressed(frames: list[bytes], addresses: dict[int, int], mode: str) -> list[bytes]:
    """The same frames between other MAC addresses, and other IPv4 addresses."""
    out = []
    for data in frames:
        frame = MODES[mode].parse(data)
        row = frame.header[0]
        names = ("dst_mac", "src_mac", "dst_ip", "src_ip") if mode == "ipv4" else ("dst_mac", "src_mac")
        for name in names:
            row[name] = addresses[int(row[name])]
        if mode == "ipv4":
            ipv4.set_ipv4_lengths_at(frame.header, 0, len(frame.payload))
        else:
            row["dst_node"], row["src_node"] = row["dst_mac"] & 0xFFFFFF, row["src_mac"] & 0xFFFFFF
        out.append(MODES[mode].build(frame.header, frame.payload, frame.trailing))
    return out


@pytest.mark.parametrize("mode", MODES)
async def test_emulator_and_wire_emit_the_same_frames(veth, mode):
    """In IPv4 mode with DCTCP, on a line that marks all it may: echoes and a decrease are told in the frames."""
    from_sender, from_receiver, seqs = emulated(mode)
    sent = [MODES[mode].parse(frame) for frame in from_sender]
    received = [MODES[mode].parse(frame).header[0] for frame in from_receiver]
    assert [row["opcode"] for row in received].count(Opcode.NACK) == 1
    if mode == "ipv4":
        for row in received:
            assert (row["version_bits"] >> MARK_BITS_SHIFT == Mark.ECHO) == (row["opcode"] == Opcode.ACK)
        assert {int(frame.header[0]["ip_tos"]) for frame in sent if frame.payload} == {ECN_ECT}
        assert [frame.header[0]["version_bits"] >> MARK_BITS_SHIFT for frame in sent].count(Mark.REDUCED) == 1
    parts = {
        int(parsed.header[0]["tx_seq"]): parsed.payload
        for parsed in sent
        if parsed.header[0]["opcode"] == Opcode.PAYLOAD
    }
    message = b"".join(parts[seq] for seq in sorted(parts, key=lambda seq: (seq - int(seqs[0])) & 0xFFFFFFFF))
    assert len(message) == MESSAGE_BYTES

    warm_up()
    taps: dict[str, list[bytes]] = {"a": [], "b": []}

    def tap(name: str):
        return lambda direction, frame: taps[name].append(bytes(frame)) if direction == "out" else None

    for k, side in enumerate(veth):
        side.add_ipv4(f"10.0.0.{k + 1}/24")
    sockets = [
        side.call(lambda side=side: RawSocket(side.interface, mode=wire.Mode[mode.upper()])) for side in veth
    ]
    config = EndpointConfig(congestion_control="dctcp" if mode == "ipv4" else "fixed")
    a = AsyncEndpoint(sockets[0], config, tap=tap("a"))
    line = Impairment(0, ImpairmentConfig(lose_frames=(LOST,), mark=1.0))
    b = AsyncEndpoint(sockets[1], config, tap=tap("b"), impairment=line)
    a.sans_io._draw_seq = lambda: int(seqs[0])
    b.sans_io._draw_seq = lambda: int(seqs[1])
    async with asyncio.timeout(30), a, b:
        incoming = b.listen()
        stream = await a.connect(b.address)
        peer = await anext(incoming)
        stream.write(message)
        assert await peer.readexactly(MESSAGE_BYTES) == message
        while len(taps["b"]) < len(from_receiver):
            await asyncio.sleep(0.001)
        sent_by_a, sent_by_b = list(taps["a"]), list(taps["b"])
        addresses = {host_mac(1): a.mac, host_mac(0): b.mac}
        addresses |= {host_ipv4(1): a.sans_io.ip, host_ipv4(0): b.sans_io.ip}
    assert sent_by_a == readdressed(from_sender, addresses, mode)
    assert sent_by_b == readdressed(from_receiver, addresses, mode)

"""Captured RoCE beyond go-back-N over IPv4: notifications, selective answers, packets placed anywhere, RoCEv1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from emulated import incast, traced

from emulator import roce, world
from emulator.config import ConfigError, make_scenario
from emulator.fabric import Fabric
from emulator.packet import ANSWER, DATA
from traces.dissect import Dissector, icrc
from traces.frames import FrameBuilder
from traces.pcap import Frame, open_capture
from ttpoe.cli import group


def builder_of(fabric: Fabric) -> FrameBuilder:
    is_selective = fabric.profile.is_selective
    return FrameBuilder(
        fabric.topology.port_names, fabric.topology.port_nic, fabric.world.ends, world.ROCE, seed=fabric.seed,
        message_bytes=fabric.world.flows["size_bytes"], version=fabric.scenario.roce.version,
        first_psns=fabric.world.qps["initial_psn"][0::2] if is_selective else None,
        mtu_bytes=fabric.scenario.roce.mtu_bytes,
    )  # fmt: skip


def frames_of(values: dict[str, Any], transport: str) -> list[tuple[np.void, bytes]]:
    """Rows at the receiver's NIC with their frames."""
    fabric, result, rows = traced(values, transport, {"h0"})
    assert result.unfinished == []
    builder = builder_of(fabric)
    return [(row, builder.build(row)) for row in rows if row["kind"] in (DATA, ANSWER)]


def test_a_notification_literally() -> None:
    """BECN, no PSN, 16 reserved bytes; DSCP 48. The frame is scapy's, and but for names that of a ConnectX-4 Lx."""
    from scapy.contrib.roce import BTH, CNPPadding
    from scapy.layers.l2 import Ether

    found = [built for built in frames_of(incast(3, 500_000), "roce-dcqcn") if built[0]["frame"]["opcode"] == roce.CNP]
    assert found
    for row, frame in found:
        assert len(frame) == 74 == roce.wire_bytes(roce.CNP, 0) - 24
        assert frame[15] == 48 << 2
        assert frame[42:50] == bytes.fromhex("81 40 ffff 40 0001") + bytes([int(row["end"])])
        assert frame[50:70] == bytes(20)
        assert frame[-4:] == icrc(frame[14:-4])
        packet = Ether(frame)
        assert (packet[BTH].becn, packet[BTH].dqpn, packet[CNPPadding].reserved1) == (1, 256 + int(row["end"]), 0)
        packet[BTH].icrc = None
        assert bytes(packet) == frame
        assert Dissector().dissect(frame).opcode == "CNP"


def test_a_selective_answer_has_the_packet_it_is_about_behind_its_aeth() -> None:
    values = incast(1, 100_000, topology={"links": [{"hosts": [1], "bad_fcs_frames": [5]}]})
    answers = [built for built in frames_of(values, "irn") if built[0]["kind"] == ANSWER]
    naks = [built for built in answers if built[0]["frame"]["vc"] == roce.SYNDROME_NAK_SEQUENCE]
    assert naks
    for row, frame in answers:
        psn, told = int(row["frame"]["tx_seq"]), int(row["frame"]["rx_seq"])
        is_nak = row["frame"]["vc"] == roce.SYNDROME_NAK_SEQUENCE
        assert len(frame) == roce.wire_bytes(roce.ACKNOWLEDGE, 4 if is_nak else 0) - 24
        assert frame[50:54] == psn.to_bytes(4, "big")
        assert frame[55:58] == (told & 0xFFFFFF).to_bytes(3, "big")
        assert frame[58:-4] == ((told >> 24).to_bytes(4, "big") if is_nak else b"")
        assert frame[-4:] == icrc(frame[14:-4])
        assert Dissector().dissect(frame).note is None


@pytest.mark.parametrize("transport", ["irn", "spectrum"])
def test_each_packet_says_where_it_goes(transport: str) -> None:
    """The RETHs of a message, in whatever order, cover its memory once."""
    data = [frame for row, frame in frames_of(incast(1, 50_000), transport) if row["kind"] == DATA]
    places = {}
    for frame in data:
        assert frame[42] == roce.WRITE_ONLY
        places[int.from_bytes(frame[54:62], "big")] = int.from_bytes(frame[66:70], "big")
        assert len(frame) == 74 + places[int.from_bytes(frame[54:62], "big")]
    at = 1 << 40
    while at in places:
        at += places.pop(at)
    assert (at, places) == ((1 << 40) + 50_000, {})


def icrc_v1(frame: bytes) -> bytes:
    """By the rule, from the whole frame: IBTA 7.8.1 with the GRH's traffic class, flow label and hop limit as ones."""
    import zlib

    packet = bytearray(frame[14:-4])
    packet[0:4] = b"\x6f\xff\xff\xff"
    packet[7] = packet[44] = 0xFF
    return zlib.crc32(b"\xff" * 8 + packet).to_bytes(4, "little")


@pytest.mark.parametrize("transport", ["roce-pfc", "irn"])
def test_rocev1_has_a_grh(transport: str) -> None:
    """EtherType 0x8915 and 40 bytes of GRH in place of the 28 of IPv4 and UDP: 12 more on the line."""
    from scapy.contrib.roce import BTH, GRH
    from scapy.layers.l2 import Ether

    sizes = {}
    for version in (1, 2):
        rows = frames_of(incast(2, 20_000, roce={"version": version}), transport)
        sizes[version] = sum(len(frame) for _, frame in rows)
        if version == 2:
            assert sizes[1] - sizes[2] == 12 * len(rows)
            break
        for row, frame in rows:
            header = row["frame"]
            assert len(frame) == roce.wire_bytes(header["opcode"], header["payload_bytes"], 54) - 24
            packet = Ether(frame)
            assert (packet.type, packet[GRH].ipver, packet[GRH].nexthdr, packet[GRH].hoplmt) == (0x8915, 6, 0x1B, 64)
            assert packet[GRH].paylen == len(frame) - 54
            assert packet[GRH].tclass == 3 << 5
            assert (packet[BTH].opcode, packet[BTH].psn) == (header["opcode"], header["tx_seq"])
            source = packet[GRH].sgid.to_bytes(16, "big")
            mac = bytes.fromhex(packet.src.replace(":", ""))
            assert source == bytes.fromhex("fe80" + "00" * 6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
            assert frame[-4:] == icrc_v1(frame)
            assert Dissector().dissect(frame).opcode == "RoCEv1"


def test_rocev1_costs_its_bytes() -> None:
    """Twelve bytes more a frame, exactly, in time too."""
    took = {}
    for version in (1, 2):
        fabric = Fabric(make_scenario(incast(1, 409_600, roce={"version": version})), "roce", 1)
        took[version] = fabric.run().flows[0]
        assert took[version]["fct_rx_ps"] == took[version]["ideal_ps"]
    assert took[1]["fct_rx_ps"] - took[2]["fct_rx_ps"] == (100 + 1) * 12 * 80


@pytest.mark.parametrize(
    "values",
    [
        {"roce": {"version": 1}, "transports": ["roce", "roce-dcqcn"]},
        {"roce": {"version": 1, "ecn": True}},
        {"roce": {"version": 3}},
    ],
)
def test_rocev1_cannot_be_marked(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^roce\.version: "):
        make_scenario(values)


def test_the_command_captures_them(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    command = ["incast", "--transport", "roce-dcqcn,irn,spectrum", "--senders", "3", "--size", "400kB"]
    done = CliRunner().invoke(group, [*command, "--capture", "h0", "--out", out], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for transport in ("roce-dcqcn", "irn", "spectrum"):
        with open_capture(tmp_path / "out" / transport / "h0.pcapng") as capture:
            frames: list[Frame] = list(capture)
        assert {Dissector().dissect(frame.data).note for frame in frames} == {None}

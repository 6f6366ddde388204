"""Scapy layers: each frame of the real captures builds back from its fields, which mean what `ttpoe.wire` says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Padding, Raw
from test_ipv4 import OPEN as IPV4_OPEN
from test_ipv4 import PAYLOAD as IPV4_PAYLOAD

from traces.layers import IPV4_MODE, TTH, UDP_420, TTPoE, TTPShim, pad
from traces.pcap import open_capture
from ttpoe import wire
from ttpoe.constants import GATEWAY_BIT
from ttpoe.fsm import Opcode

CAPTURES = sorted((Path(__file__).parent / "data" / "captures").glob("*.pcap"))

OPEN = bytes.fromhex(
    "98ed5c000001 98ed5c000002 9ac6 05 00 002e" + "00" * 16 + "000002 000001 001a 00 02 00 00 0000 00 0000 00"
    "fffffff0 00000000 00000000")
FULL = bytes.fromhex(
    "98ed5c0000019b0d0e0f1011 9ac6 e3 7f 1234" + "".join(f"{k:02x}" for k in range(0xA0, 0xB0))
    + "010203 040506 0021 c6 01 11 12 1314 15 1617 18 191a1b1c 1d1e1f20 41424344454647 50515253")
"""Every bit set to something of its own; payload of 7 and padding of 4."""


def rebuilt(frame: Ether) -> bytes:
    """Bytes from the fields, not from what scapy remembers of the dissected ones."""
    frame.clear_cache()
    assert frame.raw_packet_cache is None
    assert frame.lastlayer().raw_packet_cache is None
    return bytes(frame)


def test_build_open_literally() -> None:
    frame = Ether(dst="98:ed:5c:00:00:01", src="98:ed:5c:00:00:02") / TTH() / TTPShim(src_node=2, dst_node=1)
    frame = frame / TTPoE(opcode="OPEN", tx_seq=0xFFFFFFF0)
    assert bytes(frame) == OPEN[:60]
    assert bytes(pad(frame)) == OPEN


def test_lengths_count_payload_and_not_padding() -> None:
    frame = Ether(bytes(pad(Ether() / TTH() / TTPShim() / TTPoE() / b"abc")))
    assert (frame[TTH].total_length, frame[TTPShim].shim_length, len(frame)) == (49, 29, 64)
    assert (frame[Raw].load, frame[Padding].load) == (b"abc", b"\0")
    assert len(pad(Ether() / TTH() / TTPShim() / TTPoE() / bytes(100))) == 160


def test_every_bit_is_a_field() -> None:
    frame = Ether(FULL)
    tth, shim, transport = frame[TTH], frame[TTPShim], frame[TTPoE]
    assert (tth.subtype, tth.version, tth.header_words, tth.gateway, tth.reserved) == (3, 2, 3, 0, 0x7F)
    assert (tth.total_length, tth.padding) == (0x1234, bytes(range(0xA0, 0xB0)))
    assert (shim.src_node, shim.dst_node, shim.shim_length) == (0x010203, 0x040506, 33)
    assert (transport.opcode_reserved, transport.opcode, transport.vc) == (3, Opcode.PAYLOAD, 1)
    assert (transport.tx_v1, transport.rx_v1, transport.epoch, transport.congestion) == (0x11, 0x12, 0x1314, 0x15)
    assert (transport.reserved_1, transport.reduced, transport.echo) == (0x16 >> 2, 1, 0)
    assert (transport.version, transport.reserved_2, transport.extension) == (1, 7, 0x18)
    assert (transport.tx_seq, transport.rx_seq) == (0x191A1B1C, 0x1D1E1F20)
    assert (frame[Raw].load, frame[Padding].load) == (b"ABCDEFG", b"PQRS")
    assert rebuilt(frame) == FULL


def test_agrees_with_wire() -> None:
    header = wire.parse(FULL).header[0]
    frame = Ether(FULL)
    for name in ("total_length", "src_node", "dst_node", "shim_length", "opcode", "opcode_reserved", "vc", "extension",
                 "congestion", "tx_v1", "rx_v1", "epoch", "tx_seq", "rx_seq"):
        assert frame.getfieldval(name) == header[name], name
    bits = [frame[TTPoE].getfieldval(name) for name in ("reserved_1", "reduced", "echo", "version", "reserved_2")]
    assert header["version_bits"] == bits[0] << 10 | bits[1] << 9 | bits[2] << 8 | bits[3] << 4 | bits[4]
    assert header["tth"] == 0xE3


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_real_captures_build_back(path: Path) -> None:
    """All frames without the gateway bit, what an endpoint refuses among them."""
    with open_capture(path) as capture:
        frames = [frame.data for frame in capture if frame.data[12:14] == b"\x9a\xc6"]
    frames = [data for data in frames if not data[15] & GATEWAY_BIT]
    if not frames:
        assert "gateway" in path.stem
    for data in frames:
        frame = Ether(data)
        inside = max(int.from_bytes(data[40:42], "big") - 26, 0)
        assert rebuilt(frame) == data
        if TTPoE in frame:
            behind = frame[TTPoE].payload
            assert (behind.load if type(behind) is Raw else b"") == data[60 : 60 + inside]
            assert frame[TTPoE].opcode == data[42] & 0x3F


def test_real_captures_are_there() -> None:
    assert len(CAPTURES) == 9


@pytest.mark.parametrize("shim_length", [0, 1, 7, 8, 9, 25, 26, 27, 100, 0xFFFF])
def test_any_shim_length_builds_back(shim_length: int) -> None:
    data = OPEN[:40] + shim_length.to_bytes(2, "big") + OPEN[42:]
    frame = Ether(data)
    assert rebuilt(frame) == data
    behind = frame[Padding].load if Padding in frame else b""
    assert behind == data[max(min(34 + max(shim_length, 8), 64), 42) :]


@pytest.mark.parametrize("length", range(14, 64))
def test_any_truncation_builds_back(length: int) -> None:
    assert rebuilt(Ether(OPEN[:length])) == OPEN[:length]


def test_names_are_readable() -> None:
    text = Ether(OPEN).show(dump=True)
    assert "opcode    = OPEN" in text
    assert "vc        = DATA" in text
    assert "###[ TTPoE shim ]###" in text
    assert Ether(OPEN).summary().endswith("TTPoE OPEN vc DATA tx 4294967280 rx 0 / Padding")
    strange = Ether(OPEN[:42] + b"\x3f\x09" + OPEN[44:])
    assert (strange[TTPoE].opcode, strange[TTPoE].vc) == (63, 9)


def ipv4_frame(dst: int, src: int, **fields) -> Ether:
    ethernet = Ether(dst=f"98:ed:5c:00:00:{dst:02x}", src=f"98:ed:5c:00:00:{src:02x}")
    return ethernet / IP(src=f"10.0.0.{src}", dst=f"10.0.0.{dst}", **IPV4_MODE) / UDP_420 / TTPoE(**fields)


def test_ipv4_mode_as_bytes() -> None:
    assert bytes(pad(ipv4_frame(3, 1, opcode="OPEN", tx_seq=0x11223344, rx_seq=0x55667788))) == IPV4_OPEN
    assert bytes(pad(ipv4_frame(1, 3, vc=1, tx_seq=0xFFFFFFFF) / b"hello")) == IPV4_PAYLOAD
    own = pad(ipv4_frame(1, 3, version=0))
    assert own[TTPoE].version == 0


def test_ipv4_mode_is_dissected() -> None:
    frame = Ether(IPV4_OPEN)
    assert (frame[TTPoE].opcode, frame[TTPoE].version, frame[UDP].len) == (Opcode.OPEN, 2, 26)
    assert frame[Padding].load == bytes(4)
    assert Raw not in frame
    frame = Ether(IPV4_PAYLOAD)
    assert frame[Raw].load == b"hello"
    assert Padding not in frame


def test_real_ipv4_frames_build_back() -> None:
    """The reference module's, and ICMP about them: scapy keeps what we bound to port 420 apart."""
    count = 0
    with open_capture(CAPTURES[0].parent / "modttpoe_ipv4_mode.pcap") as capture:
        for captured in capture:
            data = bytes(captured.data)
            if data[12:14] == b"\x08\x00" and data[23] == 17:
                frame = Ether(data)
                size = int.from_bytes(data[38:40], "big") - 26
                assert (frame[Raw].load if Raw in frame else b"") == data[60 : 60 + size]
                assert rebuilt(frame) == data
                count += 1
    assert count == 9


def test_a_vlan_tag_is_seen_through() -> None:
    frame = Ether(OPEN[:12] + bytes.fromhex("81006001") + OPEN[12:])
    assert (frame[Dot1Q].prio, frame[TTPoE].opcode) == (3, Opcode.OPEN)


def test_only_layers_imports_scapy() -> None:
    """The rest of the package stays quick to start and free of its licence."""
    code = "import sys, traces.frames, traces.dissect, ttpoe.cli.trace; sys.exit('scapy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

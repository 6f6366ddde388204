"""iWARP frames of a run: checksums, sequence numbers and SACK as RFCs have them, and as tshark reads them."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from emulated import incast, make

from emulator import tcp_rows
from emulator.fabric import Fabric
from emulator.packet import DATA
from traces.frames import CaptureWriter, FrameBuilder, host_ipv4, host_mac
from traces.pcap import Frame, PcapngWriter, open_capture
from traces.tcp_frames import crc32c

SIZE = 60_001
PORTS = ("h0", "h1", "s0.p1")


def test_crc32c_of_rfc_3720() -> None:
    """Appendix B.4: 32 bytes of zeros, of ones, and from 0 up and from 31 down."""
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E),
                      (bytes(range(31, -1, -1)), 0x113FDB5C)):  # fmt: skip
        assert crc32c(np.frombuffer(data, np.uint8)) == crc


@dataclass
class Captured:
    """One run's rows and files."""

    fabric: Fabric
    builder: FrameBuilder
    rows: np.ndarray
    files: dict[str, Path]

    def at(self, port: str) -> tuple[np.ndarray, list[Frame]]:
        with open_capture(self.files[port]) as capture:
            return self.rows[self.rows["port"] == self.fabric.topology.port_names.index(port)], list(capture)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    values = incast(6, SIZE, switch={"buffer_bytes": 100_000}, tcp={"rto_min_ps": "1ms"},
                    link={"impairments": {"loss": 0.01}})  # fmt: skip
    fabric = make(values, "iwarp-dctcp", capture=frozenset(PORTS))
    fabric.world.marking["kmin_bytes"] = fabric.world.marking["kmax_bytes"] = 20_000
    builder = FrameBuilder(
        fabric.topology.port_names, fabric.topology.port_nic, fabric.world.ends,
        int(fabric.world.engine[0]["protocol"]), seed=1, message_bytes=fabric.world.flows["size_bytes"],
        mtu_bytes=1440, window_bytes=4_000_000,
    )  # fmt: skip
    kept: list[np.ndarray] = []
    with CaptureWriter(tmp_path_factory.mktemp("tcp"), builder, PORTS) as writer:

        def sink(rows: np.ndarray) -> None:
            kept.append(rows.copy())
            writer.sink(rows)

        fabric.run(sink=sink)
    return Captured(fabric, builder, np.concatenate(kept), writer.paths)


def ones_sum(data: bytes) -> int:
    """RFC 1071, word by word, as a second opinion."""
    total = 0
    for (word,) in struct.iter_unpack(">H", data + bytes(len(data) % 2)):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_lengths_and_checksums(captured: Captured) -> None:
    for port in PORTS:
        rows, frames = captured.at(port)
        assert len(rows) == len(frames) > 50
        for row, frame in zip(rows, frames, strict=True):
            header, data = row["frame"], frame.data
            wire_bytes = (
                tcp_rows.data_wire_bytes(header["payload_bytes"])
                if row["kind"] == DATA
                else tcp_rows.ack_wire_bytes(header["rx_seq"], header["vc"])
            )
            assert len(data) == wire_bytes - 24
            packet = data[14 : 14 + int.from_bytes(data[16:18], "big")]
            assert ones_sum(packet[:20]) == 0xFFFF
            assert ones_sum(packet[12:20] + struct.pack(">HH", 6, len(packet) - 20) + packet[20:]) == 0xFFFF
            assert packet[1] & 3 == row["ecn"]


def test_the_stream_is_whole_and_each_fpdu_is_right(captured: Captured) -> None:
    """What came in order, by TCP's sequence numbers, is the message's FPDUs and nothing else (RFC 5044, 4)."""
    rows, frames = captured.at("h0")
    streams: dict[int, dict[int, bytes]] = {}
    for row, frame in zip(rows, frames, strict=True):
        if row["kind"] == DATA:
            seq = int.from_bytes(frame.data[38:42], "big")
            assert streams.setdefault(int(row["end"]), {}).setdefault(seq, frame.data[54:]) == frame.data[54:]
    assert len(streams) == 6
    for end, segments in streams.items():
        stream, seq = b"", min(segments)
        while seq in segments:
            stream += segments[seq]
            seq += len(segments[seq])
        at = placed = 0
        while at < len(stream):
            length, ddp, rdmap, stag, offset = struct.unpack_from(">HBBIQ", stream, at)
            covered = -(-(2 + length) // 4) * 4
            crc = int.from_bytes(stream[at + covered : at + covered + 4], "little")
            assert crc == crc32c(np.frombuffer(stream[at : at + covered], np.uint8))
            assert (rdmap, stag, offset) == (0x40, 0x10000 + (end >> 1), ((end >> 1) + 1 << 40) + placed)
            placed += length - 14
            assert ddp == (0xC1 if placed == SIZE else 0x81)
            at += covered + 4
        assert placed == SIZE


def tshark(path: Path, *arguments: str) -> list[str]:
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    options = ("-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE")
    done = subprocess.run(["tshark", "-r", str(path), *options, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_tshark_finds_nothing_wrong(captured: Captured) -> None:
    for path in captured.files.values():
        assert tshark(path, "-Y", "_ws.malformed or tcp.checksum.status == Bad or ip.checksum.status == Bad") == []


def test_tshark_reads_marks_echoes_and_blocks(captured: Captured) -> None:
    rows, _ = captured.at("h0")
    path = captured.files["h0"]
    flags = rows["frame"]["opcode"]
    is_ack = rows["kind"] != DATA
    for query, expected in (
        ("ip.dsfield.ecn == 3", rows["ecn"] == 3),
        ("tcp.flags.ece == 1", flags & tcp_rows.FLAG_ECE != 0),
        ("tcp.flags.cwr == 1", flags & tcp_rows.FLAG_CWR != 0),
        ("tcp.flags.push == 1", flags & tcp_rows.FLAG_PSH != 0),
        ("tcp.options.sack.count == 1", is_ack & (rows["frame"]["rx_seq"] != 0) & (rows["frame"]["rx_seq"] >> 32 == 0)),
        ("tcp.options.sack.count == 3", is_ack & (rows["frame"]["vc"] != 0)),
    ):
        numbers = tshark(path, "-Y", query, "-T", "fields", "-e", "frame.number")
        assert numbers == [str(k + 1) for k in np.flatnonzero(expected)]
        assert numbers, query


def test_tshark_takes_the_stream_for_iwarp(captured: Captured, tmp_path: Path) -> None:
    """Behind a handshake of MPA, which a run begins after, its dissectors read DDP and RDMAP and check each CRC."""
    rows, frames = captured.at("h1")
    data = [f.data for row, f in zip(rows, frames, strict=True) if row["kind"] == DATA and row["is_out"]]
    first = data[0]
    seq, ack = struct.unpack_from(">II", first, 38)
    ports = struct.unpack_from(">HH", first, 34)
    request, reply = (b"MPA ID %s Frame\x40\x01\x00\x00" % word for word in (b"Req", b"Rep"))

    def frame(src: int, dst: int, ports: tuple[int, ...], seq: int, ack: int, body: bytes) -> bytes:
        segment = struct.pack(">HHIIBBHHH", *ports, seq, ack, 0x50, 0x18, 1000, 0, 0) + body
        ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(segment), 0, 0x4000, 64, 6, 0, host_ipv4(src), host_ipv4(dst))
        checksum = 0xFFFF - ones_sum(ip[12:] + struct.pack(">HH", 6, len(segment)) + segment)
        segment = segment[:16] + checksum.to_bytes(2, "big") + segment[18:]
        ip = ip[:10] + (0xFFFF - ones_sum(ip)).to_bytes(2, "big") + ip[12:]
        return host_mac(dst).to_bytes(6, "big") + host_mac(src).to_bytes(6, "big") + b"\x08\x00" + ip + segment

    path = tmp_path / "mpa.pcapng"
    with PcapngWriter(path) as writer:
        writer.add_interface("h1")
        writer.write(0, 0, frame(1, 0, ports, seq - len(request), ack - len(reply), request))
        writer.write(0, 1, frame(0, 1, ports[::-1], ack - len(reply), seq, reply))
        for k, each in enumerate(data[:10]):
            writer.write(0, 2 + k, each)
    read = tshark(path, "-Y", "iwarp_rdma", "-T", "fields", "-e", "iwarp_ddp.stag", "-e", "iwarp_ddp.tagged_offset",
                  "-e", "iwarp_rdma.opcode")  # fmt: skip
    offsets = [(1 << 40) + 1440 * k for k in range(10)]
    assert [line.split("\t") for line in read] == [["0x00010000", f"0x{o:016x}", "0x00"] for o in offsets]
    assert tshark(path, "-Y", "_ws.malformed") == []
    assert "\n".join(tshark(path, "-V")).count("(Good CRC32)") == 10

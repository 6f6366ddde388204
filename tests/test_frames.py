"""Frames from captured rows: literal bytes, lengths, checksums; files that tshark and scapy read as they were meant."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from emulator import roce, world
from emulator.config import make_scenario
from emulator.fabric import Fabric
from emulator.packet import ANSWER, CE, DATA, ECT, PFC
from emulator.pfc import PFC_WIRE_BYTES
from traces.dissect import icrc
from traces.frames import FIRST_QPN, CaptureWriter, FrameBuilder, host_mac, switch_mac
from traces.pcap import Frame, open_capture
from ttpoe import wire
from ttpoe.fsm import Opcode

PORTS = ("h0", "s0.p0", "h1", "s0.p1")
HOSTS = np.array([0, -1, 1, -1])


def make_builder(protocol: int, message_bytes: int = 10_000, **knobs: int) -> FrameBuilder:
    """Flow 0 from h1 to h0 and flow 1 from h0 to h1."""
    ends = np.zeros(4, world.END)
    ends["nic"] = [1, 0, 0, 1]
    return FrameBuilder(PORTS, HOSTS, ends, protocol, seed=7, message_bytes=np.full(2, message_bytes), **knobs)


def make_row(kind: int = DATA, *, frame: tuple[int, ...] = (0,) * 5, port: int = 2, is_out: int = 1, end: int = 1,
             marks: int = 0, priority: int = 3, cookie: int = 0, ecn: int = 0, is_corrupted: int = 0) -> np.void:
    """A frame that h1 sends to h0 at its own port, unless told otherwise."""
    row = np.zeros(1, world.TRACE)
    row[0] = (0, cookie, port, is_out, kind, priority, ecn, is_corrupted, end, (frame[0], marks, *frame[1:]))
    return row[0]


def ethernet_crc(data: bytes) -> int:
    """CRC-32 of IEEE 802.3, bit by bit, as a second opinion."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


# Literal bytes


def test_ttpoe_frame_literally() -> None:
    frame = make_builder(world.TTPOE).build(make_row(frame=(Opcode.PAYLOAD, 2, 0xFFFFFFF0, 5, 9)))
    assert frame == bytes.fromhex(
        "98ed5c000001 98ed5c000002 9ac6"
        "05 00 0037" + "00" * 16 + "000002 000001 0023"
        "06 02 00 00 0000 00 0000 00 fffffff0 00000005"
        "00000000 fffffff0 00")


def test_write_only_literally() -> None:
    frame = make_builder(world.ROCE, 6).build(make_row(frame=(roce.WRITE_ONLY, 0, 0xABCDEF, 0, 6), end=3, port=0))
    port = 0xC000 | zlib.crc32(b"7 2") & 0x3FFF
    head = bytes.fromhex("98ed5c000002 98ed5c000001 0800")
    ip = bytes.fromhex("45 60 0044 0000 4000 40 11 2647 0a000001 0a000002")
    udp = struct.pack(">4H", port, 4791, 48, 0)
    bth = bytes.fromhex("0a 60 ffff 00 000103 80 abcdef")
    reth = bytes.fromhex("0000020000000000 00010001 00000006")
    payload = bytes.fromhex("00000001 00ab 0000")
    masked = bytes.fromhex(
        "ffffffffffffffff"
        "45 ff 0044 0000 4000 ff 11 ffff 0a000001 0a000002") + udp[:6] + b"\xff\xff" + bytes.fromhex(
        "0a 60 ffff ff 000103 80 abcdef") + reth + payload
    assert frame == head + ip + udp + bth + reth + payload + ethernet_crc(masked).to_bytes(4, "little")


def test_acknowledgement_literally() -> None:
    nak = (roce.ACKNOWLEDGE, roce.SYNDROME_NAK_SEQUENCE, 0x123456, 0x0A0B0C, 0)
    frame = make_builder(world.ROCE).build(make_row(ANSWER, frame=nak, end=0, port=0, priority=5))
    assert frame[:42] == bytes.fromhex("98ed5c000002 98ed5c000001 0800"
                                       "45 a0 0030 0000 4000 40 11 261b 0a000001 0a000002") + struct.pack(
        ">4H", 0xC000 | zlib.crc32(b"7 1") & 0x3FFF, 4791, 28, 0)
    assert frame[42:58] == bytes.fromhex("11 40 ffff 00 000100 00 123456 60 0a0b0c")
    assert frame[58:] == icrc(frame[14:58])


def test_pfc_literally() -> None:
    builder = make_builder(world.ROCE)  # the source is the port that sends it, whichever side captured it
    sent = builder.build(make_row(PFC, cookie=0xFFFF, port=3, is_out=1, priority=3))
    assert sent == bytes.fromhex("0180c2000001 025357000004 8808 0101 0008 0000 0000 0000 ffff 0000 0000 0000 0000"
                                 + "00" * 26)
    assert builder.build(make_row(PFC, cookie=0xFFFF, port=2, is_out=0, priority=3)) == sent
    resume = builder.build(make_row(PFC, cookie=0, port=2, is_out=1, priority=7))
    assert resume == bytes.fromhex("0180c2000001 98ed5c000002 8808 0101 0080" + "0000" * 8 + "00" * 26)


@pytest.mark.parametrize("payload", [1, 4, 5, 1024])
def test_a_corrupted_frame_has_one_bit_of_its_payload_flipped(payload: int) -> None:
    """The same one at every port; RoCEv2's ICRC then shows it."""
    for protocol, opcode, begins, behind in (
        (world.TTPOE, Opcode.PAYLOAD, 60, max(4 - payload, 0)), (world.ROCE, roce.WRITE_MIDDLE, 54, -payload % 4 + 4),
    ):  # fmt: skip
        builder = make_builder(protocol)
        rows = [make_row(frame=(opcode, 0, 77, 0, payload), port=port, is_corrupted=bad) for port, bad in
                ((2, 0), (2, 1), (0, 1))]  # fmt: skip
        whole, damaged, later = (builder.build(row) for row in rows)
        assert damaged == later
        different = [(k, a ^ b) for k, (a, b) in enumerate(zip(whole, damaged, strict=True)) if a != b]
        assert len(different) == 1
        assert different[0][1].bit_count() == 1
        assert begins <= different[0][0] < len(whole) - behind
        if protocol == world.ROCE:
            assert damaged[-4:] != icrc(damaged[14:-4])


def test_icrc_of_a_frame_from_a_nic() -> None:
    """A CNP as a ConnectX-4 Lx sent it (published with scapy's tests), ICRC 82fd002a."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0xC2, 60, 0x718C, 0x4000, 64, 17, 0x9161, bytes([10, 0, 17, 1]),
                     bytes([10, 0, 18, 1]))
    udp = struct.pack(">4H", 0, 4791, 40, 0)
    bth = struct.pack(">BBHII", 0x81, 0, 0xFFFF, 0x4000_0118, 0)
    assert icrc(ip + udp + bth + bytes(16)).hex() == "82fd002a"


# Lengths


@pytest.mark.parametrize("payload", [1, 2, 3, 4, 5, 7, 8, 9, 255, 1023, 1024, 1025, 9000])
def test_ttpoe_is_as_long_as_the_emulator_says(payload: int) -> None:
    frame = make_builder(world.TTPOE).build(make_row(frame=(Opcode.PAYLOAD, 2, 1, 0, payload)))
    assert len(frame) == max(60 + payload, 64)
    parsed = wire.parse(frame, max_payload_bytes=payload)
    assert parsed.payload == (bytes.fromhex("0000000000000001") * 1200)[:payload]
    assert parsed.trailing == bytes(max(4 - payload, 0))


@pytest.mark.parametrize("opcode", [o for o in Opcode if o is not Opcode.PAYLOAD])
def test_ttpoe_control_is_minimal(opcode: Opcode) -> None:
    frame = make_builder(world.TTPOE).build(make_row(ANSWER, frame=(opcode, 1, 2**32 - 1, 2**31, 0)))
    header = wire.parse(frame).header[0]
    assert len(frame) == 64
    assert (header["opcode"], header["vc"], header["tx_seq"], header["rx_seq"]) == (opcode, 1, 2**32 - 1, 2**31)
    assert header["total_length"] == 46
    assert header["shim_length"] == 26


@pytest.mark.parametrize("opcode", [roce.WRITE_FIRST, roce.WRITE_MIDDLE, roce.WRITE_LAST, roce.WRITE_ONLY])
@pytest.mark.parametrize("payload", [1, 2, 3, 4, 5, 6, 7, 1024, 4095, 4096, 9000])
def test_roce_is_as_long_as_the_emulator_says(opcode: int, payload: int) -> None:
    frame = make_builder(world.ROCE).build(make_row(frame=(opcode, 0, 77, 0, payload)))
    assert len(frame) == roce.wire_bytes(opcode, payload) - 24
    assert int.from_bytes(frame[16:18], "big") == len(frame) - 14
    assert int.from_bytes(frame[38:40], "big") == len(frame) - 34
    assert (frame[43] >> 4 & 3) == -payload % 4
    at = 54 + (16 if opcode in (roce.WRITE_FIRST, roce.WRITE_ONLY) else 0)
    assert frame[at:-4] == (bytes.fromhex("000000000000004d") * 1200)[:payload] + bytes(-payload % 4)
    assert frame[-4:] == icrc(frame[14:-4])
    assert (frame[50] >> 7 == 1) == (opcode in (roce.WRITE_LAST, roce.WRITE_ONLY))


def test_answers_and_pfc_are_as_long_as_the_emulator_says() -> None:
    ack = make_row(ANSWER, frame=(roce.ACKNOWLEDGE, 31, 1, 1, 0))
    assert len(make_builder(world.ROCE).build(ack)) == roce.wire_bytes(roce.ACKNOWLEDGE, 0) - 24
    assert len(make_builder(world.ROCE).build(make_row(PFC, cookie=1))) == PFC_WIRE_BYTES - 24


@pytest.mark.parametrize("protocol", [world.TTPOE, world.ROCE])
def test_templates_do_not_leak_between_flows_channels_and_priorities(protocol: int) -> None:
    """The same rows in any order give the same frames, and the ones that differ differ."""
    varied = [(vc, 3) for vc in (0, 2)] if protocol == world.TTPOE else [(0, priority) for priority in (0, 3)]
    rows = [make_row(frame=(7, vc, seq, seq, size), end=end, priority=priority)
            for seq in (1, 2) for size in (8, 12) for end in (1, 3) for vc, priority in varied]
    builder = make_builder(protocol)
    forward = [builder.build(row) for row in rows]
    assert [make_builder(protocol).build(row) for row in rows] == forward
    assert [builder.build(row) for row in reversed(rows)] == forward[::-1]
    assert len(set(forward)) == len(rows)


def test_a_mark_changes_the_ecn_field_and_the_ip_checksum_alone() -> None:
    """The ICRC leaves the traffic class out, since switches may change it."""
    builder = make_builder(world.ROCE)
    capable, marked = (
        builder.build(make_row(frame=(roce.WRITE_MIDDLE, 0, 1, 0, 4096), ecn=ecn)) for ecn in (ECT, CE)
    )
    assert (capable[15], marked[15]) == (0x62, 0x63)
    assert {k for k in range(len(capable)) if capable[k] != marked[k]} <= {15, 24, 25}
    assert capable[-4:] == marked[-4:] == icrc(marked[14:-4])


def test_knobs_and_bad_arguments() -> None:
    row = make_row(frame=(roce.WRITE_FIRST, 0, 1, 0, 4096))
    assert make_builder(world.ROCE, 2**40).build(row)[66:70] == bytes.fromhex("80000000")
    with pytest.raises(ValueError, match="protocol is 9"):
        make_builder(9)
    with pytest.raises(ValueError, match="4 ends need 2 message_bytes; 3"):
        FrameBuilder(PORTS, HOSTS, np.zeros(4, world.END), world.ROCE, seed=1, message_bytes=np.ones(3))


# Files of real runs


@dataclass
class Captured:
    """One run's rows, by port, and its files."""

    fabric: Fabric
    rows: dict[str, np.ndarray]
    files: dict[str, Path]

    def frames(self, port: str) -> list[Frame]:
        with open_capture(self.files[port]) as capture:
            return list(capture)


@pytest.fixture(scope="module", params=["ttpoe", "roce-pfc", "roce"])
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    scenario = make_scenario({
        "workload": {"kind": "incast", "senders": 6, "size_bytes": 60_001},
        "switch": {"buffer_bytes": 600_000, "alpha": 0.05},
    })
    fabric = Fabric(scenario, request.param, 1, capture=frozenset(PORTS))
    builder = FrameBuilder(
        fabric.topology.port_names, fabric.topology.port_nic, fabric.world.ends,
        int(fabric.world.engine[0]["protocol"]), seed=1, message_bytes=fabric.world.flows["size_bytes"])
    directory = tmp_path_factory.mktemp("captured") / "new" / request.param
    kept = []
    with CaptureWriter(directory, builder, PORTS, rate_bps=fabric.topology.rate_bps) as writer:
        def sink(rows: np.ndarray) -> None:
            kept.append(rows.copy())
            writer.sink(rows)

        fabric.run(sink=sink, max_events=500)
        assert not list(directory.glob("*.pcapng")), "files get their names at the end"
    rows = np.concatenate(kept)
    assert writer.frames_written == len(rows) > 400
    names = fabric.topology.port_names
    assert sorted(path.name for path in directory.iterdir()) == sorted(f"{port}.pcapng" for port in PORTS)
    return Captured(fabric, {port: rows[rows["port"] == names.index(port)] for port in PORTS}, writer.paths)


def test_files_hold_the_rows(captured: Captured) -> None:
    is_roce = captured.fabric.transport.startswith("roce")
    seen_kinds = set()
    for port, rows in captured.rows.items():
        frames = captured.frames(port)
        assert len(frames) == len(rows)
        assert [f.time_ns for f in frames] == (rows["time_ps"] // 1000).tolist()
        assert (np.diff(rows["time_ps"]) >= 0).all()
        assert [f.direction for f in frames] == ["out" if out else "in" for out in rows["is_out"]]
        assert {(f.interface.name, f.interface.rate_bps, f.interface.ticks_per_second) for f in frames} == {
            (port, 100_000_000_000, 10**9)}
        for frame, row in zip(frames, rows, strict=True):
            seen_kinds.add(int(row["kind"]))
            assert frame.original_bytes == len(frame.data)
            if row["kind"] != PFC and is_roce:
                header = row.copy()["frame"].reshape(1).view(roce.ROCE_FRAME)[0]
                assert len(frame.data) == roce.wire_bytes(header["opcode"], header["payload_bytes"]) - 24
                assert frame.data[-4:] == icrc(frame.data[14:-4])
            elif row["kind"] != PFC:
                parsed = wire.parse(frame.data)
                for name in ("opcode", "vc", "tx_seq", "rx_seq", "payload_bytes"):
                    assert parsed.header[0][name] == row["frame"][name]
    assert seen_kinds == ({DATA, ANSWER, PFC} if captured.fabric.transport == "roce-pfc" else {DATA, ANSWER})


def test_a_frame_is_the_same_at_both_ends_of_its_cable(captured: Captured) -> None:
    out = [f.data for f in captured.frames("h1") if f.direction == "out"]
    assert [f.data for f in captured.frames("s0.p1") if f.direction == "in"] == out
    assert len(out) > 10


def test_a_resent_frame_equals_the_first(captured: Captured) -> None:
    start = 51 if captured.fabric.transport.startswith("roce") else 52  # where PSN or tx sequence is
    frames = [f.data for f in captured.frames("h1") if f.direction == "out"]
    same: dict[tuple[bytes, int], set[bytes]] = {}
    for data in frames:
        same.setdefault((data[start : start + 3 if start == 51 else 56], len(data)), set()).add(data)
    assert (len(same) < len(frames)) == (captured.fabric.transport != "roce-pfc")
    assert all(len(equal) == 1 for equal in same.values())


def tshark(path: Path, *arguments: str) -> list[str]:
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    done = subprocess.run(["tshark", "-r", str(path), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def as_numbers(lines: list[str]) -> list[list[int]]:
    return [[int(value, 0) if value else -1 for value in line.split("\t")] for line in lines]


def test_tshark_finds_nothing_malformed(captured: Captured) -> None:
    for path in captured.files.values():
        names = ("frame.number", "_ws.malformed", "_ws.expert.message", "frame.p2p_dir", "frame.interface_name")
        fields = [part for name in names for part in ("-e", name)]
        lines = tshark(path, "-o", "ip.check_checksum:TRUE", "-T", "fields", *fields)
        assert {tuple(line.split("\t")[1:3]) for line in lines} == {("", "")}
        assert {line.split("\t")[4] for line in lines} == {path.stem}
        assert {line.split("\t")[3] for line in lines} == {"0", "1"}


def test_tshark_reads_the_fields_as_written(captured: Captured) -> None:
    if captured.fabric.transport == "ttpoe":
        return  # tshark has no dissector for it
    names = ("ip.dsfield.dscp", "ip.dsfield.ecn", "udp.dstport", "infiniband.bth.opcode", "infiniband.bth.destqp",
             "infiniband.bth.psn", "infiniband.bth.padcnt", "infiniband.bth.m", "infiniband.bth.a",
             "infiniband.aeth.syndrome", "infiniband.aeth.msn", "infiniband.reth.dmalen", "infiniband.reth.r_key",
             "macc.opcode", "macc.cbfc.enbv", "macc.cbfc.pause_time.c3", "macc.cbfc.pause_time.c2")
    fields = [part for name in names for part in ("-e", name)]
    for port, path in captured.files.items():
        expected = []
        for row in captured.rows[port]:
            if row["kind"] == PFC:
                expected.append([-1] * 13 + [0x0101, 8, int(row["cookie"]), 0])
                continue
            opcode, _, syndrome, psn, msn, payload = row["frame"].item()
            flow = int(row["end"]) >> 1
            is_ack, has_reth = opcode == roce.ACKNOWLEDGE, opcode in (roce.WRITE_FIRST, roce.WRITE_ONLY)
            expected.append([
                8 * int(row["priority"]), 0, 4791, opcode, FIRST_QPN + int(row["end"]), psn, -payload % 4, 1,
                int(opcode in (roce.WRITE_LAST, roce.WRITE_ONLY)), syndrome if is_ack else -1, msn if is_ack else -1,
                60_001 if has_reth else -1, 0x10000 + flow if has_reth else -1, -1, -1, -1, -1])
        lines = [line.replace("True", "1").replace("False", "0") for line in tshark(path, "-T", "fields", *fields)]
        assert as_numbers(lines) == expected
    kinds = {int(row["frame"]["opcode"]) for row in captured.rows["h0"] if row["kind"] != PFC}
    assert kinds >= {roce.WRITE_FIRST, roce.WRITE_MIDDLE, roce.WRITE_LAST, roce.ACKNOWLEDGE}


def test_scapy_reads_the_fields_and_agrees_on_every_icrc(captured: Captured) -> None:
    from scapy.contrib.mac_control import MACControlClassBasedFlowControl
    from scapy.contrib.roce import AETH, BTH
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    if captured.fabric.transport == "ttpoe":
        return  # see test_layers.py
    naks = pauses = 0
    for port in ("h1", "s0.p1"):
        for frame, row in zip(captured.frames(port), captured.rows[port], strict=True):
            packet = Ether(frame.data)
            if row["kind"] == PFC:
                pauses += 1
                control = packet[MACControlClassBasedFlowControl]
                enabled = [getattr(control, f"c{k}_enabled") for k in range(8)]
                times = [getattr(control, f"c{k}_pause_time") for k in range(8)]
                assert enabled == [0, 0, 0, 1, 0, 0, 0, 0]
                assert times == [0, 0, 0, int(row["cookie"]), 0, 0, 0, 0]
                assert int(packet.src.replace(":", ""), 16) == switch_mac(3)
                continue
            opcode, _, syndrome, psn, msn, payload = row["frame"].item()
            bth = packet[BTH]
            assert (bth.opcode, bth.dqpn, bth.psn, bth.padcount, bth.pkey, bth.migreq) == (
                opcode, FIRST_QPN + int(row["end"]), psn, -payload % 4, 0xFFFF, 1)
            if opcode == roce.ACKNOWLEDGE:
                assert (packet[AETH].syndrome, packet[AETH].msn) == (syndrome, msn)
                naks += syndrome == roce.SYNDROME_NAK_SEQUENCE
            assert 0xC000 <= packet[UDP].sport <= 0xFFFF
            assert packet.src == wire.format_mac(host_mac(int(captured.fabric.world.ends["nic"][row["end"] ^ 1])))
            for layer, name in ((BTH, "icrc"), (IP, "chksum"), (IP, "len"), (UDP, "len")):
                delattr(packet[layer], name)
            assert bytes(packet) == frame.data
    assert (naks > 0, pauses > 0) == ((True, False) if captured.fabric.transport == "roce" else (False, True))


# The writer


def test_writer_keeps_picoseconds_and_ignores_other_ports(tmp_path: Path) -> None:
    rows = np.stack([make_row(PFC, cookie=5, port=port) for port in (0, 1, 2, 3, 0)])
    rows["time_ps"] = [1, 2, 3, 4, 1_234_567]
    writer = CaptureWriter(tmp_path, make_builder(world.ROCE), ["h0"], resolution="ps")
    writer(rows)
    writer.close()
    frames = list(open_capture(tmp_path / "h0.pcapng"))
    assert [f.time_ps for f in frames] == [1, 1_234_567]
    assert frames[0].interface.ticks_per_second == 10**12
    assert frames[0].interface.rate_bps is None
    assert writer.frames_written == 2


@pytest.mark.parametrize(("error", "is_kept"), [(ValueError, False), (KeyboardInterrupt, True)])
def test_writer_keeps_files_on_ctrl_c_only(tmp_path: Path, error: type[BaseException], is_kept: bool) -> None:
    def capture() -> None:
        with CaptureWriter(tmp_path, make_builder(world.ROCE), ["h0", "h1"]) as writer:
            writer.sink(np.stack([make_row(PFC, port=0)]))
            raise error

    with pytest.raises(error):
        capture()
    names = ["h0.pcapng", "h1.pcapng"] if is_kept else []
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_writer_names_what_is_wrong(tmp_path: Path) -> None:
    builder = make_builder(world.ROCE)
    with pytest.raises(ValueError, match=r"no port 'h9'; ports are h0, s0.p0, h1, s0.p1"):
        CaptureWriter(tmp_path / "a", builder, ["h0", "h9"])
    with pytest.raises(ValueError, match="resolution is 'us'"):
        CaptureWriter(tmp_path / "b", builder, ["h0"], resolution="us")
    assert not list(tmp_path.iterdir())
    (tmp_path / "h1.pcapng").mkdir()
    with pytest.raises(IsADirectoryError):
        CaptureWriter(tmp_path, builder, ["h0", "h1"])
    assert [path.name for path in tmp_path.iterdir()] == ["h1.pcapng"]


def test_writer_opens_more_files_than_the_soft_limit(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    names = [f"h{k}" for k in range(300)]
    builder = FrameBuilder(names, np.arange(300), np.zeros(2, world.END), 1, seed=1, message_bytes=np.ones(1))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        with CaptureWriter(tmp_path, builder, names):
            pass
        assert len(list(tmp_path.iterdir())) == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

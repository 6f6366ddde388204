"""ECN marks as bytes: in frames, on bad lines, at endpoints, in captures."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from emulated import incast, make
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from test_endpoint import send_all
from test_frames import tshark
from test_loopback import run as loopback
from wirepair import MAC_A, MAC_B, WirePair

from traces.dissect import Dissector
from traces.frames import CaptureWriter, FrameBuilder
from traces.layers import TTPoE
from traces.pcap import open_capture
from ttpoe import ipv4, open_endpoint, wire
from ttpoe.cli import group
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import Endpoint
from ttpoe.fsm import Opcode
from ttpoe.impair import Impairment
from ttpoe.impairments import ImpairmentConfig
from ttpoe.rules import REFERENCE
from ttpoe.state import Mark
from ttpoe.units import PS_PER_S

IP_A, IP_B = 0x0A000001, 0x0A000002
DCTCP = EndpointConfig(congestion_control="dctcp")


def frame(opcode: int = Opcode.PAYLOAD, payload: bytes = b"hello", *, tx: int = 7, rx: int = 0, **fields: int) -> bytes:
    """From B to A, in IPv4 mode."""
    header = ipv4.make_header(
        dst_mac=MAC_A, src_mac=MAC_B, dst_ip=IP_A, src_ip=IP_B, opcode=opcode, vc=2, tx_seq=tx, rx_seq=rx,
        payload_bytes=len(payload), **fields,
    )  # fmt: skip
    return ipv4.build(header, payload)


def ones_sum(data: bytes) -> int:
    """RFC 1071, over a header with its checksum: 0xFFFF where that is right."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


# Bytes


@pytest.mark.parametrize(
    ("marks", "ecn", "tos", "bits"),
    [(0, 0, 0x00, "0020"), (Mark.ECHO, 0, 0x00, "0120"), (Mark.REDUCED, 2, 0x02, "0220"), (Mark.ECT, 3, 0x03, "0020"),
     (Mark.ECHO | Mark.REDUCED, 2, 0x02, "0320")],
)  # fmt: skip
def test_where_the_bits_are(marks: int, ecn: int, tos: int, bits: str) -> None:
    """CE is bit 0 and CR bit 1 of byte 49, before the version in byte 50; ECN is the low two of the type of service."""
    data = frame(marks=marks, ecn=ecn)
    assert (data[15], data[49:51].hex()) == (tos, bits)
    assert ones_sum(data[14:34]) == 0xFFFF
    assert ipv4.parse(data).header[0]["ip_tos"] == tos
    scapy = Ether(data)
    assert (scapy[TTPoE].echo, scapy[TTPoE].reduced, scapy[TTPoE].version) == (marks & 1, marks >> 1 & 1, 2)
    assert scapy[IP].tos == tos
    told = Dissector().dissect(data)
    assert told.ecn == (None, "ECT(1)", "ECT(0)", "CE")[ecn]
    assert told.congestion == (None, "echo", "reduced", "reduced echo")[marks & 3]
    assert told.note is None


@given(ident=st.integers(0, 0xFFFF), dst=st.integers(0, 0xFFFFFFFF), tos=st.integers(0, 255), size=st.integers(0, 60))
def test_a_mark_changes_two_fields(ident: int, dst: int, tos: int, size: int) -> None:
    """CE and the checksum, which stays right; and only where the field says ECT."""
    header = ipv4.make_header(
        dst_mac=MAC_A, src_mac=MAC_B, dst_ip=dst, src_ip=IP_B, opcode=Opcode.PAYLOAD, vc=2, tx_seq=1, rx_seq=0,
        payload_bytes=size, ecn=0,
    )  # fmt: skip
    header["ip_id"], header["ip_tos"] = ident, tos
    ipv4.set_ipv4_lengths_at(header, 0, size)
    before = ipv4.build(header, bytes(size))
    after = ipv4.marked(before)
    if tos & 3 in (0, 3):
        assert after is None
        return
    assert after is not None
    assert after[15] == tos | 3
    assert ones_sum(after[14:34]) == 0xFFFF
    assert before[:15] + after[15:16] + before[16:24] + after[24:26] + before[26:] == after


def test_other_frames_have_no_field() -> None:
    ethernet = wire.build(wire.make_header(dst_mac=MAC_A, src_mac=MAC_B, opcode=0, vc=0, tx_seq=1, rx_seq=0))
    for data in (ethernet, frame(ecn=2)[:33], b"", frame(ecn=2)[:12] + b"\x86\xdd" + frame(ecn=2)[14:]):
        assert ipv4.marked(data) is None
    told = Dissector().dissect(ethernet[:49] + b"\xff\xff" + ethernet[51:])
    assert (told.ecn, told.congestion) == (None, None), "in Ethernet mode these bits may be anything"


# Bad lines


def test_a_share_of_what_may_be_marked() -> None:
    line = Impairment(3, mark=0.25)
    ect, plain = frame(ecn=2), frame()
    out = [passed for _ in range(4000) for data in (ect, plain) for passed in line.pass_frame(data)]
    assert len(out) == 8000
    assert out[1::2] == [plain] * 4000
    assert {*out[0::2]} == {ect, ipv4.marked(ect)}
    assert line.counters.marked == sum(data != ect for data in out[0::2])
    assert line.counters.marked == pytest.approx(1000, rel=0.1)


def test_what_waits_behind_much_is_marked() -> None:
    """At 8 Mb/s a byte takes a microsecond: ten frames at once, of which those with more than four before them."""
    data = frame(payload=bytes(1000), ecn=2)
    on_line_bytes = len(data) + 24
    line = Impairment(1, rate_bps=8_000_000, mark_above_bytes=4 * on_line_bytes)
    for _ in range(10):
        line.enter(data, 0)
    assert [out == data for out in line.leave(PS_PER_S)] == [True] * 5 + [False] * 5
    assert line.counters.marked == 5


def test_numbers_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="mark_above_bytes is 5; frames wait for a rate_bps, so give one"):
        ImpairmentConfig(mark_above_bytes=5)
    with pytest.raises(ValueError, match=r"mark is 1\.5; it must be from 0 to 1"):
        ImpairmentConfig(mark=1.5)
    assert ImpairmentConfig(mark=0.1).is_active


# Endpoints


def passive(config: EndpointConfig | None = None, ip: int = IP_A) -> Endpoint:
    """A, to which B has opened a link with id 6."""
    endpoint = Endpoint(MAC_A, config, ip=ip)
    endpoint.is_listening = True
    if ip:
        endpoint.receive([frame(Opcode.OPEN, b"", tx=6)], 0)
    assert endpoint.poll_transmit(0) is not None or not ip
    return endpoint


@pytest.mark.parametrize("kind", ["fixed", "dctcp"])
def test_a_marked_payload_is_acknowledged_as_such(kind: str) -> None:
    """Whatever the receiver's own congestion control is; byte for byte what the emulator's frames are."""
    endpoint = passive(EndpointConfig(congestion_control=kind))
    for seq, ecn in ((7, 2), (8, 3), (9, 0)):
        endpoint.receive([frame(tx=seq, ecn=ecn)], 0)
        header = ipv4.make_header(
            dst_mac=MAC_B, src_mac=MAC_A, dst_ip=IP_B, src_ip=IP_A, opcode=Opcode.ACK, vc=2, tx_seq=0, rx_seq=seq,
            marks=Mark.ECHO if ecn == 3 else 0,
        )  # fmt: skip
        assert bytes(endpoint.poll_transmit(0) or b"") == ipv4.build(header)


def test_the_module_would_not_echo() -> None:
    endpoint = passive(EndpointConfig.profile("reference", rules=REFERENCE))
    endpoint.receive([frame(tx=7, ecn=3)], 0)
    assert ipv4.parse(endpoint.poll_transmit(0) or b"").header[0]["version_bits"] == 0x20


def test_bits_of_ethernet_mode_mean_nothing() -> None:
    endpoint = passive(ip=0)
    bits: dict[str, int] = {"dst_mac": MAC_A, "src_mac": MAC_B, "vc": 2, "rx_seq": 0}
    for opcode, seq, size in ((Opcode.OPEN, 6, 0), (Opcode.PAYLOAD, 7, 5)):
        header = wire.make_header(**bits, opcode=opcode, tx_seq=seq, payload_bytes=size)
        header["version_bits"], header["ip_tos"] = 0xFFFF, 3
        endpoint.receive([wire.build(header, bytes(size))], 0)
        assert wire.parse(endpoint.poll_transmit(0) or b"").header[0]["version_bits"] == 0
    assert endpoint.counters()["marks_received"] == 0


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.05]), mark=st.sampled_from([0.0, 0.1, 1.0]))
def test_exactly_once_over_a_bad_line(seed: int, loss: float, mark: float) -> None:
    """And the smallest window that marks lead to moves all the same."""
    impairments = (Impairment(seed, loss=loss, mark=mark), Impairment(seed + 1, loss=loss, mark=mark))
    config = dataclasses.replace(
        DCTCP, mtu_bytes=64, window_bytes=1024, send_buffer_bytes=4096, receive_buffer_bytes=4096, retry_limit=40
    )
    pair = WirePair(config, impairments=impairments, ips=(IP_A, IP_B))
    data = random.Random(seed).randbytes(4000)
    link = pair.a.connect(MAC_B, 2, 0, peer_ip=IP_B)
    assert send_all(pair, link, data) == data
    marked, received = impairments[0].counters.marked, pair.b.counters()["marks_received"]
    if loss == 0:
        assert marked == received == pair.a.counters()["echoes_received"]
    assert (received > 0) == (mark > 0)
    assert impairments[1].counters.marked == 0, "answers are not to be marked"
    tos = {ipv4.parse(data).header[0]["ip_tos"] for _, data in pair.frames}
    assert tos == {0, 2}


def test_the_driver_refuses_before_it_opens_a_socket() -> None:
    with pytest.raises(ValueError, match="frames in Ethernet mode have no field for them, so use IPv4 mode"):
        open_endpoint("no-such-interface", DCTCP)


# Captures


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, int]:
    """A capture of a receiver's port in IPv4 mode, its rows, and how many frames were marked."""
    fabric = make(incast(3, 60_000, switch={"ecn": {"kmin_bytes": 10_000, "kmax_bytes": 10_000}}), "ttpoe-dctcp",
                  capture=frozenset({"h0"}))  # fmt: skip
    world, topology = fabric.world, fabric.topology
    builder = FrameBuilder(
        topology.port_names, topology.port_nic, world.ends, 0, seed=1, message_bytes=world.flows["size_bytes"],
        is_ipv4=True,
    )  # fmt: skip
    kept = []
    with CaptureWriter(tmp_path_factory.mktemp("marks"), builder, ["h0"]) as writer:
        def sink(rows: np.ndarray) -> None:
            kept.append(rows.copy())
            writer.sink(rows)

        result = fabric.run(sink=sink)
    return writer.paths["h0"], np.concatenate(kept), result.counters["ecn_marked"]


def test_emulated_frames_are_as_long_as_the_emulator_says(captured: tuple[Path, np.ndarray, int]) -> None:
    path, rows, _ = captured
    with open_capture(path) as capture:
        for taken, row in zip(capture, rows, strict=True):
            parsed = ipv4.parse(taken.data)
            head = parsed.header[0]
            assert len(taken.data) == max(60 + int(row["frame"]["payload_bytes"]), 64)
            for name in ("opcode", "vc", "tx_seq", "rx_seq"):
                assert head[name] == row["frame"][name]
            assert head["ip_tos"] == row["ecn"]
            assert head["version_bits"] == 0x20 | int(row["frame"]["marks"] & 3) << 8


def test_tshark_counts_the_marks_and_finds_no_wrong_checksum(captured: tuple[Path, np.ndarray, int]) -> None:
    path, _, marked = captured
    fields = [part for name in ("ip.dsfield.ecn", "ip.checksum.status", "udp.dstport") for part in ("-e", name)]
    lines = tshark(path, "-o", "ip.check_checksum:TRUE", "-T", "fields", *fields)
    assert [line.split("\t")[0] for line in lines].count("3") == marked > 20
    assert {line.split("\t")[1] for line in lines} == {"1"}
    assert {line.split("\t")[2] for line in lines} == {"420"}
    assert tshark(path, "-Y", "_ws.malformed || _ws.expert") == []


def test_trace_show_tells(captured: tuple[Path, np.ndarray, int]) -> None:
    path, rows, marked = captured
    done = CliRunner().invoke(group, ["trace", "show", str(path)])
    lines = done.stdout.splitlines()
    assert sum(line.split()[-1] == "CE" or "CE  reduced" in line for line in lines) == marked
    assert sum(line.endswith("frame 64  echo") for line in lines) == marked
    done = CliRunner().invoke(group, ["trace", "show", str(path), "--json"])
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["ecn"] for row in told] == [(None, "ECT(1)", "ECT(0)", "CE")[ecn] for ecn in rows["ecn"]]


# The command


@pytest.mark.root
@pytest.mark.parametrize("options", [("--mark", "5%"), ("--rate", "200M", "--mark-above", "10kB")])
def test_a_transfer_under_marks(veth, options: tuple[str, ...]) -> None:
    done = loopback("--size", "1MB", "--ipv4", "--congestion-control", "dctcp", *options, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["finished"]
    assert 0 < report["echoes"] <= report["frames_impaired"]["marked"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["loopback", "--congestion-control", "dctcp"], "--congestion-control is 'dctcp', which answers ECN marks; "),
        (["recv", "--interface", "lo", "--out", ".", "--congestion-control", "dctcp"], "use IPv4 mode, or take fixed"),
        (["send", __file__, "--interface", "lo", "--to", "98:ed:5c:00:00:02", "--congestion-control", "dctcp"],
         "use IPv4 mode, or take fixed"),
        (["loopback", "--ipv4", "--congestion-control", "dctcp", "--profile", "reference"], "the reference module"),
        (["loopback", "--mark-above", "10kB"], "--mark-above: mark_above_bytes is 10000; frames wait for a rate_bps"),
        (["incast", "--transport", "ttpoe-dctcp"], "--ipv4: ttpoe-dctcp has dctcp, which answers ECN marks; frames in"),
        (["incast", "--transport", "ttpoe", "--congestion-control", "dctcp"], "--ipv4: ttpoe has dctcp, which answers"),
        (["multipath", "--transport", "ttpoe-dctcp"], "--ipv4: ttpoe-dctcp has dctcp"),
    ],
)  # fmt: skip
def test_what_the_commands_refuse(command: list[str], says: str) -> None:
    done = CliRunner().invoke(group, command)
    assert done.exit_code == 2
    assert says in done.output

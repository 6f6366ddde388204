"""``ttpoe trace show`` and the dissector: what each frame is called, and what a user sees when a capture is bad."""

from __future__ import annotations

import gzip
import json
import os
import pty
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from test_ipv4 import OPEN as IPV4_OPEN
from test_ipv4 import PAYLOAD as IPV4_PAYLOAD
from test_ipv4 import with_checksum

from traces.dissect import KINDS, Dissector, icrc
from traces.pcap import LinkType, PcapngWriter, PcapWriter
from ttpoe.cli import ExitStatus, group

CAPTURES = Path(__file__).parent / "data" / "captures"
PASSIVE = CAPTURES / "modttpoe_prober_passive_peer.pcap"

PAYLOAD = bytes.fromhex(
    "98ed5c000001 98ed5c000002 9ac6 05 00 0033" + "00" * 16 + "000002 000001 001f 06 02 00 00 0000 00 0000 00"
    "00000007 00000003 6162636465")
PFC = bytes.fromhex("0180c2000001 025357000002 8808 0101 0009 ffff 0001 0002 0000" + "00" * 34)
PAUSE = bytes.fromhex("0180c2000001 025357000002 8808 0001 00ff" + "00" * 42)


def rocev2(opcode: int, extended: bytes = b"", payload: bytes = b"", flags: int = 0x40) -> bytes:
    udp_bytes = 8 + 12 + len(extended) + len(payload) + 4
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 96, 20 + udp_bytes, 0, 0x4000, 64, 17, 0, bytes([10, 0, 0, 2]),
                     bytes([10, 0, 0, 1]))
    packet = ip + struct.pack(">4H", 50_000, 4791, udp_bytes, 0)
    packet += struct.pack(">BBHII", opcode, flags, 0xFFFF, 0x101, 0x80ABCDEF) + extended + payload
    return bytes.fromhex("98ed5c000001 98ed5c000002 0800") + packet + icrc(packet)


ACK = rocev2(0x11, bytes.fromhex("1f000005"))
NAK = rocev2(0x11, bytes.fromhex("60000006"))


def dissect(data: bytes, **knobs: int) -> dict[str, object]:
    """What is not None."""
    original = knobs.pop("original_bytes", None)
    row = Dissector(**knobs).dissect(data, original)
    return {name: value for name, value in row._asdict().items() if value is not None}


MACS = {"src": "98:ed:5c:00:00:02", "dst": "98:ed:5c:00:00:01"}
IPS = {"src": "10.0.0.2", "dst": "10.0.0.1", "dest_qp": 0x101, "psn": 0xABCDEF}


@pytest.mark.parametrize(("data", "expected"), [
    (PAYLOAD, {"kind": "ttpoe", "opcode": "PAYLOAD", **MACS, "vc": 2, "tx": 7, "rx": 3, "payload_bytes": 5}),
    (PAYLOAD[:40] + b"\0\x19" + PAYLOAD[42:],
     {"kind": "ttpoe", "opcode": "PAYLOAD", **MACS, "vc": 2, "tx": 7, "rx": 3, "note": "shim too short"}),
    (PAYLOAD[:40] + b"\0\x20" + PAYLOAD[42:],
     {"kind": "ttpoe", "opcode": "PAYLOAD", **MACS, "vc": 2, "tx": 7, "rx": 3, "payload_bytes": 6,
      "note": "shim beyond frame"}),
    (PAYLOAD[:42] + b"\x3f\x09" + PAYLOAD[44:],
     {"kind": "ttpoe", "opcode": "opcode 63", **MACS, "vc": 9, "tx": 7, "rx": 3, "payload_bytes": 5,
      "note": "unknown opcode"}),
    (PAYLOAD[:12] + bytes.fromhex("88a80001 81006002") + PAYLOAD[12:],
     {"kind": "ttpoe", "opcode": "PAYLOAD", **MACS, "vc": 2, "tx": 7, "rx": 3, "payload_bytes": 5,
      "note": "VLAN tagged"}),
    (PAYLOAD[:15] + b"\x80" + PAYLOAD[16:],
     {"kind": "ttpoe", "opcode": "PAYLOAD", **MACS, "vc": 2, "tx": 7, "rx": 3, "payload_bytes": 5,
      "note": "gateway bit"}),
    (PAYLOAD[:12] + bytes.fromhex("81006002") + PAYLOAD[12:63], {"kind": "ttpoe", "opcode": "?", **MACS,
                                                                "note": "too short"}),
    (PAYLOAD[:63], {"kind": "ttpoe", "opcode": "?", **MACS, "note": "too short"}),
    (PAYLOAD[:59], {"kind": "ttpoe", "opcode": "?", **MACS, "note": "too short"}),
    (PFC, {"kind": "pfc", "opcode": "PFC", "src": "02:53:57:00:00:02", "dst": "01:80:c2:00:00:01",
           "pause": {0: 65535, 3: 0}}),
    (PFC[:16] + bytes(44), {"kind": "pfc", "opcode": "PFC", "src": "02:53:57:00:00:02", "dst": "01:80:c2:00:00:01",
                            "pause": {}, "note": "names no priority"}),
    (PFC[:33], {"kind": "pfc", "opcode": "PFC", "src": "02:53:57:00:00:02", "dst": "01:80:c2:00:00:01",
                "note": "too short"}),
    (PAUSE, {"kind": "pause", "opcode": "PAUSE", "src": "02:53:57:00:00:02", "dst": "01:80:c2:00:00:01",
             "pause": {-1: 255}}),
    (PAUSE[:17], {"kind": "pause", "opcode": "PAUSE", "src": "02:53:57:00:00:02", "dst": "01:80:c2:00:00:01",
                  "note": "too short"}),
    (PAUSE[:15], {"kind": "other", "opcode": "MAC control", "src": "02:53:57:00:00:02", "dst": "01:80:c2:00:00:01",
                  "note": "too short"}),
    (ACK, {"kind": "rocev2", "opcode": "RC ACK", **IPS, "msn": 5, "payload_bytes": 0}),
    (NAK, {"kind": "rocev2", "opcode": "RC NAK PSN_SEQUENCE", **IPS, "msn": 6, "payload_bytes": 0}),
    (rocev2(0x11, bytes.fromhex("23000006")),
     {"kind": "rocev2", "opcode": "RC RNR_NAK", **IPS, "msn": 6, "payload_bytes": 0}),
    (rocev2(0x0A, bytes(16), b"abc\0", 0x50),
     {"kind": "rocev2", "opcode": "RC WRITE_ONLY", **IPS, "payload_bytes": 3}),
    (rocev2(0x07, b"", bytes(4096)), {"kind": "rocev2", "opcode": "RC WRITE_MIDDLE", **IPS, "payload_bytes": 4096}),
    (rocev2(0x81, b"", bytes(16)), {"kind": "rocev2", "opcode": "CNP", **IPS}),
    (rocev2(0xFF), {"kind": "rocev2", "opcode": "opcode 0xff", **IPS, "note": "unknown opcode"}),
    (ACK[:-1] + b"\0", {"kind": "rocev2", "opcode": "RC ACK", **IPS, "msn": 5, "payload_bytes": 0,
                        "note": "wrong ICRC"}),
    (ACK[:-1], {"kind": "rocev2", "opcode": "RC ACK", **IPS, "msn": 5, "payload_bytes": 0,
                "note": "UDP length beyond the frame"}),
    (ACK[:12] + bytes.fromhex("81006003") + ACK[12:] + bytes(9),  # a tag, and padding behind the datagram
     {"kind": "rocev2", "opcode": "RC ACK", **IPS, "msn": 5, "payload_bytes": 0}),
    (ACK[:36] + b"\x01\xa4" + ACK[38:], {"kind": "other", "opcode": "IPv4 UDP 50000 > 420", **MACS}),
    (ACK[:14] + b"\x40" + ACK[15:], {"kind": "other", "opcode": "IPv4 UDP", **MACS}),  # header length 0
    (ACK[:20] + b"\x00\x01" + ACK[22:], {"kind": "other", "opcode": "IPv4 UDP", **MACS}),  # a later fragment
    (ACK[:23] + b"\x06" + ACK[24:], {"kind": "other", "opcode": "IPv4 TCP", **MACS}),
    (ACK[:12] + b"\x08\x06" + ACK[14:], {"kind": "other", "opcode": "ARP", **MACS}),
    (ACK[:12] + b"\x12\x34" + ACK[14:], {"kind": "other", "opcode": "EtherType 0x1234", **MACS}),
    (ACK[:13], {"kind": "other", "opcode": "Ethernet", "src": "?", "dst": "?",
                "note": "too short: no whole Ethernet header"}),
])  # fmt: skip
def test_dissection(data: bytes, expected: dict[str, object]) -> None:
    assert dissect(data) == expected


IPV4_ROW = {"kind": "ttpoe", "opcode": "PAYLOAD", "src": "10.0.0.3", "dst": "10.0.0.1", "vc": 1, "tx": 0xFFFFFFFF,
            "rx": 0, "payload_bytes": 5}  # fmt: skip


@pytest.mark.parametrize(("data", "changes"), [
    (IPV4_PAYLOAD, {}),
    (IPV4_PAYLOAD[:24] + b"\0" + IPV4_PAYLOAD[25:], {"note": "wrong IPv4 checksum"}),
    (IPV4_PAYLOAD[:-1], {"note": "IPv4 length does not fit"}),
    (IPV4_PAYLOAD[:39] + b"\x20" + IPV4_PAYLOAD[40:], {"payload_bytes": 6, "note": "UDP length beyond the packet"}),
    (IPV4_PAYLOAD[:39] + b"\x19" + IPV4_PAYLOAD[40:], {"payload_bytes": None, "note": "UDP length below its headers"}),
    (with_checksum(IPV4_PAYLOAD[:20] + b"\x20" + IPV4_PAYLOAD[21:]), {"note": "IPv4 fragment"}),
    (IPV4_PAYLOAD[:12] + bytes.fromhex("81006002") + IPV4_PAYLOAD[12:], {"note": "VLAN tagged"}),
])  # fmt: skip
def test_ipv4_mode(data: bytes, changes: dict[str, object]) -> None:
    expected = {**IPV4_ROW, **changes}
    assert dissect(data) == {name: value for name, value in expected.items() if value is not None}


def test_ipv4_mode_without_a_transport_header() -> None:
    ends = {"kind": "ttpoe", "opcode": "?", "src": "10.0.0.1", "dst": "10.0.0.3"}
    options = IPV4_OPEN[:14] + b"\x46" + IPV4_OPEN[15:34] + bytes(4) + IPV4_OPEN[34:]
    assert dissect(options) == {**ends, "note": "IPv4 options"}
    assert dissect(IPV4_OPEN[:63]) == {**ends, "note": "too short"}
    assert dissect(IPV4_OPEN[:59], original_bytes=64) == {**ends, "note": "cut in the header by the capture"}


def test_show_names_ipv4_mode() -> None:
    result = CliRunner().invoke(group, ["trace", "show", str(CAPTURES / "modttpoe_ipv4_mode.pcap"), "--kind", "ttpoe"])
    lines = [line.split() for line in result.output.splitlines()]
    assert [line[7] for line in lines if line[3].startswith("10.")] == [
        "OPEN", "OPEN_ACK", "PAYLOAD", "ACK", "PAYLOAD", "ACK", "CLOSE", "CLOSE_ACK", "CLOSE_ACK",
    ]  # fmt: skip
    assert "10.0.0.1 > 10.0.0.3 " in result.output
    assert "!" not in result.output


def test_rocev2_over_ipv6() -> None:
    ip = struct.pack(">IHBB", 0x60000000, 28, 17, 64) + bytes(15) + b"\x01" + bytes(15) + b"\x02"
    row = dissect(ACK[:12] + b"\x86\xdd" + ip + ACK[34:])
    assert row == {"kind": "rocev2", "opcode": "RC ACK", **IPS, "src": "::1", "dst": "::2", "msn": 5,
                   "payload_bytes": 0}


def test_a_snap_length_is_not_the_frames_fault() -> None:
    """Judged by the length on the link, as far as the headers are there."""
    whole = PAYLOAD[:16] + b"\x04\x2e" + PAYLOAD[18:40] + b"\x04\x1a" + PAYLOAD[42:60]
    assert "note" not in dissect(whole, original_bytes=1084)
    assert dissect(whole, original_bytes=1083)["note"] == "shim beyond frame"
    assert dissect(whole[:59], original_bytes=1084)["note"] == "cut in the header by the capture"
    assert "note" not in dissect(ACK[:58], original_bytes=62)
    assert dissect(ACK[:53], original_bytes=62)["note"] == "cut in the header by the capture"


def test_payload_limit_is_a_knob() -> None:
    jumbo = PAYLOAD[:40] + b"\x04\x1b" + PAYLOAD[42:60] + bytes(1025)
    assert dissect(jumbo)["note"] == "payload too long"
    assert "note" not in dissect(jumbo, max_payload_bytes=1025)


HEADS = [b"", PAYLOAD[:14], PFC[:16], ACK[:14], ACK[:42], ACK[:12] + b"\x81\0"]


@given(st.binary(max_size=120), st.sampled_from(HEADS), st.integers(0, 200))
def test_no_bytes_make_it_raise(tail: bytes, head: bytes, original: int) -> None:
    row = Dissector().dissect(head + tail, original)
    assert row.kind in KINDS
    assert row.payload_bytes is None or row.payload_bytes >= 0


# The command


def show(*arguments: str | Path, stdin: bytes | None = None) -> tuple[int, list[str], str]:
    """Exit status, lines on stdout, stderr."""
    result = CliRunner().invoke(group, ["trace", "show", *map(str, arguments)], input=stdin, standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return int(result.return_value or 0), result.stdout.splitlines(), result.stderr


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.pcapng"
    with PcapngWriter(path) as writer:
        first = writer.add_interface("h0", resolution_digits=12)
        second = writer.add_interface("s0.p0\x1b[2J")
        raw = writer.add_interface("tun", link_type=LinkType.RAW)
        writer.write(first, 1_000_000_001_999, PAYLOAD, direction="out")
        writer.write(second, 1_000_000_003_000, PFC, direction="in")
        writer.write(first, 999_999_999_000, NAK, direction="in", original_bytes=99)
        writer.write(raw, 86_400 * 10**12, b"E")
        writer.write(first, 86_401 * 10**12, PAYLOAD[:42] + b"\x0b" + PAYLOAD[43:60], original_bytes=65)
    return path


def test_lines(mixed: Path) -> None:
    status, lines, errors = show(mixed)
    assert (status, errors) == (0, "")
    assert [" ".join(line.split()) for line in lines] == [
        "1 0.000000000 h0 out 98:ed:5c:00:00:02 > 98:ed:5c:00:00:01 ttpoe PAYLOAD vc 2 tx 7 rx 3 payload 5 frame 65",
        "2 0.000000002 s0.p0?[2J in 02:53:57:00:00:02 > 01:80:c2:00:00:01 pfc PFC priority 0 65535 quanta, priority 3 "
        "resume frame 60",
        "3 -0.000000002 h0 in 10.0.0.2 > 10.0.0.1 rocev2 RC NAK PSN_SEQUENCE qp 257 psn 11259375 msn 6 payload 0 "
        "frame 99 captured 62",
        "4 86398.999999999 tun ? > ? other link type 101 frame 1 ! not Ethernet",
        "5 86399.999999999 h0 98:ed:5c:00:00:02 > 98:ed:5c:00:00:01 ttpoe opcode 11 vc 2 tx 7 rx 3 payload 5 "
        "frame 65 captured 60 ! unknown opcode",
    ]


def test_absolute_times(mixed: Path) -> None:
    _, lines, _ = show(mixed, "--absolute")
    assert [line.split()[1] for line in lines][:4] == [
        "1970-01-01T00:00:01.000000001Z", "1970-01-01T00:00:01.000000003Z", "1970-01-01T00:00:00.999999999Z",
        "1970-01-02T00:00:00.000000000Z"]


def test_json(mixed: Path) -> None:
    _, lines, _ = show(mixed, "--json")
    rows = [json.loads(line) for line in lines]
    assert rows[1] == {
        "number": 2, "time_ns": 1_000_000_003, "interface": "s0.p0\x1b[2J", "direction": "in", "kind": "pfc",
        "opcode": "PFC", "src": "02:53:57:00:00:02", "dst": "01:80:c2:00:00:01", "vc": None, "tx": None, "rx": None,
        "dest_qp": None, "psn": None, "msn": None, "pause": {"0": 65535, "3": 0}, "payload_bytes": None,
        "ecn": None, "congestion": None, "captured_bytes": 60, "original_bytes": 60, "note": None}
    assert [row["opcode"] for row in rows] == ["PAYLOAD", "PFC", "RC NAK PSN_SEQUENCE", "link type 101", "opcode 11"]
    assert (rows[0]["vc"], rows[0]["tx"], rows[0]["rx"], rows[0]["payload_bytes"]) == (2, 7, 3, 5)
    assert (rows[2]["dest_qp"], rows[2]["psn"], rows[2]["msn"]) == (257, 0xABCDEF, 6)
    assert (rows[2]["captured_bytes"], rows[2]["original_bytes"]) == (62, 99)
    assert rows[4]["note"] == "unknown opcode"
    help_text = " ".join(CliRunner().invoke(group, ["trace", "show", "--help"]).stdout.split())
    assert all(name in help_text for name in rows[0]), "each field is documented"


def test_limit_and_kind(mixed: Path) -> None:
    def numbers(*options: str) -> list[int]:
        return [int(line.split()[0]) for line in show(mixed, *options)[1]]

    assert numbers("--limit", "2") == [1, 2]
    assert numbers("--kind", "ttpoe") == [1, 5]
    assert numbers("--kind", "pfc, rocev2") == [2, 3]
    assert numbers("--kind", "ttpoe,other", "--limit", "2") == [1, 4]


def test_the_real_captures() -> None:
    """Every frame is told; refusals of the prober's capture are the ones known from it."""
    _, lines, _ = show(PASSIVE, "--json")
    rows = [json.loads(line) for line in lines]
    refused = {row["number"]: row["note"] for row in rows if row["kind"] == "ttpoe" and row["note"]}
    assert {k: refused[k] for k in refused if k >= 88} == {
        **dict.fromkeys(range(88, 93), "unknown vc"), **dict.fromkeys(range(93, 96), "unknown opcode")}
    assert refused[45] == "payload too long"
    _, lines, _ = show(PASSIVE, "--json", "--max-payload", "1440")
    assert json.loads(lines[44])["note"] is None


def test_a_cut_capture_shows_what_is_whole(tmp_path: Path, mixed: Path) -> None:
    data = mixed.read_bytes()
    path = tmp_path / "cut.pcapng"
    path.write_bytes(data[:-10])
    status, lines, errors = show(path)
    assert (status, len(lines)) == (ExitStatus.ERROR, 4)
    assert errors.startswith(f"error: {path}, byte ")
    assert "4 whole frames read before it" in errors
    assert errors.count("\n") == 1
    assert show(path, "--limit", "4") == (0, lines, ""), "what lies behind the limit is not looked at"


@pytest.mark.parametrize(("content", "words"), [
    (None, "cannot be opened: No such file or directory"), (b"", "is empty"), (b"hello, world", "not a capture"),
    (b"\xd4\xc3\xb2\xa1\2", "ends inside its header")])
def test_an_unreadable_capture_is_one_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "some.pcap"
    if content is not None:
        path.write_bytes(content)
    status, lines, errors = show(path)
    assert (status, lines) == (ExitStatus.ERROR, [])
    assert errors.startswith("error: ")
    assert words in errors
    assert str(path) in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(("option", "value"), [("--limit", "0"), ("--kind", "ttp"), ("--max-payload", "1XB")])
def test_a_wrong_option_is_named(option: str, value: str) -> None:
    result = CliRunner().invoke(group, ["trace", "show", "x", option, value])
    assert result.exit_code == ExitStatus.USAGE
    assert option in result.stderr


# The process


def run(*arguments: str | Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from ttpoe.cli import main; main()", "trace", "show", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)


def test_standard_input_gzipped_and_cut(mixed: Path) -> None:
    done = run("-", stdin=gzip.compress(mixed.read_bytes()[:-10]))
    assert (done.returncode, done.stdout.count(b"\n")) == (1, 4)
    assert done.stderr.startswith(b"error: standard input, byte ")
    assert b"\x1b" not in done.stdout, "no colours in a pipe"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "long.pcap"
    with PcapWriter(path) as writer:
        for k in range(20_000):
            writer.write(k * 1000, PAYLOAD)
    for option in ("--absolute", "--json"):
        shell = f'{sys.executable} -c "from ttpoe.cli import main; main()" trace show {path} {option} | head -n 2'
        done = subprocess.run(["bash", "-c", f"{shell}; echo ${{PIPESTATUS[0]}}"], capture_output=True, timeout=60,
                              check=True)
        assert done.stderr == b""
        assert done.stdout.count(b"\n") == 3
        assert done.stdout.endswith(b"\n0\n")


def test_a_terminal_gets_colours_and_whole_lines(mixed: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", "from ttpoe.cli import main; main()", "trace", "show", str(mixed)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "40"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=follower, stderr=subprocess.STDOUT, env=environment)
    os.close(follower)
    seen = b""
    try:
        while chunk := os.read(leader, 65_536):
            seen += chunk
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    assert process.wait(60) == 0
    assert seen.count(b"\r\n") == 5
    assert b"\x1b[36m" in seen
    assert b"\x1b[2J" not in seen, "a capture's names cannot steer the terminal"


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.pcap"
    with PcapWriter(path) as writer:
        for k in range(40_000):
            writer.write(k, PAYLOAD[:6] + struct.pack(">HI", 0x98ED, k) + PAYLOAD[12:] + bytes(900))
    assert path.stat().st_size > 38e6
    code = ("import resource, sys; from ttpoe.cli.trace import show\n"
            f"show.main([{str(path)!r}, '--limit', sys.argv[1]], standalone_mode=False)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)")
    peaks = [int(subprocess.run([sys.executable, "-c", code, limit], capture_output=True, check=True).stderr)
             for limit in ("10", "40000")]
    assert peaks[1] - peaks[0] < 16_000, "kilobytes"

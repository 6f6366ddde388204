"""``ttpoe loopback`` as a user calls it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from traces.pcap import open_capture
from ttpoe import ipv4
from ttpoe.wire import parse

pytestmark = pytest.mark.root

COMMAND = [sys.executable, "-c", "from ttpoe.cli import main; main()", "loopback"]


def run(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.fixture(autouse=True)
def rights(veth):
    """Skips where namespaces cannot be made."""


@pytest.fixture(autouse=True)
def nothing_left():
    """Neither a named namespace, nor an interface, nor a file beside a capture."""

    def seen() -> set[str]:
        names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
        return {*names, *os.listdir("/sys/class/net")}

    before = seen()
    yield
    assert seen() == before


def namespaces_of(pid: int) -> set[str]:
    """Network namespaces that a process holds by a descriptor; it opens and closes others while we look."""
    links = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.add(os.readlink(path))
    return {link for link in links if link.startswith("net:")}


def start(*arguments: str) -> subprocess.Popen[str]:
    """A transfer that takes long, once it is under way."""
    process = subprocess.Popen(
        [*COMMAND, "--size", "100GB", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline_s = time.monotonic() + 120
    while len(namespaces_of(process.pid)) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    time.sleep(0.5)
    return process


def test_generated_bytes_in_json():
    result = run("--size", "3MB", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report["finished"] is True
    assert report["reason"] is None
    assert report["bytes"] == report["bytes_received"] == 3_000_000
    assert report["sha256_sent"] == report["sha256_received"]
    assert report["packets_sent"] - report["resent_packets"] >= -(-3_000_000 // 1024)
    assert report["goodput_gbps"] == pytest.approx(3_000_000 * 8 / report["seconds"] / 1e9)
    assert 0 < report["rtt_min_us"] <= 1e6
    assert report["kernel_drops"] == report["send_drops"] == 0


def test_a_file_in_a_table(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(os.urandom(100_001))
    result = run(str(path), "--mtu", "100", "--window", "10kB", "--vc", "0")
    assert result.returncode == 0, result.stderr
    assert f"SHA-256 equal: {hashlib.sha256(path.read_bytes()).hexdigest()}" in result.stdout
    assert "100,001 bytes" in result.stdout
    assert result.stderr == "", "no progress bar in a pipe"


def test_an_empty_file(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    result = run(str(path), "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["sha256_received"] == hashlib.sha256(b"").hexdigest()


def test_bad_line():
    result = run("--size", "1MB", "--loss", "2%", "--reorder", "2%", "--duplicate", "2%", "--seed", "5", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0, report["reason"]
    assert report["sha256_sent"] == report["sha256_received"]
    assert report["resent_packets"] > 0
    for fate in ("lost", "reordered", "duplicated"):
        assert 0.005 < report["frames_impaired"][fate] / report["frames_impaired"]["frames"] < 0.05


def test_bit_errors_are_repaired():
    """Some 1000 frames of 1088 bytes, and as many short ones: 27 of them on average."""
    result = run("--size", "1MB", "--bit-error-rate", "3e-6", "--seed", "5", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0, report["reason"]
    assert report["sha256_sent"] == report["sha256_received"]
    assert report["frames_impaired"]["bit_errors"] > 3
    assert sum(report["frames_impaired"][name] for name in ("lost", "bad_fcs", "corrupted")) == 0


def test_every_impairment_at_once_in_ipv4_mode(tmp_path):
    path = tmp_path / "wire.pcapng"
    result = run(
        "--ipv4", "--size", "200kB", "--loss", "0.5%", "--loss-burst", "0.5%:3", "--loss-every", "300",
        "--lose-frames", "2,9", "--bad-fcs", "0.5%", "--duplicate", "1%", "--reorder", "1%", "--delay", "1ms",
        "--jitter", "1ms", "--rate", "200M", "--flap", "300ms:50ms", "--json", "--capture", str(path),
    )  # fmt: skip
    report = json.loads(result.stdout)
    assert result.returncode == 0, report["reason"]
    assert report["sha256_sent"] == report["sha256_received"]
    assert report["frames_impaired"]["lost_by_name"] == 4, "two each way"
    assert report["frames_impaired"]["delayed"] > 300
    with open_capture(path) as capture:
        frames = [bytes(frame.data) for frame in capture]
    assert {bytes(ipv4.parse(data).header["src_ip"]) for data in frames} == {
        np.int64(address).tobytes() for address in (0x0A000001, 0x0A000002)
    }
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed: its reading of the capture is not tested")
    read = subprocess.run(
        ["tshark", "-o", "ip.check_checksum:TRUE", "-r", str(path), "-T", "fields", "-e", "udp.port", "-e",
         "ip.checksum.status", "-e", "_ws.malformed"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(read.stdout.splitlines()) == {"420,420\t1\t"}


def test_undetected_corruption_is_told():
    result = run("--size", "2MB", "--corrupt-undetected", "0.1%", "--json")
    assert result.returncode == 3
    report = json.loads(result.stdout)
    assert report["reason"] == "the bytes that arrived differ from those that were sent"
    assert report["sha256_sent"] != report["sha256_received"]
    assert report["frames_impaired"]["corrupted"] > 0


def test_a_slow_reader_is_waited_for():
    result = run("--size", "1MB", "--window", "50kB", "--drain-rate", "40M", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0, report["reason"]
    assert report["sha256_sent"] == report["sha256_received"]
    assert report["nack_fulls"] > 0
    assert report["goodput_gbps"] <= 0.0441, "the last 64 KiB of 1 MB are taken without a wait behind them"


@pytest.mark.parametrize("mode", [[], ["--ipv4"]], ids=["ethernet", "ipv4"])
def test_an_interface_that_goes_down_and_comes_back(mode):
    """The reader is slow, and its buffer holds half of it, so that the transfer is still under way then."""
    result = run("--size", "8MB", "--drain-rate", "80M", "--unplug", "100ms:500ms", "--json", *mode)
    report = json.loads(result.stdout)
    assert result.returncode == 0, report["reason"]
    assert report["sha256_sent"] == report["sha256_received"]
    assert report["send_drops"] > 0


@pytest.mark.parametrize("mode", [[], ["--ipv4"]], ids=["ethernet", "ipv4"])
def test_pauses_are_honoured_and_counted(mode):
    result = run("--size", "2MB", "--drain-rate", "80M", "--pause", "10ms:1ms", "--json", *mode)
    report = json.loads(result.stdout)
    assert result.returncode == 0, report["reason"]
    assert report["sha256_sent"] == report["sha256_received"]
    assert report["pauses"] > 0
    assert 0 < report["paused_us"] <= 1001 * report["pauses"], "1 ms, in quanta of 51.2 ns"


def test_jumbo_payloads():
    result = run("--size", "1MB", "--mtu", "9000", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["packets_sent"] == -(-1_000_000 // 9000)


def test_capture_is_whole(tmp_path):
    path = tmp_path / "out.pcapng"
    result = run("--size", "100kB", "--capture", str(path), "--json")
    assert result.returncode == 0, result.stderr
    assert os.listdir(tmp_path) == ["out.pcapng"]
    with open_capture(path) as capture:
        frames = list(capture)
    opcodes = [int(parse(frame.data).header[0]["opcode"]) for frame in frames]
    assert opcodes[0] == 0
    assert opcodes[-1] == 4
    assert opcodes.count(6) == opcodes.count(7) == 98
    assert [frame.time_ps for frame in frames] == sorted(frame.time_ps for frame in frames)
    assert frames[0].interface.name == "ttpoe-a"
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed: its reading of the capture is not tested")
    read = subprocess.run(["tshark", "-r", str(path), "-T", "fields", "-e", "eth.type", "-e", "_ws.malformed"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert [line.strip() for line in read.stdout.splitlines()] == ["0x9ac6"] * len(frames)


def test_a_transfer_that_does_not_finish_says_why():
    result = run("--size", "1MB", "--loss", "100%", "--timeout", "300ms", "--json")
    assert result.returncode == 3
    report = json.loads(result.stdout)
    assert report["finished"] is False
    assert report["reason"] == "not finished after 0.3 s, see --timeout"
    table = run("--size", "1MB", "--loss", "100%", "--timeout", "300ms")
    assert table.returncode == 3
    assert table.stderr == "not finished: not finished after 0.3 s, see --timeout\n"


@pytest.mark.slow
def test_a_dead_line_ends_by_the_retry_limit():
    result = run("--size", "1MB", "--loss", "100%", "--json")
    assert result.returncode == 3
    assert "answered nothing through 11 timeouts" in json.loads(result.stdout)["reason"]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--loss", "2"], "--loss"),
        (["--reorder", "x"], "--reorder"),
        (["--duplicate", "-1%"], "--duplicate"),
        (["--loss-burst", "1%:0"], "--loss-burst"),
        (["--loss-burst", "99%:2"], "--loss-burst"),
        (["--loss-burst", "1%:x"], "--loss-burst"),
        (["--loss-every", "0"], "--loss-every"),
        (["--lose-frames", "0"], "--lose-frames"),
        (["--lose-frames", "1,x"], "--lose-frames"),
        (["--bad-fcs", "2"], "--bad-fcs"),
        (["--corrupt-undetected", "-1"], "--corrupt-undetected"),
        (["--bit-error-rate", "1.5"], "--bit-error-rate"),
        (["--delay", "3"], "--delay"),
        (["--jitter", "x"], "--jitter"),
        (["--rate", "0"], "--rate"),
        (["--flap", "1s"], "--flap"),
        (["--flap", "0s:1s"], "--flap"),
        (["--flap", "1s:x"], "--flap"),
        (["--unplug", "1s"], "--unplug"),
        (["--pause", "1ms:2ms"], "--pause"),
        (["--pause", "10ms:4ms"], "--pause"),
        (["--pause", "10ms:0ms"], "--pause"),
        (["--drain-rate", "0"], "--drain-rate"),
        (["--size", "0"], "--size"),
        (["--size", "1XB"], "--size"),
        (["--mtu", "65490"], "--mtu"),
        (["--mtu", "0"], "--mtu"),
        (["--mtu", "1024", "--window", "1000"], "--window"),
        (["--mtu", "1025", "--profile", "reference"], "--mtu is 1025; the reference module takes at most 1024"),
        (["--vc", "3"], "--vc"),
        (["--seed", "-1"], "--seed"),
        (["--timeout", "3"], "--timeout"),
        (["--timeout", "0s"], "--timeout"),
        (["--window", "1TB"], "'1TB' is too large; give at most 274877906944"),
        (["--window", "200GB", "--mtu", "1"], "must hold fewer than 2**30"),
        (["--loss-every", "1" + 20 * "0"], "it must be from 0 to 2**62 - 1"),
        (["/nonexistent"], "FILE"),
        ([os.devnull, "--size", "1MB"], "--size"),
        (["--what"], "--what"),
    ],
)
def test_wrong_option_is_named(arguments, option):
    result = run(*arguments)
    assert result.returncode == 2, result.stderr
    assert option in result.stderr
    assert result.stdout == ""


def test_capture_that_cannot_be_written_is_named(tmp_path):
    path = tmp_path / "no" / "out.pcapng"
    result = run("--size", "1kB", "--capture", str(path))
    assert result.returncode == 1
    assert str(path) in result.stderr
    assert "Traceback" not in result.stderr


def test_without_rights_one_sentence():
    if os.geteuid() != 0:
        pytest.skip("only root can drop capabilities by setpriv")
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    result = subprocess.run([*drop, *COMMAND], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    for word in ("CAP_NET_ADMIN", "CAP_NET_RAW", "sudo", "unshare -rn"):
        assert word in result.stderr


def test_inside_a_user_namespace():
    result = subprocess.run(
        ["unshare", "-rn", *COMMAND, "--size", "100kB", "--json"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if result.returncode != 0 and "unshare" in result.stderr:
        pytest.skip(f"user namespaces are not allowed here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["finished"] is True


# Ends in the middle


def test_ctrl_c_keeps_the_capture_and_leaves_nothing(tmp_path):
    path = tmp_path / "out.pcapng"
    process = start("--capture", str(path))
    while sum(file.stat().st_size for file in tmp_path.iterdir()) < 100_000:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"bytes had arrived; the capture so far is in {path}" in stderr
    assert "Traceback" not in stderr
    assert os.listdir(tmp_path) == ["out.pcapng"]
    with open_capture(path) as capture:
        assert sum(1 for _ in capture) > 10


_INTERRUPTED_IN_VETH_PAIR = """
import contextlib, sys
import ttpoe.netns
from ttpoe.cli import main

@contextlib.contextmanager
def interrupted(mtu_bytes):
    raise KeyboardInterrupt
    yield

ttpoe.netns.veth_pair = interrupted
sys.argv = ["ttpoe", "loopback"]
main()
"""


def test_ctrl_c_while_the_namespaces_are_made():
    process = subprocess.run([sys.executable, "-c", _INTERRUPTED_IN_VETH_PAIR], capture_output=True, text=True,
                             timeout=60, check=False)  # fmt: skip
    assert (process.returncode, process.stdout) == (130, "")
    assert "Traceback" not in process.stderr
    assert process.stderr.startswith("0 bytes had arrived\n")


def test_a_size_beyond_the_memory_is_one_sentence():
    limit = ["prlimit", f"--as={8 << 30}"]
    process = subprocess.run([*limit, *COMMAND, "--size", "1kB", "--window", "30GB"], capture_output=True, text=True,
                             timeout=60, check=False)  # fmt: skip
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    assert process.stderr.startswith("error: there is not enough memory for this; ask for less: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_in_the_middle_leaves_no_namespace(number):
    process = start()
    held = namespaces_of(process.pid)
    assert len(held) == 2
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    alive = {link for pid in os.listdir("/proc") if pid.isdigit() for link in _namespaces_in_use(int(pid))}
    assert not held & alive, "descriptors were all that kept them"
    assert run("--size", "10kB").returncode == 0


def _namespaces_in_use(pid: int) -> set[str]:
    try:
        return {os.readlink(f"/proc/{pid}/ns/net")} | namespaces_of(pid)
    except OSError:  # ended meanwhile
        return set()

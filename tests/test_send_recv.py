"""``ttpoe send`` and ``ttpoe recv`` as two users call them, in two network namespaces; and files that arrive whole."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ttpoe
from ttpoe.files import arriving
from ttpoe.netns import Side
from ttpoe.parcel import Header, encode_data, encode_end, encode_header
from ttpoe.rawsock import RawSocket
from ttpoe.wire import format_mac

COMMAND = [sys.executable, "-c", "from ttpoe.cli import main; main()"]
root = pytest.mark.root


class Machine:
    """One side of the pair, where commands run."""

    def __init__(self, side: Side, folder: Path) -> None:
        self.side = side
        self.folder = folder
        folder.mkdir()

    def start(self, *arguments: str, **options) -> subprocess.Popen:
        enter = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.side.fd}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command, *rest = arguments
        words = [*enter, *COMMAND, command, "--interface", self.side.interface, *rest]
        return subprocess.Popen(words, cwd=self.folder, **pipes)

    def files(self) -> list[str]:
        return sorted(os.listdir(self.folder))


@pytest.fixture
def machines(veth, tmp_path):
    a, b = veth
    a.add_ipv4("10.0.0.1/24")
    b.add_ipv4("10.0.0.2/24")
    return Machine(a, tmp_path / "a"), Machine(b, tmp_path / "b")


def address(machine: Machine) -> str:
    return format_mac(machine.side.mac)


def ended(*processes: subprocess.Popen) -> list[tuple[int, str, str]]:
    """Status, output and errors of each."""
    results = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        results.append((process.returncode, (out or b"").decode(), (err or b"").decode()))
        assert "Traceback" not in results[-1][2]
    return results


def wait_for(condition, seconds: float = 60) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@root
@pytest.mark.parametrize("mode", ["ethernet", "ipv4"])
def test_a_file(machines, mode):
    a, b = machines
    data = os.urandom(3_000_001)
    (a.folder / "data.bin").write_bytes(data)
    recv = b.start("recv", "--out", ".", "--once", "--json", *(["--ipv4"] if mode == "ipv4" else []))
    send = a.start("send", "data.bin", "--to", "10.0.0.2" if mode == "ipv4" else address(b), "--json")
    (status, sent, sent_err), (recv_status, received, recv_err) = ended(send, recv)
    assert (status, recv_status, sent_err, recv_err) == (0, 0, "", "")
    sent, received = json.loads(sent), json.loads(received)
    assert b.files() == ["data.bin"]
    assert (b.folder / "data.bin").read_bytes() == data
    digest = hashlib.sha256(data).hexdigest()
    for report in (sent, received):
        assert (report["finished"], report["reason"], report["name"]) == (True, None, "data.bin")
        assert (report["bytes"], report["sha256"], report["path"]) == (len(data), digest, "data.bin")
        assert report["goodput_gbps"] == pytest.approx(len(data) * 8 / report["seconds"] / 1e9)
    assert sent["packets_sent"] >= len(data) // 1024
    if mode == "ipv4":
        assert (sent["peer"], received["peer"]) == ("10.0.0.2 vc 2", "10.0.0.1 vc 2")


@root
def test_an_empty_file_in_words(machines):
    a, b = machines
    (a.folder / "empty").touch()
    recv = b.start("recv", "--out", "other", "--once")
    send = a.start("send", "empty", "--to", address(b))
    (status, sent, _), (recv_status, received, _) = ended(send, recv)
    assert (status, recv_status) == (0, 0)
    digest = hashlib.sha256(b"").hexdigest()
    assert sent.startswith("sent empty: 0 bytes in ")
    assert received.startswith("received empty: 0 bytes in ")
    assert sent.endswith(f"SHA-256 {digest}\n")
    assert b.files() == ["other"]


@root
def test_standard_input_to_standard_output(machines):
    a, b = machines
    data = os.urandom(2_000_000)
    recv = b.start("recv", "--out", "-", "--once")
    send = a.start("send", "-", "--to", address(b), stdin=subprocess.PIPE)
    for at in range(0, len(data), 500_000):
        send.stdin.write(data[at : at + 500_000])
        send.stdin.flush()
        time.sleep(0.05)
    send.stdin.close()
    send.stdin = None
    out, err = recv.communicate(timeout=60)
    [(status, _, _)] = ended(send)
    assert (status, recv.returncode) == (0, 0)
    assert out == data
    assert err.decode().startswith("received standard input: 2,000,000 bytes")


@root
def test_nothing_is_overwritten_unless_forced(machines):
    a, b = machines
    (a.folder / "x").write_bytes(b"new" * 1_000_000)
    (b.folder / "x").write_bytes(b"old")
    recv = b.start("recv", "--out", ".", "--once")
    send = a.start("send", "x", "--to", address(b))
    (status, _, sent_err), (recv_status, _, recv_err) = ended(send, recv)
    assert (status, recv_status) == (3, 1)
    assert recv_err == "not received: x is there already; --force overwrites it\n"
    assert sent_err == "not sent: the receiver says: x is there already; --force overwrites it\n"
    assert (b.folder / "x").read_bytes() == b"old"
    recv = b.start("recv", "--out", ".", "--once", "--force")
    send = a.start("send", "x", "--to", address(b))
    assert [status for status, _, _ in ended(send, recv)] == [0, 0]
    assert (b.folder / "x").read_bytes() == b"new" * 1_000_000
    assert b.files() == ["x"]


@root
def test_several_senders_until_ctrl_c(machines):
    a, b = machines
    recv = b.start("recv", "--out", ".")
    for name in ("one", "two", "three"):
        (a.folder / name).write_bytes(name.encode() * 300_000)
    sends = [a.start("send", name, "--to", address(b), "--vc", "0") for name in ("one",)]
    assert [status for status, _, _ in ended(*sends)] == [0]
    assert [ended(a.start("send", name, "--to", address(b)))[0][0] for name in ("two", "three", "two")] == [0, 0, 3]
    recv.send_signal(signal.SIGINT)
    [(status, out, err)] = ended(recv)
    assert status == 130
    assert [line.split()[1] for line in out.splitlines()] == ["one:", "two:", "three:"]
    assert "two is there already" in err
    assert b.files() == ["one", "three", "two"]
    assert (b.folder / "two").read_bytes() == b"two" * 300_000


@root
@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_ctrl_c_in_the_middle_leaves_no_file(machines, who):
    a, b = machines
    recv = b.start("recv", "--out", "big", "--once")
    send = a.start("send", "/dev/zero", "--to", address(b))
    wait_for(lambda: any((b.folder / name).stat().st_size > 10_000 for name in b.files()))
    [name] = b.files()
    assert name.startswith(".big.")
    assert name.endswith(".part")
    (send if who == "sender" else recv).send_signal(signal.SIGINT)
    (status, _, sent_err), (recv_status, _, recv_err) = ended(send, recv)
    if who == "sender":
        assert (status, recv_status) == (130, 3)
        assert "the sender stopped before the end" in recv_err
    else:
        assert (status, recv_status) == (3, 130)
        assert "the receiver says: the receiver was stopped" in sent_err
    assert b.files() == []


@root
@pytest.mark.slow
def test_a_receiver_that_is_killed_is_noticed(machines):
    a, b = machines
    recv = b.start("recv", "--out", "big", "--once")
    send = a.start("send", "/dev/zero", "--to", address(b))
    wait_for(lambda: any((b.folder / name).stat().st_size > 10_000 for name in b.files()))
    recv.kill()
    recv.communicate()
    [(status, _, err)] = ended(send)
    assert status == 3
    assert "answered nothing through" in err
    assert [name for name in b.files() if not name.endswith(".part")] == []


@root
def test_a_receiver_that_is_killed_and_started_anew(machines):
    """The sender learns at once that its link is gone, and the new receiver takes the next file."""
    a, b = machines
    recv = b.start("recv", "--out", "big", "--once", "--ipv4")
    send = a.start("send", "/dev/zero", "--to", "10.0.0.2")
    wait_for(lambda: any((b.folder / name).stat().st_size > 10_000 for name in b.files()))
    recv.kill()
    recv.communicate()
    (a.folder / "x").write_bytes(b"new life" * 100_000)
    recv = b.start("recv", "--out", "second", "--once", "--ipv4")
    [(status, _, err)] = ended(send)
    assert (status, "does not know this link any more" in err) == (3, True), err
    [(status, _, err), (recv_status, _, recv_err)] = ended(a.start("send", "x", "--to", "10.0.0.2"), recv)
    assert (status, recv_status) == (0, 0), err + recv_err
    assert (b.folder / "second").read_bytes() == b"new life" * 100_000


@root
def test_a_sender_that_is_killed_is_given_up(machines):
    a, b = machines
    recv = b.start("recv", "--out", "big", "--once", "--timeout", "1s")
    send = a.start("send", "/dev/zero", "--to", address(b))
    wait_for(lambda: any((b.folder / name).stat().st_size > 10_000 for name in b.files()))
    send.kill()
    send.communicate()
    [(status, _, err)] = ended(recv)
    assert (status, err) == (3, "not received: the sender was silent for 1 s\n")
    assert b.files() == []


@root
def test_a_reader_that_leaves(machines):
    a, b = machines
    recv = b.start("recv", "--out", "-", "--once")
    send = a.start("send", "/dev/zero", "--to", address(b))
    assert recv.stdout.read(100_000) == bytes(100_000)
    recv.stdout.close()
    recv.stdout = None
    [(status, _, err)] = ended(send)
    assert status == 3
    assert "nobody reads the output any more" in err
    recv.wait(timeout=30)


async def send_bytes(side: Side, peer_mac: int, data: bytes) -> None:
    """A sender of our own, which may be malicious."""
    async with ttpoe.open_endpoint(side.call(lambda: RawSocket(side.interface))) as endpoint:
        stream = await endpoint.connect(peer_mac)
        stream.write(data)
        await stream.drain()
        await stream.read(1)
        await stream.close()


def parcel(name: str, data: bytes, *, size: int | None = None, digest: bytes | None = None) -> bytes:
    from ttpoe.parcel import End

    end = End(len(data), digest or hashlib.sha256(data).digest())
    return encode_header(Header(name, len(data) if size is None else size)) + encode_data(data) + encode_end(end)


@root
@pytest.mark.parametrize(
    ("data", "status", "message", "files"),
    [
        (parcel("../../../tmp/evil", b"x"), 0, "", ["evil"]),
        (parcel("/etc/evil", b"x"), 0, "", ["evil"]),
        (parcel("..", b"x"), 1, "begins with a dot", []),
        (parcel(".bashrc", b"x"), 1, "begins with a dot", []),
        (parcel("", b"x"), 1, "gave no name", []),
        (parcel("x", b"x", digest=bytes(32)), 3, "the bytes that arrived differ from those that were sent", []),
        (parcel("x", b"x", size=0), 3, "the bytes that arrived differ from those that were sent", []),
        (parcel("x", b"x", size=2), 3, "the bytes that arrived differ from those that were sent", []),
        (parcel("x", b"xyz")[:-1], 3, "silent", []),
        (b"GET / HTTP/1.1\r\n", 3, "does not speak the format", []),
    ],
    ids=["climb", "absolute", "dots", "hidden", "nameless", "digest", "size0", "size", "cut", "http"],
)  # fmt: skip
async def test_what_a_malicious_sender_can_do(machines, data, status, message, files):
    a, b = machines
    recv = b.start("recv", "--out", ".", "--once", "--timeout", "500ms")
    async with asyncio.timeout(30):
        await send_bytes(a.side, b.side.mac, data)
    [(recv_status, _, err)] = await asyncio.to_thread(ended, recv)
    assert recv_status == status, err
    assert message in err
    assert b.files() == files


@root
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["send", "nothing", "--to", "10.0.0.2"], 2, "FILE"),
        (["send", os.devnull, "--to", "host"], 2, "'host' is no address"),
        (["send", os.devnull], 2, "--to"),
        (["send", os.devnull, "--to", "10.0.0.2", "--mtu", "1024", "--window", "1kB"], 2, "--window"),
        (["recv", "--out", "x", "--mtu", "4kB", "--profile", "reference"], 2, "takes at most 1024"),
        (["send", os.devnull, "--to", "10.0.0.1"], 1, "10.0.0.1 is not the address of one peer"),
        (["send", os.devnull, "--to", "10.0.0.2", "--interface", "eth9"], 1, "there is no interface 'eth9'"),
        (["send", os.devnull, "--to", "224.0.0.1"], 2, "224.0.0.1 is not the address of one peer"),
        (["send", os.devnull, "--to", "01:00:5e:00:00:01"], 2, "01:00:5e:00:00:01 is not the address of one peer"),
        (["send", os.devnull, "--to", "00:00:00:00:00:00"], 2, "00:00:00:00:00:00 is not the address of one peer"),
        (["send", os.devnull, "--to", "10.0.0.2", "--window", "1TB"], 2, "give at most 274877906944"),
        (["recv", "--out", "x", "--timeout", "0s"], 2, "--timeout"),
        (["recv"], 2, "--out"),
        (["recv", "--out", "no/such"], 2, "there is no such directory"),
        (["recv", "--out", ""], 2, "--out is empty"),
        (["recv", "--out", "-", "--json"], 2, "--json"),
        (["recv", "--out", ".", "--timeout", "3"], 2, "--timeout"),
        (["recv", "--out", ".", "--interface", "eth9"], 1, "there is no interface 'eth9'"),
    ],
)
def test_wrong_options(machines, arguments, status, message):
    [(got, out, err)] = ended(machines[0].start(*arguments))
    assert (got, out) == (status, ""), err
    assert message in err


@root
def test_nobody_receives(machines):
    [(status, _, err)] = ended(machines[0].start("send", os.devnull, "--to", "10.0.0.77"))
    assert status == 1
    assert "nobody on ttpoe-a answers for 10.0.0.77" in err


# Files that arrive whole


def test_arriving_gets_its_name_at_the_end(tmp_path):
    path = tmp_path / "x"
    with arriving(path) as file:
        file.write(b"abc")
        assert not path.exists()
        [beside] = tmp_path.iterdir()
        assert beside.name.startswith(".x.")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == b"abc"


def test_arriving_leaves_nothing_after_an_error(tmp_path):
    def write() -> None:
        with arriving(tmp_path / "x") as file:
            file.write(b"abc")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert list(tmp_path.iterdir()) == []


def test_arriving_never_replaces_what_came_meanwhile(tmp_path):
    path = tmp_path / "x"

    def write() -> None:
        with arriving(path) as file:
            file.write(b"new")
            path.write_bytes(b"meanwhile")

    with pytest.raises(FileExistsError, match="is there already"):
        write()
    assert path.read_bytes() == b"meanwhile"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_arriving_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "x"
    with arriving(path) as file:
        file.write(b"abc")
    assert path.read_bytes() == b"abc"
    with pytest.raises(FileExistsError), arriving(path):
        pass


def test_force_replaces_files_and_links_and_nothing_else(tmp_path):
    target, link, folder, fifo = (tmp_path / name for name in ("target", "link", "folder", "fifo"))
    target.write_bytes(b"old")
    link.symlink_to(target)
    with pytest.raises(FileExistsError), arriving(link):
        pass
    with arriving(link, force=True) as file:
        file.write(b"new")
    assert (link.is_symlink(), link.read_bytes(), target.read_bytes()) == (False, b"new", b"old")
    folder.mkdir()
    os.mkfifo(fifo)
    for path in (folder, fifo):
        with pytest.raises(OSError, match="is no regular file"), arriving(path, force=True):
            pass
        assert path.exists()

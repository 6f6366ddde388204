"""Raw sockets on a veth pair: what they take, what they refuse, what they say."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading

import pytest

from ttpoe.errors import InterfaceError
from ttpoe.netns import veth_pair
from ttpoe.rawsock import RawSocket
from ttpoe.wire import format_mac

pytestmark = pytest.mark.root


@pytest.fixture
def pair(veth):
    a, b = veth
    first, second = (side.call(lambda side=side: RawSocket(side.interface)) for side in (a, b))
    yield first, second
    first.close()
    second.close()


def make_frame(dst: int, src: int, *, tag: bytes = b"", ethertype: int = 0x9AC6, size: int = 64) -> bytes:
    head = dst.to_bytes(6, "big") + src.to_bytes(6, "big") + tag + ethertype.to_bytes(2, "big")
    return head.ljust(size, b"\x55")


def received(sock: RawSocket) -> list[bytes]:
    frames, buffer = [], bytearray(2000)
    while True:
        try:
            frames.append(bytes(buffer[: sock.recv_into(buffer)]))
        except BlockingIOError:
            return frames


def test_frames_cross_whole(pair):
    a, b = pair
    frames = [make_frame(b.mac, a.mac, size=size) for size in (14, 60, 64, 1084, 1514)]
    for frame in frames:
        a.send(frame)
    assert received(b) == frames


def test_own_frames_and_other_protocols_are_not_received(pair):
    a, b = pair
    b.send(make_frame(a.mac, b.mac))
    a.send(make_frame(b.mac, a.mac, ethertype=0x0800))
    assert received(b) == []
    assert len(received(a)) == 1


def test_foreign_unicast_is_received_for_the_endpoint_to_count(pair):
    a, b = pair
    a.send(make_frame(b.mac ^ 2, a.mac))
    assert len(received(b)) == 1


@pytest.mark.parametrize(
    "tag", [b"\x81\x00\x00\x05", b"\x81\x00\x60\x00", b"\x88\xa8\x00\x05"], ids=["vid5", "vid0", "8021ad"]
)
def test_tagged_frames_are_counted_and_not_received(pair, tag):
    a, b = pair
    assert b.vlan_tagged == 0
    for _ in range(3):
        a.send(make_frame(b.mac, a.mac, tag=tag))
    assert received(b) == []
    assert b.vlan_tagged == 3
    assert b.vlan_tagged == 3, "reading must not reset it"
    a.send(make_frame(b.mac, a.mac, tag=tag))
    assert b.vlan_tagged == 4


def test_kernel_drops_are_counted_and_add_up(veth):
    a, b = veth
    sender = a.call(lambda: RawSocket(a.interface))
    receiver = b.call(lambda: RawSocket(b.interface, receive_buffer_bytes=100_000))
    total = 0
    for _ in range(2):
        for _ in range(500):
            sender.send(make_frame(receiver.mac, sender.mac, size=1084))
        drops = receiver.kernel_drops
        assert drops > total
        total = drops
        got = len(received(receiver))
        assert 0 < got < 500
    assert receiver.kernel_drops == total
    receiver.close()
    sender.close()
    assert receiver.kernel_drops == total, "closing keeps the counter"


def test_default_buffer_holds_a_window(pair):
    a, b = pair
    frames = [make_frame(b.mac, a.mac, size=1084)] * 2000
    for frame in frames:
        a.send(frame)
    assert len(received(b)) == 2000
    assert b.kernel_drops == 0


def test_a_link_that_goes_down_and_up_works_again(pair, veth):
    a, b = pair
    veth[1].set_link(state="down")
    with pytest.raises(OSError, match="down") as caught:
        received(b)
    assert caught.value.errno == errno.ENETDOWN
    assert not b.is_gone()
    assert received(b) == [], "told once"
    veth[1].set_link(state="up")
    a.send(make_frame(b.mac, a.mac))
    assert len(received(b)) == 1


def test_a_deleted_link_is_gone(pair, veth):
    _, b = pair
    veth[0].delete_link()
    with pytest.raises(OSError, match="down"):
        received(b)
    assert b.is_gone()
    with pytest.raises(OSError, match="No such device") as caught:
        b.send(make_frame(1, b.mac))
    assert caught.value.errno == errno.ENXIO


def test_missing_interface_lists_those_that_exist(veth):
    with pytest.raises(InterfaceError, match=r"there is no interface 'eth77'; there are lo, ttpoe-a$"):
        veth[0].call(lambda: RawSocket("eth77"))


@pytest.mark.parametrize("name", ["", "a" * 16, "eth0\0"])
def test_impossible_interface_names(veth, name):
    with pytest.raises(InterfaceError, match="there is no interface"):
        veth[0].call(lambda: RawSocket(name))


def test_mtu_too_small_says_how_much_is_needed(veth):
    veth[0].set_link(mtu=1069)
    with pytest.raises(InterfaceError, match=r"has MTU 1069, .* need 1070: run `ip link set ttpoe-a mtu 1070`"):
        veth[0].call(lambda: RawSocket("ttpoe-a", payload_bytes=1024))
    veth[0].set_link(mtu=1070)
    veth[0].call(lambda: RawSocket("ttpoe-a", payload_bytes=1024)).close()


def test_interface_that_is_down(veth):
    veth[0].set_link(state="down")
    with pytest.raises(InterfaceError, match="ttpoe-a is down: run `ip link set ttpoe-a up`"):
        veth[0].call(lambda: RawSocket("ttpoe-a"))


def test_loopback_interface_is_no_ethernet(veth):
    with pytest.raises(InterfaceError, match="lo is not an Ethernet interface"):
        veth[0].call(lambda: RawSocket("lo"))


@pytest.mark.parametrize(
    ("code", "capability"),
    [
        ("from ttpoe.rawsock import RawSocket; RawSocket('lo')", "CAP_NET_RAW"),
        ("from ttpoe.netns import veth_pair; veth_pair().__enter__()", "CAP_NET_ADMIN"),
    ],
)
def test_missing_rights_are_named(code, capability):
    """Root without its capabilities, so that the interpreter can still read its files."""
    if os.geteuid() != 0:
        pytest.skip("only root can drop capabilities by setpriv")
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    run = subprocess.run([*drop, sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    message = run.stderr.strip().splitlines()[-1]
    assert message.startswith("ttpoe.errors.InterfaceError: ")
    assert capability in message
    assert "`unshare -rn`" in message


# Namespaces


def test_namespaces_are_apart_and_the_process_stays_home(veth):
    home = os.readlink("/proc/self/ns/net")
    names = [side.call(lambda: [name for _, name in socket.if_nameindex()]) for side in veth]
    assert names == [["lo", "ttpoe-a"], ["lo", "ttpoe-b"]]
    assert os.readlink("/proc/thread-self/ns/net") == home
    assert not {"ttpoe-a", "ttpoe-b"} & {name for _, name in socket.if_nameindex()}
    assert all(format_mac(side.mac).startswith("98:ed:5c:") for side in veth)


def test_an_exception_inside_a_namespace_comes_out(veth):
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        veth[0].call(fail)


def test_everything_is_gone_after_ctrl_c(veth):
    with pytest.raises(KeyboardInterrupt), veth_pair() as (a, _):
        raise KeyboardInterrupt
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(a.fd)
    assert not [thread for thread in threading.enumerate() if thread.name == "ttpoe-netns"]

"""Two network namespaces with a veth pair between them, for tests and for ``ttpoe loopback``.

The namespaces have no name and no file: a descriptor of this process holds each, so the kernel removes them and the
pair with the process, however it ends, ``kill -9`` included. Nothing can be left behind, and nothing needs a place to
write. Look inside while it runs with ``nsenter --net=/proc/PID/fd/FD``; :class:`Side` tells the descriptor.

A thread enters a namespace and ends there; the rest of the process never leaves its own.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ttpoe.constants import TESLA_OUI
from ttpoe.errors import InterfaceError

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_UP_S = 5.0
_Result = TypeVar("_Result")


def _call_in_thread(function: Callable[[], _Result]) -> _Result:
    """Result or exception of ``function``, called in a thread of its own."""
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="ttpoe-netns")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _libc_call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _new_namespace() -> int:
    """Descriptor of a new, empty network namespace."""

    def create() -> int:
        _libc_call("unshare", _CLONE_NEWNET)
        return os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    try:
        return _call_in_thread(create)
    except PermissionError as error:
        raise InterfaceError(
            "making network namespaces and raw sockets needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW: "
            "run it with sudo, or inside `unshare -rn`"
        ) from error


@dataclass(frozen=True)
class Side:
    """One end of the pair.

    Attributes
    ----------
    fd : int
        Descriptor of the namespace.
    interface : str
    mac : int
    """

    fd: int
    interface: str
    mac: int

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call ``function`` inside the namespace. Sockets that it makes stay there, and can be used from anywhere."""

        def enter() -> _Result:
            _libc_call("setns", self.fd, _CLONE_NEWNET)
            return function()

        return _call_in_thread(enter)

    def set_link(self, **attributes: object) -> None:
        """Change the interface: ``state="down"``, ``mtu=1500``."""

        def change() -> None:
            from pyroute2 import IPRoute

            with IPRoute() as route:
                route.link("set", index=route.link_lookup(ifname=self.interface)[0], **attributes)

        self.call(change)

    def add_ipv4(self, address: str) -> None:
        """Give the interface an IPv4 address: ``"10.0.0.1/24"``."""

        def add() -> None:
            from pyroute2 import IPRoute

            with IPRoute() as route:
                route.addr("add", index=route.link_lookup(ifname=self.interface)[0], address=address)

        self.call(add)

    def delete_link(self) -> None:
        """Remove the pair."""

        def delete() -> None:
            from pyroute2 import IPRoute

            with IPRoute() as route:
                route.link("del", index=route.link_lookup(ifname=self.interface)[0])

        self.call(delete)


def _make_pair(a: Side, b: Side, mtu_bytes: int) -> None:
    """Create the veth pair, its ends in both namespaces; the caller is in that of ``a``."""
    from pyroute2 import IPRoute

    def attributes(side: Side) -> dict[str, object]:
        return {"ifname": side.interface, "address": side.mac.to_bytes(6, "big").hex(":"), "mtu": mtu_bytes}

    with IPRoute() as route:
        route.link("add", kind="veth", **attributes(a), peer={**attributes(b), "net_ns_fd": b.fd})


def _wait_up(side: Side) -> None:
    """Wait until the kernel has seen the carrier: before that it drops what is sent, without an error."""
    from pyroute2 import IPRoute

    deadline_s = time.monotonic() + _UP_S
    with IPRoute() as route:
        index = route.link_lookup(ifname=side.interface)[0]
        while route.get_links(index)[0].get_attr("IFLA_OPERSTATE") != "UP":
            if time.monotonic() > deadline_s:
                raise InterfaceError(f"{side.interface} did not come up within {_UP_S:g} s")
            time.sleep(0.001)


def _silence_ipv6() -> None:
    """No IPv6 chatter on interfaces yet to come, in the caller's namespace; where /proc is read-only it stays."""
    with suppress(OSError), open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as setting:
        setting.write("1")


@contextmanager
def veth_pair(mtu_bytes: int = 1500) -> Iterator[tuple[Side, Side]]:
    """Two namespaces, an Ethernet cable between them, both ends up; gone when the context ends.

    Parameters
    ----------
    mtu_bytes : int
        MTU of both interfaces.

    Yields
    ------
    tuple of Side
        Interfaces ``ttpoe-a`` and ``ttpoe-b``, with random addresses under Tesla's OUI.

    Raises
    ------
    InterfaceError
        Without the rights, with the command that gives them.
    """
    with ExitStack() as stack:
        descriptors = []
        for _ in range(2):
            descriptors.append(_new_namespace())
            stack.callback(os.close, descriptors[-1])
        node = secrets.randbits(23) << 1
        a, b = (
            Side(fd, name, TESLA_OUI << 24 | node + k)
            for k, (fd, name) in enumerate(zip(descriptors, ("ttpoe-a", "ttpoe-b"), strict=True))
        )
        try:
            for side in (a, b):
                side.call(_silence_ipv6)
            a.call(lambda: _make_pair(a, b, mtu_bytes))
            for side in (a, b):
                side.set_link(state="up")
            for side in (a, b):
                side.call(partial(_wait_up, side))
        except OSError as error:
            raise InterfaceError(f"cannot make a veth pair: {error.strerror or error}") from error
        yield a, b

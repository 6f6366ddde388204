"""What IPv4 mode needs of the kernel beside frames: our port held, and the MAC address that leads to a peer.

The kernel answers a datagram for a port that nobody holds with ICMP port unreachable, one for each frame of a transfer;
so an endpoint holds UDP port 420 and lets the kernel drop what comes there, since frames are taken from the raw socket.

Where frames to a peer must go is the kernel's to decide: its routes, its ARP. So a datagram is sent to the peer's
discard port the ordinary way, and the destination of the frame that goes out is read from a packet socket. Routers,
static neighbours and network namespaces need nothing more, and no table has to be understood.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from ttpoe import bpf
from ttpoe.constants import ETHERTYPE_IPV4, IP_PROTOCOL_UDP, UDP_PORT
from ttpoe.errors import InterfaceError
from ttpoe.ipv4 import format_ipv4

_DISCARD_PORT = 9
_PROBE_EVERY_S, _PROBES = 0.5, 6  # the kernel asks by ARP three times, a second apart
_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23  # linux/if_packet.h


class Neighbours:
    """Holds UDP port 420 of one address and finds the way to peers; made in the namespace of the interface.

    Parameters
    ----------
    interface : str
    ip : int
        Our address.

    Raises
    ------
    InterfaceError
        The port is not to be had.
    """

    def __init__(self, interface: str, ip: int) -> None:
        self._interface = interface
        self._lock: asyncio.Lock | None = None
        self._socks: list[socket.socket] = []
        address = format_ipv4(ip)
        try:
            self._hold_port(address)
            self._probe = self._open(socket.AF_INET, socket.SOCK_DGRAM)
            self._probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            self._probe.bind((address, 0))
            self._watch = self._open(socket.AF_PACKET, socket.SOCK_RAW)  # of protocol 0: takes nothing yet
            bpf.attach(self._watch, bpf.assemble())
        except BaseException:
            self.close()
            raise

    def _open(self, family: int, kind: int) -> socket.socket:
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, 0)
        self._socks.append(sock)
        return sock

    def _hold_port(self, address: str) -> None:
        guard = self._open(socket.AF_INET, socket.SOCK_DGRAM)
        bpf.attach(guard, bpf.assemble())
        try:
            guard.bind((address, UDP_PORT))
        except PermissionError as error:
            raise InterfaceError(
                f"IPv4 mode holds UDP port {UDP_PORT}, which needs CAP_NET_BIND_SERVICE: run it with sudo, inside "
                f"`unshare -rn`, or after `sysctl net.ipv4.ip_unprivileged_port_start={UDP_PORT}`"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InterfaceError(f"UDP port {UDP_PORT} of {address} is held by another program") from error
            raise InterfaceError(f"cannot hold UDP port {UDP_PORT} of {address}: {error.strerror}") from error

    async def resolve(self, peer_ip: int) -> int:
        """MAC address that frames to a peer must go to: its own, or that of the router before it.

        Raises
        ------
        InterfaceError
            There is no route, or nobody answers to ARP.
        """
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            self._set_watch(peer_ip)
            try:
                for _ in range(_PROBES):
                    self._send_probe(peer_ip)
                    try:
                        async with asyncio.timeout(_PROBE_EVERY_S):
                            frame = await asyncio.get_running_loop().sock_recv(self._watch, 64)
                        return int.from_bytes(frame[:6], "big")
                    except TimeoutError:
                        continue
            finally:
                self._set_watch(None)
        raise InterfaceError(f"nobody on {self._interface} answers for {format_ipv4(peer_ip)} (no reply to ARP)")

    def _set_watch(self, peer_ip: int | None) -> None:
        """See our probes to one peer go out, or nothing; what was seen before is forgotten."""
        if self._watch.fileno() < 0:
            return  # the endpoint was closed meanwhile
        if peer_ip is None:
            bpf.attach(self._watch, bpf.assemble())
        else:
            port = self._probe.getsockname()[1]
            bpf.attach(self._watch, bpf.assemble(
                bpf.half_is(12, ETHERTYPE_IPV4), bpf.byte_is(23, IP_PROTOCOL_UDP), bpf.word_is(30, peer_ip),
                bpf.half_behind_ipv4_is(0, port), bpf.half_behind_ipv4_is(2, _DISCARD_PORT),
                bpf.outgoing(is_outgoing=True),
            ))  # fmt: skip
            self._watch.bind((self._interface, _ETH_P_ALL))
        try:  # spares the sender a copy of each frame while nothing is looked for; since Linux 4.20
            self._watch.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, peer_ip is None)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
        try:
            while True:
                self._watch.recv(64)
        except OSError:
            return

    def _send_probe(self, peer_ip: int) -> None:
        address = format_ipv4(peer_ip)
        try:
            self._probe.sendto(b"", (address, _DISCARD_PORT))
        except BlockingIOError:
            return
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise InterfaceError(f"cannot reach {address} by {self._interface}: {reason}") from error

    def close(self) -> None:
        """Let go of the port."""
        for sock in self._socks:
            sock.close()

"""A raw Ethernet socket for TTPoE frames on one interface (Linux, AF_PACKET), in Ethernet or in IPv4 mode.

Takes untagged frames of our EtherType, or of UDP port 420, that others sent, and counts those with a VLAN tag. Knows
nothing of what else is in a frame, of time, and of event loops.

An EtherType-bound socket cannot tell a tagged frame: the kernel takes the tag off, PACKET_AUXDATA included, before it
asks such sockets (measured on Linux 6.18). One bound to all protocols is asked before that, so a classic BPF program
on it decides: ours, not tagged, not outgoing. A second socket with the opposite program counts the tagged ones; it is
never read.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

from ttpoe import bpf
from ttpoe.constants import (
    ETHERNET_HEADER_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_MAC_CONTROL,
    ETHERTYPE_TTPOE,
    HEADER_BYTES,
    IP_PROTOCOL_UDP,
    PAUSE_DESTINATION,
    TOTAL_LENGTH_BASE,
    UDP_PORT,
)
from ttpoe.errors import InterfaceError
from ttpoe.neighbour import Neighbours
from ttpoe.wire import Mode

RECEIVE_BUFFER_BYTES = 64 << 20
"""Asked of the kernel. It counts about 2.3 KB for a frame of 1084 bytes, and its default holds 93 of those."""

_SOL_PACKET = 263  # linux/if_packet.h
_PACKET_ADD_MEMBERSHIP, _PACKET_MR_MULTICAST = 1, 0
_PACKET_STATISTICS = 6
_PACKET_IGNORE_OUTGOING = 23  # since Linux 4.20; the filter does the same, later, on older ones
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_SIOCGIFINDEX, _SIOCGIFFLAGS, _SIOCGIFMTU, _SIOCGIFADDR = 0x8933, 0x8913, 0x8921, 0x8915  # linux/sockios.h
_SIOCETHTOOL, _ETHTOOL_GSET = 0x8946, 1  # linux/ethtool.h
_IFF_UP = 1
_ETH_P_ALL = 3
_ARPHRD_ETHER = 1
_AF_INET = int(socket.AF_INET)
_FRAGMENT_OFFSET = 0x1FFF
_CONTROL_BUFFER_BYTES = 1 << 18

def _filter_program(mode: Mode, *, is_tagged: bool) -> bytes:
    """Incoming frames of our mode, tagged or not tagged."""
    if mode is Mode.IPV4:
        ours = [
            bpf.half_is(12, ETHERTYPE_IPV4), bpf.byte_is(23, IP_PROTOCOL_UDP),
            bpf.half_has_none_of(20, _FRAGMENT_OFFSET), bpf.half_behind_ipv4_is(2, UDP_PORT),
        ]  # fmt: skip
    else:
        ours = [bpf.half_is(12, ETHERTYPE_TTPOE)]
    return bpf.assemble(*ours, bpf.outgoing(is_outgoing=False), bpf.vlan_tagged(is_tagged=is_tagged))


def _open(interface: str, program: bytes, *, receive_buffer_bytes: int) -> socket.socket:
    """Socket that receives nothing before its filter is in place."""
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    except PermissionError as error:
        raise InterfaceError(
            f"opening a raw socket on {interface} needs CAP_NET_RAW: run it with sudo, or inside `unshare -rn`"
        ) from error
    try:
        bpf.attach(sock, program)
        try:
            sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_buffer_bytes)
        except PermissionError:  # CAP_NET_RAW without CAP_NET_ADMIN: what rmem_max allows
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.bind((interface, _ETH_P_ALL))
    except OSError as error:
        sock.close()
        if error.errno == errno.ENODEV:
            names = ", ".join(sorted(name for _, name in socket.if_nameindex()))
            raise InterfaceError(f"there is no interface {interface!r}; there are {names or 'none'}") from error
        if error.errno == errno.ENETDOWN:
            raise InterfaceError(f"{interface} is down: run `ip link set {interface} up`") from error
        raise InterfaceError(f"cannot open a raw socket on {interface}: {os.strerror(error.errno or 0)}") from error
    return sock


class RawSocket:
    """Sends and receives TTPoE frames on one interface, never blocking.

    Parameters
    ----------
    interface : str
    mode : Mode
        In IPv4 mode it takes the first address of the interface and holds UDP port 420 there.
    payload_bytes : int
        Payload that the interface's MTU must have room for.
    receive_buffer_bytes : int
        Kernel memory for frames not received yet.
    honour_pause : bool
        Take PAUSE and PFC frames as well, by :meth:`receive_control`.

    Attributes
    ----------
    interface : str
    mac : int
    ip : int
        Our IPv4 address in IPv4 mode, else 0.
    mtu_bytes : int
        The interface's, when it was opened.
    recv_into, send : callable
        Those of the socket: BlockingIOError where they would wait.

    Raises
    ------
    InterfaceError
        With what is missing and how to get it.
    """

    def __init__(
        self, interface: str, *, mode: Mode = Mode.ETHERNET, payload_bytes: int = 0,
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES, honour_pause: bool = False,
    ) -> None:  # fmt: skip
        if len(interface.encode()) > 15 or "\0" in interface:
            raise InterfaceError(f"there is no interface {interface!r}: names have at most 15 bytes")
        self.interface = interface
        program = _filter_program(mode, is_tagged=False)
        self._sock = _open(interface, program, receive_buffer_bytes=receive_buffer_bytes)
        self._neighbours: Neighbours | None = None
        self.control_sock: socket.socket | None = None
        self.ip = 0
        try:
            *_, hardware_type, address = self._sock.getsockname()
            if hardware_type != _ARPHRD_ETHER or len(address) != 6:
                raise InterfaceError(f"{interface} is not an Ethernet interface")
            self._index = self._ask(_SIOCGIFINDEX)
            if not self._ask(_SIOCGIFFLAGS) & _IFF_UP:
                raise InterfaceError(f"{interface} is down: run `ip link set {interface} up`")
            self.mtu_bytes = self._ask(_SIOCGIFMTU)
            needed = TOTAL_LENGTH_BASE + payload_bytes
            if self.mtu_bytes < needed:
                raise InterfaceError(
                    f"{interface} has MTU {self.mtu_bytes}, and frames with {payload_bytes} bytes of payload need "
                    f"{needed}: run `ip link set {interface} mtu {needed}`, or send smaller payloads"
                )
            if mode is Mode.IPV4:
                self.ip = self._ask_address()
                self._neighbours = Neighbours(interface, self.ip)
            if honour_pause:
                self.control_sock = self._open_control()
            program = _filter_program(mode, is_tagged=True)
            self._tagged_sock = _open(interface, program, receive_buffer_bytes=0)
        except BaseException:
            self._sock.close()
            if self._neighbours is not None:
                self._neighbours.close()
            if self.control_sock is not None:
                self.control_sock.close()
            raise
        self.mac = int.from_bytes(address, "big")
        self.recv_into = self._sock.recv_into
        self.send = self._sock.send
        self._kernel_drops = self._vlan_tagged = 0

    def _open_control(self) -> socket.socket:
        """Socket for MAC control frames: apart, so that they do not queue behind data, which would make them late."""
        program = bpf.assemble(bpf.half_is(12, ETHERTYPE_MAC_CONTROL), bpf.outgoing(is_outgoing=False))
        sock = _open(self.interface, program, receive_buffer_bytes=_CONTROL_BUFFER_BYTES)
        group = struct.pack("iHH8s", self._index, _PACKET_MR_MULTICAST, 6, PAUSE_DESTINATION.to_bytes(6, "big"))
        sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, group)
        return sock

    def receive_control(self) -> list[bytes]:
        """MAC control frames that have arrived since the last call."""
        frames: list[bytes] = []
        if self.control_sock is None:
            return frames
        try:
            while True:
                frames.append(self.control_sock.recv(64))
        except OSError:  # none left, or a link that went down: it tells the other socket as well
            return frames

    def ask_rate_bps(self) -> int:
        """Rate of the line, as the interface tells it; 0 if it does not."""
        command = ctypes.create_string_buffer(struct.pack("=I40x", _ETHTOOL_GSET), 44)
        request = struct.pack("16sP16x", self.interface.encode(), ctypes.addressof(command))
        try:
            fcntl.ioctl(self._sock, _SIOCETHTOOL, request)
        except OSError:
            return 0
        low, high = struct.unpack_from("=12xH14xH", command.raw)
        megabits = high << 16 | low
        return 0 if megabits == 0xFFFFFFFF else megabits * 1_000_000

    def _ask(self, request: int) -> int:
        """An integer (or the flags) of the interface; the socket knows its network namespace, wherever we are."""
        reply = fcntl.ioctl(self._sock, request, struct.pack("16s24x", self.interface.encode()))
        value: int = struct.unpack_from("H" if request == _SIOCGIFFLAGS else "i", reply, 16)[0]
        return value

    def _ask_address(self) -> int:
        """First IPv4 address of the interface."""
        try:
            reply = fcntl.ioctl(self._sock, _SIOCGIFADDR, struct.pack("16sH22x", self.interface.encode(), _AF_INET))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            raise InterfaceError(
                f"{self.interface} has no IPv4 address: run `ip address add 10.0.0.1/24 dev {self.interface}`"
            ) from error
        return int.from_bytes(reply[20:24], "big")

    async def resolve(self, peer_ip: int) -> int:
        """MAC address for frames to a peer in IPv4 mode: :meth:`ttpoe.neighbour.Neighbours.resolve`."""
        assert self._neighbours is not None
        return await self._neighbours.resolve(peer_ip)

    def fileno(self) -> int:
        """For an event loop to wait on."""
        return self._sock.fileno()

    @property
    def slot_bytes(self) -> int:
        """Longest frame that can arrive, without FCS."""
        return max(self.mtu_bytes + ETHERNET_HEADER_BYTES, HEADER_BYTES)

    def is_gone(self) -> bool:
        """The interface that this socket was bound to does not exist any more; only a new socket helps."""
        try:
            return self._ask(_SIOCGIFINDEX) != self._index
        except OSError:
            return True

    @property
    def kernel_drops(self) -> int:
        """Frames that the kernel could not keep for us: they came faster than they were received."""
        if self._sock.fileno() >= 0:
            self._kernel_drops += self._read_statistics(self._sock)[1]
        return self._kernel_drops

    @property
    def vlan_tagged(self) -> int:
        """TTPoE frames with a VLAN tag, which are not for us."""
        if self._tagged_sock.fileno() >= 0:
            self._vlan_tagged += self._read_statistics(self._tagged_sock)[0]
        return self._vlan_tagged

    @staticmethod
    def _read_statistics(sock: socket.socket) -> tuple[int, int]:
        """Frames, lost ones included, and lost ones, since the last call: reading resets them."""
        frames, drops = struct.unpack("II", sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        return frames, drops

    def close(self) -> None:
        """Close; the counters keep their last values."""
        _ = self.kernel_drops, self.vlan_tagged
        self._sock.close()
        self._tagged_sock.close()
        if self.control_sock is not None:
            self.control_sock.close()
        if self._neighbours is not None:
            self._neighbours.close()

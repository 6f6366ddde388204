"""The asyncio API: an endpoint on a network interface, its streams, and the driver between socket and machine.

The driver drains the socket in batches, gives each to :class:`ttpoe.endpoint.Endpoint`, sends what that has to send
until the socket would block, and keeps one timer armed. It knows nothing of frames.
"""

from __future__ import annotations

import asyncio
import errno

from ttpoe.clock import loop_time_s, now_ps
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import BATCH_FRAMES, Endpoint, warm_up
from ttpoe.errors import InterfaceError, LocalProtocolError, TTPoEError
from ttpoe.impair import Impairment
from ttpoe.inlet import Inlet, Tap
from ttpoe.ipv4 import format_ipv4, parse_ipv4
from ttpoe.link import Link
from ttpoe.machine import MAX_ANSWERS
from ttpoe.port import Port
from ttpoe.rawsock import RawSocket
from ttpoe.stream import Closing, Listener, Stream
from ttpoe.units import NEVER
from ttpoe.wire import Mode, format_mac, parse_mac

_BATCHES_PER_TURN = 4  # then the loop serves others: readers must not starve behind a busy socket
_SENDS_PER_TURN = 32  # a NACK is then heeded before much more is sent behind the gap
_LINGER_S = 0.1  # a lost CLOSE_ACK is asked for again after the peer's timeout, 20 ms on a short path


class AsyncEndpoint(Closing):
    """An endpoint on an open raw socket, driven by the running event loop. Made by :func:`open_endpoint`.

    Parameters
    ----------
    sock : RawSocket
        Closed with the endpoint.
    config : EndpointConfig, optional
    impairment : Impairment, optional
        Every frame received passes it first.
    tap : callable, optional
        See `Tap`.

    Attributes
    ----------
    sans_io : Endpoint
        Links and counters.
    send_drops : int
        Frames that the interface did not take: its queue was full, or it was down.
    port : Port
        What PAUSE and PFC frames have told.
    """

    def __init__(
        self,
        sock: RawSocket,
        config: EndpointConfig | None = None,
        *,
        impairment: Impairment | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.sans_io = Endpoint(sock.mac, config, ip=sock.ip, slot_bytes=sock.slot_bytes)
        self.send_drops = 0
        self._sock = sock
        self.port = Port(sock, self.sans_io.config)
        self._inlet = Inlet(self.sans_io, impairment, tap)
        self._tap = tap
        self._loop = asyncio.get_running_loop()
        self._streams: dict[Link, Stream] = {}
        self._accepted = asyncio.Event()
        self._error: TTPoEError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ps = NEVER
        self._is_turn_scheduled = False
        self._unsent: bytes | None = None  # the frame that the socket had no room for
        self._last_end_s = float("-inf")
        self._loop.add_reader(sock, self._turn)
        if sock.control_sock is not None:
            self._loop.add_reader(sock.control_sock, self._turn)

    @property
    def mac(self) -> int:
        """Our MAC address."""
        return self.sans_io.mac

    @property
    def address(self) -> str:
        """What peers connect to: our IPv4 address in IPv4 mode, else our MAC address."""
        return format_ipv4(self.sans_io.ip) if self.sans_io.ip else format_mac(self.sans_io.mac)

    @property
    def interface(self) -> str:
        """Name of the interface."""
        return self._sock.interface

    # Links

    async def connect(self, peer: int | str, vc: int = 2) -> Stream:
        """Open a link to a peer and wait for its answer.

        Parameters
        ----------
        peer : int or str
            0x98ED5C000001 or ``"98:ed:5c:00:00:01"``; in IPv4 mode 0x0A000001 or ``"10.0.0.1"``.
        vc : int
            0 REQ_LO, 1 REQ_HI, 2 DATA.

        Raises
        ------
        RemoteProtocolError
            Refused, or no answer within the retry limit.
        InterfaceError
            In IPv4 mode: no route, or nobody answers for the address.
        """
        self._check_open()
        if self.sans_io.ip:
            ip = parse_ipv4(peer) if isinstance(peer, str) else peer
            self.sans_io.check_peer_ip(ip)
            mac = await self._sock.resolve(ip)
            self._check_open()
            link = self.sans_io.connect(mac, vc, now_ps(), peer_ip=ip)
        else:
            link = self.sans_io.connect(parse_mac(peer) if isinstance(peer, str) else peer, vc, now_ps())
        stream = self._streams[link] = Stream(self, link)
        self._flush()
        try:
            await stream.wait_open()
        except asyncio.CancelledError:
            stream.abort()
            raise
        return stream

    def listen(self) -> Listener:
        """Accept links from now on: ``async for stream in endpoint.listen()``, until the endpoint closes.

        Leaving the loop does not stop it: peers are accepted up to the config's ``backlog``, then refused. Use it as
        ``async with endpoint.listen() as incoming`` to stop at the end of the block.
        """
        self._check_open()
        if self.sans_io.is_listening:
            raise LocalProtocolError("this endpoint listens already")
        self.sans_io.is_listening = True
        return Listener(self)

    async def accept(self) -> Stream | None:
        """Next stream that a peer has opened; None once the endpoint does not listen any more."""
        while True:
            if self._error is not None:
                raise self._error
            if not self.sans_io.is_listening:
                return None
            if link := self.sans_io.accept():
                stream = Stream(self, link)
                if not link.has_ended:
                    self._streams[link] = stream
                return stream
            self._accepted.clear()
            await self._accepted.wait()

    def stop_listening(self) -> None:
        """Refuse peers from now on, and close the links that nobody has accepted."""
        self.sans_io.is_listening = False
        self._accepted.set()
        while link := self.sans_io.accept():
            if not link.has_ended:
                self._streams[link] = Stream(self, link)
                self.close_link(link)

    # The end

    async def close(self) -> None:
        """Close every stream in order, then the socket; raises the first error of a stream that failed on the way.

        Lingers a moment after the end of a link: the peer may have to ask again for our CLOSE_ACK, if it was lost.
        """
        n_owned = len(self._streams)
        self.stop_listening()
        try:
            results = await asyncio.gather(*(s.close() for s in self._streams.values()), return_exceptions=True)
            linger_s = self._last_end_s + _LINGER_S - self._loop.time()
            if linger_s > 0 and self._error is None:
                await asyncio.sleep(linger_s)
        finally:
            self.abort()
        for result in results[:n_owned]:
            if isinstance(result, BaseException):
                raise result

    def abort(self) -> None:
        """Close the socket at once; peers are not told."""
        if self._error is None:
            self._fail(LocalProtocolError(f"the endpoint on {self.interface} is closed"))

    def _fail(self, error: TTPoEError) -> None:
        """Stop driving and tell every owner."""
        self._error = error
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        if self._sock.control_sock is not None:
            self._loop.remove_reader(self._sock.control_sock)
        if self._timer is not None:
            self._timer.cancel()
        self._sock.close()
        self.sans_io.is_listening = False
        self._accepted.set()
        for link, stream in list(self._streams.items()):
            stream.fail(error)
            self.sans_io.forget(link)
        self._streams.clear()

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    # Counters

    def drops(self) -> dict[str, int]:
        """Frames that came and were not taken, by reason; ``kernel`` are those that the socket had no room for."""
        counts = self.sans_io.drops()
        counts["vlan_tagged"] = counts.get("vlan_tagged", 0) + self._sock.vlan_tagged
        counts["kernel"] = self._sock.kernel_drops
        if self.port.pause is not None:
            counts["mac_control_malformed"] = self.port.pause.malformed
        return {name: count for name, count in counts.items() if count}

    # For streams

    def close_link(self, link: Link) -> None:
        """Close a link in order."""
        self.sans_io.close(link, now_ps())
        self._flush()

    def forget_link(self, link: Link) -> None:
        """Give a link up."""
        self._streams.pop(link, None)
        self.sans_io.forget(link)

    def schedule_turn(self) -> None:
        """Send soon what there is to send; many calls in one turn of the loop become one."""
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._loop.call_soon(self._turn)

    # The driver

    def _turn(self) -> None:
        """Take what has arrived, some batches of it, and send what there is to send."""
        self._is_turn_scheduled = False
        if self._error is not None:
            return
        endpoint, views, lengths = self.sans_io, self.sans_io.receive_views, self.sans_io.receive_lengths
        recv_into = self._sock.recv_into
        for _ in range(_BATCHES_PER_TURN):
            n = 0
            try:
                # Where the line does not take our answers, leave further frames to the kernel's buffer
                for view in views if endpoint.answers_room >= 2 * BATCH_FRAMES else ():
                    lengths[n] = recv_into(view)
                    n += 1
            except BlockingIOError:
                pass
            except OSError as error:
                if self._is_fatal(error):
                    return
            if self._inlet.take(n, now_ps()):
                self.schedule_turn()
            self._flush()
            if n < BATCH_FRAMES or self._error is not None:
                break

    def _flush(self) -> None:
        """Send all answers, then PAYLOAD until there is none, the socket would block, or it is others' turn.

        Nothing at all goes out of a paused port, not even answers: PAUSE stops all frames, and PFC their priority.
        """
        self._spread_events()
        if self.port.is_paused():
            self._arm_timer()
            return
        send, poll_transmit, tap = self._sock.send, self.sans_io.poll_transmit, self._tap
        at_ps = now_ps()
        frame: bytes | memoryview | None = self._unsent
        self._unsent = None
        for _ in range(self.sans_io.answers_waiting + _SENDS_PER_TURN):
            if frame is None and (frame := poll_transmit(at_ps)) is None:
                break
            try:
                send(frame)
                if tap is not None:
                    tap("out", memoryview(frame))
            except BlockingIOError:
                self._unsent = bytes(frame)
                self._loop.add_writer(self._sock, self._on_writable)
                break
            except OSError as error:
                self.send_drops += 1  # a full queue or a link that is down: timeouts send again
                if self._is_fatal(error):
                    return
            frame = None
        else:
            self.schedule_turn()
        self._arm_timer()

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._sock)
        self._flush()

    def _is_fatal(self, error: OSError) -> bool:
        """An error of the socket: if the interface is gone, fail and return True; anything else may pass."""
        if error.errno in (errno.ENETDOWN, errno.ENXIO, errno.ENODEV) and self._sock.is_gone():
            self._fail(InterfaceError(f"the interface {self.interface} is gone"))
            return True
        return False

    def _spread_events(self) -> None:
        while event := self.sans_io.poll_event():
            link, news = event
            stream = self._streams.get(link)
            if stream is not None:
                stream.on_events(news)
            elif link.is_passive:
                self._accepted.set()
            if link.has_ended:
                self._streams.pop(link, None)
                self._last_end_s = self._loop.time()

    def _arm_timer(self) -> None:
        """Have a timer fire at the earliest deadline, or before: then it is armed anew."""
        deadline_ps = self.sans_io.next_deadline_ps()
        pause = self.port.pause
        if pause is not None and pause.is_paused(now_ps()):
            deadline_ps = pause.until_ps  # timeouts wait: what they would send again may not go out
        elif self.sans_io.answers_room < MAX_ANSWERS:
            return  # nothing can be done about a timeout until the socket takes frames again
        deadline_ps = min(deadline_ps, self._inlet.next_deadline_ps())
        if deadline_ps < self._timer_at_ps:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at_ps = deadline_ps
            self._timer = self._loop.call_at(loop_time_s(deadline_ps), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._turn()  # on a busy host the answer that the timer waits for may lie in the socket
        self._timer_at_ps = NEVER
        if self._error is None:
            if not self.port.is_paused():
                self.sans_io.handle_timeout(now_ps())
            self._flush()


def open_endpoint(
    interface: str | RawSocket,
    config: EndpointConfig | None = None,
    *,
    mode: str = "ethernet",
    honour_pause: bool = False,
    impairment: Impairment | None = None,
    tap: Tap | None = None,
) -> AsyncEndpoint:
    """Open an endpoint on a network interface, for ``async with`` in a running event loop.

    >>> async with open_endpoint("eth0") as endpoint:                             # doctest: +SKIP
    ...     async with await endpoint.connect("98:ed:5c:00:00:02", vc=2) as stream:
    ...         stream.write(b"hello")
    ...         await stream.drain()

    Parameters
    ----------
    interface : str or RawSocket
        Name of an Ethernet interface, or a socket opened before, for instance in another network namespace.
    config : EndpointConfig, optional
    mode : {'ethernet', 'ipv4'}
        Frames of our EtherType, or UDP 420 over IPv4, at the interface's first IPv4 address. A RawSocket has its own.
    honour_pause : bool
        Stop sending while a PAUSE or PFC frame says so. Interfaces of real hardware take these frames and do that
        themselves; this is for virtual ones. A RawSocket has its own.
    impairment : Impairment, optional
        Loses, delays, reorders, doubles and damages received frames. The event loop keeps delays to about 1 ms.
    tap : callable, optional
        Sees every frame: see `Tap`.

    Raises
    ------
    InterfaceError
        With what is missing: CAP_NET_RAW, the interface, its MTU, its address.
    ValueError
        Frames of the mode cannot carry what the config needs.
    """
    if mode.upper() not in Mode.__members__:
        raise ValueError(f"mode is {mode!r}; it must be 'ethernet' or 'ipv4'")
    warm_up()
    config = config or EndpointConfig()
    if isinstance(interface, str):
        config.check_mode(is_ipv4=mode.lower() == "ipv4")
        sock = RawSocket(interface, mode=Mode[mode.upper()], payload_bytes=config.mtu_bytes, honour_pause=honour_pause)
    else:
        sock = interface
    return AsyncEndpoint(sock, config, impairment=impairment, tap=tap)

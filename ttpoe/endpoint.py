"""Many links behind one address: received frames in, frames to send out. Sans-I/O: the caller brings the clock.

Owns the link table, the queue of answers, the counters, and what happens to frames of strangers. Knows nothing of
sockets, and of the machine's rules only what :mod:`ttpoe.batch` tells.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np

from ttpoe.batch import (
    ANSWERS_FULL,
    BATCH,
    DROPS,
    LIMITS,
    LinkEvent,
    Stop,
    earliest_deadline_ps,
    expire_timers,
    take_frames,
)
from ttpoe.config import EndpointConfig
from ttpoe.constants import HEADER_BYTES, MAX_PAYLOAD_BYTES, MAX_VC
from ttpoe.errors import LocalProtocolError, check_status
from ttpoe.fsm import Opcode
from ttpoe.ipv4 import format_ipv4, is_unicast
from ttpoe.link import Link, LinkRows
from ttpoe.machine import on_close_at, on_open_at
from ttpoe.outbox import Outbox
from ttpoe.state import FRAME, LINK, Failure
from ttpoe.units import PS_PER_MS
from ttpoe.wire import HEADER, format_mac, is_unicast_mac

BATCH_FRAMES = 64
"""Frames that one call takes; more gains nothing, and adds latency."""
_ROW_COUNTERS = {
    name: index
    for index, name in enumerate(LINK.names or ())
    if name.startswith((
        "payloads_", "bytes_", "timeouts", "probes_", "resends_", "acks_", "nacks_", "nack_fulls_", "duplicates_",
        "gaps_", "marks_", "echoes_", "dropped_",
    ))
}
"""Fields of LINK that count, and their places."""


def _draw_seq() -> int:
    return secrets.randbits(32)


class Endpoint:
    """The links of one MAC address, or in IPv4 mode of one IPv4 address.

    Parameters
    ----------
    mac : int
        Our address; frames to others are dropped and counted.
    config : EndpointConfig, optional
    ip : int, optional
        Our IPv4 address, for IPv4 mode; 0 for Ethernet mode.
    slot_bytes : int, optional
        Longest frame that the line can bring, if longer than the largest payload needs: the interface's MTU + 14.
    draw_seq : callable, optional
        Gives the opening id of each new link; by default unpredictable.

    Attributes
    ----------
    mac, ip : int
    config : EndpointConfig
    is_listening : bool
        Whether an OPEN of a stranger is accepted. Set it freely.
    receive_views : list of memoryview
        Write received frames here, their lengths into ``receive_lengths``, and call :meth:`take_received`.
    receive_lengths : int64 array
    victims : int
        Links that had to give their place in the tag table to another peer.
    """

    def __init__(
        self,
        mac: int,
        config: EndpointConfig | None = None,
        *,
        ip: int = 0,
        slot_bytes: int = 0,
        draw_seq: Callable[[], int] = _draw_seq,
    ) -> None:
        self.mac = mac
        self.ip = ip
        self.config = config = config or EndpointConfig()
        config.check_mode(is_ipv4=bool(ip))
        self.is_listening = False
        self.victims = 0
        self._draw_seq = draw_seq
        self._max_payload_bytes = max(MAX_PAYLOAD_BYTES, config.mtu_bytes)
        slot_bytes = max(slot_bytes, HEADER_BYTES + self._max_payload_bytes)

        self._rows = LinkRows(config, mac, ip)
        self._outbox = Outbox(self._rows, config)
        self._links: dict[int, Link] = {}
        self._news: dict[Link, LinkEvent] = {}
        self._backlog: list[Link] = []
        self._retired = np.zeros(len(LINK.names or ()), np.int64)  # sums of the fields of links that have ended
        self._drops = np.zeros(len(DROPS), np.int64)

        slots = np.zeros((BATCH_FRAMES, slot_bytes), np.uint8)
        self._receive_slots = slots
        self.receive_views = [slot.data for slot in slots]
        self.receive_lengths = np.zeros(BATCH_FRAMES, np.int64)
        self._batch = np.zeros(1, BATCH)
        self._limits = np.zeros(1, LIMITS)
        self._limits[0] = (self._rows.set_bits, config.idle_timeout_ps, config.victim_idle_ps, 0)
        self._header = np.zeros(1, HEADER)
        self._frame = np.zeros(1, FRAME)
        self._deliveries = np.zeros((BATCH_FRAMES, 3), np.int64)
        self._delivered = np.zeros(BATCH_FRAMES * self._max_payload_bytes, np.uint8)
        self._delivered_view = self._delivered.data

        self._on_rows_changed()

    def _on_rows_changed(self) -> None:
        """Collect the arguments of the kernels anew: growth replaces arrays."""
        rows = self._rows
        self._changed = np.zeros(rows.links.size, np.int64)
        self._take_args = (
            self.mac, self.ip, self._max_payload_bytes, self._receive_slots, self.receive_lengths, self._batch,
            self._limits, rows.links, rows.guards, rows.ring, rows.pools, rows.params, rows.headers, rows.tags,
            rows.keys, self._header, self._frame, self._outbox.out, self._outbox.answers, rows.events, self._changed,
            self._deliveries, self._delivered, self._drops,
        )  # fmt: skip

    # Links

    def connect(self, peer_mac: int, vc: int, now_ps: int, *, peer_ip: int = 0) -> Link:
        """Open a link; `LinkEvent.OPENED` or FAILED tells how it went.

        In IPv4 mode the link is that to ``peer_ip``, and ``peer_mac`` is where frames to it go: its own or a router's.

        Raises
        ------
        LocalProtocolError
            There is a link to this peer on this virtual channel, or its set of the tag table is full of links in use.
        """
        if not 0 <= vc <= MAX_VC:
            raise LocalProtocolError(f"vc is {vc}; it must be from 0 to {MAX_VC}")
        if not is_unicast_mac(peer_mac) or peer_mac == self.mac:
            raise LocalProtocolError(f"{format_mac(peer_mac & (1 << 48) - 1)} is not the address of one peer")
        if bool(self.ip) != bool(peer_ip):
            raise LocalProtocolError("an endpoint in IPv4 mode needs the peer's IPv4 address, and only that does")
        if peer_ip:
            self.check_peer_ip(peer_ip)
        key = (peer_ip or peer_mac, vc)
        for link in self._links.values():
            if (link.peer_ip or link.peer_mac, link.vc) == key:
                raise LocalProtocolError(f"a link to {link.peer} is there already")
        link = self._add_link(peer_mac, peer_ip, vc, now_ps, is_passive=False)
        try:
            n_out = check_status(on_open_at(self._rows.links, link.row, now_ps, self._outbox.out, 0), "open")
            self._outbox.put(n_out, link.row)
        except LocalProtocolError:
            self.forget(link)
            raise
        return link

    def check_peer_ip(self, peer_ip: int) -> None:
        """Raise LocalProtocolError if this cannot be the IPv4 address of a peer."""
        if not 0 <= peer_ip < 1 << 32 or not is_unicast(peer_ip) or peer_ip == self.ip:
            raise LocalProtocolError(f"{format_ipv4(peer_ip & 0xFFFFFFFF)} is not the address of one peer")

    def accept(self) -> Link | None:
        """Next link that a peer has opened, oldest first; it may have ended by now. None if there is none."""
        return self._backlog.pop(0) if self._backlog else None

    def close(self, link: Link, now_ps: int) -> None:
        """Close in order: CLOSE goes out when all that was submitted is acknowledged; CLOSED or FAILED tells the end.

        Bytes that the peer has yet to send still arrive. Closing twice, or what has ended, does nothing.
        """
        if link.has_ended or link.field("is_closing"):
            return
        n_out = check_status(on_close_at(self._rows.links, link.row, now_ps, self._outbox.out, 0), "close")
        self._outbox.put(n_out, link.row)

    def forget(self, link: Link) -> None:
        """Drop a link without a word to the peer, which learns by NACK_NOLINK when it sends."""
        if not link.has_ended:
            self._end(link)
        self._news.pop(link, None)
        if link in self._backlog:
            self._backlog.remove(link)

    @property
    def links(self) -> list[Link]:
        """Links that have not ended."""
        return list(self._links.values())

    def poll_event(self) -> tuple[Link, LinkEvent] | None:
        """A link and what happened on it since its last event; None if there is nothing to tell."""
        for link, news in self._news.items():
            del self._news[link]
            return link, news
        return None

    def _add_link(self, peer_mac: int, peer_ip: int, vc: int, now_ps: int, *, is_passive: bool) -> Link:
        rows, initial_seq = self._rows, self._draw_seq() & 0xFFFFFFFF
        row = rows.take(peer_mac, peer_ip, vc, initial_seq, now_ps, is_passive=is_passive)
        if not row:
            victim = rows.victim_for(peer_ip or peer_mac, vc, now_ps, self.config.victim_idle_ps)
            if victim <= 0 or not self._make_room(self._links[victim], now_ps):
                raise LocalProtocolError(
                    f"{self.config.tag_ways} links on vc {vc} have the places of this peer in the tag table; "
                    "close one of them, or raise tag_ways"
                )
            row = rows.take(peer_mac, peer_ip, vc, initial_seq, now_ps, is_passive=is_passive)
        if self._changed.size != self._rows.links.size:
            self._on_rows_changed()
        link = self._links[row] = Link(
            self._rows, row, peer_mac, peer_ip, vc, self.config, is_passive=is_passive
        )
        return link

    def _end(self, link: Link, failure: Failure = Failure.NONE) -> None:
        del self._links[link.row]
        link.detach(failure)
        self._retired += link.words()

    # Frames in

    def receive(self, frames: Iterable[bytes | bytearray | memoryview], now_ps: int) -> None:
        """Take frames (from the destination MAC on, without FCS); bad ones are counted and dropped, never raised.

        Send what :meth:`poll_transmit` gives before there is no :attr:`answers_room`: frames that cannot be answered
        are dropped, and counted.
        """
        n = 0
        limit = self._receive_slots.shape[1]
        for frame in frames:
            if n == BATCH_FRAMES:
                self.take_received(n, now_ps)
                n = 0
            size = min(len(frame), limit)
            self.receive_views[n][:size] = frame[:size]
            self.receive_lengths[n] = size
            n += 1
        if n:
            self.take_received(n, now_ps)

    def take_received(self, n_frames: int, now_ps: int) -> None:
        """Take the first ``n_frames`` of ``receive_views``."""
        batch = self._batch
        first = 0
        while first < n_frames:
            batch["n_answers"] = self._outbox.n_answers
            self._limits["takes_opens"] = self.is_listening and len(self._backlog) < self.config.backlog
            take_frames(first, n_frames, now_ps, *self._take_args)
            first, self._outbox.n_answers, n_changed, n_deliveries, stop, victim = batch.item()
            for row, start, end in self._deliveries[:n_deliveries].tolist():
                self._links[row].deliver(self._delivered_view[start:end])
            self._spread_news(n_changed)
            if stop == Stop.STRANGER_OPENS:
                first += self._on_stranger_opens(victim, now_ps)
            elif stop == Stop.ANSWERS_FULL:
                self._drops[ANSWERS_FULL] += n_frames - first
                return

    def _spread_news(self, n_changed: int) -> None:
        """Hand events to their links and release the rows of those that have ended."""
        for row in self._changed[:n_changed].tolist():
            link, news = self._links[row], LinkEvent(int(self._rows.events[row]))
            self._rows.events[row] = 0
            self._news[link] = self._news.get(link, LinkEvent(0)) | news
            if news & (LinkEvent.CLOSED | LinkEvent.FAILED):
                self._end(link)

    def _on_stranger_opens(self, victim: int, now_ps: int) -> int:
        """Give a stranger's OPEN a row, that of a victim if there is one; returns 1 if its frame is done with."""
        if victim and not self._make_room(self._links[victim], now_ps):
            return 1
        peer_mac, vc = int(self._header["src_mac"][0]), int(self._frame["vc"][0])
        peer_ip = int(self._header["src_ip"][0]) if self.ip else 0
        self._backlog.append(self._add_link(peer_mac, peer_ip, vc, now_ps, is_passive=True))
        return 0

    def _make_room(self, victim: Link, now_ps: int) -> bool:
        """Close a victim; False if that takes a while: the OPEN that needs its place will come again.

        A link that was never used goes at once. Its peer may not exist, so one CLOSE is all that it gets.
        """
        self.victims += 1
        if victim.field("payloads_received") or victim.field("submitted_bytes"):
            self.close(victim, now_ps)
            return False
        self._outbox.out[0] = (Opcode.CLOSE, 0, victim.vc, victim.field("tx_max"), victim.field("rx_seq"), 0)
        self._outbox.put(1, victim.row)
        if victim in self._backlog:
            self.forget(victim)  # nobody has seen it
        else:
            self._end(victim, Failure.VICTIM)
            self._news[victim] = self._news.get(victim, LinkEvent(0)) | LinkEvent.FAILED
        return True

    # Time

    def next_deadline_ps(self) -> int:
        """When to call :meth:`handle_timeout` at the latest; `ttpoe.units.NEVER` if no timer runs."""
        rows = self._rows
        deadline: int = earliest_deadline_ps(
            rows.links, rows.guards, self._limits, rows.ring, rows.pools, rows.params
        )
        return deadline

    def handle_timeout(self, now_ps: int) -> None:
        """Do what is due; a call too early does nothing."""
        rows, batch, outbox = self._rows, self._batch, self._outbox
        batch["n_answers"] = outbox.n_answers
        expire_timers(
            now_ps, batch, self._limits, rows.links, rows.guards, rows.params, rows.headers, outbox.out,
            outbox.answers, rows.events, self._changed,
        )  # fmt: skip
        _, outbox.n_answers, n_changed, *_ = batch.item()
        self._spread_news(n_changed)

    # Frames out

    @property
    def answers_waiting(self) -> int:
        """Control frames to send."""
        return self._outbox.waiting

    @property
    def answers_room(self) -> int:
        """Control frames that still fit; receive no more than half as many frames."""
        return self._outbox.room

    def poll_transmit(self, now_ps: int) -> memoryview | None:
        """Next frame to send; None if there is none.

        Answers go first, then PAYLOAD: REQ_HI before REQ_LO before DATA, and links of one channel in turn.
        The view is valid until the next call of any method.
        """
        return self._outbox.poll(self._links, now_ps)

    # Counters

    def drops(self) -> dict[str, int]:
        """Frames received and refused, by reason; the reasons that did not occur are left out."""
        counts = dict(zip(DROPS, self._drops.tolist(), strict=True))
        counters = self.counters()
        counts |= {name.removeprefix("dropped_"): counters[name] for name in counters if name.startswith("dropped_")}
        return {name: count for name, count in counts.items() if count}

    def counters(self) -> dict[str, int]:
        """Counters of all links together, those that have ended included."""
        sums = self._retired.copy()
        for row in (0, *self._links):
            sums += self._rows.words(row)
        return {name: int(sums[index]) for name, index in _ROW_COUNTERS.items()}


@cache
def warm_up() -> None:
    """Load, or compile, every kernel that an endpoint calls, by a transfer in memory; once per process.

    A compilation in the middle of a transfer would look to the peer like a link that is down.
    """
    a, b = Endpoint(0x020000000001), Endpoint(0x020000000002)
    b.is_listening = True
    now_ps = 0

    def exchange() -> None:
        nonlocal now_ps
        for source, sink in ((a, b), (b, a), (a, b)):
            while (frame := source.poll_transmit(now_ps)) is not None:
                sink.receive([frame], now_ps)
            now_ps += PS_PER_MS
            source.handle_timeout(now_ps)

    link = a.connect(b.mac, 0, now_ps)
    exchange()
    link.submit(b"warm")
    a.close(link, now_ps)
    exchange()

"""One link with its payload bytes, and the arrays that links live in. Sans-I/O: bytes in, bytes out, no clock.

A kernel's row is a borrowed pointer, so rows are always reached through `LinkRows`, which owns the arrays and may
replace them by larger ones; nothing here keeps a row. Knows nothing of frames, addresses' meaning, or sockets.
"""

from __future__ import annotations

import numpy as np

from ttpoe.config import EndpointConfig
from ttpoe.constants import MAX_VC, SEQ_MASK
from ttpoe.errors import ClosedByPeerError, LocalProtocolError, RemoteProtocolError, check_status, failure_error
from ttpoe.fsm import Opcode, State
from ttpoe.guard import GUARD, pick_victim
from ttpoe.ipv4 import format_ipv4
from ttpoe.ipv4 import make_header as make_ipv4_header
from ttpoe.machine import on_read_at, on_submit_at, release_at
from ttpoe.rules import Rule
from ttpoe.state import LINK, POOL, SENT, Failure, init_links, make_params, ring_slots
from ttpoe.tagtable import put_row, remove_row, tag_set_at
from ttpoe.units import NEVER
from ttpoe.wire import HEADER, format_mac, make_header

_FIRST_ROWS = 8
_NO_BUFFER = np.empty(0, np.uint8)
_NO_ROW = np.empty(0, LINK)


class LinkRows:
    """The arrays of an endpoint's links, one row each; grows by doubling.

    Row 0 belongs to no link: see :mod:`ttpoe.batch`.

    Parameters
    ----------
    config : EndpointConfig
    own_mac : int
    own_ip : int
        0 in Ethernet mode.
    """

    def __init__(self, config: EndpointConfig, own_mac: int, own_ip: int = 0) -> None:
        self.params = make_params(
            mtu_bytes=config.mtu_bytes, window_bytes=config.window_bytes, rto_initial_ps=config.rto_initial_ps,
            rto_min_ps=config.rto_min_ps, rto_max_ps=config.rto_max_ps, retry_limit=config.retry_limit,
            congestion_control=config.congestion_control, initial_window_packets=config.initial_window_packets,
            tail_loss_probe=config.tail_loss_probe, probe_min_ps=config.probe_min_ps, rules=int(config.rules),
            open_timeout_ps=config.open_timeout_ps, close_timeout_ps=config.close_timeout_ps,
            answer_repeat_ps=config.answer_repeat_ps,
            target_delay_ps=config.target_delay_ps, flow_scaling_ps=config.flow_scaling_ps,
        )  # fmt: skip
        self.pools = np.zeros(1, POOL)
        self.pools["limit_bytes"] = config.window_bytes if config.shared_window else NEVER
        self._own_mac = own_mac
        self._own_ip = own_ip
        self._receive_buffer_bytes = config.receive_buffer_bytes
        self._slots = ring_slots(config.window_bytes, config.mtu_bytes)
        self._new_link = np.zeros(1, LINK)
        init_links(self._new_link, 0, 0, self.params, self._slots)

        self.set_bits = config.tag_sets.bit_length() - 1
        self.tags = np.zeros((MAX_VC + 1, config.tag_sets, config.tag_ways), np.int64)
        self.links, self.guards = np.zeros(_FIRST_ROWS, LINK), np.zeros(_FIRST_ROWS, GUARD)
        self.headers = np.zeros(_FIRST_ROWS, HEADER)
        self.events, self.keys = np.zeros(_FIRST_ROWS, np.int64), np.zeros(_FIRST_ROWS, np.int64)
        self.ring = np.zeros(_FIRST_ROWS * self._slots, SENT)
        self._reset(0, _FIRST_ROWS)
        self.links["has_ended"][0] = 1  # so that an OPEN for no row is refused
        self._own_header = self._header(0, 0, 0)
        self.headers[0] = self._own_header[0]
        self._free = list(range(_FIRST_ROWS - 1, 0, -1))

    def words(self, row: int) -> np.ndarray:
        """The fields of a link, int64: as a record numpy would copy them one by one, which takes 30 times as long."""
        return self.links.view(np.int64).reshape(-1, len(LINK.fields or ()))[row]

    def _reset(self, first: int, end: int) -> None:
        """Make links new."""
        self.links.view(np.int64).reshape(self.links.size, -1)[first:end] = self._new_link.view(np.int64)
        self.links["ring_base"][first:end] = np.arange(first, end) * self._slots

    def _header(self, peer_mac: int, peer_ip: int, vc: int) -> np.ndarray:
        """HEADER array of shape (1,) with the addresses of a link."""
        fields = {"dst_mac": peer_mac, "src_mac": self._own_mac, "opcode": int(Opcode.OPEN), "vc": vc}
        if self._own_ip:
            return make_ipv4_header(**fields, dst_ip=peer_ip, src_ip=self._own_ip, tx_seq=0, rx_seq=0)
        return make_header(**fields, tx_seq=0, rx_seq=0)

    def take(self, peer_mac: int, peer_ip: int, vc: int, initial_seq: int, now_ps: int, *, is_passive: bool) -> int:
        """Make a closed link in a free row, or in one more; returns the row, or 0 if its set is full."""
        if not self._free:
            self._grow()
        row, address = self._free[-1], peer_ip or peer_mac
        if not put_row(self.tags, self.set_bits, address, vc, row):
            return 0
        self._free.pop()
        self._reset(row, row + 1)
        links = self.links
        links["vc"][row] = vc
        if not links["rules"][row] & Rule.START_AT_ONE:
            links["initial_seq"][row] = initial_seq
            for name in ("tx_una", "tx_next", "tx_max"):
                links[name][row] = initial_seq + 1 & SEQ_MASK
        links["rx_limit_bytes"][row] = self._receive_buffer_bytes
        self.guards[row] = (is_passive, now_ps, now_ps, 0, 0, 0, 0)
        header = self.headers
        header[row] = self._own_header[0]
        header["vc"][row], header["dst_mac"][row] = vc, peer_mac
        header["dst_node"][row], header["dst_ip"][row] = peer_mac & 0xFFFFFF, peer_ip
        self.events[row] = 0
        self.keys[row] = address
        return row

    def victim_for(self, address: int, vc: int, now_ps: int, victim_idle_ps: int) -> int:
        """:func:`ttpoe.guard.pick_victim` in the set of a peer."""
        ways = self.tags[vc, tag_set_at(address, self.set_bits)]
        row: int = pick_victim(ways, self.links, self.guards, now_ps, victim_idle_ps)
        return row

    def give_back(self, row: int) -> None:
        """Free a row; payload that it held unacknowledged leaves the shared window."""
        self.links["state"][row] = State.CLOSED
        self.links["timer_at_ps"][row] = NEVER
        self.guards["probes"][row] = 0
        release_at(self.links, row, self.pools, 0)
        remove_row(self.tags, self.set_bits, int(self.keys[row]), int(self.links["vc"][row]), row)
        self._free.append(row)

    def _grow(self) -> None:
        """Double the rows. New ones stay untouched zeros, which cost no memory, until they are used."""
        rows = self.links.size
        for name in ("links", "guards", "headers", "events", "keys", "ring"):
            array = getattr(self, name)
            larger = np.zeros(2 * array.size, array.dtype)
            larger[: array.size] = array
            setattr(self, name, larger)
        self._reset(rows, 2 * rows)
        self._free = list(range(2 * rows - 1, rows - 1, -1))


class Link:
    """One link, seen by its owner: submit bytes, read bytes, learn of its end.

    Made by :meth:`ttpoe.endpoint.Endpoint.connect` or by a peer's OPEN, never directly. Once it has ended it keeps
    what can still be read and its counters, and its row serves another link.

    Attributes
    ----------
    peer_mac : int
        In IPv4 mode that of the peer, or of the router before it.
    peer_ip : int
        0 in Ethernet mode.
    vc : int
    is_passive : bool
        The peer opened it.
    """

    def __init__(
        self, rows: LinkRows, row: int, peer_mac: int, peer_ip: int, vc: int, config: EndpointConfig, *,
        is_passive: bool,
    ):  # fmt: skip
        self.peer_mac = peer_mac
        self.peer_ip = peer_ip
        self.vc = vc
        self.is_passive = is_passive
        self._rows: LinkRows | None = rows
        self._row = row
        self._last = _NO_ROW  # the row once the link has ended
        self._send_buffer_bytes = config.send_buffer_bytes
        self._send_buffer = _NO_BUFFER  # a ring, made by the first submit
        self._received = bytearray()

    def __repr__(self) -> str:
        return f"<Link {self.peer} {self.state.name}>"

    @property
    def peer(self) -> str:
        """Peer and virtual channel, for people: ``98:ed:5c:00:00:02 vc 2`` or ``10.0.0.2 vc 2``."""
        return f"{format_ipv4(self.peer_ip) if self.peer_ip else format_mac(self.peer_mac)} vc {self.vc}"

    def field(self, name: str) -> int:
        """A field of the link's row, by its name in :data:`ttpoe.state.LINK`."""
        if self._rows is None:
            return int(self._last[name][0])
        return int(self._rows.links[name][self._row])

    def counters(self) -> dict[str, int]:
        """Every field of the link's row."""
        return dict(zip(LINK.names or (), self.words().tolist(), strict=True))

    def words(self) -> np.ndarray:
        """The same as an int64 array, in the order of :data:`ttpoe.state.LINK`."""
        return self._last.view(np.int64) if self._rows is None else self._rows.words(self._row)

    @property
    def state(self) -> State:
        """Where the link is in the state machine."""
        return State(self.field("state"))

    @property
    def has_ended(self) -> bool:
        """The link is over, in order or not; what was received can still be read."""
        return self._rows is None

    @property
    def error(self) -> RemoteProtocolError | None:
        """Why the link ended, or None while it lives and after an orderly close."""
        return failure_error(self.field("failure"), self.peer, self.field("retries"))

    @property
    def readable_bytes(self) -> int:
        """Bytes in order that were not read yet."""
        return len(self._received)

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes submitted and not acknowledged yet."""
        return self.field("submitted_bytes") - self.field("acked_bytes")

    def submit(self, data: bytes | bytearray | memoryview) -> int:
        """Copy bytes into the send buffer, as many as fit.

        Parameters
        ----------
        data : bytes-like

        Returns
        -------
        int
            Bytes taken, 0 while the buffer is full: `ttpoe.batch.LinkEvent.ACKED` tells of room.

        Raises
        ------
        RemoteProtocolError
            The peer ended the link, or is about to: it has closed and takes no more.
        LocalProtocolError
            The link was closed by us.
        """
        self._check_can_send()
        assert self._rows is not None
        view = np.frombuffer(data, np.uint8)
        submitted = self.field("submitted_bytes")
        size = min(view.size, self._send_buffer_bytes - (submitted - self.field("acked_bytes")))
        if size == 0:
            return 0
        if self._send_buffer.size == 0:
            self._send_buffer = np.empty(self._send_buffer_bytes, np.uint8)
        check_status(on_submit_at(self._rows.links, self._row, size), "write")
        at = submitted % self._send_buffer_bytes
        until_wrap = min(size, self._send_buffer_bytes - at)
        self._send_buffer[at : at + until_wrap] = view[:until_wrap]
        self._send_buffer[: size - until_wrap] = view[until_wrap:size]
        return size

    def _check_can_send(self) -> None:
        if self.error is not None:
            raise self.error
        is_forgotten = self.has_ended and not self.field("has_ended")
        if self.field("is_closing") or is_forgotten:
            raise LocalProtocolError(f"cannot write: the link to {self.peer} is closed")
        if self.has_ended or self.state is State.CLOSE_RECD:
            raise ClosedByPeerError(f"the peer {self.peer} has closed the link")

    def read(self, max_bytes: int = -1) -> bytes:
        """Take up to ``max_bytes`` (all, if negative) of what has arrived in order; b"" if nothing has."""
        received = self._received
        if 0 <= max_bytes < len(received):
            with memoryview(received) as view:
                data = bytes(view[:max_bytes])
            del received[:max_bytes]
        else:
            data = bytes(received)
            received.clear()
        if self._rows is not None:
            on_read_at(self._rows.links, self._row, len(data))
        return data

    # For the endpoint that owns the rows:

    @property
    def row(self) -> int:
        """Row of the link; meaningless once it has ended."""
        return self._row

    @property
    def send_buffer(self) -> np.ndarray:
        """The ring of bytes submitted, uint8."""
        return self._send_buffer

    def deliver(self, data: memoryview) -> None:
        """Append payload that the machine accepted."""
        self._received += data

    def detach(self, failure: Failure = Failure.NONE) -> None:
        """The link has ended: keep a copy of the row, and give it back. ``failure``: one that is not the machine's."""
        if self._rows is not None:
            if failure:
                self._rows.links["failure"][self._row] = failure
            self._last = self._rows.words(self._row).copy().view(LINK)
            self._rows.give_back(self._row)
            self._rows = None
            self._send_buffer = _NO_BUFFER



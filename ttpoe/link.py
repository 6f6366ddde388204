"""One link with its payload bytes, and the arrays that links live in. Sans-I/O: bytes in, bytes out, no clock.

A kernel's row is a borrowed pointer, so rows are always reached through `LinkRows`, which owns the arrays and may
replace them by larger ones; nothing here keeps a row. Knows nothing of frames, addresses' meaning, or sockets.
"""

from __future__ import annotations

import numpy as np

from ttpoe.batch import index_rows, link_key
from ttpoe.config import EndpointConfig
from ttpoe.errors import LocalProtocolError, RemoteProtocolError, check_status, failure_error
from ttpoe.fsm import Opcode, State
from ttpoe.ipv4 import format_ipv4
from ttpoe.ipv4 import make_header as make_ipv4_header
from ttpoe.machine import on_read_at, on_submit_at, release_at
from ttpoe.state import LINK, POOL, init_links, make_params, ring_slots
from ttpoe.units import NEVER
from ttpoe.wire import HEADER, format_mac, make_header

_FIRST_ROWS = 8
_NO_BUFFER = np.empty(0, np.uint8)


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
            tail_loss_probe=config.tail_loss_probe, probe_min_ps=config.probe_min_ps,
            target_delay_ps=config.target_delay_ps, flow_scaling_ps=config.flow_scaling_ps,
        )  # fmt: skip
        self.pools = np.zeros(1, POOL)
        self.pools["limit_bytes"] = config.window_bytes if config.shared_window else NEVER
        self.links = np.zeros(_FIRST_ROWS, LINK)
        self.headers = np.zeros(_FIRST_ROWS, HEADER)
        self.events = np.zeros(_FIRST_ROWS, np.int64)
        self.keys = np.full(_FIRST_ROWS, -1, np.int64)
        self.table = np.full((2 * _FIRST_ROWS, 2), -1, np.int64)
        self._own_mac = own_mac
        self._own_ip = own_ip
        self._receive_buffer_bytes = config.receive_buffer_bytes
        self._slots = ring_slots(config.window_bytes, config.mtu_bytes)
        self.ring = init_links(self.links, 0, 0, self.params, self._slots)
        self.headers[0] = self._header(0, 0, 0)[0]
        self._free = list(range(_FIRST_ROWS - 1, 0, -1))

    def _header(self, peer_mac: int, peer_ip: int, vc: int) -> np.ndarray:
        """HEADER array of shape (1,) with the addresses of a link."""
        fields = {"dst_mac": peer_mac, "src_mac": self._own_mac, "opcode": int(Opcode.OPEN), "vc": vc}
        if self._own_ip:
            return make_ipv4_header(**fields, dst_ip=peer_ip, src_ip=self._own_ip, tx_seq=0, rx_seq=0)
        return make_header(**fields, tx_seq=0, rx_seq=0)

    def take(self, peer_mac: int, peer_ip: int, vc: int, initial_seq: int) -> int:
        """Make a closed link in a free row, with more rows if none is free; returns the row."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        init_links(self.links[row : row + 1], initial_seq, vc, self.params, self._slots)
        self.links["ring_base"][row] = row * self._slots
        self.headers[row] = self._header(peer_mac, peer_ip, vc)[0]
        self.links["rx_limit_bytes"][row] = self._receive_buffer_bytes
        self.events[row] = 0
        self.keys[row] = link_key(peer_ip or peer_mac, vc)
        index_rows(self.keys, self.table)
        return row

    def give_back(self, row: int) -> None:
        """Free a row; payload that it held unacknowledged leaves the shared window."""
        self.links["state"][row] = State.CLOSED
        self.links["timer_at_ps"][row] = NEVER
        release_at(self.links, row, self.pools, 0)
        self.keys[row] = -1
        index_rows(self.keys, self.table)
        self._free.append(row)

    def _grow(self) -> None:
        rows = self.links.size
        more = np.zeros(rows, LINK)
        ring = init_links(more, 0, 0, self.params, self._slots)
        more["ring_base"] += rows * self._slots
        self.links = np.concatenate((self.links, more))
        self.ring = np.concatenate((self.ring, ring))
        self.headers = np.concatenate((self.headers, np.zeros(rows, HEADER)))
        self.events = np.concatenate((self.events, np.zeros(rows, np.int64)))
        self.keys = np.concatenate((self.keys, np.full(rows, -1, np.int64)))
        self.table = np.full((4 * rows, 2), -1, np.int64)
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
        self._last = rows.links[row : row + 1].copy()  # the row once the link has ended
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
        row = self._last[0] if self._rows is None else self._rows.links[self._row]
        return dict(zip(LINK.names or (), row.item(), strict=True))

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
            The peer ended the link.
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
        if self._rows is None or self.field("is_closing"):
            raise LocalProtocolError(f"cannot write: the link to {self.peer} is closed")

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

    def detach(self) -> None:
        """Keep a copy of the row and give the row back: the link has ended."""
        if self._rows is not None:
            self._last = self._rows.links[self._row : self._row + 1].copy()
            self._rows.give_back(self._row)
            self._rows = None
            self._send_buffer = _NO_BUFFER



"""A captured endpoint against ours: what it received goes in at the captured times, what it sent must come out.

Two things are not in a capture and are inferred from what was sent. What the owner did: an OPEN, a new PAYLOAD or a
CLOSE that no frame and no timer asks for. When a timer fired: the captured host was up to `LATE_PS` late, and so is
ours then; a timer that is due longer than that, with nothing to show for it in the capture, is a difference.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from traces.pcap import open_capture
from ttpoe import ipv4, wire
from ttpoe.config import EndpointConfig
from ttpoe.endpoint import Endpoint
from ttpoe.fsm import Opcode, State
from ttpoe.link import Link
from ttpoe.machine import on_open_at
from ttpoe.units import PS_PER_MS, PS_PER_S
from ttpoe.wire import FrameError, Mode

CAPTURES = Path(__file__).parent / "data" / "captures"
LATE_PS = 80 * PS_PER_MS
WAITING_PS = 50 * PS_PER_MS
"""A PAYLOAD sent so soon after an ACK was waiting for it: it was written together with the one before."""
_LONGEST = 0xFFFF - 46


class Difference(AssertionError):
    """Ours does something else than the captured side."""


@dataclass
class Seen:
    """A captured TTPoE frame without the gateway bit."""

    number: int
    at_ps: int
    data: bytes
    mode: Mode
    header: np.ndarray
    payload: bytes
    written_at_ps: int = 0
    """When its owner wrote this PAYLOAD."""

    @property
    def opcode(self) -> int:
        return int(self.header[0]["opcode"])

    def field(self, name: str) -> int:
        return int(self.header[0][name])


def read_frames(name: str) -> list[Seen]:
    """TTPoE frames of a capture without the gateway bit, malformed ones too, numbered from 1 among all frames."""
    frames: list[Seen] = []
    start_ps = 0
    for number, frame in enumerate(open_capture(CAPTURES / name), 1):
        start_ps = start_ps or frame.time_ps - PS_PER_S  # the clock of an endpoint does not hold the time since 1970
        data = bytes(frame.data)
        header = np.zeros(1, wire.HEADER)
        array = np.frombuffer(data, np.uint8)
        is_ipv4 = data[12:14] == b"\x08\x00"
        parse = ipv4.parse_ipv4_header_at if is_ipv4 else wire.parse_header_at
        reason = wire.Reason(parse(array, array.size, _LONGEST, header, 0))
        alien = ("NOT_TTPOE", "GATEWAY", "NOT_UDP", "UDP_PORTS", "VLAN_TAGGED")
        if reason.name in alien or data[12:14] not in (b"\x08\x00", b"\x9a\xc6"):
            continue
        size = max(int(header[0]["payload_bytes"]), 0)
        mode = Mode.IPV4 if is_ipv4 else Mode.ETHERNET
        frames.append(Seen(number, frame.time_ps - start_ps, data, mode, header, data[60 : 60 + size]))
    return frames


def writes(sent: list[Seen], received: list[Seen]) -> deque[Seen]:
    """The PAYLOADs in ``sent`` that are no resends, with ``written_at_ps`` set."""
    last: dict[int, Seen] = {}
    found: deque[Seen] = deque()
    for seen in sent:
        if seen.opcode != Opcode.PAYLOAD:
            continue
        vc = seen.field("vc")
        if vc in last and (seen.field("tx_seq"), seen.payload) == (last[vc].field("tx_seq"), last[vc].payload):
            continue
        acks = [r.at_ps for r in received if r.opcode == Opcode.ACK and r.field("vc") == vc and r.at_ps < seen.at_ps]
        was_waiting = vc in last and acks and seen.at_ps - acks[-1] < WAITING_PS
        seen.written_at_ps = last[vc].written_at_ps if was_waiting else seen.at_ps
        last[vc] = seen
        found.append(seen)
    return found


@dataclass
class Replay:
    """One side of one capture.

    Attributes
    ----------
    lost : frames received on the line that the captured endpoint never took
    named_again : OPENs sent because the owner named the target again on an open link
    given_up : frames sent, before which the owner dropped what was unacknowledged and began anew
    read_as : frames received, and as which other bytes the captured endpoint read them
    is_midway : the capture begins on a link that is open
    """

    name: str
    mac: int
    ip: int = 0
    lost: frozenset[int] = frozenset()
    named_again: frozenset[int] = frozenset()
    given_up: frozenset[int] = frozenset()
    read_as: dict[int, bytes] = field(default_factory=dict)
    is_midway: bool = False
    config: EndpointConfig = field(default_factory=lambda: EndpointConfig.profile("module"))
    compared: list[tuple[Seen, bytes]] = field(default_factory=list)

    def run(self) -> Replay:
        """Raise Difference at the first frame that ours would not have sent, or not then."""
        mode = Mode.IPV4 if self.ip else Mode.ETHERNET
        frames = [seen for seen in read_frames(self.name) if seen.mode is mode]
        sent = [seen for seen in frames if seen.field("src_mac") == self.mac]
        received = [seen for seen in frames if seen.field("dst_mac") == self.mac]
        self.endpoint = Endpoint(self.mac, self.config, ip=self.ip, slot_bytes=2048)
        self.endpoint.is_listening = True
        self.ours: deque[bytes] = deque()
        self.to_write = writes(sent, received)
        if self.is_midway:
            self._open_before(sent[0])
        for seen in sorted(sent + received, key=lambda seen: seen.number):
            if seen.field("src_mac") == self.mac:
                self._on_sent(seen)
            else:
                self._on_received(seen)
        if self.ours:
            raise Difference(f"{self.name}: ours sends {len(self.ours)} frames more at the end")
        return self

    def _open_before(self, first: Seen) -> None:
        now_ps = first.at_ps - PS_PER_MS
        self.endpoint.connect(first.field("dst_mac"), first.field("vc"), now_ps)
        self._drain(now_ps)
        self.ours.clear()
        answer = wire.make_header(
            dst_mac=self.mac, src_mac=first.field("dst_mac"), opcode=Opcode.OPEN_ACK, vc=first.field("vc"), tx_seq=0,
            rx_seq=1,
        )  # fmt: skip
        self.endpoint.receive([wire.build(answer)], now_ps)

    def _link(self, seen: Seen, peer: str) -> Link | None:
        for link in self.endpoint.links:
            if link.peer_mac == seen.field(peer) and link.vc == seen.field("vc"):
                return link
        return None

    def _drain(self, now_ps: int) -> None:
        while (frame := self.endpoint.poll_transmit(now_ps)) is not None:
            self.ours.append(bytes(frame))

    def _check_timers(self, seen: Seen) -> None:
        overdue_ps = seen.at_ps - self.endpoint.next_deadline_ps()
        if overdue_ps > LATE_PS:
            raise Difference(f"{self.name} {seen.number}: a timer of ours was due {overdue_ps / PS_PER_MS:.1f} ms ago")

    def _write_next(self, link: Link, now_ps: int) -> None:
        """Submit the next PAYLOAD of the owner that was written by now; one at a time, to keep its bounds."""
        is_time = self.to_write and self.to_write[0].written_at_ps <= now_ps and self.to_write[0].field("vc") == link.vc
        if is_time and link.state == State.OPEN and link.unacknowledged_bytes == 0:
            link.submit(self.to_write.popleft().payload)
            self._drain(now_ps)

    def _on_received(self, seen: Seen) -> None:
        self._check_timers(seen)
        if seen.number in self.lost:
            return
        self.endpoint.receive([self.read_as.get(seen.number, seen.data)], seen.at_ps)
        self.endpoint.accept()
        self._drain(seen.at_ps)
        if seen.opcode == Opcode.ACK and (link := self._link(seen, "src_mac")) is not None:
            self._write_next(link, seen.at_ps)

    def _on_sent(self, seen: Seen) -> None:
        link = self._link(seen, "dst_mac")
        if seen.number in self.given_up and link is not None:
            self.endpoint.forget(link)
            link = None
        self._check_timers(seen)
        if not self.ours:
            self._act(seen, link)
            self._drain(seen.at_ps)
        if not self.ours:
            raise Difference(f"{self.name} {seen.number}: ours does not send this {Opcode(seen.opcode).name}")
        ours = self.ours.popleft()
        self.compared.append((seen, ours))
        if ours != seen.data:
            raise Difference(f"{self.name} {seen.number}: {describe(seen.data)} there, {describe(ours)} from ours")

    def _act(self, seen: Seen, link: Link | None) -> None:
        """Nothing of ours waits to be sent: the owner acts, or a timer has fired."""
        now_ps = seen.at_ps
        if self.endpoint.next_deadline_ps() <= now_ps:
            self.endpoint.handle_timeout(now_ps)
        elif link is None and seen.opcode == Opcode.OPEN:
            self.endpoint.connect(seen.field("dst_mac"), seen.field("vc"), now_ps, peer_ip=seen.field("dst_ip"))
        elif link is not None and seen.number in self.named_again:
            endpoint = self.endpoint  # no call of Endpoint does that
            outbox = endpoint._outbox
            outbox.put(on_open_at(endpoint._rows.links, link.row, now_ps, outbox.out, 0), link.row)
        elif link is not None and seen.opcode == Opcode.PAYLOAD:
            self._write_next(link, now_ps)
        elif link is not None and seen.opcode == Opcode.CLOSE:
            self.endpoint.close(link, now_ps)


def describe(data: bytes) -> str:
    """One frame in a few words."""
    try:
        frame = (ipv4 if data[12:14] == b"\x08\x00" else wire).parse(data, max_payload_bytes=_LONGEST)
    except FrameError as error:
        return str(error)
    row = frame.header[0]
    return f"{Opcode(row['opcode']).name} vc {row['vc']} tx {row['tx_seq']} rx {row['rx_seq']}, {len(frame.payload)} B"

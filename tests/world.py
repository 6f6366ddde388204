"""Two endpoints on a virtual clock: the exported kernels, an unfriendly network, and an oracle that watches both.

A script says everything that happens (a seed included), so a run is a function of its script. Frames are header-only;
the oracle carries each PAYLOAD's stream offset beside it, as a real payload would carry its bytes, and checks after
every step what must hold at all times, and at the end what must have come of it.

``python tests/world.py SEED`` prints the digest of one run, for comparing compiled and interpreted kernels.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ttpoe import machine
from ttpoe.fsm import Opcode, State
from ttpoe.state import FRAME, LINK, POOL, Failure, Status, init_links, make_params, ring_slots
from ttpoe.units import NEVER, PS_PER_MS, PS_PER_US

A, B = 0, 1
_MASK = 0xFFFFFFFF


class Violation(AssertionError):
    """The machine broke a promise."""


class Rig:
    """One link, fed by hand. Its opening id is 1000, its peer's 500; ``rig["cwnd"]`` style reads a field."""

    def __init__(
        self, *, initial_seq: int = 1000, mtu_bytes: int = 100, window_bytes: int = 1000, rto_initial_ps: int = 100,
        rto_min_ps: int = 1, rto_max_ps: int = 100_000, retry_limit: int = 5, pool_bytes: int = NEVER, slots: int = 0,
        rx_limit_bytes: int = NEVER, **policy: Any,
    ) -> None:  # fmt: skip
        self.params = make_params(
            mtu_bytes=mtu_bytes, window_bytes=window_bytes, rto_initial_ps=rto_initial_ps, rto_min_ps=rto_min_ps,
            rto_max_ps=rto_max_ps, retry_limit=retry_limit, **policy,
        )  # fmt: skip
        self.links = np.zeros(1, LINK)
        self.ring = init_links(self.links, initial_seq, 2, self.params, slots or ring_slots(window_bytes, mtu_bytes))
        self["rx_limit_bytes"] = rx_limit_bytes
        self.pools = np.zeros(1, POOL)
        self.pools["limit_bytes"] = pool_bytes
        self.out = np.zeros(8, FRAME)
        self.inbox = np.zeros(1, FRAME)
        self.now_ps = 0

    def __getitem__(self, name: str) -> int:
        return int(self.links[name][0])

    def __setitem__(self, name: str, value: int) -> None:
        self.links[name][0] = value

    @property
    def state(self) -> State:
        return State(self["state"])

    @property
    def failure(self) -> Failure:
        return Failure(self["failure"])

    def taken(self, n_out: int) -> list[tuple[Opcode, int, int]]:
        assert n_out >= 0, Status(n_out)
        assert all(self.out["vc"][:n_out] == 2)
        return [(Opcode(f["opcode"]), int(f["tx_seq"]), int(f["rx_seq"])) for f in self.out[:n_out]]

    def feed(
        self, opcode: Opcode, tx: int = 0, rx: int = 0, size: int = 0, marks: int = 0
    ) -> list[tuple[Opcode, int, int]]:
        """A frame arrives; returns the answers as (opcode, tx, rx)."""
        self.inbox[0] = (opcode, marks, 2, tx, rx, size)
        return self.taken(
            machine.on_frame_at(
                self.links, 0, self.ring, self.pools, 0, self.params, self.inbox, 0, self.now_ps, self.out, 0
            )
        )

    def poll(self, most: int = 1000) -> list[tuple[int, int]]:
        """PAYLOAD until none may be sent (or ``most``), as (id, bytes)."""
        sent: list[tuple[int, int]] = []
        while len(sent) < most and machine.poll_payload_at(
            self.links, 0, self.ring, self.pools, 0, self.params, self.now_ps, self.out, 0
        ):
            frame = self.out[0]
            assert (frame["opcode"], frame["vc"], frame["rx_seq"]) == (Opcode.PAYLOAD, 2, 0)
            sent.append((int(frame["tx_seq"]), int(frame["payload_bytes"])))
        return sent

    def timeout(self) -> list[tuple[Opcode, int, int]]:
        """The clock reaches the timer."""
        assert self["timer_at_ps"] != NEVER
        self.now_ps = self["timer_at_ps"]
        n_out = machine.on_timeout_at(self.links, 0, self.params, self.now_ps, self.out, 0)
        machine.release_at(self.links, 0, self.pools, 0)
        return self.taken(n_out)

    def open(self) -> list[tuple[Opcode, int, int]]:
        return self.taken(machine.on_open_at(self.links, 0, self.now_ps, self.out, 0))

    def submit(self, length_bytes: int) -> None:
        assert machine.on_submit_at(self.links, 0, length_bytes) == Status.OK

    def read(self, length_bytes: int) -> None:
        machine.on_read_at(self.links, 0, length_bytes)

    def close(self) -> list[tuple[Opcode, int, int]]:
        return self.taken(machine.on_close_at(self.links, 0, self.now_ps, self.out, 0))

    def bring_to(self, state: State) -> Rig:
        """From fresh to ``state``, by frames alone. In OPEN and CLOSE_RECD one PAYLOAD, 1001 of 100 bytes, is out."""
        if state is State.OPEN_SENT:
            self.open()
        elif state is State.OPEN_RECD:  # never rests there: the OPEN_ACK is sent in the same step
            self["state"], self["rx_seq"] = state, 500
        elif state is not State.CLOSED:
            self.feed(Opcode.OPEN, 500)
            if state is State.CLOSE_SENT:
                self.close()
            else:
                self.submit(100)
                self.poll()
                if state is State.CLOSE_RECD:
                    self.feed(Opcode.CLOSE, 501, 1000)
        assert self.state is state
        return self


@dataclass(frozen=True)
class Path:
    """One direction of the network."""

    loss: float = 0.0
    """Probability that a frame is lost; a frame with a bad FCS is one of them."""
    duplicate: float = 0.0
    delay_ps: int = 5 * PS_PER_US
    jitter_ps: int = 0
    """Extra delay, uniform in [0, jitter_ps] and drawn per frame: frames overtake each other."""
    dead_from_ps: int = NEVER
    """Every frame sent from here on is lost."""


@dataclass(frozen=True)
class Reader:
    """Who reads what arrives at one side's links."""

    limit_bytes: int = NEVER
    """What may wait for it."""
    every_ps: int = 0
    """It comes back so long after it was told of something to read; 0: it reads at once."""
    take_bytes: int = NEVER
    """What it takes each time."""


@dataclass(frozen=True)
class Script:
    """All that happens in one run."""

    seed: int = 0
    initial_seqs: tuple[int, int] = (100, 900)
    paths: tuple[Path, Path] = (Path(), Path())
    """From A to B, and from B to A."""
    readers: tuple[Reader, Reader] = (Reader(), Reader())
    policy: tuple[tuple[str, Any], ...] = ()
    """Further parameters of :func:`ttpoe.state.make_params`."""
    links: int = 1
    mtu_bytes: int = 1024
    window_bytes: int = 8192
    pool_bytes: int = NEVER
    retry_limit: int = 60
    rto_initial_ps: int = 100 * PS_PER_US
    rto_min_ps: int = 20 * PS_PER_US
    rto_max_ps: int = 2 * PS_PER_MS
    byte_ps: int = 80
    """Time on the line of one byte: 80 is 100 Gb/s."""
    opens: tuple[tuple[int, int, int], ...] = ((0, A, 0),)
    """(time_ps, side, link)"""
    submits: tuple[tuple[int, int, int, int], ...] = ()
    """(time_ps, side, link, length_bytes); waits at an end that is not open yet."""
    closes: tuple[tuple[int, int, int], ...] = ()
    max_steps: int = 60_000


@dataclass
class Flight:
    """A frame on its way, and what the oracle knows of its payload."""

    opcode: int
    tx_seq: int
    rx_seq: int
    payload_bytes: int
    start_byte: int = -1


@dataclass
class World:
    """One run of a script; after :meth:`run`, the rows are in ``links``."""

    script: Script
    keep_log: bool = False
    now_ps: int = 0
    steps: int = 0
    log: list[tuple[int, ...]] = field(default_factory=list)
    sent: list[Flight] = field(default_factory=list)
    ended_at_ps: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        s = self.script
        n = s.links
        self.rng = random.Random(s.seed)
        self.params = make_params(
            mtu_bytes=s.mtu_bytes, window_bytes=s.window_bytes, rto_initial_ps=s.rto_initial_ps,
            rto_min_ps=s.rto_min_ps, rto_max_ps=s.rto_max_ps, retry_limit=s.retry_limit, **dict(s.policy),
        )  # fmt: skip
        slots = ring_slots(s.window_bytes, s.mtu_bytes)
        self.links = np.zeros(2 * n, LINK)  # A's links, then B's
        seqs = np.array([(s.initial_seqs[side] + 7 * k) & _MASK for side in (A, B) for k in range(n)])
        self.ring = init_links(self.links, seqs, 2, self.params, slots)
        for side in (A, B):
            self.links["rx_limit_bytes"][side * n : side * n + n] = s.readers[side].limit_bytes
        self.pools = np.zeros(2, POOL)
        self.pools["limit_bytes"] = s.pool_bytes
        self.out = np.zeros(machine.MAX_ANSWERS, FRAME)
        self.inbox = np.zeros(1, FRAME)
        self.column = {name: self.links[name] for name in LINK.names or ()}
        self.heap: list[tuple[int, int, str, int, object]] = []
        self.counter = 0
        self.armed = [NEVER] * (2 * n)
        self.is_reading = [False] * (2 * n)
        self.line_free_ps = [0, 0]
        self.turn = [0, 0]
        self.owed: list[list[int]] = [[] for _ in self.links]  # submits and a close (-1) that wait for the open
        self.cut: list[dict[int, tuple[int, int]]] = [{} for _ in self.links]  # n-th id -> (start, length)
        for at, side, link in s.opens:
            self._at(at, "open", side * n + link)
        for at, side, link, length in s.submits:
            self._at(at, "submit", side * n + link, length)
        for at, side, link in s.closes:
            self._at(at, "submit", side * n + link, -1)

    def _at(self, at_ps: int, kind: str, row: int, what: object = None) -> None:
        self.counter += 1
        heapq.heappush(self.heap, (at_ps, self.counter, kind, row, what))

    # the network

    def _transmit(self, row: int, flight: Flight) -> None:
        path = self.script.paths[row // self.script.links]
        peer = (row + self.script.links) % len(self.links)
        self.sent.append(flight)
        draw = self.rng.random()
        if self.keep_log:
            self.log.append((self.now_ps, row, flight.opcode, flight.tx_seq, flight.rx_seq, flight.payload_bytes))
        if draw < path.loss or self.now_ps >= path.dead_from_ps:
            return
        for _ in range(2 if self.rng.random() < path.duplicate else 1):
            delay = path.delay_ps + self.rng.randint(0, path.jitter_ps)
            self._at(self.now_ps + delay, "frame", peer, flight)

    def _answer(self, row: int, n_out: int) -> None:
        if n_out < 0:
            raise Violation(f"status {Status(n_out).name}")
        for k in range(n_out):
            frame = self.out[k]
            flight = Flight(int(frame["opcode"]), int(frame["tx_seq"]), int(frame["rx_seq"]), 0)
            if flight.opcode == Opcode.PAYLOAD:
                raise Violation("a PAYLOAD among the answers")
            self._transmit(row, flight)

    def _poll(self, side: int) -> None:
        """One PAYLOAD of the next of this side's links that has one, if the line is free; then wait for the line."""
        n = self.script.links
        c = self.column
        if self.line_free_ps[side] > self.now_ps:
            return
        for k in range(n):
            row = side * n + (self.turn[side] + k) % n
            before = int(c["sent_bytes"][row])
            n_out = machine.poll_payload_at(
                self.links, row, self.ring, self.pools, side, self.params, self.now_ps, self.out, 0
            )
            if n_out:
                if c["sent_bytes"][row] - c["acked_bytes"][row] > min(c["cwnd_bytes"][row], c["peer_room_bytes"][row]):
                    raise Violation("more in flight than the path or the peer's buffer may hold")
                frame = self.out[0]
                length = int(frame["payload_bytes"])
                flight = Flight(int(frame["opcode"]), int(frame["tx_seq"]), int(frame["rx_seq"]), length, before)
                if flight.opcode != Opcode.PAYLOAD or n_out != 1 or length <= 0:
                    raise Violation(f"polled {flight}")
                nth = (flight.tx_seq - int(c["initial_seq"][row])) & _MASK
                if self.cut[row].setdefault(nth, (before, length)) != (before, length):
                    raise Violation(f"id {flight.tx_seq} was {self.cut[row][nth]}, now {(before, length)}")
                self.turn[side] = (row + 1) % n
                self.line_free_ps[side] = self.now_ps + self.script.byte_ps * (length + 88)
                self._transmit(row, flight)
                self._watch(row)
                self._arm(row)
                self._at(self.line_free_ps[side], "line", side * n)
                return

    # the events

    def run(self) -> World:
        """Until nothing can happen any more."""
        while self.heap:
            self.steps += 1
            if self.steps > self.script.max_steps:
                raise Violation(f"still busy after {self.steps} steps at {self.now_ps} ps")
            self.now_ps, _, kind, row, what = heapq.heappop(self.heap)
            side = row // self.script.links
            if kind == "timer":
                if what != self.armed[row]:
                    continue  # re-armed since: a stale event
                self.armed[row] = NEVER
                n_out = machine.on_timeout_at(self.links, row, self.params, self.now_ps, self.out, 0)
                machine.release_at(self.links, row, self.pools, side)
                self._answer(row, n_out)
            elif kind == "frame":
                assert isinstance(what, Flight)
                self._receive(row, side, what)
            elif kind == "open":
                n_out = machine.on_open_at(self.links, row, self.now_ps, self.out, 0)
                if n_out != Status.ILLEGAL_SEND:  # the peer's OPEN came first
                    self._answer(row, n_out)
            elif kind == "read":
                self._read(row, side)
            elif kind == "submit":
                self.owed[row].append(what)  # type: ignore[arg-type]
            self._settle(row)
            self._watch(row)
            self._poll(side)
        self._judge()
        return self

    def _receive(self, row: int, side: int, flight: Flight) -> None:
        c = self.column
        frame = self.inbox[0]
        frame["opcode"], frame["vc"], frame["tx_seq"] = flight.opcode, 2, flight.tx_seq
        frame["rx_seq"], frame["payload_bytes"] = flight.rx_seq, flight.payload_bytes
        rx_bytes, rx_seq = int(c["rx_bytes"][row]), int(c["rx_seq"][row])
        n_out = machine.on_frame_at(
            self.links, row, self.ring, self.pools, side, self.params, self.inbox, 0, self.now_ps, self.out, 0
        )
        delivered = int(c["rx_bytes"][row]) - rx_bytes
        if delivered:
            if flight.opcode != Opcode.PAYLOAD or delivered != flight.payload_bytes or flight.start_byte != rx_bytes:
                raise Violation(f"delivered {delivered} at {rx_bytes} from {flight}")
            if int(c["rx_seq"][row]) != flight.tx_seq or flight.tx_seq != (rx_seq + 1) & _MASK:
                raise Violation(f"delivered {flight} after id {rx_seq}")
            if not self.is_reading[row]:
                self.is_reading[row] = True
                self._at(self.now_ps + self.script.readers[side].every_ps, "read", row)
        self._answer(row, n_out)

    def _read(self, row: int, side: int) -> None:
        reader = self.script.readers[side]
        unread = int(self.column["rx_bytes"][row] - self.column["rx_read_bytes"][row])
        machine.on_read_at(self.links, row, min(unread, reader.take_bytes))
        self.is_reading[row] = unread > reader.take_bytes
        if self.is_reading[row]:
            self._at(self.now_ps + reader.every_ps, "read", row)

    def _settle(self, row: int) -> None:
        """What the owner wants, as soon as the link takes it."""
        c = self.column
        owed = self.owed[row]
        while owed and (c["state"][row] != State.CLOSED or c["has_ended"][row]):
            what = owed.pop(0)
            if what < 0:
                n_out = machine.on_close_at(self.links, row, self.now_ps, self.out, 0)
                if n_out != Status.NOT_OPEN:
                    self._answer(row, n_out)
            else:
                machine.on_submit_at(self.links, row, what)  # NOT_OPEN tells the owner; nothing is owed then
        self._arm(row)
        if c["has_ended"][row]:
            self.ended_at_ps.setdefault(row, self.now_ps)

    def _arm(self, row: int) -> None:
        timer_at_ps = int(self.column["timer_at_ps"][row])
        if timer_at_ps != self.armed[row]:
            self.armed[row] = timer_at_ps
            if timer_at_ps != NEVER:
                self._at(max(timer_at_ps, self.now_ps), "timer", row, timer_at_ps)

    # the oracle

    def _watch(self, row: int) -> None:
        """What must hold at all times."""
        c = {name: int(column[row]) for name, column in self.column.items()}
        state = c["state"]
        peer = (row + self.script.links) % len(self.links)
        side = row // self.script.links
        held = c["cut_bytes"] - c["acked_bytes"]
        if not 0 <= held <= self.script.window_bytes:
            raise Violation(f"holds {held} bytes in a window of {self.script.window_bytes}")
        n = self.script.links
        span = slice(side * n, side * n + n)
        pool_held = int((self.column["cut_bytes"][span] - self.column["acked_bytes"][span]).sum())
        if self.pools[side]["held_bytes"] != pool_held or pool_held > self.script.pool_bytes:
            raise Violation(f"pool counts {self.pools[side]['held_bytes']}, links hold {pool_held}")
        in_flight = (c["tx_next"] - c["tx_una"]) & _MASK
        outstanding = (c["tx_max"] - c["tx_una"]) & _MASK
        if not in_flight <= outstanding <= c["ring_mask"] + 1:
            raise Violation(f"ids {c['tx_una']} {c['tx_next']} {c['tx_max']}")
        if not c["acked_bytes"] <= c["sent_bytes"] <= c["cut_bytes"] <= c["submitted_bytes"]:
            raise Violation("stream offsets out of order")
        if (outstanding == 0) != (held == 0):
            raise Violation("ids and bytes disagree")
        if c["acked_bytes"] > int(self.column["rx_bytes"][peer]):
            raise Violation("acknowledged before it was delivered")
        unread = c["rx_bytes"] - c["rx_read_bytes"]
        if not 0 <= unread <= max(self.script.readers[side].limit_bytes, self.script.mtu_bytes):
            raise Violation(f"{unread} bytes wait for the reader")
        if c["cwnd_bytes"] < self.script.mtu_bytes or c["ssthresh_bytes"] < 2 * self.script.mtu_bytes:
            raise Violation(f"cwnd {c['cwnd_bytes']}, ssthresh {c['ssthresh_bytes']}")
        armed = c["timer_at_ps"] != NEVER
        if c["timer_is_probe"] and not (armed and in_flight and c["tx_next"] == c["tx_max"]):
            raise Violation("waits to probe a tail that is not out")
        if c["peer_room_bytes"] == 0 and not (armed and outstanding and not in_flight):
            raise Violation("holds, and nothing asks the peer")
        if 0 < c["peer_room_bytes"] < self.script.mtu_bytes:
            raise Violation("the next frame may not fit, and nothing else asks the peer")
        if state == State.CLOSED and armed:
            raise Violation("a closed link has a timer")
        if state in (State.OPEN_SENT, State.CLOSE_SENT) and not armed:
            raise Violation(f"nothing drives {State(state).name}")
        if state == State.CLOSE_RECD and not armed and outstanding == 0:
            raise Violation("nothing drives CLOSE_RECD")
        if in_flight and state != State.CLOSED and not armed:
            raise Violation("in flight without a timer")
        if state == State.OPEN_RECD:
            raise Violation("rests in OPEN_RECD")
        repeats = armed and c["timer_at_ps"] == c["repeat_at_ps"] and state == State.OPEN and not outstanding
        if armed and not repeats and c["timer_at_ps"] - self.now_ps > self.script.rto_max_ps:
            raise Violation("a timer beyond rto_max")
        if c["has_ended"] and state != State.CLOSED:
            raise Violation("an ended link lives again")
        if c["failure"] and not c["has_ended"]:
            raise Violation("a failed link goes on")

    def failure(self, side: int, link: int = 0) -> Failure:
        return Failure(int(self.column["failure"][side * self.script.links + link]))

    def state(self, side: int, link: int = 0) -> State:
        return State(int(self.column["state"][side * self.script.links + link]))

    def _judge(self) -> None:
        """What must have come of it, now that nothing can happen any more."""
        c = self.column
        n = self.script.links
        for row in range(2 * n):
            peer = (row + n) % (2 * n)
            state, failure = int(c["state"][row]), int(c["failure"][row])
            if state not in (State.CLOSED, State.OPEN):
                raise Violation(f"stuck in {State(state).name}")
            if failure == Failure.NONE and c["acked_bytes"][row] != c["submitted_bytes"][row]:
                raise Violation(f"owes {c['submitted_bytes'][row] - c['acked_bytes'][row]} bytes and says nothing")
            if self.owed[row] and c["state"][row] != State.CLOSED:
                raise Violation("the owner was not served")
            if failure == Failure.PEER_RESTARTED:
                raise Violation("took a duplicate for a restart")
            if failure == Failure.LINK_DOWN and not c["has_ended"][peer]:
                raise Violation("gave up a live peer")
            if not c["has_ended"][row] and c["rx_bytes"][row] != c["rx_read_bytes"][row]:
                raise Violation("the reader was forgotten")
            if c["is_closing"][row] and state != State.CLOSED:
                raise Violation("the owner's close never came")
            if c["has_ended"][row] and not c["has_ended"][peer] and not failure:
                raise Violation("closed on one side only")
        for side in (A, B):
            held = sum(int(c["cut_bytes"][r] - c["acked_bytes"][r]) for r in range(side * n, side * n + n))
            if held or self.pools[side]["held_bytes"]:
                raise Violation("the pool is not empty")

    def digest(self) -> str:
        """Hash of every frame sent and of the final rows."""
        text = repr(self.log).encode() + self.links.tobytes() + self.ring.tobytes() + self.pools.tobytes()
        return hashlib.sha256(text).hexdigest()


def draw_script(seed: int, **fixed: object) -> Script:
    """A script drawn from a seed: both directions, one or two links, every kind of trouble."""
    rng = random.Random(seed)

    def path() -> Path:
        return Path(
            loss=rng.choice((0.0, 0.0, 0.02, 0.1, 0.3)), duplicate=rng.choice((0.0, 0.0, 0.05, 0.3)),
            delay_ps=rng.choice((1, 5, 30)) * PS_PER_US, jitter_ps=rng.choice((0, 0, 1, 10, 80, 400)) * PS_PER_US,
        )  # fmt: skip

    def reader() -> Reader:
        if rng.random() < 0.5:
            return Reader()
        return Reader(
            limit_bytes=mtu * rng.choice((1, 2, 8)) + rng.choice((-1, 0, 5)), take_bytes=rng.choice((mtu, 3 * mtu)),
            every_ps=rng.choice((0, 1, 20, 300)) * PS_PER_US,
        )  # fmt: skip

    policy = (
        ("congestion_control", rng.choice(("fixed", "reno"))), ("initial_window_packets", rng.choice((1, 2, 10))),
        ("tail_loss_probe", rng.random() < 0.7), ("probe_min_ps", rng.choice((0, 0, 30 * PS_PER_US))),
    )  # fmt: skip
    links = rng.choice((1, 1, 2))
    mtu = rng.choice((64, 1024, 1024, 4096))
    window = mtu * rng.choice((1, 2, 3, 8, 20)) + rng.choice((0, 0, 17))
    span = rng.choice((1, 200, 2000)) * PS_PER_US

    def when() -> int:
        return rng.randint(0, span)

    opens, submits, closes = [], [], []
    for link in range(links):
        first = rng.choice((A, B))
        opens.append((0, first, link))
        if rng.random() < 0.4:
            opens.append((rng.randint(0, 20 * PS_PER_US), 1 - first, link))
        for side in (A, B):
            if rng.random() < 0.85:
                for _ in range(rng.randint(1, 12)):
                    submits.append((when(), side, link, rng.choice((1, 63, mtu, 5 * mtu, rng.randint(1, 9 * mtu)))))
            if rng.random() < 0.6:
                closes.append((rng.choice((0, span, when(), 2 * span)), side, link))
    script = Script(
        seed=seed,
        initial_seqs=tuple(rng.choice((0, 1, 5, 0x7FFFFFF0, 0xFFFFFFF0, 0xFFFFFFFF, rng.getrandbits(32)))
                           for _ in range(2)),  # type: ignore[arg-type]
        paths=(path(), path()), links=links, mtu_bytes=mtu, window_bytes=window,
        pool_bytes=rng.choice((NEVER, window, 2 * window)),
        opens=tuple(opens), submits=tuple(submits), closes=tuple(closes),
        readers=(reader(), reader()), policy=policy,
    )  # fmt: skip
    return replace(script, **fixed)  # type: ignore[arg-type]


if __name__ == "__main__":
    np.seterr(all="raise")
    for argument in sys.argv[1:]:
        print(World(draw_script(int(argument)), keep_log=True).run().digest())

"""The event queue against a sorted list: buckets, ring, far heap, growth, and the order at one instant."""

from __future__ import annotations

import heapq
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emulator.assembly import chain
from emulator.fabric import Fabric
from emulator.schedule import (
    ARRIVAL,
    DEPARTURE,
    EVENT,
    LINK_STATE,
    MAX_SHIFT,
    SCHEDULE,
    SLOTS,
    TIMER,
    bucket_shift,
    due_class,
    due_time_ps,
    open_next_bucket,
    push,
)  # fmt: skip
from ttpoe._jit import kernel

PORT = np.dtype([("tie", "i8")])


class Queue(NamedTuple):
    """The fields of a World that the queue uses."""

    schedule: np.ndarray
    nodes: np.ndarray
    far: np.ndarray
    due: np.ndarray
    due_subject: np.ndarray
    spare: np.ndarray
    spare_subject: np.ndarray
    ports: np.ndarray


@kernel(export=True)
def push_at(queue, time_ps, event_class, subject, port):
    push(queue, time_ps, event_class, subject, queue.ports[port])


@kernel(export=True)
def pop(queue, out):
    schedule = queue.schedule[0]
    if schedule["cursor"] == schedule["due_count"] and open_next_bucket(queue) == 0:
        return 0
    cursor = schedule["cursor"]
    out[0] = due_time_ps(schedule, queue.due)
    out[1] = due_class(queue.due, cursor)
    out[2] = queue.due_subject[cursor]
    schedule["cursor"] = cursor + 1
    return 1


def make_queue(rows: int, shift: int, ties: list[int]) -> Queue:
    schedule = np.zeros(1, SCHEDULE)
    schedule["free_count"] = rows
    schedule["slots"] = schedule["era_slots"] = -1
    schedule["bucket"] = -1
    schedule["shift"] = shift
    ports = np.zeros(len(ties), PORT)
    ports["tie"] = ties
    return Queue(
        schedule, chain(np.zeros(rows, EVENT), 0, -1), np.zeros(rows, EVENT), np.zeros(rows, np.int64),
        np.zeros(rows, np.int32), np.zeros(rows, np.int64), np.zeros(rows, np.int32), ports,
    )  # fmt: skip


def hash32(x: int) -> int:
    for _ in range(2):
        x = (x ^ (x >> 16)) * 0x45D9F3B & 0xFFFFFFFF
    return x ^ (x >> 16)


class Pair:
    """The queue and a heap that is told the same."""

    MARGIN = 2

    def __init__(self, rows: int, shift: int, ties: list[int]) -> None:
        self.queue: Any = make_queue(rows, shift, ties)
        self.heap: list[tuple[int, int, int, int]] = []
        self.ties = list(ties)
        self.now_ps = 0
        self.subject = 0
        self.grown = 0
        self._out = np.zeros(3, np.int64)

    def push(self, ahead_ps: int, event_class: int, port: int) -> None:
        if self.queue.schedule[0]["free_count"] < self.MARGIN:  # as the engine does before each event
            self.grown += 1
            fabric: Any = SimpleNamespace(world=self.queue)
            Fabric.grow_events(fabric)
            self.queue = fabric.world
        self.ties[port] += 1
        self.subject += 1
        time_ps = self.now_ps + ahead_ps
        heapq.heappush(self.heap, (time_ps, event_class, hash32(self.ties[port] & 0xFFFFFFFF), self.subject))
        push_at(self.queue, time_ps, event_class, self.subject, port)
        self.check()

    def pop(self) -> bool:
        got = pop(self.queue, self._out)
        assert bool(got) == bool(self.heap)
        if not got:
            return False
        time_ps, event_class, _, subject = heapq.heappop(self.heap)
        assert self._out.tolist() == [time_ps, event_class, subject]
        self.now_ps = time_ps
        self.check()
        return True

    def check(self) -> None:
        schedule = self.queue.schedule[0]
        served = int(schedule["cursor"])
        rows = len(self.queue.nodes)
        assert int(schedule["free_count"]) + len(self.heap) + served == rows
        assert 0 <= served <= int(schedule["due_count"]) <= rows
        assert int(schedule["far_count"]) <= rows


TIES = [0x10000000, 0x40000000, 0x90000000, 0xFFFFFFF0]  # far apart, and one that wraps


def aheads(shift: int) -> st.SearchStrategy[int]:
    """Times ahead: the same instant, the bucket being served, its borders, the end of the ring, far and very far."""
    width = 1 << shift
    near = st.integers(-2, 2).map(abs)
    borders = st.builds(lambda k, d: max(k * width + d, 0), st.integers(0, 3), st.integers(-2, 2))
    ring = st.builds(lambda k, d: max(k * width + d, 0), st.integers(SLOTS - 3, SLOTS + 3), st.integers(-2, 2))
    return st.one_of(near, borders, st.integers(0, 4 * width), st.integers(0, 3 * SLOTS * width), ring,
                     st.integers(0, 2**58))


@st.composite
def scripts(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int, int] | int]]:
    shift = draw(st.sampled_from([1, 2, 5, 12, MAX_SHIFT]))
    pushes = st.tuples(aheads(shift), st.sampled_from([DEPARTURE, LINK_STATE, ARRIVAL, TIMER]), st.integers(0, 3))
    steps = st.one_of(pushes, pushes, st.integers(1, 5))
    return shift, draw(st.integers(4, 40)), draw(st.lists(steps, min_size=1, max_size=120))


@given(scripts())
def test_events_come_in_order(script: tuple[int, int, list[tuple[int, int, int] | int]]) -> None:
    shift, rows, steps = script
    pair = Pair(rows, shift, TIES)
    for step in steps:
        if isinstance(step, int):
            for _ in range(step):
                if not pair.pop() or pair.now_ps > 2**60:
                    break
        else:
            pair.push(*step)
    while pair.pop():
        pass


@pytest.mark.parametrize("offset_ps", [0, 1, 15])
@pytest.mark.parametrize("buckets", [1, 2, 31, 32, 33, SLOTS - 1, SLOTS, SLOTS + 1, 2 * SLOTS, 5 * SLOTS + 3])
def test_a_lone_event_any_number_of_buckets_ahead(buckets: int, offset_ps: int) -> None:
    """At the end of the ring an event's slot would be that of the bucket being served."""
    for start in (0, 5, 31, 1000, SLOTS - 1, SLOTS):
        pair = Pair(8, 4, TIES)
        pair.push((start << 4) + offset_ps, ARRIVAL, 0)
        assert pair.pop()
        pair.push(buckets << 4, ARRIVAL, 1)
        assert pair.pop()
        assert not pair.pop()


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_a_crowded_bucket_is_sorted(count: int, seed: int) -> None:
    """Block sort and merge passes at every length, with equal times."""
    rng = np.random.default_rng(seed)
    pair = Pair(512, 12, TIES)
    times = rng.integers(0, rng.choice([2, 50, 4096]), count)
    for time_ps in times.tolist():
        pair.push(8192 + time_ps, int(rng.integers(0, 4)), int(rng.integers(0, 4)))
    while pair.pop():
        pass


@pytest.mark.parametrize("ahead_ps", [0, 1, 3])
def test_events_inserted_for_ever_in_the_bucket_being_served(ahead_ps: int) -> None:
    """A bucket that serves more events than there are rows: rows of served events are had again."""
    pair = Pair(16, MAX_SHIFT, TIES)
    for port in range(4):
        pair.push(1, ARRIVAL, port)
    for k in range(1000):
        assert pair.pop()
        pair.push(ahead_ps, k % 4, k % 4)
    assert pair.grown > 10
    assert len(pair.queue.nodes) <= 32
    while pair.pop():
        pass


def test_timers_that_are_never_cancelled_grow_the_far_heap() -> None:
    """Stale timers wait in the far heap; it must not outgrow its rows unseen."""
    pair = Pair(8, 1, TIES)
    for k in range(500):
        pair.push(2**40 + k * 7919 % 1000, TIMER, k % 4)
    assert len(pair.queue.far) >= 500
    while pair.pop():
        pass


def test_everything_in_one_bucket_from_ring_and_far_heap() -> None:
    """The far heap holds as many events of a bucket as the ring; they are served as one."""
    pair = Pair(64, 4, TIES)
    at_ps = (SLOTS + 10) << 4
    for k in range(25):
        pair.push(at_ps + k % 3, ARRIVAL, k % 4)  # far: beyond the ring from bucket -1
    pair.push(11 << 4, TIMER, 0)
    assert pair.pop()  # the bucket above now lies in the ring
    for k in range(25):
        pair.push(at_ps - pair.now_ps + k % 3, DEPARTURE if k % 2 else ARRIVAL, k % 4)
    while pair.pop():
        pass


@given(st.permutations([DEPARTURE, LINK_STATE, ARRIVAL, TIMER] * 3))
def test_classes_at_one_instant(classes: list[int]) -> None:
    """Buffers are freed before frames arrive, pauses end before, and timers see what arrived."""
    pair = Pair(64, 5, TIES)
    for k, event_class in enumerate(classes):
        pair.push(1000, event_class, k % 4)
    seen = []
    while pair.pop():
        seen.append(int(pair._out[1]))
    assert seen == sorted(classes)
    assert DEPARTURE < LINK_STATE < ARRIVAL < TIMER


@given(st.lists(st.integers(2, 3), max_size=20))
def test_ties_do_not_depend_on_unrelated_ports(noise: list[int]) -> None:
    """Two ports' events at one instant come in an order that no other port's events change."""

    def order(others: list[int]) -> list[int]:
        queue = make_queue(64, 3, TIES)
        out = np.zeros(3, np.int64)
        for port in others:
            push_at(queue, 500, ARRIVAL, 100 + port, port)
        for k in range(6):
            push_at(queue, 500, ARRIVAL, k, k % 2)
            for port in others[k : k + 1]:
                push_at(queue, 500, DEPARTURE, 100 + port, port)
        seen = []
        while pop(queue, out):
            if out[2] < 100:
                seen.append(int(out[2]))
        return seen

    assert order(noise) == order([])


def test_ties_favour_nobody() -> None:
    """Of two ports with events at 2000 instants each is first about half of the time (5 sigma)."""
    queue = make_queue(4, 3, TIES)
    out = np.zeros(3, np.int64)
    first = 0
    for k in range(2000):
        push_at(queue, 10 * k, ARRIVAL, 0, 0)
        push_at(queue, 10 * k, ARRIVAL, 1, 1)
        pop(queue, out)
        first += int(out[2])
        pop(queue, out)
    assert abs(first - 1000) < 5 * np.sqrt(2000) / 2


@given(st.integers(0, 2**40), st.integers(0, 2**28 - 1))
@example(SLOTS - 1, 0)
@example(1023 * 2**10, 2**10 - 1)
def test_the_shift_keeps_a_line_in_the_ring(longest_ps: int, offset_ps: int) -> None:
    shift = bucket_shift(longest_ps)
    assert 1 <= shift <= MAX_SHIFT
    offset_ps &= (1 << shift) - 1  # anywhere in the bucket being served
    if shift < MAX_SHIFT:
        assert (offset_ps + longest_ps) >> shift < SLOTS
    if 1 < shift < MAX_SHIFT:  # and no more than needed
        assert longest_ps >= (SLOTS - 1) << (shift - 1)

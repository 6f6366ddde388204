"""The shared buffer: verdicts against a model in words, thresholds against their closed forms."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, checked, flows, incast, make, result_of
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import buffer
from emulator.buffer import (
    ADMITTED,
    ADMITTED_XOFF,
    DROP_BUFFER_FULL,
    DROP_HEADROOM_FULL,
    DROP_QUEUE_THRESHOLD,
    INGRESS,
    QUEUE,
    RULES,
    SHARED,
    SWITCH,
)  # fmt: skip
from emulator.engine import RunStatus
from ttpoe._jit import kernel
from ttpoe.units import NEVER


@kernel(export=True)
def on_frame(switches, shared, rules, ingress, i, queues, q, size_bytes):
    return buffer.switch_on_frame(switches[0], shared[0], rules[0], ingress[i], queues[q], size_bytes)


@kernel(export=True)
def on_departure(switches, shared, rules, ingress, i, queues, q, size_bytes):
    return buffer.switch_on_departure(switches[0], shared[0], rules[0], ingress[i], queues[q], size_bytes)


class Switch:
    """Arrays of a small switch of one priority."""

    def __init__(
        self, limit: int, alpha: float, headroom: int = 0, offset: int = 0, *, lossless: bool = True, reserve: int = 0,
        static: int = NEVER, headroom_pool: int = NEVER,
    ) -> None:  # fmt: skip
        self.switch = np.zeros(1, SWITCH)
        self.switch["headroom_limit_bytes"] = headroom_pool
        self.shared = np.zeros(1, SHARED)
        self.shared["limit_bytes"] = limit
        self.rules = np.zeros(1, RULES)
        self.rules[0] = (0, round(alpha * 65_536), static, reserve, offset, lossless)
        self.ingress = np.zeros(4, INGRESS)
        self.ingress["headroom_limit_bytes"] = headroom
        self.queues = np.zeros(4, QUEUE)

    def arrive(self, i: int, q: int, size: int) -> int:
        return int(on_frame(self.switch, self.shared, self.rules, self.ingress, i, self.queues, q, size))

    def depart(self, i: int, q: int, size: int) -> int:
        return int(on_departure(self.switch, self.shared, self.rules, self.ingress, i, self.queues, q, size))


def test_a_lossy_queue_fills_to_its_threshold_and_not_a_byte_more() -> None:
    """Alpha 1: half of the pool, q <= limit - q."""
    switch = Switch(10_000, 1.0, lossless=False)
    for _ in range(5):
        assert switch.arrive(0, 0, 1000) == ADMITTED
    assert switch.arrive(0, 0, 1) == DROP_QUEUE_THRESHOLD
    assert switch.arrive(1, 1, 2500) == ADMITTED  # another queue has its own share of the rest
    assert switch.arrive(1, 1, 1) == DROP_QUEUE_THRESHOLD
    assert switch.queues["bytes"].tolist() == [5000, 2500, 0, 0]


def test_a_full_pool_is_another_cause_than_a_full_queue() -> None:
    switch = Switch(10_000, 64.0, lossless=False)
    for q in range(2):
        assert switch.arrive(q, q, 4900) == ADMITTED
    assert switch.arrive(2, 2, 201) == DROP_BUFFER_FULL
    assert switch.arrive(2, 2, 200) == ADMITTED
    assert switch.shared["bytes"][0] == 10_000


def test_the_frame_that_would_pass_the_threshold_goes_to_headroom_and_asks_for_a_pause() -> None:
    switch = Switch(10_000, 1.0, headroom=3000)
    for _ in range(5):
        assert switch.arrive(0, 0, 1000) == ADMITTED
    assert switch.arrive(0, 0, 1000) == ADMITTED_XOFF
    assert switch.arrive(0, 0, 1000) == ADMITTED  # once
    assert switch.arrive(0, 0, 1000) == ADMITTED
    assert switch.arrive(0, 0, 1) == DROP_HEADROOM_FULL
    assert switch.ingress["bytes"][0] == 5000
    assert switch.ingress["headroom_bytes"][0] == switch.ingress["max_headroom_bytes"][0] == 3000
    assert switch.queues["bytes"][0] == switch.queues["max_bytes"][0] == 8000


def test_what_leaves_frees_headroom_first_and_resumes_below_the_threshold_less_the_offset() -> None:
    switch = Switch(10_000, 1.0, headroom=3000, offset=1500)
    for _ in range(7):
        switch.arrive(0, 0, 1000)
    assert switch.depart(0, 0, 1000) == 0
    assert switch.ingress["headroom_bytes"][0] == 1000
    assert switch.shared["bytes"][0] == 5000
    assert switch.depart(0, 0, 1000) == 0  # headroom empty, 5000 + 1500 > 5000
    assert switch.depart(0, 0, 1000) == 1  # 4000 + 1500 <= 6000
    assert switch.ingress["is_xoff"][0] == 0
    assert switch.depart(0, 0, 1000) == 0  # once


def test_other_ports_raise_the_threshold_at_the_next_departure() -> None:
    """The threshold is that of the whole pool: what another ingress holds keeps this one paused."""
    switch = Switch(12_000, 1.0, headroom=3000)
    for _ in range(4):
        switch.arrive(1, 1, 1000)
    for _ in range(5):
        switch.arrive(0, 0, 1000)
    assert switch.ingress["is_xoff"].tolist() == [1, 0, 0, 0]
    assert switch.depart(0, 0, 1000) == 1  # 4000 <= 12000 - 8000


def test_nothing_left_resumes_however_small_the_threshold() -> None:
    switch = Switch(2000, 1 / 1024, headroom=3000, offset=3000)
    assert switch.arrive(0, 0, 1500) == ADMITTED_XOFF
    assert switch.depart(0, 0, 1500) == 1


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Any, ...]:
    arrivals = st.tuples(st.just("in"), st.integers(0, 3), st.integers(0, 3), st.integers(1, 2000))
    departures = st.tuples(st.just("out"), st.integers(0, 3), st.just(0), st.just(0))
    steps = st.lists(st.one_of(arrivals, arrivals, departures), max_size=150)
    alpha = draw(st.sampled_from([1 / 1024, 0.125, 0.5, 1.0, 8.0, 64.0]))
    limits = st.integers(0, 8000)
    return (draw(st.booleans()), draw(st.integers(1, 20_000)), alpha, draw(limits), draw(st.integers(0, 4000)),
            draw(st.sampled_from([0, 0, 700, 3000])), draw(st.just(NEVER) | limits), draw(st.just(NEVER) | limits),
            draw(steps))  # fmt: skip


@given(traffic())
@settings(max_examples=400)
def test_any_traffic_against_a_model_in_words(case: tuple[Any, ...]) -> None:
    """Each queue first-in-first-out; each account (an ingress if lossless, a queue if not) fills its reserve first."""
    lossless, limit, alpha, headroom, offset, reserve, static, headroom_pool, steps = case
    switch = Switch(limit, alpha, headroom, offset, lossless=lossless, reserve=reserve, static=static,
                    headroom_pool=headroom_pool)  # fmt: skip
    held: list[deque[tuple[int, int]]] = [deque() for _ in range(4)]
    account, extra, paused = [0] * 4, [0] * 4, [False] * 4

    def beyond(k: int, more: int = 0) -> int:
        return max(account[k] + more - reserve, 0)

    def pool() -> int:
        return sum(beyond(k) for k in range(4))

    def threshold() -> int:
        return min(int((limit - pool()) * alpha), static)

    for kind, a, q, size in steps:
        if kind == "out":
            if not held[a]:
                continue
            i, leaving = held[a].popleft()
            k = i if lossless else a
            of_extra = min(extra[k], leaving)
            extra[k] -= of_extra
            account[k] -= leaving - of_extra
            resumes = paused[k] and not extra[k] and (not beyond(k) or beyond(k) + offset <= threshold())
            paused[k] = paused[k] and not resumes
            assert switch.depart(i, a, leaving) == resumes
        else:
            k = a if lossless else q
            is_in_share = beyond(k, size) <= threshold()
            is_in_pool = pool() + beyond(k, size) - beyond(k) <= limit
            if lossless and (extra[k] or not is_in_share or not is_in_pool):
                if extra[k] + size > headroom or sum(extra) + size > headroom_pool:
                    expected = DROP_HEADROOM_FULL
                else:
                    expected = ADMITTED if paused[k] else ADMITTED_XOFF
                    paused[k] = True
                    extra[k] += size
            elif is_in_pool and is_in_share:
                expected = ADMITTED
                account[k] += size
            else:
                expected = DROP_QUEUE_THRESHOLD if is_in_pool else DROP_BUFFER_FULL
            if expected in (ADMITTED, ADMITTED_XOFF):
                held[q].append((a, size))
            assert switch.arrive(a, q, size) == expected
        assert switch.ingress["bytes"].tolist() == (account if lossless else [0] * 4)
        assert switch.ingress["headroom_bytes"].tolist() == extra
        assert switch.ingress["is_xoff"].tolist() == paused
        assert switch.queues["bytes"].tolist() == [sum(s for _, s in queue) for queue in held]
        assert switch.shared["bytes"][0] == pool() <= limit
        assert switch.switch["headroom_bytes"][0] == sum(extra)


FRAME_BYTES = 4154 + 4


@COMPILED
@pytest.mark.parametrize("alpha", [0.125, 0.5, 1.0, 2.0, 8.0])
def test_one_hot_queue_takes_alpha_in_one_plus_alpha(alpha: float) -> None:
    """Choudhury and Hahne: q = alpha (B - q)."""
    size = 1_000_000
    result = checked(incast(8, 1_000_000, switch={"buffer_bytes": size, "alpha": alpha}), "roce")
    expected = size * alpha / (1 + alpha)
    port = next(port for port in result.ports if port["name"] == "s0.p0")
    # The threshold is asked before a frame is counted; acknowledgements hold next to nothing of the pool.
    assert port["max_queue_bytes"] == pytest.approx(expected, abs=FRAME_BYTES)
    assert result.drop_causes["queue_threshold"] > 0


@COMPILED
@pytest.mark.parametrize(("n", "alpha"), [(2, 1.0), (4, 1.0), (4, 0.25), (3, 4.0)])
def test_hot_queues_share_alike(n: int, alpha: float) -> None:
    """n receivers, each of four senders that start together: q = alpha (B - n q)."""
    size = 2_000_000
    rows = [(n + 4 * r + s, r, 1_000_000) for r in range(n) for s in range(4)]
    fabric = make(flows(*rows, switch={"buffer_bytes": size, "alpha": alpha}, until_ps="80us"), "roce")
    assert fabric.run().status is RunStatus.UNTIL
    expected = size * alpha / (1 + n * alpha)
    queues = fabric.world.queues["bytes"].sum(axis=0)
    for held in queues[1 : 2 * n : 2]:
        assert held == pytest.approx(expected, abs=(1 + alpha) * FRAME_BYTES)


@COMPILED
def test_a_large_alpha_leaves_the_pool_as_the_only_limit() -> None:
    """With alpha 64 and many hot queues the pool itself overflows, and says so."""
    rows = [(40 + 4 * r + s, r, 300_000) for r in range(40) for s in range(4)]
    result = result_of(flows(*rows, switch={"buffer_bytes": 1_000_000, "alpha": 64.0}), "roce")
    assert result.drop_causes["buffer_full"] > 0
    assert result.counters["max_shared_bytes"] <= 1_000_000
    assert sum(result.drop_causes.values()) == result.counters["drops"] == result.flows["drops"].sum()

"""Breadth-first search over the world of two ends, and the way to a broken promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from time import perf_counter
from types import ModuleType

import numpy as np

from ttpoe.check import expand as real_kernels
from ttpoe.check.layout import (
    BASES,
    BUDGET,
    COUNTERS,
    FLIGHT,
    GUARDED_LINK,
    INCARNATIONS,
    KEPT,
    LATE,
    LINE,
    MODEL,
    OWNER,
    RTO_PS,
    SLOTS,
    STATE_BYTES,
    Kept,
    Violation,
    World,
)
from ttpoe.constants import SEQ_MASK
from ttpoe.state import FRAME, POOL, init_links, make_params
from ttpoe.units import NEVER

_SLICE = 2048
"""States a compiled call expands at most: some milliseconds, so that progress shows and Ctrl-C is heard."""


@dataclass(frozen=True)
class Bounds:
    """What may happen in one search. Pairs are for A and B.

    Attributes
    ----------
    opens, submits, closes : (int, int)
        What each owner may do, at any time that the machine allows: 0 or 1 open and close, and so many submits.
    losses, duplicates, delays, early_timeouts, crashes : int
        Trouble, at any time: frames lost; copies, and frames overtaken by any number of others; timers that run out
        before what they wait for can have come; ends that forget everything and begin anew.
    window, submit_bytes, mtu_bytes : int
        Bytes that may be unacknowledged, bytes of each submit, and of the largest payload; a byte stands for any
        number of them.
    reader_bytes : (int, int)
        What may wait for each reader, who then reads byte by byte at any time; 0: reads at once.
    retry_limit : int
    line_frames : int
        A PAYLOAD goes on the line only while it holds fewer frames.
    tail_probe : bool
    initial_seqs : (int, int)
    """

    opens: tuple[int, int] = (1, 0)
    submits: tuple[int, int] = (2, 0)
    closes: tuple[int, int] = (1, 0)
    losses: int = 1
    duplicates: int = 0
    delays: int = 0
    early_timeouts: int = 0
    crashes: int = 0
    window: int = 2
    submit_bytes: int = 1
    mtu_bytes: int = 1
    reader_bytes: tuple[int, int] = (0, 0)
    retry_limit: int = 3
    line_frames: int = 3
    tail_probe: bool = False
    initial_seqs: tuple[int, int] = (0xFFFFFFFE, 0x7FFFFFFE)

    def __post_init__(self) -> None:
        most = {
            "opens": 1, "submits": 12, "closes": 1, "losses": 9, "duplicates": LATE, "delays": LATE,
            "early_timeouts": 9, "crashes": INCARNATIONS - 1, "window": SLOTS, "submit_bytes": 8, "mtu_bytes": 8,
            "reader_bytes": 12, "retry_limit": 20, "line_frames": LINE - 2, "initial_seqs": SEQ_MASK,
        }  # fmt: skip
        least = {"window": 1, "submit_bytes": 1, "mtu_bytes": 1, "line_frames": 1}
        for each in fields(self):
            value = getattr(self, each.name)
            for number in value if isinstance(value, tuple) else (value,):
                low, high = least.get(each.name, 0), most.get(each.name, 1)
                if not low <= number <= high:
                    raise ValueError(f"{each.name} is {number}; it must be from {low} to {high}")
        if self.duplicates + self.delays > LATE:
            raise ValueError(f"duplicates and delays are {self.duplicates + self.delays} together; at most {LATE}")
        if self.mtu_bytes > self.window:
            raise ValueError(f"window is {self.window}, below one payload of mtu_bytes {self.mtu_bytes}; raise it")
        if max(self.submits) * self.submit_bytes > 24:
            raise ValueError(f"submits of {self.submit_bytes} bytes are more than 24 bytes together; take fewer")


def make_world(bounds: Bounds, removed_rule: int = 0, poison: int = 0) -> World:
    """Two new links and nothing on the way.

    Parameters
    ----------
    bounds : Bounds
    removed_rule : int
        For the kernels of :mod:`ttpoe.check.removals`; 0 for all rules.
    poison : int
        What counters begin each step with: no rule may read them, so no figure of the search may depend on it.
    """
    b = bounds
    params = make_params(
        mtu_bytes=b.mtu_bytes, window_bytes=b.window, rto_initial_ps=RTO_PS, rto_min_ps=RTO_PS // 2,
        rto_max_ps=1000 * RTO_PS, retry_limit=b.retry_limit, tail_loss_probe=b.tail_probe,
    )  # fmt: skip
    names = GUARDED_LINK.names or ()
    links = np.zeros(2, GUARDED_LINK)
    ring = init_links(links, np.array(b.initial_seqs), 2, params, SLOTS)
    links["rx_limit_bytes"] = [limit or NEVER for limit in b.reader_bytes]
    for name in COUNTERS.split():
        links[name] = poison
    links["removed_rule"] = removed_rule
    words = links.view(np.int64).reshape(2, len(names))
    bases = np.zeros(BASES, np.int64)
    for side in range(2):
        for k in range(INCARNATIONS):
            bases[side * INCARNATIONS + k] = (b.initial_seqs[side] + k * 0x12345678) & SEQ_MASK
    owners = np.zeros(2, OWNER)
    owners["opens"], owners["submits"], owners["closes"] = b.opens, b.submits, b.closes
    budget = np.zeros(1, BUDGET)
    for name in BUDGET.names or ():
        budget[name] = getattr(b, name)
    model = np.zeros(1, MODEL)
    model[0] = (b.losses + b.delays + b.early_timeouts, b.duplicates, b.crashes, b.submit_bytes, b.line_frames)
    pools = np.zeros(2, POOL)
    pools["limit_bytes"] = NEVER
    return World(
        links=links, words=words, fresh=words.copy(),
        kinds=np.array([KEPT.get(name, Kept.FIXED) for name in names], np.int8), ring=ring,
        pools=pools, params=params, inbox=np.zeros(1, FRAME), out=np.zeros(4, FRAME), owners=owners,
        budget=budget, line=np.zeros((2, LINE + 1), FLIGHT), late=np.zeros((2, LATE + 1), FLIGHT),
        counts=np.zeros((2, 2), np.int64), bases=bases, model=model,
    )  # fmt: skip


@dataclass
class Result:
    """What a search found."""

    bounds: Bounds
    states: int = 0
    steps: int = 0
    """Transitions taken."""
    depth: int = 0
    """Steps to the farthest state."""
    cut: int = 0
    """Transitions not followed, since a line had no room."""
    seconds: float = 0.0
    is_whole: bool = True
    """Every state within the bounds was visited."""
    violation: Violation = Violation.NONE
    way: list[tuple[int, int]] = field(default_factory=list)
    """Steps to the broken promise, as (side, kind); where a state has no good end, ``depth`` of them lead to it and the
    others go on from there, until a state comes again."""


class Search:
    """The graph of all states within `Bounds`.

    Parameters
    ----------
    bounds : Bounds
    kernels : module
        :mod:`ttpoe.check.expand`, or that module over kernels that lack a rule.
    removed_rule, poison : int
        As for :func:`make_world`.
    """

    def __init__(
        self, bounds: Bounds, *, kernels: ModuleType = real_kernels, removed_rule: int = 0, poison: int = 0
    ) -> None:
        self.bounds = bounds
        self.kernels = kernels
        self.world = make_world(bounds, removed_rule, poison)
        self.progress = np.zeros(1, kernels.PROGRESS)
        self.states = np.zeros((1 << 12, STATE_BYTES), np.uint8)
        self.parents = np.zeros(1 << 12, np.int32)
        self.steps = np.zeros(1 << 12, np.int16)
        self.table = np.full(1 << 13, -1, np.int32)
        self.sources = np.zeros(1 << 13, np.int32)
        self.targets = np.zeros(1 << 13, np.int32)
        self.edge_steps = np.zeros(1 << 13, np.int16)
        kernels.pack_at(self.world, self.states, 0)
        self.progress["n_states"] = 1
        kernels.index_states(self.states, 1, self.table)

    @property
    def n_states(self) -> int:
        return int(self.progress["n_states"][0])

    def run(self, max_states: int = 20_000_000, tell: Callable[[int, int], object] | None = None) -> Result:
        """Search until a promise breaks, all states are visited, or there are more than ``max_states``.

        Parameters
        ----------
        max_states : int
        tell : callable, optional
            Called now and then with the number of states found and how many of them are done.
        """
        began = perf_counter()
        result = Result(self.bounds)
        done, level_end = 0, 1
        while done < self.n_states and self.n_states <= max_states:
            last = min(done + _SLICE, level_end)
            self._make_room(last - done)
            self.kernels.expand(
                self.world, self.states, done, last, self.table, self.parents, self.steps, self.sources, self.targets,
                self.edge_steps, self.progress,
            )  # fmt: skip
            if self.progress["violation"][0]:
                result.violation = Violation(int(self.progress["violation"][0]))
                result.way = self._way_to(int(self.progress["at_state"][0]))
                step = int(self.progress["at_step"][0])
                if step != self.kernels.NO_STEP:
                    result.way.append(divmod(step, 32))
                break
            done = last
            if done == level_end and self.n_states > level_end:
                level_end = self.n_states
                result.depth += 1
            if tell is not None:
                tell(self.n_states, done)
        result.states, result.is_whole = self.n_states, done == self.n_states
        result.steps, result.cut = int(self.progress["n_steps"][0]), int(self.progress["n_cut"][0])
        if result.violation:
            result.depth = len(result.way)
        elif result.is_whole:
            self._look_for_the_endless(result)
        result.seconds = perf_counter() - began
        return result

    def _make_room(self, n: int) -> None:
        """Let ``n`` states be expanded: double what could become full."""
        more = n * self.kernels.MOST_SUCCESSORS
        while self.n_states + more > len(self.states):
            self.states = np.concatenate((self.states, np.zeros_like(self.states)))
            self.parents = np.concatenate((self.parents, np.zeros_like(self.parents)))
            self.steps = np.concatenate((self.steps, np.zeros_like(self.steps)))
        if 2 * (self.n_states + more) > len(self.table):
            self.table = np.empty(2 * len(self.states), np.int32)
            self.kernels.index_states(self.states, self.n_states, self.table)
        while int(self.progress["n_edges"][0]) + more > len(self.sources):
            self.sources = np.concatenate((self.sources, np.zeros_like(self.sources)))
            self.targets = np.concatenate((self.targets, np.zeros_like(self.targets)))
            self.edge_steps = np.concatenate((self.edge_steps, np.zeros_like(self.edge_steps)))

    def _way_to(self, state: int) -> list[tuple[int, int]]:
        way = []
        while state:
            way.append(divmod(int(self.steps[state]), 32))
            state = int(self.parents[state])
        return way[::-1]

    def _look_for_the_endless(self, result: Result) -> None:
        """States that cannot come to an end, and those that need not, on edges without trouble and without wishes."""
        n, m = self.n_states, int(self.progress["n_edges"][0])
        sources, targets = self.sources[:m], self.targets[:m]
        is_fair = targets >= 0
        targets = np.where(is_fair, targets, -1 - targets)
        is_reached = np.zeros(n, np.uint8)
        queue = np.zeros(n, np.int32)
        ends = np.flatnonzero(np.bincount(sources, minlength=n) == 0)
        queue[: ends.size] = ends
        is_reached[ends] = 1
        self.kernels.reach_back(*_into(sources, targets, n), is_reached, queue, ends.size)
        if not is_reached.all():
            result.violation = Violation.ENDLESS
            self._go_round(result, is_reached == 0, sources, targets, self.edge_steps[:m])
        else:
            sources, targets, steps = sources[is_fair], targets[is_fair], self.edge_steps[:m][is_fair]
            n_ways = np.bincount(sources, minlength=n).astype(np.int32)
            ends = np.flatnonzero(n_ways == 0)
            queue[: ends.size] = ends
            if self.kernels.peel(*_into(sources, targets, n), n_ways, queue, ends.size) < n:
                result.violation = Violation.CIRCLE
                self._go_round(result, n_ways > 0, sources, targets, steps)

    def _go_round(
        self, result: Result, is_bad: np.ndarray, sources: np.ndarray, targets: np.ndarray, steps: np.ndarray
    ) -> None:
        """The way to the first bad state, and from there over bad ones until one comes again."""
        state = int(np.argmax(is_bad))
        result.way = self._way_to(state)
        result.depth = len(result.way)
        seen = set()
        while state not in seen:
            seen.add(state)
            first, last = np.searchsorted(sources, (state, state + 1))  # edges lie in the order of their sources
            edge = next(e for e in range(first, last) if is_bad[targets[e]])
            result.way.append(divmod(int(steps[edge]), 32))
            state = int(targets[edge])


def _into(sources: np.ndarray, targets: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges by their target: offsets of each state, and sources."""
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=n), out=offsets[1:])
    return offsets, sources[np.argsort(targets, kind="stable")]

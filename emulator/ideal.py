"""The completion time of a flow that is alone on an idle path, exactly.

Store-and-forward queues in tandem obey a max-plus recursion (Lindley); with nothing else on the path it is the run
itself, so it equals a one-flow run to the picosecond. Knows nothing of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ttpoe._jit import kernel
from ttpoe.units import PS_PER_S


@dataclass(frozen=True)
class Hop:
    """One line of a path: its rate, and its delay with the far switch's pipeline."""

    rate_bps: int
    delay_ps: int

    def line_ps(self, wire_bytes: int) -> int:
        """How long a frame occupies the line, rounded up."""
        return -(-wire_bytes * 8 * PS_PER_S // self.rate_bps)


@dataclass(frozen=True)
class Frames:
    """A message's data frames, by their bytes on the line; all between the first and the last are alike."""

    count: int
    first: int
    middle: int
    last: int
    """Of more than one frame."""

    @property
    def total(self) -> int:
        """Bytes on the line of all."""
        return self.first + (self.count - 2) * self.middle + self.last if self.count > 1 else self.first


def control_path_ps(hops: list[Hop], wire_bytes: int) -> int:
    """One small frame over an idle path."""
    return sum(hop.line_ps(wire_bytes) + hop.delay_ps for hop in hops)


def _unlimited_ps(hops: list[Hop], frames: Frames) -> int:
    """Without a window: the costliest way from the first frame on the first hop to the last frame on the last.

    Each step of a way goes to the next frame or to the next hop. It leaves the first frame at hop a and reaches the
    last frame at hop b; the frames between can do no better than to stay on the slowest hop of a to b.
    """
    first, middle, last = ([hop.line_ps(size) for hop in hops] for size in (frames.first, frames.middle, frames.last))
    delay_ps = sum(hop.delay_ps for hop in hops)
    if frames.count == 1:
        return sum(first) + delay_ps
    best = 0
    for a in range(len(hops)):
        for b in range(a, len(hops)):
            between = 0 if frames.count > 2 else None
            if frames.count > 2:
                between = sum(middle[a : b + 1]) + (frames.count - 3) * max(middle[a : b + 1])
            elif a == b:
                between = 0
            if between is not None:
                best = max(best, sum(first[: a + 1]) + between + sum(last[b:]))
    return best + delay_ps


@kernel(export=True)
def _windowed_ps(line_ps, delay_ps, free_at_ps, ways, count, window, last_window, ack_every, acked_ps):
    """:func:`ideal_fct_ps` where a window binds.

    Parameters
    ----------
    line_ps : int64 array, shape (hops, 3)
        Of a first, a middle and a last frame; on the way back of an acknowledgement.
    delay_ps : int64 array, shape (hops,)
    free_at_ps : int64 array, shape (hops,), zeros
        Modified in place.
    ways : int64
        Hops of the way there; the others are the way back.
    count, window, last_window, ack_every : int64
        Frame i may start once frame ``i - window`` is acknowledged; the last one has a window of its own.
    acked_ps : int64 array, zeros, longer than either window
        A ring, modified in place.
    """
    ready_ps = 0
    for i in range(count):
        kind = 1
        waits_for = i - window
        if i == 0:
            kind = 0
        elif i == count - 1:
            kind = 2
            waits_for = i - last_window
        ready_ps = 0
        if waits_for >= 0:
            acked_with = min((waits_for // ack_every + 1) * ack_every - 1, count - 1)
            ready_ps = acked_ps[acked_with % len(acked_ps)]
        for k in range(ways):
            free_at_ps[k] = max(ready_ps, free_at_ps[k]) + line_ps[k, kind]
            ready_ps = free_at_ps[k] + delay_ps[k]
        if (i + 1) % ack_every == 0:
            back_ps = ready_ps
            for k in range(ways, len(delay_ps)):
                free_at_ps[k] = max(back_ps, free_at_ps[k]) + line_ps[k, 0]
                back_ps = free_at_ps[k] + delay_ps[k]
            acked_ps[i % len(acked_ps)] = back_ps
    return ready_ps


def ideal_fct_ps(
    hops: list[Hop], back: list[Hop], frames: Frames, ack_wire_bytes: int, window: int, last_window: int,
    ack_every: int = 1,
) -> int:  # fmt: skip
    """From the first frame's start to the last byte at the receiver.

    Parameters
    ----------
    hops, back : list of Hop
        The path of data and of acknowledgements.
    frames : Frames
    ack_wire_bytes : int
    window, last_window : int
        Frame i may start once frame ``i - window`` is acknowledged, the last frame once ``i - last_window`` is; at
        least ``ack_every``.
    ack_every : int
        Frames per acknowledgement; the last frame always has one.

    Returns
    -------
    int
        Picoseconds.
    """
    if min(window + 1, last_window) >= frames.count:
        return _unlimited_ps(hops, frames)
    line_ps = [[hop.line_ps(size) for size in (frames.first, frames.middle, frames.last)] for hop in hops]
    line_ps += [[hop.line_ps(ack_wire_bytes)] * 3 for hop in back]
    way = [*hops, *back]
    ring = np.zeros(min(max(window, last_window), frames.count) + 1, np.int64)
    return int(
        _windowed_ps(
            np.array(line_ps, np.int64), np.array([hop.delay_ps for hop in way], np.int64),
            np.zeros(len(way), np.int64), len(hops), frames.count, window, last_window, ack_every, ring,
        )
    )  # fmt: skip

"""What received frames pass before the endpoint takes them: a tap that sees them, an impairment that mistreats them.

Sans-I/O: the driver brings the frames and the clock.
"""

from __future__ import annotations

from collections.abc import Callable

from ttpoe.endpoint import Endpoint
from ttpoe.impair import Impairment
from ttpoe.units import NEVER

Tap = Callable[[str, memoryview], object]
"""Called with "in" or "out" and each frame, before any impairment; the view is valid during the call."""


class Inlet:
    """The way from the receive slots of an endpoint into it.

    Parameters
    ----------
    endpoint : Endpoint
    impairment : Impairment or None
    tap : callable or None
    """

    def __init__(self, endpoint: Endpoint, impairment: Impairment | None, tap: Tap | None) -> None:
        self._endpoint = endpoint
        self._impairment = impairment
        self._tap = tap
        self._is_plain = impairment is None and tap is None

    def take(self, n_frames: int, now_ps: int) -> bool:
        """Take what is in the first receive slots, and what is due; True if more is due than could be answered."""
        if self._is_plain:
            if n_frames:
                self._endpoint.take_received(n_frames, now_ps)
            return False
        lengths = self._endpoint.receive_lengths[:n_frames].tolist()
        frames = [bytes(view[:size]) for view, size in zip(self._endpoint.receive_views, lengths, strict=False)]
        if self._tap is not None:
            for frame in frames:
                self._tap("in", memoryview(frame))
        if self._impairment is None:
            self._endpoint.receive(frames, now_ps)
            return False
        for frame in frames:
            self._impairment.enter(frame, now_ps)
        return self.take_due(now_ps)

    def take_due(self, now_ps: int) -> bool:
        """Take what has passed the impairment by now; True if more is due than could be answered."""
        if self._impairment is None:
            return False
        frames = self._impairment.leave(now_ps, self._endpoint.answers_room // 2)
        self._endpoint.receive(frames, now_ps)
        return bool(frames) and self._impairment.next_deadline_ps() <= now_ps

    def next_deadline_ps(self) -> int:
        """When to call :meth:`take_due` at the latest; NEVER if nothing is held."""
        return NEVER if self._impairment is None else self._impairment.next_deadline_ps()

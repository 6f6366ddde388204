"""A line that loses, reorders and duplicates frames, from a seed: a stage for the receive path, and for tests.

The same seed and the same frames give the same fate on any machine. Knows nothing of what is in a frame.
"""

from __future__ import annotations

from dataclasses import dataclass

_MASK = (1 << 64) - 1
_PCG_MULTIPLIER = 6364136223846793005


class Pcg32:
    """PCG-XSH-RR with 64 bits of state and 32 of output (O'Neill 2014), in plain integers."""

    def __init__(self, seed: int) -> None:
        self._state = 0
        self._increment = 0xDA3E39CB94B95BDB | 1
        self.draw()
        self._state = (self._state + seed) & _MASK
        self.draw()

    def draw(self) -> int:
        """Next number, from 0 to 2**32 - 1."""
        state = self._state
        self._state = (state * _PCG_MULTIPLIER + self._increment) & _MASK
        word = (((state >> 18) ^ state) >> 27) & 0xFFFFFFFF
        turn = state >> 59
        return (word >> turn | word << (32 - turn)) & 0xFFFFFFFF


@dataclass
class ImpairmentCounters:
    """Frames that met each fate, and all that came."""

    frames: int = 0
    lost: int = 0
    reordered: int = 0
    duplicated: int = 0


class Impairment:
    """Decides the fate of each frame.

    Parameters
    ----------
    seed : int
    loss, reorder, duplicate : float
        Probabilities, from 0 to 1, each drawn for every frame on its own; a lost frame meets no other fate.
    max_overtaking : int
        A reordered frame is held until 1 to this many later frames have overtaken it, or for ever if none come: then
        it is lost.

    Attributes
    ----------
    counters : ImpairmentCounters
    """

    def __init__(
        self, seed: int, *, loss: float = 0.0, reorder: float = 0.0, duplicate: float = 0.0, max_overtaking: int = 8
    ) -> None:
        for name, value in (("loss", loss), ("reorder", reorder), ("duplicate", duplicate)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is {value}; it must be from 0 to 1")
        if max_overtaking < 1:
            raise ValueError(f"max_overtaking is {max_overtaking}; it must be at least 1")
        self.counters = ImpairmentCounters()
        self._random = Pcg32(seed)
        self._loss, self._reorder, self._duplicate = (int(p * 2**32) for p in (loss, reorder, duplicate))
        self._max_overtaking = max_overtaking
        self._held: list[tuple[int, bytes]] = []  # frame count at which to let go, frame

    def pass_frame(self, frame: bytes | memoryview) -> list[bytes]:
        """Frames that leave the line now that this one entered: none, itself, its double, older ones behind it."""
        counters, draw = self.counters, self._random.draw
        counters.frames += 1
        out: list[bytes] = []
        if draw() < self._loss:
            counters.lost += 1
        else:
            copies = 1
            if draw() < self._duplicate:
                counters.duplicated += 1
                copies = 2
            if draw() < self._reorder:
                counters.reordered += 1
                copies -= 1
                due = counters.frames + 1 + draw() % self._max_overtaking
                self._held.append((due, bytes(frame)))
            out.extend([bytes(frame)] * copies)
        if self._held:
            out.extend(held for due, held in self._held if due <= counters.frames)
            self._held = [item for item in self._held if item[0] > counters.frames]
        return out

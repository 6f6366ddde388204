"""What a bad line does to frames, as data: one definition for emulated links and for the stage on a real one.

Knows nothing of how a fate is drawn: :mod:`ttpoe.impair` does it on a wire, the emulator in its loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ttpoe.units import NEVER, PS_PER_MS, PS_PER_S

FRACTIONS = ("loss", "burst_loss", "bad_fcs", "corrupt_undetected", "mark", "duplicate", "reorder", "bit_error_rate")
"""Fields that are fractions of frames, from 0 to 1; the last one of bits."""
_SWITCHES = (*FRACTIONS, "loss_every", "lose_frames", "rate_bps", "delay_ps", "jitter_ps", "flap_down_ps")
"""Fields of which any makes a line impaired."""


@dataclass(frozen=True, kw_only=True)
class ImpairmentConfig:
    """What a line does to frames; nothing by default. Fractions are of frames, from 0 to 1, each drawn on its own.

    Parameters
    ----------
    loss : float
        Lost at random.
    burst_loss : float
        Lost in bursts, in the long run: the Gilbert model, which with ``loss`` is Gilbert and Elliott's (lossless state
        with ``loss``, and a state that loses everything).
    burst_frames : float
        Mean length of a burst.
    loss_every : int
        Lost is every n-th frame; 0 for none.
    lose_frames : tuple of int
        Ordinals, from 1, of frames that are lost.
    bad_fcs : float
        Damaged so that the FCS shows it: dropped, and counted apart.
    bit_error_rate : float
        Bits that are received wrong, each on its own. A frame with a wrong bit from its destination address to its FCS,
        both included, is dropped: 1 - (1 - rate)^bits of them.
    corrupt_undetected : float
        Delivered with one to three bits flipped.
    mark : float
        Of the frames that ECN allows it for (ECT): marked CE.
    rate_bps : int
        Bit rate of the line, headers, FCS, preamble and gap counted; 0 for no limit.
    queue_bytes : int
        What may wait for the line before frames are dropped.
    mark_above_bytes : int
        Where there is a ``rate_bps``: frames that find more waiting are marked CE, if ECN allows it; 0 for none.
    delay_ps, jitter_ps : int
        A frame arrives ``delay_ps`` late, and up to ``jitter_ps`` more; jitter alone changes no order.
    duplicate : float
        Delivered twice.
    reorder : float
        Held until later frames have overtaken it.
    max_overtaking : int
        Frames that overtake one: 1 to this many.
    overtaking_wait_ps : int
        How long a frame is held at most, where too few follow it.
    flap_up_ps, flap_down_ps : int
        The link is up for the one, counted from the first frame, then down for the other, and so on. While it is down
        frames are lost.
    """

    loss: float = 0.0
    burst_loss: float = 0.0
    burst_frames: float = 10.0
    loss_every: int = 0
    lose_frames: tuple[int, ...] = ()
    bad_fcs: float = 0.0
    bit_error_rate: float = 0.0
    corrupt_undetected: float = 0.0
    mark: float = 0.0
    rate_bps: int = 0
    queue_bytes: int = 4_000_000
    mark_above_bytes: int = 0
    delay_ps: int = 0
    jitter_ps: int = 0
    duplicate: float = 0.0
    reorder: float = 0.0
    max_overtaking: int = 8
    overtaking_wait_ps: int = 10 * PS_PER_MS
    flap_up_ps: int = PS_PER_S
    flap_down_ps: int = 0

    def __post_init__(self) -> None:
        for name in FRACTIONS:
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is {value}; it must be from 0 to 1")
        if not 1.0 <= self.burst_frames <= 1e6:
            raise ValueError(f"burst_frames is {self.burst_frames}; it must be from 1 to 1e6")
        if self.burst_loss * (1 + self.burst_frames) > self.burst_frames:
            raise ValueError(
                f"burst_loss is {self.burst_loss}; bursts of {self.burst_frames:g} frames on average, with one frame "
                f"between them at least, lose {self.burst_frames / (1 + self.burst_frames):.3g} at most"
            )
        if self.mark_above_bytes and not self.rate_bps:
            raise ValueError(f"mark_above_bytes is {self.mark_above_bytes}; frames wait for a rate_bps, so give one")
        for name in (
            "loss_every", "rate_bps", "mark_above_bytes", "delay_ps", "jitter_ps", "overtaking_wait_ps", "flap_down_ps",
        ):  # fmt: skip
            value = getattr(self, name)
            if not 0 <= value < NEVER:
                raise ValueError(f"{name} is {value}; it must be from 0 to 2**62 - 1")
        for name in ("max_overtaking", "queue_bytes", "flap_up_ps"):
            value = getattr(self, name)
            if not 1 <= value < NEVER:
                raise ValueError(f"{name} is {value}; it must be from 1 to 2**62 - 1")
        for ordinal in self.lose_frames:
            if ordinal < 1:
                raise ValueError(f"lose_frames has {ordinal}; frames are counted from 1")

    @property
    def burst_begins(self) -> float:
        """Probability that a frame begins a burst, where there is none."""
        return self.burst_loss * self.burst_ends / (1 - self.burst_loss)

    @property
    def burst_ends(self) -> float:
        """Probability that a frame ends a burst."""
        return 1 / self.burst_frames

    @property
    def bits_per_error(self) -> float:
        """Mean of an exponential whose whole part is the number of right bits before a wrong one; 0 if none is wrong.

        That number is geometric: floor(-ln u / -ln(1 - rate)), with u even over (0, 1). By log1p, so that it is exact
        for rates as small as they come.
        """
        if self.bit_error_rate == 0:
            return 0.0
        return min(-1 / math.log1p(-min(self.bit_error_rate, 1 - 2**-53)), float(NEVER))

    @property
    def is_active(self) -> bool:
        """Whether anything happens to any frame."""
        return any(getattr(self, name) for name in _SWITCHES)


@dataclass
class ImpairmentCounters:
    """Frames that met each fate, and all that came. A frame that is lost meets no second fate."""

    frames: int = 0
    link_down: int = 0
    lost: int = 0
    lost_in_bursts: int = 0
    lost_every: int = 0
    lost_by_name: int = 0
    bad_fcs: int = 0
    bit_errors: int = 0
    queue_full: int = 0
    corrupted: int = 0
    marked: int = 0
    delayed: int = 0
    duplicated: int = 0
    reordered: int = 0

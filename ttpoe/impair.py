"""A line that loses, delays, reorders, doubles and damages frames, from a seed: one stage for all who need it.

Frames enter and leave; time comes in. The same seed and the same frames at the same times meet the same fate on any
machine, and each impairment draws from a stream of its own, so that one more does not change what the others do. Knows
nothing of what is in a frame, but for the ECN field of IPv4 packets.

A frame meets, in this order: a link that is down, loss by its causes, damage that the FCS shows, damage that it does
not, a full queue and the rate, a mark, delay and jitter, doubling, overtaking.
"""

from __future__ import annotations

import heapq
import math

from ttpoe.constants import FCS_BYTES, MIN_ETHERNET_BYTES, PREAMBLE_AND_GAP_BYTES
from ttpoe.impairments import ImpairmentConfig, ImpairmentCounters
from ttpoe.ipv4 import marked
from ttpoe.units import NEVER, PS_PER_S

_MASK = (1 << 64) - 1
_PCG_MULTIPLIER = 6364136223846793005


class Pcg32:
    """PCG-XSH-RR with 64 bits of state and 32 of output (O'Neill 2014), in plain integers."""

    def __init__(self, seed: int, stream: int = 0) -> None:
        self._state = 0
        self._increment = (0xDA3E39CB94B95BDB + 2 * stream) & _MASK | 1
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


class _Chance:
    """A probability with a random stream of its own."""

    def __init__(self, seed: int, stream: int, probability: float) -> None:
        self._random = Pcg32(seed, stream)
        self._below = round(probability * 2**32)

    def happens(self) -> bool:
        """Draw, unless it never happens."""
        return self._below > 0 and self._random.draw() < self._below

    def below(self, bound: int) -> int:
        """A number from 0 to ``bound - 1``."""
        return (self._random.draw() << 32 | self._random.draw()) % bound


class _BitErrors:
    """Wrong bits of a line, at a mean distance of :attr:`ImpairmentConfig.bits_per_error`: counts down to the next."""

    def __init__(self, seed: int, stream: int, bits_per_error: float) -> None:
        self._random = Pcg32(seed, stream)
        self._bits_per_error = bits_per_error
        self._right_bits = -1  # before the next wrong one; -1: not drawn yet

    def strike(self, size_bytes: int) -> bool:
        """Whether any bit of so many bytes is wrong."""
        if self._bits_per_error == 0:
            return False
        if self._right_bits < 0:
            u = ((self._random.draw() << 20 | self._random.draw() >> 12) + 0.5) * 2.0**-52
            self._right_bits = int(min(-math.log(u) * self._bits_per_error, NEVER))
        if self._right_bits < 8 * size_bytes:
            self._right_bits = -1  # what follows this frame does not know of it
            return True
        self._right_bits -= 8 * size_bytes
        return False


class Impairment:
    """Decides the fate of each frame on one way of a line, and holds those that arrive later.

    Parameters
    ----------
    seed : int
    config : ImpairmentConfig, optional
    **fields
        Those of a config, in its place.

    Attributes
    ----------
    config : ImpairmentConfig
    counters : ImpairmentCounters
    """

    def __init__(self, seed: int, config: ImpairmentConfig | None = None, **fields: float) -> None:
        if config is not None and fields:
            raise TypeError("give a config or its fields, not both")
        self.config = config = config or ImpairmentConfig(**fields)  # type: ignore[arg-type]
        self.counters = ImpairmentCounters()
        self._names = frozenset(config.lose_frames)
        chances = (config.loss, config.bad_fcs, config.corrupt_undetected, config.duplicate, config.reorder)
        self._loss, self._bad_fcs, self._corrupt, self._duplicate, self._reorder = (
            _Chance(seed, stream, probability) for stream, probability in enumerate(chances)
        )
        self._burst_begins = _Chance(seed, 5, config.burst_begins)
        self._burst_ends = _Chance(seed, 6, config.burst_ends)
        self._jitter = _Chance(seed, 7, 0.0)
        self._bit_errors = _BitErrors(seed, 8, config.bits_per_error)
        self._mark = _Chance(seed, 9, config.mark)
        self._is_in_burst = False
        self._first_ps: int | None = None
        self._line_free_ps = 0
        self._latest_due_ps = 0
        self._waiting: list[tuple[int, int, bytes]] = []  # heap: when due, order, frame
        self._order = 0
        self._passed = 0  # frames on the line
        self._held: list[tuple[int, int, bytes]] = []  # count of frames passed and time that let it go, frame

    def enter(self, frame: bytes | bytearray | memoryview, now_ps: int) -> None:
        """Take a frame at one end of the line; times must not go back."""
        self.counters.frames += 1
        if self._first_ps is None:
            self._first_ps = now_ps
        frame_bytes = max(len(frame), MIN_ETHERNET_BYTES) + FCS_BYTES
        if self._is_lost(frame_bytes, now_ps):
            return
        config, counters = self.config, self.counters
        data = bytes(frame)
        if self._corrupt.happens() and data:
            counters.corrupted += 1
            data = self._flip_bits(data)
        due_ps = now_ps
        is_marked = self._mark.happens()
        if config.rate_bps:
            free_ps = max(self._line_free_ps, now_ps)
            waiting = (free_ps - now_ps) * config.rate_bps
            is_marked |= 0 < config.mark_above_bytes * 8 * PS_PER_S < waiting
            if waiting > config.queue_bytes * 8 * PS_PER_S:
                counters.queue_full += 1
                return
            line_bytes = frame_bytes + PREAMBLE_AND_GAP_BYTES
            self._line_free_ps = due_ps = free_ps + -(-line_bytes * 8 * PS_PER_S // config.rate_bps)
        if is_marked and (with_mark := marked(data)) is not None:
            counters.marked += 1
            data = with_mark
        due_ps += config.delay_ps
        if config.jitter_ps:
            due_ps += self._jitter.below(config.jitter_ps + 1)
        self._latest_due_ps = due_ps = max(due_ps, self._latest_due_ps)
        counters.delayed += due_ps > now_ps
        self._put_on_line(data, due_ps)

    def _is_lost(self, frame_bytes: int, now_ps: int) -> bool:
        """Draw for every cause, so that their streams advance alike, and count the first that strikes."""
        config, counters = self.config, self.counters
        is_lost, is_bad, is_wrong = self._loss.happens(), self._bad_fcs.happens(), self._bit_errors.strike(frame_bytes)
        is_burst = config.burst_loss > 0 and self._burst_strikes()
        assert self._first_ps is not None
        if config.flap_down_ps:
            period_ps = config.flap_up_ps + config.flap_down_ps
            if (now_ps - self._first_ps) % period_ps >= config.flap_up_ps:
                counters.link_down += 1
                return True
        if counters.frames in self._names:
            counters.lost_by_name += 1
        elif config.loss_every and counters.frames % config.loss_every == 0:
            counters.lost_every += 1
        elif is_burst:
            counters.lost_in_bursts += 1
        elif is_lost:
            counters.lost += 1
        elif is_bad:
            counters.bad_fcs += 1
        elif is_wrong:
            counters.bit_errors += 1
        else:
            return False
        return True

    def _burst_strikes(self) -> bool:
        if self._is_in_burst:
            self._is_in_burst = not self._burst_ends.happens()
        else:
            self._is_in_burst = self._burst_begins.happens()
        return self._is_in_burst

    def _flip_bits(self, data: bytes) -> bytes:
        damaged = bytearray(data)
        bits: set[int] = set()
        for _ in range(1 + self._corrupt.below(3)):
            bits.add(self._corrupt.below(8 * len(data)))
        for bit in bits:
            damaged[bit >> 3] ^= 1 << (bit & 7)
        return bytes(damaged)

    def _put_on_line(self, data: bytes, due_ps: int) -> None:
        """Copies of a frame to arrive at ``due_ps``, or one that is held until others have passed."""
        config, counters = self.config, self.counters
        copies = 1
        if self._duplicate.happens():
            counters.duplicated += 1
            copies = 2
        self._passed += 1
        if self._reorder.happens():
            counters.reordered += 1
            copies -= 1
            overtaken_by = 1 + self._reorder.below(config.max_overtaking)
            self._held.append((self._passed + overtaken_by, due_ps + config.overtaking_wait_ps, data))
        for _ in range(copies):
            self._push(due_ps, data)
        if self._held:
            for passed, _, held in self._held:
                if passed <= self._passed:
                    self._push(due_ps, held)
            self._held = [item for item in self._held if item[0] > self._passed]

    def _push(self, due_ps: int, data: bytes) -> None:
        self._order += 1
        heapq.heappush(self._waiting, (due_ps, self._order, data))

    def leave(self, now_ps: int, max_frames: int = 1 << 62) -> list[bytes]:
        """Frames that have arrived at the other end by now, in their order, ``max_frames`` of them at most."""
        waiting = self._waiting
        if self._held and min(deadline_ps for _, deadline_ps, _ in self._held) <= now_ps:
            for _, deadline_ps, data in self._held:
                if deadline_ps <= now_ps:
                    self._push(deadline_ps, data)
            self._held = [item for item in self._held if item[1] > now_ps]
        out: list[bytes] = []
        while waiting and waiting[0][0] <= now_ps and len(out) < max_frames:
            out.append(heapq.heappop(waiting)[2])
        return out

    def next_deadline_ps(self) -> int:
        """When the next frame arrives unless others come before; NEVER if none is under way."""
        deadlines = [deadline_ps for _, deadline_ps, _ in self._held]
        if self._waiting:
            deadlines.append(self._waiting[0][0])
        return min(deadlines, default=NEVER)

    def pass_frame(self, frame: bytes | bytearray | memoryview, now_ps: int = 0) -> list[bytes]:
        """:meth:`enter` and :meth:`leave`: what arrives as this one enters."""
        self.enter(frame, now_ps)
        return self.leave(now_ps)

"""Seeded impairments: reproducible, at the rates asked for, losing and doubling nothing else."""

from __future__ import annotations

import pytest

from ttpoe.impair import Impairment, Pcg32

FRAMES = [n.to_bytes(4, "big") for n in range(20_000)]


def passed(impairment: Impairment) -> list[bytes]:
    return [out for frame in FRAMES for out in impairment.pass_frame(frame)]


def test_generator_is_pcg32():
    """First numbers of PCG-XSH-RR 64/32 with state 42 and stream 54, from the reference implementation's demo."""
    random = Pcg32(42)
    random._increment = 54 << 1 | 1
    random._state = 0
    random.draw()
    random._state = (random._state + 42) & (1 << 64) - 1
    random.draw()
    assert [random.draw() for _ in range(6)] == [
        0xA15C02B7, 0x7B47F409, 0xBA1D3330, 0x83D2F293, 0xBFA4784B, 0xCBED606E,
    ]  # fmt: skip


def test_nothing_asked_nothing_done():
    assert passed(Impairment(1)) == FRAMES


def test_same_seed_same_fate():
    first, second, other = (
        passed(Impairment(seed, loss=0.1, reorder=0.1, duplicate=0.1)) for seed in (7, 7, 8)
    )
    assert first == second != other


@pytest.mark.parametrize("fate", ["loss", "reorder", "duplicate"])
def test_rates_are_as_asked(fate):
    impairment = Impairment(3, **{fate: 0.05})
    out = passed(impairment)
    counters = impairment.counters
    assert counters.frames == len(FRAMES)
    count = {"loss": counters.lost, "reorder": counters.reordered, "duplicate": counters.duplicated}[fate]
    assert 0.8 < count / (0.05 * len(FRAMES)) < 1.2
    assert counters.lost + counters.reordered + counters.duplicated == count
    assert len(out) == len(FRAMES) - counters.lost + counters.duplicated - len(impairment._held)


def test_certain_loss_lets_nothing_through():
    assert passed(Impairment(1, loss=1.0)) == []


def test_certain_duplication_doubles_everything():
    assert passed(Impairment(1, duplicate=1.0)) == [frame for frame in FRAMES for _ in range(2)]


def test_reordered_frames_are_overtaken_by_few():
    out = passed(Impairment(5, reorder=0.1, max_overtaking=3))
    lateness = [max(0, max(map(int.from_bytes, out[max(0, k - 50) : k]), default=0) - int.from_bytes(frame))
                for k, frame in enumerate(out)]  # fmt: skip
    assert 1 <= max(lateness) <= 3 + 3, "overtaken by 3 that came later, which may have been late themselves"


@pytest.mark.parametrize(("name", "value"), [("loss", 1.1), ("reorder", -0.1), ("duplicate", float("nan"))])
def test_bad_probability_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} is"):
        Impairment(1, **{name: value})


def test_bad_overtaking_is_named():
    with pytest.raises(ValueError, match="max_overtaking is 0"):
        Impairment(1, max_overtaking=0)

"""Serial numbers that wrap at 2**32."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttpoe import sequence
from ttpoe._jit import kernel

SPAN = 2**32
seqs = st.integers(0, SPAN - 1) | st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**31 + 1, SPAN - 1])
steps = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1])


@kernel(export=True)
def add(seq, step):
    return sequence.seq_add(seq, step)


@kernel(export=True)
def diff(newer, older):
    return sequence.seq_diff(newer, older)


@pytest.mark.parametrize(
    ("newer", "older", "distance"),
    [
        (0, 0xFFFFFFFF, 1), (0xFFFFFFFF, 0, -1), (5, 0xFFFFFFF0, 21), (7, 7, 0), (0x7FFFFFFF, 0, 2**31 - 1),
        (0x80000000, 0, -(2**31)), (0, 0x80000000, -(2**31)), (0x80000001, 0, 1 - 2**31), (1, 0x80000002, 2**31 - 1),
    ],
)  # fmt: skip
def test_distances(newer, older, distance):
    assert diff(newer, older) == distance


@pytest.mark.parametrize(
    ("seq", "step", "result"), [(0xFFFFFFFF, 1, 0), (0, -1, 0xFFFFFFFF), (0xFFFFFFF0, 0x20, 0x10), (9, 0, 9)]
)
def test_sums(seq, step, result):
    assert add(seq, step) == result


@given(seqs, steps)
def test_sum_and_distance_undo_each_other(seq, step):
    assert diff(add(seq, step), seq) == step
    assert 0 <= add(seq, step) < SPAN


@given(seqs, seqs)
def test_order_is_antisymmetric(a, b):
    if (a - b) % SPAN == SPAN // 2:
        assert diff(a, b) == diff(b, a) == -(2**31)  # RFC 1982 leaves it undefined: neither is newer
    else:
        assert diff(a, b) == -diff(b, a)
    assert -(2**31) <= diff(a, b) < 2**31


@given(seqs, seqs, seqs)
def test_order_does_not_depend_on_the_origin(a, b, origin):
    assert diff(add(a, origin), add(b, origin)) == diff(a, b)


@given(seqs, st.integers(0, 2**30 - 1), st.integers(0, 2**30))
def test_distances_add_up(a, first, second):
    b = add(a, first)
    assert diff(add(b, second), a) == first + second


@given(seqs, seqs)
def test_interpreted_alike(a, b):
    interpreted = getattr(sequence.seq_diff, "py_func", sequence.seq_diff)
    assert interpreted(a, b) == diff(a, b)

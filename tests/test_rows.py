"""Where arrays of rows begin, and hints that fetch them."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import COMPILED

from emulator import rows
from emulator.buffer import QUEUE
from emulator.world import PORT
from ttpoe._jit import kernel, prefetch


@pytest.mark.parametrize(("shape", "alignment"), [(3, 64), (100, 64), (5000, 2 << 20), ((8, 700), 2 << 20)])
def test_rows_begin_on_a_line_and_large_arrays_on_a_huge_page(shape: int | tuple[int, int], alignment: int) -> None:
    made = rows.zeros(shape, QUEUE)
    assert made.ctypes.data % alignment == 0
    assert made.shape == np.zeros(shape, QUEUE).shape
    assert made.flags.c_contiguous
    assert not made.view(np.uint8).any()
    made["tail"] = 7
    assert (made["tail"] == 7).all()


def test_doubled_rows_keep_what_they_held() -> None:
    made = rows.zeros(3000, QUEUE)
    made["head"] = np.arange(3000)
    grown = rows.doubled(made)
    assert grown["head"].tolist() == [*range(3000), *[0] * 3000]


def test_rows_of_ports_have_what_every_frame_touches_in_their_first_line() -> None:
    fields = PORT.fields
    assert fields is not None
    for name in ("busy_until_ps", "line_head", "line_tail", "waiting", "paused", "storm", "is_kicked", "far_switch"):
        assert fields[name][1] < rows.LINE_BYTES


@kernel(export=True)
def _sum_with_hints(numbers):
    total = 0
    for k in range(len(numbers)):
        prefetch(numbers, k + 4, 64)
        prefetch(numbers, -k, 0)
        total += numbers[k]
    return total


def test_hints_change_nothing_and_may_lie_outside() -> None:
    assert _sum_with_hints(np.arange(1000)) == 499_500


@COMPILED
def test_hints_are_for_contiguous_arrays_of_one_dimension() -> None:
    import numba

    with pytest.raises(numba.TypingError, match="prefetch takes a contiguous array of one dimension"):
        _sum_with_hints(np.zeros((4, 4), np.int64))

"""Arrays of rows laid out for the memory: rows of whole cache lines, large arrays on huge pages."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np

LINE_BYTES = 64
HUGE_PAGE_BYTES = 2 << 20
_HUGE_FROM_BYTES = 128 << 10  # our choice: below it, an array needs few pages


def whole_lines(fields: list[Any]) -> np.dtype[Any]:
    """A structured type of ``fields``, aligned, and padded to whole cache lines."""
    packed = np.dtype(fields, align=True)
    placed: Any = packed.fields
    layout: Any = {
        "names": list(placed),
        "formats": [placed[name][0] for name in placed],
        "offsets": [placed[name][1] for name in placed],
        "itemsize": -(-packed.itemsize // LINE_BYTES) * LINE_BYTES,
    }
    return np.dtype(layout, align=True)


def zeros(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """``np.zeros`` that begins on a cache line.

    A large one begins on a huge page, and the kernel is asked for such pages: rows are visited in no order, and
    there would be more small pages than the processor's table of translations holds. Where the kernel has none,
    the pages are small.
    """
    size = math.prod(np.atleast_1d(shape).tolist()) * np.dtype(dtype).itemsize
    if size < _HUGE_FROM_BYTES:
        raw = np.zeros(size + LINE_BYTES, np.uint8)
        start = -raw.ctypes.data % LINE_BYTES
    else:
        whole_bytes = -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        block = mmap.mmap(-1, whole_bytes + HUGE_PAGE_BYTES)
        with contextlib.suppress(AttributeError, OSError):
            block.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(block, np.uint8)
        start = -raw.ctypes.data % HUGE_PAGE_BYTES
    return raw[start : start + size].view(dtype).reshape(shape)


def doubled(rows: np.ndarray) -> np.ndarray:
    """The rows, and as many zeros behind them."""
    grown = zeros(2 * len(rows), rows.dtype)
    grown[: len(rows)] = rows
    return grown

"""Arrays of rows laid out for the cache: a row that spans lines of 64 bytes begins on one."""

from __future__ import annotations

from typing import Any

import numpy as np

LINE_BYTES = 64


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


def zeros(count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """``np.zeros`` that begins on a cache line."""
    size = count * dtype.itemsize
    raw = np.zeros(size + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(dtype)


def doubled(rows: np.ndarray) -> np.ndarray:
    """The rows, and as many zeros behind them."""
    grown = zeros(2 * len(rows), rows.dtype)
    grown[: len(rows)] = rows
    return grown

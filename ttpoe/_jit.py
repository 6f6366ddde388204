"""The `kernel` decorator: the only module that knows numba's options and its compile cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any] | None = None, *, export: bool = False, inline: bool = False) -> Any:
    """Compile ``function`` with numba, without the GIL (placeholder until the compile cache lands)."""

    def wrap(py_func: Callable[..., Any]) -> Any:
        return numba.njit(
            nogil=True, error_model="numpy", forceinline=inline,
            no_cpython_wrapper=not export, no_cfunc_wrapper=True, cache=False,
        )(py_func)

    return wrap if function is None else wrap(function)

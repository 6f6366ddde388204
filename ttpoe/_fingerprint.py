"""What the machine code of a kernel depends on, written down so that equal text means equal code.

Numba compiles bytecode and freezes the globals that it reads. So a kernel is described by its bytecode, constants and
options, the values of its globals, and the same for every function that it reaches. This looks at the objects of this
process, not at files: it is exact whatever way a name was imported or changed, and comments do not count. A value
that is not known to be described in full raises `UnknownValueError`, and the kernel goes uncached.

Not seen: a body attached to a plain function by ``numba.extending.overload``. Our kernels use none.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterable
from typing import Any

import numba
import numpy as np
from numba.core import config
from numba.core.dispatcher import Dispatcher
from numba.extending import _Intrinsic

nb: Any = numba.types

# Whatever comes from these is described by its name, since every cache key holds their versions.
_LIBRARIES = sys.stdlib_module_names | {"numba", "llvmlite", "numpy"}
# Argument types that their own name describes in full.
_NAMED_TYPES = (
    nb.Number, nb.Boolean, nb.NoneType, nb.UnicodeType, nb.Bytes, nb.UnicodeCharSeq, nb.CharSeq,
    nb.Array, nb.Record, nb.Literal, nb.NumberClass, nb.DType,
)  # fmt: skip


class UnknownValueError(Exception):
    """A kernel reads a value whose effect on its code we cannot describe."""


def describe(function: Any) -> tuple[str, list[Any]]:
    """Describe one function without those that it calls, and list these.

    Parameters
    ----------
    function : numba dispatcher or function

    Returns
    -------
    text : str
        Equal text, with equal callees in order, compiles to equal code.
    callees : list
        Dispatchers and functions that it names.
    """
    py_func = getattr(function, "py_func", function)
    code = py_func.__code__
    # A docstring is the first constant. Leave it out, unless it is one word that the code might also use.
    if py_func.__doc__ and " " in py_func.__doc__ and code.co_consts[0] == py_func.__doc__:
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    reader = Reader(code)
    parts = (
        py_func.__module__, py_func.__qualname__, sorted(getattr(function, "targetoptions", {}).items()),
        (code.co_firstlineno, code.co_linetable) if config.DEBUGINFO_DEFAULT else None,
        reader.spell(code), reader.spell(py_func.__defaults__), reader.spell_all(_cells(py_func)),
        [(n, reader.spell(py_func.__globals__[n])) for n in reader.names if n in py_func.__globals__],
    )  # fmt: skip
    return repr(parts), reader.callees


class Reader:
    """Spells the values that a function may read, and collects the functions among them in ``callees``."""

    def __init__(self, code: types.CodeType | None = None) -> None:
        self.names = [] if code is None else list(dict.fromkeys(_names(code)))
        self.callees: list[Any] = []
        self._modules: set[str] = set()

    def spell(self, value: Any) -> Any:
        """Write a value as nested tuples and lists of text and numbers.

        Raises
        ------
        UnknownValueError
            Where two values that compile differently might be spelled alike.
        """
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes, type(...)):
            return kind.__name__, repr(value)
        if isinstance(value, (Dispatcher, types.FunctionType, _Intrinsic)) and not _in_library(value):
            self.callees.append(getattr(value, "_defn", value))
            return "function", len(self.callees)
        if isinstance(value, types.CodeType):
            return (
                value.co_code, value.co_exceptiontable, value.co_flags, value.co_argcount, value.co_kwonlyargcount,
                value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars,
                self.spell_all(value.co_consts),
            )  # fmt: skip
        if isinstance(value, enum.Enum):
            return _name(kind), value.name, self.spell(value.value)
        if isinstance(value, tuple):
            return _name(kind), self.spell_all(value)
        if isinstance(value, frozenset):
            return _name(kind), sorted(self.spell_all(value))
        if isinstance(value, np.dtype):
            return "dtype", repr(value)
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            return _name(kind), repr(array.dtype), array.shape, array.strides, array.tobytes()
        if isinstance(value, types.ModuleType):
            return self._spell_module(value)
        if isinstance(value, nb.Type):
            return self._spell_type(value)
        if isinstance(value, type) and issubclass(value, enum.Enum):
            return _name(value), self.spell_all(value.__members__.values())
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            return _name(value), value._fields, self.spell(tuple(getattr(value, "_field_defaults", {}).items()))
        if callable(value) and (isinstance(value, np.ufunc) or _in_library(value)) and hasattr(value, "__name__"):
            return "library", getattr(value, "__module__", ""), value.__name__
        raise UnknownValueError(f"cannot tell how {value!r} bears on its code")

    def spell_all(self, values: Iterable[Any]) -> list[Any]:
        return [self.spell(value) for value in values]

    def _spell_module(self, module: types.ModuleType) -> Any:
        """Spell the attributes of a module that the function names: ``constants.X``, ``ttpoe.constants.X``."""
        if _in_library(module) or module.__name__ in self._modules:
            return "module", module.__name__
        self._modules.add(module.__name__)
        return module.__name__, [(n, self.spell(getattr(module, n))) for n in self.names if hasattr(module, n)]

    def _spell_type(self, value: Any) -> Any:
        """Spell the numba type of an argument, or one that a kernel names."""
        if isinstance(value, nb.BaseNamedTuple):  # its own name lacks the fields
            return self.spell(value.instance_class), self.spell_all(value.types)
        if isinstance(value, nb.BaseTuple):
            return "tuple", self.spell_all(value.types)
        if isinstance(value, nb.Dispatcher):
            return self.spell(value.dispatcher)
        if isinstance(value, nb.Omitted):
            return "omitted", self.spell(value.value)
        if isinstance(value, nb.ExternalFunction):
            return "symbol", value.symbol, repr(value.sig)
        if isinstance(value, _NAMED_TYPES):
            return "type", str(value)
        raise UnknownValueError(f"cannot describe the type {value}")


def _names(code: types.CodeType) -> list[str]:
    """List the globals and attributes that a function, or one nested in it, may read."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return [*code.co_names, *inner]


def _cells(py_func: types.FunctionType) -> list[Any]:
    try:
        return [cell.cell_contents for cell in py_func.__closure__ or ()]
    except ValueError:
        raise UnknownValueError("a variable of the enclosing function has no value yet") from None


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _in_library(value: Any) -> bool:
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return str(module).partition(".")[0] in _LIBRARIES

"""The `kernel` decorator, its compile cache, and what numba has no name for: the only module that knows its options.

Numba's own cache stamps a function with the text of its file, so it serves stale code after a callee in another file
changes, and it ignores ``NUMBA_BOUNDSCHECK`` and ``NUMBA_OPT``. Here an entry is named by a hash of all that its code
depends on: the kernel and every function that it reaches (`ttpoe._fingerprint`), the argument types, the CPU, and the
versions of Python, numpy, llvmlite, numba and these two modules. Editing a callee or a constant anywhere recompiles its
callers and nothing else; editing a comment recompiles nothing; a branch that was warm is warm again.

Each entry is one file, written aside and renamed, with a checksum in front: processes can race, and a damaged file is
only a miss. Entries live in one directory per value of numba's configuration, so the bounds-checked leg and the plain
one keep apart; there, each kernel keeps its `KEEP` entries most recently used.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
import secrets
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic

from ttpoe import _fingerprint
from ttpoe._fingerprint import Reader, UnknownValueError, describe

KEEP = 8  # our choice: a few branches and argument types stay warm, and the directory stays bounded

_VERSIONS = (
    sys.version, numba.__version__, llvmlite.__version__, np.__version__,
    *(hashlib.sha256(Path(file).read_bytes()).digest() for file in (__file__, str(_fingerprint.__file__))),
)  # fmt: skip
# Numba's settings that leave the code alone and may differ from one process to the next.
_NOT_CODE = {
    "CACHE_DIR", "CACHE_LOCATOR_CLASSES", "COLOR_SCHEME", "DEBUG_CACHE", "DEVELOPER_MODE", "DISABLE_JIT",
    "DISABLE_PERFORMANCE_WARNINGS", "FULL_TRACEBACKS", "FUNCTION_CACHE_SIZE", "GDB_BINARY", "NUMBA_DEFAULT_NUM_THREADS",
    "NUMBA_NUM_THREADS", "SHOW_HELP", "THREADING_LAYER", "THREADING_LAYER_PRIORITY",
}  # fmt: skip

_listeners: list[Callable[[str], object]] = []


def kernel(function: Callable[..., Any] | None = None, *, export: bool = False, inline: bool = False) -> Any:
    """Compile a function with numba, without the GIL, and keep the machine code on disk.

    Parameters
    ----------
    function : callable
        The function, when used as ``@kernel`` without arguments.
    export : bool
        Python may call the kernel. Otherwise only kernels can, which saves compiling a wrapper, and a call from
        Python raises TypeError.
    inline : bool
        Have LLVM inline every call: for leaves of a few lines.

    Returns
    -------
    numba dispatcher
        The function itself under ``NUMBA_DISABLE_JIT=1``.

    Notes
    -----
    Integer division by zero does not raise (``error_model="numpy"``). Nothing is hashed, read or compiled before the
    first call.
    """

    def wrap(py_func: Callable[..., Any]) -> Any:
        compiled: Any = numba.njit(
            nogil=True,
            error_model="numpy",
            forceinline=inline,
            no_cpython_wrapper=not export,
            no_cfunc_wrapper=True,
            _nrt=False,  # kernels allocate nothing; counting references to borrowed arrays costs 10x
        )(py_func)
        if not config.DISABLE_JIT:
            compiled._cache = _KernelCache(compiled)
            _widen_arguments(compiled)
            if not export:
                _keep_python_out(compiled)
        return compiled

    return wrap if function is None else wrap(function)


def _prefetch_in_python(array: Any, index: Any, offset_bytes: Any) -> None:
    """Interpreted, a hint is nothing."""


@intrinsic
def _prefetch_compiled(_context, array, index, offset_bytes):
    if not (isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C"):
        raise numba.TypingError("prefetch takes a contiguous array of one dimension")

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = context.make_array(signature.args[0])(context, builder, arguments[0])
        index, offset = (
            context.cast(builder, value, kind, types.intp)
            for value, kind in zip(arguments[1:], signature.args[1:], strict=True)
        )
        address = builder.bitcast(builder.gep(rows.data, [index]), cgutils.voidptr_t)
        address = builder.gep(address, [offset])
        word = ir.IntType(32)
        name = f"llvm.prefetch.{address.type.intrinsic_name}"
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        hint = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(hint, [address, word(1), word(3), word(1)])  # to write, to stay, data
        return context.get_dummy_value()

    return types.none(array, index, offset_bytes), emit


prefetch: Any = _prefetch_in_python if config.DISABLE_JIT else _prefetch_compiled
"""``prefetch(array, index, offset_bytes)``, in kernels: have the cache line at an offset in row ``index`` fetched.

A hint that changes no value. Any index will do, one outside of the array as well.
"""


@contextlib.contextmanager
def compiling(listener: Callable[[str], object]) -> Iterator[None]:
    """Call ``listener`` with the name of each kernel that has to be compiled, just before it is.

    Parameters
    ----------
    listener : callable
        Takes the qualified name, such as ``"emulator.engine.run"``. An outer kernel comes before those that it
        calls. It runs in the thread that compiles; what it raises ends the compilation.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def cache_dir() -> Path | None:
    """Say where compiled kernels are kept.

    Returns
    -------
    Path or None
        ``$NUMBA_CACHE_DIR/ttpoe``, else ``$XDG_CACHE_HOME/ttpoe/kernels`` with ``~/.cache`` as the default; where that
        cannot be written, a directory of the user's own under the temporary directory; None where that fails too.
    """
    config.reload_config()
    if config.CACHE_DIR:
        chosen = Path(config.CACHE_DIR, "ttpoe")
    else:
        chosen = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ttpoe", "kernels")
    fallback = Path(tempfile.gettempdir(), f"ttpoe-kernels-{_uid()}")
    return _writable(chosen.absolute()) or _writable(fallback, private=True)


def clear_cache() -> None:
    """Remove every compiled kernel from the disk."""
    if (directory := cache_dir()) is not None:
        shutil.rmtree(directory, ignore_errors=True)
        _writable.cache_clear()


class _KernelCache(NullCache):
    """What a dispatcher asks before it compiles and tells afterwards, in the place of numba's ``FunctionCache``."""

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher
        self.name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"
        # Pinned at the first call, since compiled code keeps the values of that moment.
        self.facts: tuple[str, list[Any]] | None = None

    @property
    def cache_path(self) -> str | None:
        return None if (directory := cache_dir()) is None else str(directory)

    def flush(self) -> None:
        self.facts = None

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        # Any failure is a miss: the file may be absent, cut short, or name a class that has moved.
        with contextlib.suppress(Exception):
            if path is not None:
                data = path.read_bytes()
                if hashlib.sha256(data[32:]).digest() == data[:32]:
                    result = CompileResult._rebuild(target_context, *pickle.loads(data[32:]))
                    with contextlib.suppress(OSError):
                        os.utime(path)
                    return result
        for listener in tuple(_listeners):
            listener(self.name)
        # Numba numbers its symbols from 1 in every process, so two functions of one name that were compiled in two
        # processes could share a symbol, and the one loaded first would run for both. Number from anywhere instead.
        FunctionIdentity._unique_ids = itertools.count(secrets.randbits(56))
        return None

    def save_overload(self, sig: Any, result: Any) -> None:
        used = [*result.fndesc.typemap.values(), result.signature.return_type]
        if any("FunctionType" in str(kind) for kind in used) or "Dispatcher" in str(used[-1]):
            # Numba would go through the C wrapper that we leave out, and LLVM ends the process when it is missing.
            self.dispatcher.overloads.pop(normalize_signature(sig)[0], None)
            raise numba.TypingError(f"{self.name} chooses between kernels or returns one; call each by name")
        if (path := self._path(sig, result.codegen)) is None:
            return
        addresses = set(result.library._dynamic_globals)
        if addresses and config.OPT == 0:  # each call also loads the address of the callee's dispatcher, to no purpose
            addresses -= {f"numba.dynamic.globals.{id(function):x}" for function in _reach([self.dispatcher])[0]}
        if addresses:
            self._warn("it holds an address of this process, such as that of a global array above 1 MB")
            return
        payload = dumps(result._reduce())
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.")
            try:
                with open(handle, "wb") as file:
                    file.write(hashlib.sha256(payload).digest() + payload)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
            entries = path.parent.glob(f"{path.name.partition('-')[0]}-*")
            for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime)[:-KEEP]:
                entry.unlink(missing_ok=True)

    def _path(self, sig: Any, codegen: Any) -> Path | None:
        """Name the file of one compiled signature, or None where it cannot be kept."""
        if (directory := cache_dir()) is None:
            return None
        try:
            self.facts = self.facts or describe(self.dispatcher)
            reader = Reader()
            signature = reader.spell(normalize_signature(sig))
            _, graph = _reach([self.dispatcher, *reader.callees])
        except UnknownValueError as error:
            self._warn(str(error))
            return None
        settings = {k: v for k, v in vars(config).items() if k.isupper() and k not in _NOT_CODE and k[:5] != "CUDA_"}
        name = self.name.replace("<locals>.", "")
        key = _hash((_VERSIONS, codegen.magic_tuple(), signature, graph))
        return directory / _hash(sorted(settings.items())) / f"{name}-{key}.kernel"

    def _warn(self, reason: str) -> None:
        code = self.dispatcher.py_func.__code__
        message = f"{self.name} is compiled anew in each process: {reason}"
        warnings.warn_explicit(message, numba.NumbaWarning, code.co_filename, code.co_firstlineno)


def _reach(functions: list[Any]) -> tuple[list[Any], list[Any]]:
    """List these functions and all that they reach; describe them as a graph, callees by their place in the list."""
    index = {id(function): i for i, function in enumerate(functions)}
    graph = []
    for function in functions:  # grows
        text, callees = getattr(getattr(function, "_cache", None), "facts", None) or describe(function)
        for callee in callees:
            if id(callee) not in index:
                index[id(callee)] = len(functions)
                functions.append(callee)
        graph.append((text, [index[id(callee)] for callee in callees]))
    return functions, graph


def _widen_arguments(dispatcher: Any) -> None:
    """Have kernels call this one with int64 for each whole number, be it a constant or a narrow field.

    Numba would compile it again for every constant and width, 18 times for one that sends a frame by opcode.
    """
    resolve = dispatcher.get_call_template

    def widened(args: Any, kws: Any) -> Any:
        return resolve(tuple(map(_widened, args)), {name: _widened(kind) for name, kind in kws.items()})

    dispatcher.get_call_template = widened


def _widened(kind: Any) -> Any:
    kind = types.unliteral(kind)  # type: ignore[attr-defined]
    return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind  # type: ignore[attr-defined]


def _keep_python_out(dispatcher: Any) -> None:
    """Make a call from Python an error: numba would jump to the wrapper that we did not compile, which is a crash."""

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise TypeError(f"{dispatcher.__qualname__} is for kernels only; declare it @kernel(export=True)")

    vars(dispatcher).update(_compile_for_args=refuse, _insert=lambda *_args: None)


def _hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def _uid() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


@cache
def _writable(directory: Path, private: bool = False) -> Path | None:
    """Make a directory and try to write there. A private one must be the user's alone, since entries are unpickled."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
        if private and (directory.is_symlink() or status.st_uid != _uid() or status.st_mode & 0o022):
            return None
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return None
    return directory

"""The compile cache: never stale, never in the way. Each case runs a small package in processes of its own."""

from __future__ import annotations

import collections
import enum
import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from ttpoe import _jit
from ttpoe._fingerprint import Reader, UnknownValueError, describe

COMPILED = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled under NUMBA_DISABLE_JIT")

ROOT = Path(_jit.__file__).parents[1]
PACKAGE = {
    "constants.py": """
        SCALE = 3
    """,
    "leaf.py": """
        from ttpoe._jit import kernel
        from .constants import (
            SCALE,  # three (3)
        )

        @kernel
        def scaled(row):
            "Scale a row."
            row["count"] += 1
            return row["size"] * SCALE

        @kernel(inline=True)
        def total(params):
            return params.first * 10 + params.second
    """,
    "other.py": """
        from ttpoe._jit import kernel

        @kernel(export=True)
        def unrelated(x):
            return x + 1
    """,
    "outer.py": """
        from collections import namedtuple

        import numpy as np
        from ttpoe._jit import kernel
        from proj.leaf import scaled, total

        ROW = np.dtype([("count", np.int64), ("size", np.int64)], align=True)
        Params = namedtuple("Params", "first second")

        @kernel(export=True)
        def outer(rows, i, params):
            return scaled(rows[i]) + total(params)

        def answer():
            rows = np.zeros(2, ROW)
            rows["size"] = 100
            return int(outer(rows, 1, Params(second=1, first=2)))
    """,
}
MAIN = """
    import proj.other
    from proj.outer import answer
    out = [answer(), int(proj.other.unrelated(1))]
"""


class Project:
    """A package on disk, its cache directory, and the interpreter to run it with."""

    def __init__(self, root: Path) -> None:
        self.package = root / "proj"
        self.cache = root / "cache"
        self.package.mkdir(parents=True)
        self.write("__init__.py", "")

    def write(self, name: str, source: str) -> None:
        (self.package / name).write_text(textwrap.dedent(source))

    def edit(self, name: str, old: str, new: str) -> None:
        source = (self.package / name).read_text()
        assert old in source
        (self.package / name).write_text(source.replace(old, new))

    def start(self, main: str, **env: str) -> subprocess.Popen[str]:
        start = "import json\nfrom ttpoe import _jit\nnames = []\nwith _jit.compiling(names.append):\n"
        code = start + textwrap.indent(textwrap.dedent(main), "    ") + "\nprint(json.dumps([out, sorted(names)]))"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
        clean |= {"NUMBA_CACHE_DIR": str(self.cache), "PYTHONPATH": f"{self.package.parent}{os.pathsep}{ROOT}"}
        return subprocess.Popen(
            [sys.executable, "-B", "-c", code],
            env=clean | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, main: str = MAIN, **env: str) -> tuple[Any, list[str]]:
        """Give the value of ``out`` and the names of the kernels that were compiled."""
        return finish(self.start(main, **env))

    def entries(self) -> list[Path]:
        return sorted(path for path in self.cache.rglob("*") if path.is_file())


def finish(process: subprocess.Popen[str]) -> tuple[Any, list[str]]:
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    out, names = json.loads(stdout.splitlines()[-1])
    return out, names


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    for name, source in PACKAGE.items():
        made.write(name, source)
    return made


ALL = ["proj.leaf.scaled", "proj.leaf.total", "proj.other.unrelated", "proj.outer.outer"]


def test_edits_recompile_what_they_reach_and_nothing_else(project: Project) -> None:
    assert project.run() == ([321, 2], ALL)
    assert project.run() == ([321, 2], [])
    project.edit("leaf.py", "* 10", "* 1000")
    assert project.run() == ([2301, 2], ["proj.leaf.total", "proj.outer.outer"])
    project.edit("other.py", "x + 1", "x + 2")
    project.edit("leaf.py", "Scale a row.", "Scale one row, by a constant.")
    project.edit("leaf.py", "@kernel\n", "# A comment.\n@kernel\n")
    assert project.run() == ([2301, 3], ["proj.other.unrelated"])
    project.edit("leaf.py", "* 1000", "* 10")
    assert project.run() == ([321, 3], []), "a version that was warm is warm again"


def test_fields_of_a_named_tuple_are_part_of_the_key(project: Project) -> None:
    assert project.run()[0] == [321, 2]
    project.edit("outer.py", "first second", "second first")
    assert project.run() == ([321, 2], ["proj.leaf.total", "proj.outer.outer"])


def test_a_constant_recompiles_however_it_is_imported(project: Project) -> None:
    imports = {
        "from proj.constants import SCALE": "SCALE",
        "from .constants import SCALE as S": "S",
        "from .constants import *": "SCALE",
        "import proj.constants": "proj.constants.SCALE",
        "import proj.constants as c": "c.SCALE",
        "from . import constants": "constants.SCALE",
        "from proj import (  # a package\n    constants as k,\n)": "k.SCALE",
        "from importlib import import_module; c = import_module('proj.constants')": "c.SCALE",
        "from .derived import DOUBLE": "DOUBLE // 2",
    }
    project.write("derived.py", "from proj.constants import SCALE\nDOUBLE = 2 * SCALE")
    for i, (statement, value) in enumerate(imports.items()):
        source = f"{statement}\nfrom ttpoe._jit import kernel\n@kernel(export=True)\ndef f(x):\n    return x * {value}"
        project.write(f"style{i}.py", source)
    main = f"import importlib; out = [importlib.import_module(f'proj.style{{i}}').f(2) for i in range({len(imports)})]"
    assert project.run(main)[0] == [6] * len(imports)
    project.edit("constants.py", "3", "5")
    assert project.run(main) == ([10] * len(imports), [f"proj.style{i}.f" for i in range(len(imports))])


def test_a_global_set_at_run_time_poisons_nothing(project: Project) -> None:
    project.write(
        "late.py",
        """
        from ttpoe._jit import kernel

        FACTOR = 3

        @kernel(export=True)
        def f(x):
            return x * FACTOR

        @kernel(export=True)
        def g(x):
            return f(x) + 1
        """,
    )
    # What was compiled keeps the value of that time, and so does its caller.
    assert project.run("from proj import late; a = late.f(1); late.FACTOR = 7; out = [a, late.g(1)]")[0] == [3, 4]
    assert project.run("from proj import late; out = [late.f(1), late.g(1)]") == ([3, 4], [])
    project.edit("late.py", "FACTOR = 3", "FACTOR = 7")
    assert project.run("from proj import late; out = [late.f(1), late.g(1)]")[0] == [7, 8]


def test_the_bounds_leg_never_runs_unchecked_code(project: Project) -> None:
    project.write(
        "reads.py",
        """
        import numpy as np
        from ttpoe._jit import kernel

        @kernel
        def read(a, i):
            return a[i]

        @kernel(export=True)
        def outer(a, i):
            return read(a, i)

        def attempt(i):
            try:
                return int(outer(np.arange(4)[:2], i))
            except IndexError:
                return "IndexError"
        """,
    )
    main = "from proj.reads import attempt; out = attempt(3)"
    assert project.run(main) == (3, ["proj.reads.outer", "proj.reads.read"])
    assert project.run(main, NUMBA_BOUNDSCHECK="1")[0] == "IndexError"
    assert project.run(main) == (3, []), "the plain leg stays warm"
    assert project.run(main, NUMBA_BOUNDSCHECK="1") == ("IndexError", []), "and so does the checked one"


def test_optimisation_levels_keep_apart(project: Project) -> None:
    assert project.run()[1] == ALL
    assert project.run(NUMBA_OPT="0") == ([321, 2], ALL)
    assert project.run(NUMBA_OPT="0", NUMBA_NUM_THREADS="1") == ([321, 2], [])
    assert project.run() == ([321, 2], [])


def test_damaged_entries_are_compiled_again(project: Project) -> None:
    project.run()
    entries = project.entries()
    assert len(entries) == len(ALL)
    for path, damage in zip(entries, ("cut", "flipped", "garbage", "empty"), strict=True):
        data = path.read_bytes()
        middle = len(data) // 2
        path.write_bytes({
            "cut": data[:middle],
            "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "garbage": b"\x80\x04garbage.",
            "empty": b"",
        }[damage])  # fmt: skip
    assert project.run() == ([321, 2], ALL)
    assert project.run() == ([321, 2], [])


def test_a_directory_that_cannot_be_written(project: Project, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "cache")
    (tmp_path / "temporary").mkdir()
    elsewhere = {"NUMBA_CACHE_DIR": nowhere, "TMPDIR": str(tmp_path / "temporary")}
    assert project.run(**elsewhere) == ([321, 2], ALL)
    assert project.run(**elsewhere) == ([321, 2], []), "the temporary directory serves instead"
    (fallback,) = (tmp_path / "temporary").iterdir()
    fallback.chmod(0o777)
    assert project.run(**elsewhere) == ([321, 2], ALL), "but not one that others may write"


def test_the_default_directory_follows_xdg(project: Project, tmp_path: Path) -> None:
    main = "out = str(_jit.cache_dir())"
    assert project.run(main, NUMBA_CACHE_DIR="", XDG_CACHE_HOME=str(tmp_path))[0] == str(tmp_path / "ttpoe" / "kernels")


def test_processes_may_race(project: Project) -> None:
    racers = [project.start(MAIN) for _ in range(2)]
    assert [finish(racer)[0] for racer in racers] == [[321, 2]] * 2
    assert project.run() == ([321, 2], [])
    assert {path.suffix for path in project.entries()} == {".kernel"}, "nothing half-written is left"


def test_kernels_of_one_name_compiled_in_two_processes(project: Project) -> None:
    project.write(
        "factory.py",
        """
        from ttpoe._jit import kernel

        def make(k):
            @kernel
            def f(x):
                if x <= 1:
                    return k
                return k * x + f(x - 1) * 3 + f(x - 2)
            return f

        three, four = make(3), make(4)

        @kernel(export=True)
        def a(x):
            return three(x)

        @kernel(export=True)
        def b(x):
            return four(x)
        """,
    )
    (right,), _ = project.run("from proj.factory import a; out = [a(9)]")
    (_, second), names = project.run("from proj.factory import a, b; out = [b(9), a(9)]")
    assert names == ["proj.factory.b", "proj.factory.make.<locals>.f"]
    assert second == right


def test_the_interpreter_alone(project: Project) -> None:
    assert project.run(NUMBA_DISABLE_JIT="1") == ([321, 2], [])
    assert project.entries() == []


def test_the_cache_does_not_grow_with_every_edit(project: Project) -> None:
    main = """
        import importlib, pathlib, proj.other
        path = pathlib.Path(proj.other.__file__)
        source = path.read_text()
        out = []
        for step in [*range(1, 9), 1, *range(9, 16), 1]:
            path.write_text(source.replace("x + 1", f"x + {step}"))
            importlib.invalidate_caches()
            out.append(int(importlib.reload(proj.other).unrelated(1)))
    """
    out, names = project.run(main)
    assert out == [*range(2, 10), 2, *range(10, 17), 2]
    assert len(names) == 15, "the first version was in use all along, so it was kept"
    assert len(project.entries()) == _jit.KEEP
    assert project.run("import proj.other; out = proj.other.unrelated(1)") == (2, [])
    assert project.run("_jit.clear_cache(); import proj.other; out = proj.other.unrelated(1)")[1] == [ALL[2]]


def test_a_kernel_that_cannot_be_kept_says_so(project: Project) -> None:
    project.write(
        "large.py",
        """
        import numpy as np
        from ttpoe._jit import kernel

        TABLE = np.arange(200_000)

        @kernel(export=True)
        def look(i):
            return TABLE[i]
        """,
    )
    main = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            from proj.large import look
            out = [int(look(7)), [str(w.message) for w in caught]]
    """
    (value, messages), _ = project.run(main)
    assert value == 7
    assert len(messages) == 1
    assert messages[0].startswith("proj.large.look is compiled anew in each process")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))


@COMPILED
@pytest.mark.usefixtures("own_cache")
def test_python_cannot_call_an_internal_kernel() -> None:
    @_jit.kernel
    def inner(x: int) -> int:
        return x + 1

    @_jit.kernel(export=True)
    def outer(x: int) -> int:
        return inner(x)

    with pytest.raises(TypeError, match="for kernels only"):
        inner(1)
    assert outer(1) == 2
    with pytest.raises(TypeError, match="for kernels only"):
        inner(1)


@COMPILED
@pytest.mark.usefixtures("own_cache")
@pytest.mark.filterwarnings("ignore::numba.NumbaExperimentalFeatureWarning")
def test_functions_are_not_values() -> None:
    """Numba would end the process when it links a choice between functions that have no C wrapper."""

    @_jit.kernel
    def one(x: int) -> int:
        return x + 1

    @_jit.kernel
    def two(x: int) -> int:
        return x + 2

    @_jit.kernel
    def choose(x: int) -> int:
        f = one if x > 3 else two
        return f(x)

    @_jit.kernel(export=True)
    def outer(x: int) -> int:
        return choose(x)

    with pytest.raises(numba.TypingError, match="chooses between kernels"):
        outer(1)


class Colour(enum.IntEnum):
    RED = 1


Pair = collections.namedtuple("Pair", "a b")


def test_values_that_compile_differently_are_spelled_differently() -> None:
    values = [
        0, 1, True, 1.0, 0.0, -0.0, math.inf, "1", b"1", None, (1,), ("1",), Pair(1, 2), Pair, Colour.RED, Colour,
        np.int64(1), np.int32(1), np.arange(2), np.arange(2.0), np.eye(2), np.eye(2, order="F"),
        np.dtype("i4,i8"), np.dtype("i4,i8", align=True), math.sin, np.sin, math, numba.int64, min, np.int64,
        frozenset({1, 2}), frozenset({1, 3}), math.sin.__name__,
    ]  # fmt: skip
    spelled = [repr(Reader().spell(value)) for value in values]
    assert len(set(spelled)) == len(values)


@pytest.mark.parametrize("value", [{}, [], object(), numba.typeof([1])])
def test_a_value_that_cannot_be_described_is_refused(value: object) -> None:
    with pytest.raises(UnknownValueError):
        Reader().spell(value)


def test_a_docstring_counts_only_where_it_is_used() -> None:
    def described(source: str) -> str:
        scope: dict[str, Any] = {"__name__": "somewhere"}
        exec(source, scope)
        return describe(scope["f"])[0]

    assert described("def f(r):\n return r + 1") != described("def f(r):\n return r - 1")
    assert described('def f(r):\n "One text."\n return 1') == described('def f(r):\n "Another text."\n return 1')
    assert described('def f(r):\n "size"\n return r["size"]') != described('def f(r):\n "cwnd"\n return r["cwnd"]')

"""What compiling costs: ``ttpoe incast`` with an empty cache, with a warm one, and after one kernel file was edited.

    python benchmarks/startup.py [--json]

Works on a copy of the packages with a cache of its own; the budgets are those of docs/design.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGET_S = {"cold": 60.0, "warm": 2.0, "one kernel file edited": 20.0}
_EDIT = ("emulator/buffer.py", '["alpha_q16"]) >> 16', '["alpha_q16"]) // 65536')


def _time_incast(tree: Path) -> float:
    environment = os.environ | {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(tree / "cache")}
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "from ttpoe.cli import main; main()", "incast"],
        check=True, cwd=tree, env=environment, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - started


def main() -> None:
    """Measure and print beside the budgets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        for package in ("ttpoe", "emulator", "traces"):
            shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
        took = {"cold": _time_incast(tree)}
        took["warm"] = min(_time_incast(tree) for _ in range(3))
        name, old, new = _EDIT
        text = (tree / name).read_text()
        if old not in text:
            raise SystemExit(f"{name} no longer holds {old!r}; choose another edit")
        (tree / name).write_text(text.replace(old, new))
        took["one kernel file edited"] = _time_incast(tree)
    if options.json:
        print(json.dumps({"took_s": took, "budget_s": BUDGET_S}))
        return
    for what, seconds in took.items():
        verdict = "within" if seconds <= BUDGET_S[what] else "OVER"
        print(f"{what}: {seconds:.1f} s, {verdict} the budget of {BUDGET_S[what]:.0f} s")


if __name__ == "__main__":
    main()

"""The fuzzers, bounded: docs/proof.md has the command that runs them for longer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parent / "fuzz"

pytest.importorskip("atheris", reason="atheris has no wheel for this Python or system (Linux on x86-64 only)")


def run(*words: str | Path, interpreted: bool = True) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"} if interpreted else os.environ
    done = subprocess.run([sys.executable, *map(str, words)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.mark.parametrize(
    ("name", "runs", "length", "coverage"), [("parser", 20_000, 1200, 60), ("listener", 1_500, 200, 400)]
)
def test_fuzz(name, runs, length, coverage, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    target = FUZZ / f"{name}.py"
    run(target, "--seed-corpus", corpus)
    seeds = len(list(corpus.iterdir()))
    assert seeds >= 4
    done = run(target, corpus, f"-runs={runs}", f"-max_len={length}", "-len_control=0", "-seed=1")
    end = re.search(r"DONE +cov: (\d+)", done.stderr)
    assert end is not None
    assert int(end[1]) > coverage, "the fuzzer does not get into the code"
    if name == "parser":
        assert run(target, "--digest", corpus).stdout == run(target, "--digest", corpus, interpreted=False).stdout

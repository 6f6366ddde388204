"""Reno under random loss follows the square-root law, and its goodput the law with go-back-N's price."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated import COMPILED

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "reno.py"
RENO = runpy.run_path(str(SCRIPT))
CONSTANT = RENO["random_constant"]()


def test_the_constant_for_random_losses() -> None:
    """1.31 in table 1 of Mathis et al., for an acknowledgement a packet."""
    assert pytest.approx(1.31, abs=0.005) == CONSTANT


@COMPILED
@pytest.mark.slow
@pytest.mark.parametrize("p", RENO["FRACTIONS"])
def test_window_and_goodput(p: float) -> None:
    """RTT fixed by long cables, payloads lost at random, no queue: goodput is what the window lets through."""
    runs = [RENO["measure"](p, 3000, seed) for seed in (1, 2)]
    goodput, window = (np.mean([run[name] for run in runs]) for name in ("w", "cwnd"))
    assert window == pytest.approx(CONSTANT / p**0.5, rel=0.03)
    assert goodput == pytest.approx(1.5**0.5 / p**0.5, rel=0.10)
    assert goodput == pytest.approx(RENO["law"](p, CONSTANT), rel=0.04)
    assert sum(run["timeouts"] for run in runs) == 0


@COMPILED
def test_the_script_prints_and_draws(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--losses", "40", "--seeds", "1", "--out", tmp_path / "reno.png"],
                          check=True, capture_output=True, text=True)  # fmt: skip
    assert "0.1 %" in done.stdout
    assert (tmp_path / "reno.png").read_bytes().startswith(b"\x89PNG")

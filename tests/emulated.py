"""Short ways to run scenarios in tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import settings

from emulator.config import make_scenario
from emulator.conservation import check_conservation
from emulator.engine import RunStatus, run
from emulator.fabric import Fabric
from emulator.results import RunResult
from emulator.transports import PROFILES, TRANSPORTS

ALL = tuple(name for name in TRANSPORTS if PROFILES[name].flow_control != "credits")
"""Transports on Ethernet. Credits have tests of their own: updates share the lines, so nothing is exact to the bit."""
LINE_PS_PER_BYTE = 80
"""At 100 Gb/s."""

OTHER_MODES = pytest.mark.parametrize(
    "variable", ["NUMBA_DISABLE_JIT", pytest.param("NUMBA_BOUNDSCHECK", marks=pytest.mark.slow)]
)
"""Interpreted, and with every array access checked: see `digests_under`."""
COMPILED = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="takes minutes interpreted")


def examples(count: int) -> settings:
    """Hypothesis examples; far fewer where each takes 250 times as long."""
    return settings(max_examples=max(count // 40, 2) if numba.config.DISABLE_JIT else count)


def incast(senders: int, size_bytes: int, **fields: Any) -> dict[str, Any]:
    """Plain values of an incast scenario; other top-level fields as given."""
    return {"workload": {"kind": "incast", "senders": senders, "size_bytes": size_bytes}, **fields}


def flows(*rows: tuple[int, ...], **fields: Any) -> dict[str, Any]:
    """Plain values of a scenario of single messages: (src, dst, size_bytes[, start_ps])."""
    names = ("src", "dst", "size_bytes", "start_ps")
    return {"workload": {"kind": "flows", "flows": [dict(zip(names, row, strict=False)) for row in rows]}, **fields}


def make(values: dict[str, Any], transport: str, seed: int = 1, **options: Any) -> Fabric:
    """A fabric about to run; TTPoE in IPv4 mode where that alone will do."""
    if transport == "ttpoe-dctcp":
        values = {**values, "ttpoe": {"mode": "ipv4", **values.get("ttpoe", {})}}
    return Fabric(make_scenario(values), transport, seed, **options)


def result_of(values: dict[str, Any], transport: str, seed: int = 1) -> RunResult:
    """The result of one run."""
    return make(values, transport, seed).run()


def traced(values: dict[str, Any], transport: str, ports: set[str], seed: int = 1) -> tuple[Fabric, RunResult, Any]:
    """A run and the TRACE rows of ``ports``."""
    fabric = make(values, transport, seed, capture=frozenset(ports))
    kept: list[np.ndarray] = []
    result = fabric.run(sink=lambda rows: kept.append(rows.copy()))
    return fabric, result, np.concatenate(kept)


def checked(values: dict[str, Any], transport: str, seed: int = 1, every: int = 997) -> RunResult:
    """A run whose frames and bytes are all accounted for after each ``every`` events."""
    fabric = make(values, transport, seed)
    checks = 0

    def check(_: Any) -> None:
        nonlocal checks
        checks += 1
        check_conservation(fabric.world)

    result = fabric.run(max_events=every, on_slice=check)
    assert checks > 0
    return result


_CHILD = """
import json, sys
import numba
import numpy as np
sys.path.insert(0, sys.argv[1])
from emulated import make
values, transports, ports = json.loads(sys.argv[2])
told = []
with np.errstate(all="raise"):
    for transport in transports:
        told.append(make(values, transport, capture=frozenset(ports)).run(sink=lambda rows: None).digest)
print(json.dumps([bool(getattr(numba.config, sys.argv[3].removeprefix("NUMBA_"))), told]))
"""


def digests_under(variable: str, values: dict[str, Any], *transports: str, ports: tuple[str, ...] = ()) -> list[str]:
    """Digests of runs that capture ``ports``, from a process in which the environment's ``variable`` is 1.

    numpy's overflow and the like are errors there.
    """
    told = json.dumps([values, transports, ports])
    done = subprocess.run([sys.executable, "-c", _CHILD, str(Path(__file__).parent), told, variable], check=True,
                          capture_output=True, text=True, env={**os.environ, variable: "1"})  # fmt: skip
    is_so, digests = json.loads(done.stdout)
    assert is_so
    return list(digests)


def step(fabric: Fabric, events: int = 1) -> RunStatus:
    """Serve a number of events of a fabric that is small enough never to need more rows."""
    return RunStatus(run(fabric.world, fabric.scenario.until_ps, events))

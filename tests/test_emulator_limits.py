"""As large as the command line allows: it works, in time and memory that grow with what is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from emulated import COMPILED, incast, result_of

CHILD = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from emulated import incast, result_of
result_of(incast(2, 1000), "ttpoe")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = result_of(json.loads(sys.argv[2]), sys.argv[3])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
told = {"kib": after - before, "finished": result.summary()["finished"], "hops": result.counters["data_hops"]}
print(json.dumps(told))
"""


def measured(values: dict[str, Any], transport: str) -> dict[str, int]:
    """What a process of its own needs beyond a small run."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(Path(__file__).parent), json.dumps(values), transport],
                          check=True, capture_output=True, text=True)  # fmt: skip
    told: dict[str, int] = json.loads(done.stdout)
    return told


@COMPILED
@pytest.mark.slow
@pytest.mark.parametrize(("transport", "most_mib"), [("ttpoe", 256), ("roce-pfc", 128)])
def test_a_thousand_senders_of_a_megabyte(transport: str, most_mib: int) -> None:
    told = measured(incast(1000, 1_000_000, switch={"buffer_bytes": "2GB"}), transport)
    assert told["finished"] == 1000
    assert told["kib"] < most_mib * 1024


@COMPILED
@pytest.mark.slow
def test_65535_senders() -> None:
    told = measured(incast(65_535, 1000, switch={"buffer_bytes": "1GB"}), "roce")
    assert told["finished"] == 65_535
    assert told["hops"] == 2 * 65_535
    assert told["kib"] < 500 * 1024


def test_a_message_of_many_gigabytes_ends_when_time_is_over() -> None:
    """What was not sent costs no memory and no time, in the results neither."""
    for transport in ("ttpoe", "roce-pfc"):
        result = result_of(incast(1, 2**50 - 1, until_ps="200us"), transport)
        assert result.unfinished == ["h1>h0"]
        assert result.goodput_limit_gbps > 90


def test_payloads_of_one_byte() -> None:
    result = result_of(incast(2, 300, ttpoe={"mtu_bytes": 1}, roce={"mtu_bytes": 1}), "ttpoe")
    assert result.unfinished == []
    assert result.counters["data_hops"] == 2 * 2 * 300

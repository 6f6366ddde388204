"""Hypothesis profiles, and a veth pair for tests on real sockets.

The same examples in every run; HYPOTHESIS_PROFILE=hunt looks for new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings

from ttpoe.errors import InterfaceError
from ttpoe.netns import Side, veth_pair

settings.register_profile(
    "default", derandomize=True, database=None, deadline=None, max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.register_profile("hunt", settings.get_profile("default"), derandomize=False, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def veth() -> Iterator[tuple[Side, Side]]:
    """Two namespaces with a veth pair; skips, and says why, where the rights are missing."""
    with ExitStack() as stack:
        try:
            sides = stack.enter_context(veth_pair())
        except InterfaceError as error:
            pytest.skip(str(error))
        yield sides

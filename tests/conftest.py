"""Hypothesis profiles: the same examples in every run; HYPOTHESIS_PROFILE=hunt looks for new ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", derandomize=True, database=None, deadline=None, max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.register_profile("hunt", settings.get_profile("default"), derandomize=False, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

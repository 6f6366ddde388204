"""The table of what goes with what in docs/model.md is what a scenario accepts, refuses and acts on today."""

from __future__ import annotations

import runpy
from pathlib import Path

from emulated import COMPILED

from emulator.transports import PROFILES

PAGE = Path(__file__).parents[1] / "docs" / "model.md"
SCRIPT = runpy.run_path(str(PAGE.with_name("combinations.py")))


@COMPILED
def test_every_cell_is_as_it_is_tried():
    """If this fails: python docs/combinations.py, and read what changed."""
    text = PAGE.read_text(encoding="utf-8")
    assert SCRIPT["page"](text) == text


def test_a_cell_is_a_sentence_where_it_is_refused():
    by_name = {feature.name: feature for feature in SCRIPT["FEATURES"]}
    assert SCRIPT["try_cell"](by_name["DCQCN"], "spectrum") == "own"
    assert SCRIPT["try_cell"](by_name["captures"], "ib").startswith("--capture: InfiniBand frames are no Ethernet")
    assert SCRIPT["try_cell"](by_name["go-back-0"], "ttpoe").startswith("recovery: TTPoE goes back N")


def test_every_kind_of_transport_has_a_column():
    """Each transport is one of the columns with other choices of a profile, which are rows."""
    kinds = {(PROFILES[name].protocol, PROFILES[name].is_infiniband) for name in SCRIPT["TRANSPORTS"]}
    assert {(profile.protocol, profile.is_infiniband) for profile in PROFILES.values()} == kinds
    rows = {pair for feature in SCRIPT["FEATURES"] for pair in feature.profile.items()}
    for profile in PROFILES.values():
        for field, default in (("flow_control", ""), ("congestion_control", "none"), ("recovery", "go-back-n"),
                               ("window", "psn"), ("routing", "ecmp")):  # fmt: skip
            assert getattr(profile, field) == default or (field, getattr(profile, field)) in rows

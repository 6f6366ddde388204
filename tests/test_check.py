"""The search: that it visits what it should, finds what is taken out, and says so; and that the machine passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from world import Rig

from ttpoe.check import REMOVALS, SCENARIOS, Bounds, Search, Violation, draw_chart, removable
from ttpoe.check import expand as kernels
from ttpoe.check import removals as removals_room
from ttpoe.check.layout import COUNTERS, KEPT, STATE_BYTES, Kept, Step
from ttpoe.check.search import make_world
from ttpoe.fsm import Opcode, State
from ttpoe.state import LINK

SMALL = Bounds(submits=(2, 1), closes=(1, 1))


# The machine as it is


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_promise_breaks(name):
    result = Search(SCENARIOS[name]).run()
    assert result.violation is Violation.NONE, draw_chart(result)
    assert result.is_whole
    assert result.cut == 0
    assert result.states > 10_000


@pytest.mark.parametrize("seqs", [(0, 0), (0xFFFFFFFF, 0xFFFFFFFD), (0x7FFFFFFF, 0xFFFFFFFE), (12345, 54321)])
def test_where_the_ids_begin_makes_no_difference(seqs):
    assert figures(Search(replace(SMALL, initial_seqs=seqs))) == figures(Search(SMALL))


def figures(search: Search) -> tuple[int, int, int, Violation]:
    result = search.run()
    return result.states, result.steps, result.depth, result.violation


# The abstraction


def test_every_field_of_a_link_has_its_place():
    assert set(KEPT) == set(LINK.names)
    assert set(COUNTERS.split()) < {name for name, kind in KEPT.items() if kind is Kept.FIXED}


@pytest.mark.parametrize("bounds", [SMALL, replace(SCENARIOS["reader"], submits=(2, 1))], ids=["small", "reader"])
def test_no_rule_reads_a_counter(bounds):
    """Whatever the counters hold when a step begins, the same states are found."""
    plain, poisoned = Search(bounds), Search(bounds, poison=77)
    assert figures(plain) == figures(poisoned)
    assert np.array_equal(plain.states[: plain.n_states], poisoned.states[: poisoned.n_states])


def test_no_state_is_there_twice_and_each_unpacks_to_itself():
    search = Search(SMALL)
    search.run()
    found = search.states[: search.n_states]
    assert len(np.unique(found, axis=0)) == len(found)
    again = np.zeros((1, STATE_BYTES), np.uint8)
    for i in range(0, len(found), 97):
        kernels.unpack_at(search.world, found, i)
        assert kernels.pack_at(search.world, again, 0) == 0
        assert np.array_equal(again[0], found[i])


def test_a_way_by_hand_is_in_the_search():
    """Opening, a PAYLOAD and its ACK, by the kernels alone: each row is one that the search unpacks."""
    first = SMALL.initial_seqs[0]
    a, b = (Rig(initial_seq=seq, mtu_bytes=1, window_bytes=2, slots=4) for seq in SMALL.initial_seqs)
    a.open()
    b.feed(Opcode.OPEN, first)
    a.feed(Opcode.OPEN_ACK, SMALL.initial_seqs[1] + 1, first)
    a.submit(1)
    assert a.poll() == [(0xFFFFFFFF, 1)]
    b.feed(Opcode.PAYLOAD, 0xFFFFFFFF, 0, 1)
    b.read(1)
    a.feed(Opcode.ACK, 0, 0xFFFFFFFF)
    way = [(0, Step.OPEN), (1, Step.DELIVER), (0, Step.DELIVER), (0, Step.SUBMIT), (0, Step.POLL), (1, Step.DELIVER),
           (0, Step.DELIVER)]  # fmt: skip
    search = Search(SMALL)
    search.run()
    state = search.states[:1].copy()
    for side, kind in way:
        kernels.unpack_at(search.world, state, 0)
        assert kernels.take_step_at(search.world, side, int(kind)) == 0
        kernels.pack_at(search.world, state, 0)
    assert (search.states[: search.n_states] == state[0]).all(axis=1).any()
    kernels.unpack_at(search.world, state, 0)
    for side, rig in enumerate((a, b)):
        for name, kind in KEPT.items():
            if kind in (Kept.SMALL, Kept.SEQ, Kept.BYTES):
                assert int(search.world.links[name][side]) == rig[name], name


def test_the_copy_with_removable_rules_is_the_machine():
    plain, guarded = Search(SMALL), Search(SMALL, kernels=removable())
    assert figures(plain) == figures(guarded)
    assert np.array_equal(plain.states[: plain.n_states], guarded.states[: guarded.n_states])


# Rules taken out


@pytest.mark.parametrize("number", range(1, len(REMOVALS) + 1), ids=[rule.name for rule in REMOVALS])
def test_without_a_rule_a_promise_breaks(number):
    rule = REMOVALS[number - 1]
    assert Search(rule.bounds, kernels=removable()).run().violation is Violation.NONE
    broken = Search(rule.bounds, kernels=removable(), removed_rule=number).run()
    assert broken.violation is not Violation.NONE
    chart = draw_chart(broken, kernels=removable(), removed_rule=number).splitlines()
    assert chart[-1].startswith("=>")
    assert len(chart) >= len(broken.way)


def test_a_rule_that_is_not_in_the_source_is_an_error(monkeypatch):
    lost = replace(REMOVALS[0], source="seq_add(link, 17)")
    monkeypatch.setattr(removals_room, "REMOVALS", (*REMOVALS[1:], lost))
    with pytest.raises(LookupError, match="is 0 times in on_timeout"):
        removable.__wrapped__()


def test_the_search_finds_the_shortest_way():
    number = [rule.name for rule in REMOVALS].index("in-order") + 1
    result = Search(REMOVALS[number - 1].bounds, kernels=removable(), removed_rule=number).run()
    # open, its answer, two submits and two PAYLOAD, the first lost, the second delivered
    assert result.violation is Violation.WRONG_BYTES
    assert result.depth == 9


def test_a_chart():
    number = [rule.name for rule in REMOVALS].index("passing-ships") + 1
    search = Search(REMOVALS[number - 1].bounds, kernels=removable(), removed_rule=number)
    lines = draw_chart(search.run(), kernels=removable(), removed_rule=number).splitlines()
    assert lines[0].split() == ["A", "|", "|", "B"]
    assert lines[1].split("|")[0].strip() == lines[1].split("|")[2].strip() == State.CLOSED.name
    assert any("X lost" in line for line in lines)
    assert any(line.rstrip().endswith("owner opens, OPEN_SENT") for line in lines)
    assert any("|-- 1 OPEN tx=fffffffe -->" in line for line in lines)
    assert lines[-1].startswith("=> nothing can happen any more")
    assert {line.index("|") for line in lines if "|" in line} == {lines[0].index("|")}


def test_a_search_that_stops_early_says_so():
    result = Search(SCENARIOS["duplex"]).run(max_states=1000)
    assert not result.is_whole
    assert result.violation is Violation.NONE
    assert 1000 < result.states < 20_000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"window": 9}, "window is 9"), ({"losses": -1}, "losses is -1"), ({"opens": (2, 0)}, "opens is 2"),
        ({"duplicates": 3, "delays": 2}, "duplicates and delays are 5"), ({"mtu_bytes": 3}, "below one payload"),
        ({"submits": (12, 0), "submit_bytes": 3}, "more than 24 bytes"),
    ],
)  # fmt: skip
def test_bounds_that_cannot_be(change, says):
    with pytest.raises(ValueError, match=says):
        replace(SMALL, **change)


def test_a_state_beyond_the_encoding_is_a_violation():
    world = make_world(SMALL)
    world.links["rx_seq"][0] = 0x55555555  # near no id that was drawn
    assert kernels.pack_at(world, np.zeros((1, STATE_BYTES), np.uint8), 0) == Violation.OUTSIDE


# The command


def run(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from ttpoe.cli import main; sys.argv[0] = 'ttpoe'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "check", *words], capture_output=True, text=True, env=os.environ, check=False
    )


def test_the_command_tells_json():
    done = run("restart", "giving-up", "--losses", "1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [each["name"] for each in told] == ["restart", "giving-up"]
    assert all(each["is_whole"] and each["violation"] is None and each["bounds"]["losses"] == 1 for each in told)
    assert done.stderr == ""


def test_the_command_shows_what_breaks():
    done = run("--without", "ended-stays")
    assert done.returncode == 0, done.stderr
    assert "REVIVED" not in done.stdout
    assert "a link that has ended lives again" in done.stdout
    assert "<-- 2 OPEN_ACK" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("nothing",), 2, "there is no scenario 'nothing'; choose from transfer"),
        (("--without", "nothing"), 2, "--without: there is no rule 'nothing'; choose from all"),
        (("transfer", "--without", "all"), 2, "leave out the scenarios"),
        (("--submits", "2"), 2, "'--submits': '2' is not a number for A and one for B"),
        (("--window", "9"), 2, "window is 9; it must be from 1 to 4"),
        (("duplex", "--max-states", "500"), 3, ""),
        (("giving-up", "--losses", "0", "--without", "open-replay"), 3, ""),
    ],
)
def test_exit_status(words, status, says):
    done = run(*words)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr

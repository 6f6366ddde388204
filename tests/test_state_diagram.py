"""The state diagram in docs/ is what its script draws from the tables of today."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ttpoe.fsm import RECEIVED_CELLS, SENT_CELLS, State

SCRIPT = Path(__file__).parents[1] / "docs" / "state_diagram.py"
DRAWN = SCRIPT.with_name("state-diagram.svg")
SVG = "{http://www.w3.org/2000/svg}"


def test_the_file_is_up_to_date(tmp_path: Path) -> None:
    """If this fails: python docs/state_diagram.py, and look at the picture."""
    subprocess.run([sys.executable, SCRIPT, tmp_path / "drawn.svg"], check=True, capture_output=True)
    assert (tmp_path / "drawn.svg").read_text() == DRAWN.read_text()


def test_every_transition_is_drawn_once_with_its_opcodes() -> None:
    """Read off the printed cells, which the script does not look at."""
    expected = []
    for event, cells in (("received", RECEIVED_CELLS), ("sent", SENT_CELLS)):
        for opcode, row in cells.items():
            expected += [f"{event} {opcode.name}" for cell in row if ">" in cell]
    root = ElementTree.parse(DRAWN).getroot()
    texts = ["".join(text.itertext()).partition(",")[0] for text in root.iter(f"{SVG}text")]
    assert sorted(texts) == sorted([*expected, *(state.name for state in State)])
    pairs = {
        (state, cell.partition(">")[2])
        for cells in (RECEIVED_CELLS, SENT_CELLS)
        for row in cells.values()
        for state, cell in zip(State, row, strict=True)
        if ">" in cell
    }
    assert sum(path.get("class") == "arrow" for path in root.iter(f"{SVG}path")) == len(pairs) == 11


def test_arrows_begin_and_end_at_their_states() -> None:
    script = runpy.run_path(str(SCRIPT))
    half_width, half_height = script["BOX_WIDTH"] / 2, script["BOX_HEIGHT"] / 2
    for ends, (path, *_) in script["_ARROWS"].items():
        numbers = [float(part) for part in path.replace(",", " ").split() if part.lstrip("-").isdigit()]
        for state, (x, y) in zip(ends, (numbers[:2], numbers[-2:]), strict=True):
            left, top = script["CENTRES"][state]
            assert abs(x - left) <= half_width + 6
            assert abs(y - top) <= half_height + 6


def test_a_transition_without_an_arrow_is_an_error() -> None:
    script = runpy.run_path(str(SCRIPT))
    del script["_ARROWS"][State.OPEN, State.CLOSED]
    with pytest.raises(ValueError, match="OPEN to CLOSED"):
        script["draw"]()

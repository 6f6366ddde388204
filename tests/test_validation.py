"""The rows of docs/validation.md: the quick ones hold, the page is theirs, and a row can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from emulated import COMPILED

from emulator.validation import ROWS, Row, Verdict, evaluate
from emulator.validation.report import BEGIN, END, markdown, replace_part
from emulator.validation.row import Check, Measured
from emulator.validation.theory import fullest, mean_share, share_sigma
from ttpoe.cli import group

PAGE = Path(__file__).parent.parent / "docs" / "validation.md"


def run(*arguments: str):
    return CliRunner().invoke(group, ["validate", *arguments])


@COMPILED
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.is_quick])
def test_a_row_holds(name):
    outcome = evaluate(ROWS[name])
    assert outcome.verdict is Verdict.PASS, [c for c in outcome.measured.checks if not c.holds]


def row(low: float, high: float, **fields) -> Row:
    measured = Measured("2", (Check("two", 2, low, high), Check("three", 3, 3, 3)))
    return Row("r", "what", "set-up", "expected", "source", "none", lambda: measured, **fields)


def test_a_row_fails_when_one_check_does():
    assert evaluate(row(2, 2)).verdict is Verdict.PASS
    bad = evaluate(row(2.5, 3, note="Known."))
    assert bad.verdict is Verdict.FAIL
    text = markdown([bad])
    assert "| **fail** |" in text
    assert "- `r`: Known. two: 2, not in 2.5 to 3." in text
    assert not Check("nothing", float("nan"), 0, 1).holds


def test_a_row_is_measured_or_says_what_it_waits_for():
    with pytest.raises(ValueError, match="either"):
        Row("r", "", "", "", "", "")
    with pytest.raises(ValueError, match="either"):
        row(1, 2, needs="TCP")
    with pytest.raises(ValueError, match="without a check"):
        Measured("2", ())
    waits = evaluate(Row("r", "", "", "", "", "", needs="TCP"))
    assert (waits.verdict, waits.as_dict()["needs"]) == (Verdict.NOT_YET, "TCP")


def test_what_is_recalled_is_judged_by_the_command_alone():
    """Quick rows are asserted on every run of the tests; a figure from memory is no ground for that."""
    for known in ROWS.values():
        if "recalled" in known.expected + known.source + known.setup + known.tolerance:
            assert not known.is_quick, known.name


def test_balls_in_bins():
    """Two flows over two uplinks by hand: together with probability 1/2."""
    assert mean_share(2, 2) == 0.75
    assert fullest(2, 2) == (1.5, 0.5)
    assert share_sigma(2, 2) == pytest.approx(0.25)
    assert fullest(3, 2)[0] == pytest.approx((2 * 3 + 6 * 2) / 8)
    assert mean_share(5, 1) == pytest.approx(1 / 5)


def test_the_page_has_every_row():
    """As ``ttpoe validate --out`` wrote it: one line a row, with the expectation and set-up that the row has now."""
    text = PAGE.read_text()
    generated = text[text.index(BEGIN) : text.index(END)]
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in generated.splitlines() if line.startswith("| ")}
    assert set(lines) - {"row"} == set(ROWS)
    for name, known in ROWS.items():
        for text in (known.what, known.setup, known.expected, known.tolerance):
            assert text in lines[name]
        assert ("not yet" in lines[name]) == (known.measure is None)


def test_docs_name_the_rows_that_fail():
    """By the page's own table, so that the exit status of the command is no surprise."""
    text = PAGE.read_text()
    failed = [name for name in ROWS if f"| {name} |" in text and "**fail**" in next(
        line for line in text.splitlines() if line.startswith(f"| {name} |"))]  # fmt: skip
    assert failed
    assert f"Failed: {', '.join(failed)}." in text
    assert not [name for name in failed if ROWS[name].is_quick]
    head = text[: text.index(BEGIN)]
    assert all(f"`{name}`" in head for name in failed)


def test_only_the_generated_part_is_replaced():
    page = f"# Head\n{BEGIN}\nold\n{END}\ntail\n"
    assert replace_part(page, "new\n") == f"# Head\n{BEGIN}\n\nnew\n\n{END}\ntail\n"
    for broken in ("nothing", f"{END} {BEGIN}"):
        with pytest.raises(ValueError, match="add them"):
            replace_part(broken, "")


@COMPILED
def test_the_command(monkeypatch, capsys):
    monkeypatch.setitem(ROWS, "irn", Row("irn", "", "", "", "", "", needs="TCP"))
    assert group.main(["validate", "--row", "d-d-1", "--row", "irn", "--json"], standalone_mode=False) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["summary"] == {"pass": ["d-d-1"], "fail": [], "not yet": ["irn"]}
    told = whole["rows"]
    assert [(r["name"], r["verdict"]) for r in told] == [("d-d-1", "pass"), ("irn", "not yet")]
    assert all(check["holds"] for check in told[0]["checks"])
    assert "6 of 6 equal" in " ".join(run("--row", "d-d-1").stdout.split())


def test_a_failed_row_is_told(monkeypatch, capsys):
    monkeypatch.setitem(ROWS, "d-d-1", row(5, 6))
    assert group.main(["validate", "--row", "d-d-1"], standalone_mode=False) == 1
    told = capsys.readouterr()
    assert "r: two is 2, not in 5 to 6" in told.err
    assert told.out.splitlines()[-1] == "0 pass, 1 fail, 0 not yet. Failed: r."
    assert group.main(["validate", "--row", "d-d-1", "--json"], standalone_mode=False) == 1
    assert json.loads(capsys.readouterr().out)["summary"] == {"pass": [], "fail": ["r"], "not yet": []}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--row", "nope"), "--row: there is no row 'nope'; there are window-knee"),
        (("--row", "d-d-1", "--out", "x.md"), "--out: the page has all rows"),
        (("--row", "irn", "--quick"), "--quick: none of these rows is quick"),
        (("--out", "none.md"), "--out: none.md: No such file"),
    ],
)
def test_what_is_wrong_is_named(arguments, says):
    done = run(*arguments)
    assert done.exit_code == 2
    assert says in done.output


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("mine\n")
    done = run("--out", str(page))
    assert done.exit_code == 2
    assert "add them" in done.output
    assert page.read_text() == "mine\n"

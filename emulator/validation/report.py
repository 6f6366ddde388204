"""Outcomes as the generated part of docs/validation.md."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.validation.row import Outcome, Verdict

BEGIN = "<!-- begin: ttpoe validate -->"
END = "<!-- end: ttpoe validate -->"

_HEAD = ("row", "what", "set-up", "expected", "ours", "with real overhead", "tolerance", "verdict")


def _cell(text: str) -> str:
    return text.replace("|", "\\|") if text else "-"


def tally(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    """Names of rows by verdict."""
    return {v.value: [outcome.row.name for outcome in outcomes if outcome.verdict is v] for v in Verdict}


def told_tally(outcomes: Sequence[Outcome]) -> str:
    """How many rows came out how, in a line; those that failed by name."""
    names = tally(outcomes)
    failed = names[Verdict.FAIL.value]
    counts = [f"{len(rows)} {verdict}" for verdict, rows in names.items()]
    return ", ".join(counts) + "." + (f" Failed: {', '.join(failed)}." if failed else "")


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A table of all rows, then sources and what there is to say about differences."""
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    for outcome in outcomes:
        row, measured = outcome.row, outcome.measured
        ours = measured.ours if measured else f"needs {row.needs}"
        verdict = outcome.verdict.value if outcome.verdict is not Verdict.FAIL else "**fail**"
        cells = (row.name, row.what, row.setup, row.expected, ours, measured.real if measured else "", row.tolerance)
        lines.append("| " + " | ".join(_cell(cell) for cell in (*cells, verdict)) + " |")
    lines += ["", told_tally(outcomes), ""]
    by_source: dict[str, list[str]] = {}
    for outcome in outcomes:
        by_source.setdefault(outcome.row.source, []).append(f"`{outcome.row.name}`")
    lines += [f"- {', '.join(names)}: {source}." for source, names in by_source.items()]
    lines += ["", "Where we differ, and what the figures mean:", ""]
    for outcome in outcomes:
        note = outcome.row.note
        if outcome.measured is not None:
            wrong = [check for check in outcome.measured.checks if not check.holds]
            note += "".join(f" {c.what}: {c.value:g}, not in {c.low:g} to {c.high:g}." for c in wrong)
        if note:
            lines.append(f"- `{outcome.row.name}`: {note.strip()}")
    return "\n".join(lines) + "\n"


def replace_part(page: str, generated: str) -> str:
    """The page with its generated part replaced; ValueError if it has none."""
    begin, end = page.find(BEGIN), page.find(END)
    if not 0 <= begin < end:
        raise ValueError(f"it has no lines {BEGIN!r} and {END!r} to write between; add them")
    return page[: begin + len(BEGIN)] + "\n\n" + generated + "\n" + page[end:]

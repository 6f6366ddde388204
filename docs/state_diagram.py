#!/usr/bin/env python3
"""Draw the state diagram from the state tables: ``python docs/state_diagram.py`` writes docs/state-diagram.svg.

What moves a link comes from :mod:`ttpoe.fsm`; here is only where it is drawn. A transition without a place, or a place
without a transition, is an error, so the picture cannot fall behind the tables.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from ttpoe.fsm import RECEIVED, SENT, Opcode, Sent, State

TARGET = Path(__file__).with_name("state-diagram.svg")
WIDTH, HEIGHT = 1140, 580
BOX_WIDTH, BOX_HEIGHT = 150, 46
CENTRES = {
    State.CLOSED: (105, 290), State.OPEN_SENT: (415, 150), State.OPEN_RECD: (415, 430), State.OPEN: (725, 290),
    State.CLOSE_SENT: (1035, 150), State.CLOSE_RECD: (1035, 430),
}  # fmt: skip
_ARROWS: dict[tuple[State, State], tuple[str, int, int, str]] = {
    (State.CLOSED, State.OPEN_SENT): ("M 80 267 C 90 170, 210 136, 334 140", 225, 192, "middle"),
    (State.OPEN_SENT, State.CLOSED): ("M 370 173 C 330 225, 260 265, 186 277", 335, 235, "start"),
    (State.CLOSED, State.OPEN_RECD): ("M 80 313 C 90 410, 210 444, 334 440", 225, 392, "middle"),
    (State.OPEN_RECD, State.CLOSED): ("M 370 407 C 330 355, 260 315, 186 303", 335, 359, "start"),
    (State.OPEN_SENT, State.OPEN): ("M 490 150 C 610 155, 690 195, 712 261", 682, 160, "middle"),
    (State.OPEN_RECD, State.OPEN): ("M 490 430 C 610 425, 690 385, 712 319", 682, 428, "middle"),
    (State.OPEN, State.CLOSED): ("M 650 290 L 186 290", 510, 313, "middle"),
    (State.OPEN, State.CLOSE_SENT): ("M 800 275 C 870 260, 900 200, 954 158", 905, 237, "start"),
    (State.OPEN, State.CLOSE_RECD): ("M 800 305 C 870 320, 900 380, 954 422", 905, 352, "start"),
    (State.CLOSE_SENT, State.CLOSED): (
        "M 1035 127 C 1035 65, 1010 50, 920 50 L 200 50 C 90 50, 55 110, 55 261", 570, 29, "middle"),
    (State.CLOSE_RECD, State.CLOSED): (
        "M 1035 453 C 1035 515, 1010 530, 920 530 L 200 530 C 90 530, 55 470, 55 319", 570, 555, "middle"),
}  # fmt: skip
"""Path of an arrow; the middle line of its label, and which end of it that place is."""
_NOTES = {Sent.WHEN_QUIESCED: ", once quiesced"}
_COLOURS = {"received": "#0067a3", "sent": "#b34700"}
_LINE = 18


def transitions() -> dict[tuple[State, State], list[tuple[str, str]]]:
    """Opcodes that lead from a state to another one, each as ("received" or "sent", its name and condition)."""
    found: dict[tuple[State, State], list[tuple[str, str]]] = {}
    for event, table in (("received", RECEIVED), ("sent", SENT)):
        for opcode in Opcode:
            for state in State:
                rule, after = (int(value) for value in table[opcode, state])
                if after != state:
                    note = _NOTES.get(Sent(rule), "") if event == "sent" else ""
                    found.setdefault((state, State(after)), []).append((event, opcode.name + note))
    return found


def _arrow(ends: tuple[State, State], labels: list[tuple[str, str]]) -> list[str]:
    path, x, y, anchor = _ARROWS[ends]
    lines = [f'<path d="{path}" class="arrow" marker-end="url(#head)"/>']
    top = y - _LINE * (len(labels) - 1) / 2 + 4
    for k, (event, text) in enumerate(labels):
        place = f'x="{x}" y="{top + k * _LINE:g}" text-anchor="{anchor}" fill="{_COLOURS[event]}"'
        lines.append(f'<text {place}><tspan font-style="italic">{event}</tspan> {escape(text)}</text>')
    return lines


def draw() -> str:
    """The diagram as SVG text, the same on every machine."""
    found = transitions()
    if unlike := found.keys() ^ _ARROWS.keys():
        names = ", ".join(f"{before.name} to {after.name}" for before, after in sorted(unlike))
        raise ValueError(f"the tables and the arrows of {Path(__file__).name} differ: {names}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="DejaVu Sans, Verdana, Helvetica, sans-serif" font-size="13.5">',
        "<title>States of a TTPoE link</title>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
        'orient="auto"><path d="M 0 1 L 10 5 L 0 9 z" fill="#555555"/></marker></defs>',
        "<style>.arrow { fill: none; stroke: #555555; stroke-width: 1.5; } "
        ".state { fill: #eef3f8; stroke: #33475b; stroke-width: 1.8; }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for ends, labels in found.items():
        lines += _arrow(ends, labels)
    for state, (x, y) in CENTRES.items():
        left, top = x - BOX_WIDTH // 2, y - BOX_HEIGHT // 2
        lines += [
            f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="12" class="state"/>',
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-weight="bold" font-size="15">{state.name}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.write_text(draw(), encoding="utf-8")
    print(f"wrote {target}")

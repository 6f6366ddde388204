"""A way through the search as a message-sequence chart, in plain characters."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np

from ttpoe.check import expand as real_kernels
from ttpoe.check.layout import LATE, SAYS, STATE_BYTES, Step, Violation
from ttpoe.check.search import Result, make_world
from ttpoe.fsm import Opcode, State
from ttpoe.state import Failure

_WIDTH = 46
_NOTES = {
    Step.OPEN: "owner opens", Step.SUBMIT: "owner submits", Step.CLOSE: "owner closes", Step.READ: "owner reads",
    Step.TIMEOUT: "timeout", Step.EARLY_TIMEOUT: "early timeout", Step.CRASH: "begins anew",
    Step.LONG_TIMEOUT: "timeout, long after",
}  # fmt: skip


class _Flight(NamedTuple):
    opcode: int
    tx_seq: int
    rx_seq: int
    number: str

    def __str__(self) -> str:
        opcode = Opcode(self.opcode)
        words = [self.number, opcode.name]
        if opcode not in (Opcode.ACK, Opcode.NACK, Opcode.NACK_FULL, Opcode.NACK_NOLINK, Opcode.CLOSE_ACK):
            words.append(f"tx={self.tx_seq:x}")
        if opcode not in (Opcode.PAYLOAD, Opcode.OPEN):
            words.append(f"rx={self.rx_seq:x}")
        return " ".join(words)


class _Chart:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last = ["", ""]

    def add(self, middle: str, ends: list[str], notes: tuple[str, str] = ("", "")) -> None:
        """One line: what stands at A (only if it changed), between, and at B."""
        shown = [end if end != last else "" for end, last in zip(ends, self.last, strict=True)]
        self.last = ends
        left, right = (", ".join(filter(None, pair)) for pair in zip(notes, shown, strict=True))
        self.lines.append(f"{left:>30} |{middle:^{_WIDTH}}| {right}".rstrip())


def _send_line(flight: _Flight, to: int) -> str:
    """A frame leaves: a tail at its sender, open towards the peer."""
    return f"-- {flight} -->".ljust(_WIDTH) if to == 1 else f"<-- {flight} --".rjust(_WIDTH)


def _arrival_line(flight: _Flight, to: int) -> str:
    text = f" {flight} "
    if to == 1:
        return "--" + text + "-" * (_WIDTH - len(text) - 3) + ">"
    return "<" + "-" * (_WIDTH - len(text) - 3) + text + "--"


def draw_chart(result: Result, *, kernels: ModuleType = real_kernels, removed_rule: int = 0) -> str:
    """The way to a broken promise, step by step.

    A frame has a line where it is sent, open at the far side, and one where it arrives, with the same number; a copy or
    a straggler keeps its number with a stroke. Each end shows its state where it changed.

    Parameters
    ----------
    result : Result
    kernels, removed_rule :
        Those of the search.
    """
    w = make_world(result.bounds, removed_rule)
    states = np.zeros((1, STATE_BYTES), np.uint8)
    kernels.pack_at(w, states, 0)
    lines: list[list[_Flight]] = [[], []]
    late: list[list[_Flight]] = [[], []]
    count = 0
    chart = _Chart()

    def ends() -> list[str]:
        told = []
        for side in range(2):
            link = w.links[side]
            failure = Failure(int(link["failure"]))
            ended = f" ({failure.name})" if failure else " (in order)" if link["has_ended"] else ""
            told.append(State(int(link["state"])).name + ended)
        return told

    chart.lines.append("A".rjust(30) + " |" + " " * _WIDTH + "| B")
    chart.add("", ends())
    for place, (side, kind) in enumerate(result.way):
        if place == result.depth:
            chart.lines.append(f"=> {SAYS[result.violation]}:")
        kernels.unpack_at(w, states, 0)
        before = int(w.counts[1 - side, 0])
        code = Violation(int(kernels.take_step_at(w, side, kind)))
        after = int(w.counts[1 - side, 0])
        notes = ["", ""]
        middle = ""
        is_late = Step.LATE <= kind < Step.LATE_EARLY + LATE and kind != Step.DELIVER_EARLY
        if kind in (Step.DELIVER, Step.DELIVER_EARLY) or is_late:
            k = (kind - (Step.LATE if kind < Step.DELIVER_EARLY else Step.LATE_EARLY)) if is_late else 0
            middle = _arrival_line((late if is_late else lines)[side].pop(k), side)
            if kind >= Step.DELIVER_EARLY:
                notes[side] = "too early"
        elif kind == Step.LOSE:
            middle = f"{lines[side].pop(0)}   X lost"
        elif kind in (Step.DUPLICATE, Step.DELAY):
            flight = lines[side][0]
            late[side].append(flight._replace(number=flight.number + "'"))
            middle = f"{flight}   = copied" if kind == Step.DUPLICATE else f"{lines[side].pop(0)}   ~ overtaken"
        elif kind != Step.POLL:
            notes[side] = _NOTES[Step(kind)]
        if kind != Step.POLL:
            chart.add(middle, ends(), (notes[0], notes[1]))
        for k in range(before, after):
            sent = w.line[1 - side, k]
            count += 1
            flight = _Flight(int(sent["opcode"]), int(sent["tx_seq"]), int(sent["rx_seq"]), str(count))
            lines[1 - side].append(flight)
            chart.add(_send_line(flight, 1 - side), ends())
        if not code:
            kernels.pack_at(w, states, 0)
        for flights in late:
            flights.sort(key=lambda flight: flight[:3])
        assert all(len(flights) <= LATE for flights in late)
    is_round = len(result.way) > result.depth
    chart.lines.append("=> and so on" if is_round else f"=> {SAYS[result.violation]}")
    return "\n".join(chart.lines)

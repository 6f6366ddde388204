"""What the emulator is held to: rows of theory, and of other tools' and papers' results; each measured and judged.

A new row is one entry in :mod:`emulator.validation.theory` or :mod:`emulator.validation.peers`, and a function that
measures it.
"""

from __future__ import annotations

from emulator.validation import peers, theory
from emulator.validation.row import Outcome, Row, Verdict, evaluate

__all__ = ["ROWS", "Outcome", "Row", "Verdict", "evaluate"]

ROWS: dict[str, Row] = {row.name: row for row in (*theory.ROWS, *peers.ROWS)}
assert len(ROWS) == len(theory.ROWS) + len(peers.ROWS)

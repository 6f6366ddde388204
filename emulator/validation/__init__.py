"""What the emulator is held to: rows of theory, and of other tools' and papers' results; each measured and judged.

A new row is one entry in a module here, and a function that measures it: :mod:`~emulator.validation.theory`,
:mod:`~emulator.validation.peers`, :mod:`~emulator.validation.multipath` or :mod:`~emulator.validation.recovery`.
"""

from __future__ import annotations

from emulator.validation import multipath, peers, recovery, theory
from emulator.validation.row import Outcome, Row, Verdict, evaluate

__all__ = ["ROWS", "Outcome", "Row", "Verdict", "evaluate"]

_ALL = (*theory.ROWS, *peers.ROWS, *multipath.ROWS, *recovery.ROWS)
ROWS: dict[str, Row] = {row.name: row for row in _ALL}
assert len(ROWS) == len(_ALL)

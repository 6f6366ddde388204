"""Every state that two ends can get into within bounds: an exhaustive search that runs the machine's own kernels.

:class:`Search` visits the states breadth first and checks the promises of :class:`Violation` in each;
:func:`draw_chart` prints the way to a broken one; `REMOVALS` are rules that can be taken out to see it break.
"""

from __future__ import annotations

from ttpoe.check.chart import draw_chart
from ttpoe.check.layout import SAYS, Violation
from ttpoe.check.removals import REMOVALS, Removal, removable
from ttpoe.check.scenarios import SCENARIOS
from ttpoe.check.search import Bounds, Result, Search

__all__ = [
    "REMOVALS",
    "SAYS",
    "SCENARIOS",
    "Bounds",
    "Removal",
    "Result",
    "Search",
    "Violation",
    "draw_chart",
    "removable",
]

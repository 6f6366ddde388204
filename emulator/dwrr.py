"""Deficit weighted round robin: priorities that share a port's line by weight.

Knows queues only by the frame at their head.
"""

from __future__ import annotations

import numpy as np

from emulator.buffer import PRIORITIES
from ttpoe._jit import kernel

DWRR = np.dtype(
    [
        ("quantum_bytes", "i8", (PRIORITIES,)),  # what a priority may send a turn, on the line
        ("deficit_bytes", "i8", (PRIORITIES,)),  # what is left of it
        ("turn", "i4"),  # the priority whose turn it is
        ("is_granted", "i4"),  # its quantum was added
    ],
    align=True,
)
"""One port."""


@kernel
def choose_by_weight(row, queues, packets, port, eligible):
    """The priority whose head frame is sent next, among the weighted ones that may send.

    Parameters
    ----------
    row : DWRR row, modified in place
    queues : QUEUE array, shape (8, ports)
    packets : PACKET array
    port : int64
    eligible : int64
        Bit n: priority n has a frame at its queue's head and may send; at least one bit is set.

    Notes
    -----
    Source: Shreedhar and Varghese, "Efficient fair queuing using deficit round robin", 1995: a quantum is added when a
    turn begins, frames are sent while they fit what is left, and the rest is kept for the next turn; a queue with
    nothing to send keeps nothing, nor does a paused one. A quantum is at least the largest frame, so a turn never
    passes in vain. From higher priorities to lower.
    """
    priority = int(row["turn"])
    is_granted = row["is_granted"] != 0
    while True:
        if (eligible >> priority) & 1:
            if not is_granted:
                row["deficit_bytes"][priority] += row["quantum_bytes"][priority]
            size = int(packets[queues[priority, port]["head"]]["wire_bytes"])
            if size <= row["deficit_bytes"][priority]:
                row["deficit_bytes"][priority] -= size
                row["turn"] = priority
                row["is_granted"] = 1
                return priority
        else:
            row["deficit_bytes"][priority] = 0
        priority = (priority - 1) & (PRIORITIES - 1)
        is_granted = False

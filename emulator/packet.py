"""A frame in flight or in a queue, as switches see it, and the free list its row comes from.

No payload is stored. The transport's header is the row of the same index in the world's ``frames``; a switch reads
only what is here.
"""

from __future__ import annotations

from emulator.rows import whole_lines
from ttpoe._jit import kernel

PACKET = whole_lines(
    [
        ("arrive_ps", "i8"),  # last bit at the far end of the line, pipeline included
        ("cookie", "i8"),  # opaque to switches; the quanta of a PFC frame
        ("next", "i4"),  # next row of the queue, line or free list that this one is in
        ("wire_bytes", "i4"),  # on the line: frame, FCS, preamble and gap
        ("end", "i4"),  # the flow's end that it is for
        ("dst", "i4"),  # destination NIC
        ("entropy", "i4"),  # hash of what ECMP looks at
        ("in_port", "i4"),  # port by which it entered the switch that holds it; on a line, frames to be overtaken by
        ("kind", "i1"),
        ("priority", "i1"),
        ("fate", "i1"),  # what an impaired line did to it: see emulator.impair; 0 for nothing
        ("ecn", "i1"),  # RFC 3168's field
    ]
)

# The ECN field.
NOT_ECT = 0
ECT = 2
CE = 3

# Kinds.
DATA = 0
ANSWER = 1
PFC = 2

LINE_ONLY_BYTES = 20
"""Preamble and gap take line time but no buffer."""


@kernel(inline=True)
def take_packet(engine, packets):
    """A free row of ``packets``; the engine makes sure before each event that there are enough. Both modified."""
    p = engine["free_head"]
    engine["free_head"] = int(packets[p]["next"])
    packets[p]["fate"] = 0
    packets[p]["ecn"] = 0
    engine["free_count"] -= 1
    engine["created"] += 1
    return p


@kernel(inline=True)
def free_packet(engine, packets, p):
    """Give row ``p`` back."""
    packets[p]["next"] = engine["free_head"]
    engine["free_head"] = p
    engine["free_count"] += 1

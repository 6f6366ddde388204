"""Opcodes, states and the two state tables of the specification (rev 2.0), as data.

A cell is a rule, which :mod:`ttpoe.machine` carries out, and the state after it. An answer is itself a send: the
received cell is applied first, then the answer's cell of the sent table for the state just reached.
Knows nothing of link rows, frames or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np


class Opcode(IntEnum):
    """Transport opcodes, specification section 'opcodes'."""

    OPEN = 0
    OPEN_ACK = 1
    OPEN_NACK = 2
    CLOSE = 3
    CLOSE_ACK = 4
    CLOSE_NACK = 5
    PAYLOAD = 6
    ACK = 7
    NACK = 8
    NACK_FULL = 9
    NACK_NOLINK = 10


class State(IntEnum):
    """Link states, specification section 'state machine'."""

    CLOSED = 0
    OPEN_SENT = 1
    OPEN_RECD = 2
    OPEN = 3
    CLOSE_SENT = 4
    CLOSE_RECD = 5


class Received(IntEnum):
    """What a received opcode asks of the machine in one state."""

    ILLEGAL = 0  # drop, count as illegal
    DROP = 1  # drop, count as stale
    LOST = 2  # drop, count as lost: the answer came for a link that is not up
    STAY = 3  # nothing to do
    ANSWER_OPEN = 4  # OPEN_ACK, or OPEN_NACK where the endpoint has no way free
    OPENED = 5  # our OPEN was answered
    REFUSED = 6  # our OPEN was refused
    ANSWER_CLOSE = 7  # CLOSE_ACK
    JUDGE_CLOSE = 8  # CLOSE_ACK, or CLOSE_NACK while the peer has not seen all
    CLOSED = 9  # our CLOSE was answered
    CLOSE_NACKED = 10  # the peer has more to send before it closes
    NO_LINK = 11  # NACK_NOLINK
    PAYLOAD = 12  # ACK, NACK, NACK_FULL or NACK_NOLINK by its id
    ACK = 13
    NACK = 14
    NACK_FULL = 15
    LINK_DOWN = 16  # NACK_NOLINK on an open link
    BEYOND_CLOSE = 17  # NACK_NOLINK while closing: sent beyond the remote closing id


class Sent(IntEnum):
    """What sending an opcode means in one state."""

    ILLEGAL = 0
    SEND = 1
    REPLAY = 2  # on timeout only
    STALL = 3  # keep the data, send nothing yet
    UNTIL_CLOSING_ID = 4  # send up to the remote closing id, then stall
    NO_LINK = 5  # send NACK_NOLINK in its place
    WHEN_QUIESCED = 6  # send; the state changes once quiesced
    LINK_DOWN = 7  # send; the link is down, tell the owner
    BEYOND_CLOSING_ID = 8  # send for ids beyond the local closing id


# Columns: CLOSED, OPEN_SENT, OPEN_RECD, OPEN, CLOSE_SENT, CLOSE_RECD. "RULE>STATE" also changes the state.
RECEIVED_CELLS: dict[Opcode, tuple[str, str, str, str, str, str]] = {
    Opcode.OPEN: (
        "ANSWER_OPEN>OPEN_RECD", "ANSWER_OPEN", "ANSWER_OPEN", "ANSWER_OPEN", "ANSWER_OPEN", "ANSWER_OPEN"),
    Opcode.OPEN_ACK: ("ILLEGAL", "OPENED>OPEN", "STAY", "STAY", "STAY", "STAY"),
    Opcode.OPEN_NACK: ("ILLEGAL", "REFUSED>CLOSED", "ILLEGAL", "ILLEGAL", "ILLEGAL", "ILLEGAL"),
    Opcode.CLOSE: (
        "ANSWER_CLOSE", "ANSWER_CLOSE>CLOSED", "ANSWER_CLOSE", "JUDGE_CLOSE>CLOSE_RECD", "JUDGE_CLOSE", "JUDGE_CLOSE"),
    Opcode.CLOSE_ACK: ("STAY", "STAY", "STAY", "STAY", "CLOSED>CLOSED", "CLOSED>CLOSED"),
    Opcode.CLOSE_NACK: ("ILLEGAL", "ILLEGAL", "ILLEGAL", "ILLEGAL", "CLOSE_NACKED", "CLOSE_NACKED"),
    Opcode.PAYLOAD: ("NO_LINK", "NO_LINK", "NO_LINK", "PAYLOAD", "PAYLOAD", "PAYLOAD"),
    Opcode.ACK: ("DROP", "DROP", "DROP", "ACK", "ACK", "ACK"),
    Opcode.NACK: ("DROP", "DROP", "DROP", "NACK", "NACK", "NACK"),
    Opcode.NACK_FULL: ("DROP", "DROP", "DROP", "NACK_FULL", "NACK_FULL", "NACK_FULL"),
    Opcode.NACK_NOLINK: ("LOST", "LOST", "LOST", "LINK_DOWN>CLOSED", "BEYOND_CLOSE", "BEYOND_CLOSE"),
}
SENT_CELLS: dict[Opcode, tuple[str, str, str, str, str, str]] = {
    Opcode.OPEN: ("SEND>OPEN_SENT", "REPLAY", "SEND", "SEND", "ILLEGAL", "ILLEGAL"),
    Opcode.OPEN_ACK: ("SEND", "SEND", "SEND>OPEN", "SEND", "SEND", "SEND"),
    Opcode.OPEN_NACK: ("SEND", "ILLEGAL", "SEND>CLOSED", "ILLEGAL", "ILLEGAL", "ILLEGAL"),
    Opcode.CLOSE: ("ILLEGAL", "ILLEGAL", "ILLEGAL", "SEND>CLOSE_SENT", "REPLAY", "REPLAY"),
    Opcode.CLOSE_ACK: ("SEND", "SEND", "SEND", "SEND", "SEND>CLOSED", "WHEN_QUIESCED>CLOSED"),
    Opcode.CLOSE_NACK: ("ILLEGAL", "ILLEGAL", "ILLEGAL", "ILLEGAL", "SEND", "SEND"),
    Opcode.PAYLOAD: ("STALL", "STALL", "STALL", "SEND", "UNTIL_CLOSING_ID", "UNTIL_CLOSING_ID"),
    Opcode.ACK: ("NO_LINK", "NO_LINK", "NO_LINK", "SEND", "SEND", "SEND"),
    Opcode.NACK: ("NO_LINK", "NO_LINK", "NO_LINK", "SEND", "SEND", "SEND"),
    Opcode.NACK_FULL: ("NO_LINK", "NO_LINK", "NO_LINK", "SEND", "SEND", "SEND"),
    Opcode.NACK_NOLINK: ("SEND", "SEND", "SEND", "LINK_DOWN>CLOSED", "BEYOND_CLOSING_ID", "BEYOND_CLOSING_ID"),
}


def _tabulate(cells: Mapping[Opcode, tuple[str, ...]], rules: type[Received] | type[Sent]) -> np.ndarray:
    """int8 array (opcode, state, 2): the rule and the next state."""
    table = np.empty((len(Opcode), len(State), 2), np.int8)
    for opcode, row in cells.items():
        for state, cell in zip(State, row, strict=True):
            rule, _, after = cell.partition(">")
            table[opcode, state] = rules[rule], State[after] if after else state
    table.flags.writeable = False
    return table


RECEIVED = _tabulate(RECEIVED_CELLS, Received)
SENT = _tabulate(SENT_CELLS, Sent)
"""Read-only int8 (opcode, state, 2). Frozen into the kernels when they compile; the compile cache knows this file."""

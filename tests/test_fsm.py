"""The state tables, cell by cell: as data, and as what the machine does.

The tables are written out here again from the specification (rev 2.0) with the readings that docs/design.md names, in
words of their own: a slip in one transcription shows against the other.
"""

from __future__ import annotations

import pytest
from world import Rig

from ttpoe import fsm, machine
from ttpoe.fsm import Opcode, Received, Sent, State
from ttpoe.state import Failure, Status
from ttpoe.units import NEVER

CLOSED, OPEN_SENT, OPEN_RECD, OPEN, CLOSE_SENT, CLOSE_RECD = State
Op, R = Opcode, Received

# "what" or "what -> state"; columns as printed
RECEIVED_TABLE = """
OPEN         | OPEN_ACK or OPEN_NACK -> OPEN_RECD | OPEN_ACK or OPEN_NACK | OPEN_ACK or OPEN_NACK | OPEN_ACK or OPEN_NACK | OPEN_ACK or OPEN_NACK | OPEN_ACK or OPEN_NACK
OPEN_ACK     | illegal | opened -> OPEN | stay | stay | stay | stay
OPEN_NACK    | illegal | refused -> CLOSED | illegal | illegal | illegal | illegal
CLOSE        | CLOSE_ACK | CLOSE_ACK -> CLOSED | CLOSE_ACK | CLOSE_ACK or CLOSE_NACK -> CLOSE_RECD | CLOSE_ACK or CLOSE_NACK | CLOSE_ACK or CLOSE_NACK
CLOSE_ACK    | stay | stay | stay | stay | closed -> CLOSED | closed -> CLOSED
CLOSE_NACK   | illegal | illegal | illegal | illegal | closing id | closing id
PAYLOAD      | NACK_NOLINK | NACK_NOLINK | NACK_NOLINK | deliver | deliver | deliver
ACK          | drop | drop | drop | ack | ack | ack
NACK         | drop | drop | drop | nack | nack | nack
NACK_FULL    | drop | drop | drop | full | full | full
NACK_NOLINK  | lost | lost | lost | down -> CLOSED | beyond | beyond
"""  # noqa: E501
RECEIVED_WORDS = {
    "OPEN_ACK or OPEN_NACK": R.ANSWER_OPEN, "illegal": R.ILLEGAL, "opened": R.OPENED, "stay": R.STAY,
    "refused": R.REFUSED, "CLOSE_ACK": R.ANSWER_CLOSE, "CLOSE_ACK or CLOSE_NACK": R.JUDGE_CLOSE, "closed": R.CLOSED,
    "closing id": R.CLOSE_NACKED, "NACK_NOLINK": R.NO_LINK, "deliver": R.PAYLOAD, "drop": R.DROP, "ack": R.ACK,
    "nack": R.NACK, "full": R.NACK_FULL, "lost": R.LOST, "down": R.LINK_DOWN, "beyond": R.BEYOND_CLOSE,
}  # fmt: skip
SENT_TABLE = """
OPEN         | send -> OPEN_SENT | replay | send | send | illegal | illegal
OPEN_ACK     | send | send | send -> OPEN | send | send | send
OPEN_NACK    | send | illegal | send -> CLOSED | illegal | illegal | illegal
CLOSE        | illegal | illegal | illegal | send -> CLOSE_SENT | replay | replay
CLOSE_ACK    | send | send | send | send | send -> CLOSED | once quiesced -> CLOSED
CLOSE_NACK   | illegal | illegal | illegal | illegal | send | send
PAYLOAD      | stall | stall | stall | send | until the remote closing id | until the remote closing id
ACK          | NACK_NOLINK | NACK_NOLINK | NACK_NOLINK | send | send | send
NACK         | NACK_NOLINK | NACK_NOLINK | NACK_NOLINK | send | send | send
NACK_FULL    | NACK_NOLINK | NACK_NOLINK | NACK_NOLINK | send | send | send
NACK_NOLINK  | send | send | send | down -> CLOSED | beyond the local closing id | beyond the local closing id
"""
SENT_WORDS = {
    "send": Sent.SEND, "replay": Sent.REPLAY, "illegal": Sent.ILLEGAL, "once quiesced": Sent.WHEN_QUIESCED,
    "stall": Sent.STALL, "until the remote closing id": Sent.UNTIL_CLOSING_ID, "NACK_NOLINK": Sent.NO_LINK,
    "down": Sent.LINK_DOWN, "beyond the local closing id": Sent.BEYOND_CLOSING_ID,
}  # fmt: skip


def cells(text: str) -> dict[tuple[Opcode, State], tuple[str, State]]:
    table = {}
    for line in text.strip().splitlines():
        name, *row = (cell.strip() for cell in line.split("|"))
        assert len(row) == len(State)
        for state, cell in zip(State, row, strict=True):
            what, _, after = cell.partition(" -> ")
            table[Opcode[name], state] = (what, State[after] if after else state)
    assert len(table) == len(Opcode) * len(State)
    return table


@pytest.mark.parametrize(
    ("text", "words", "table"), [(RECEIVED_TABLE, RECEIVED_WORDS, fsm.RECEIVED), (SENT_TABLE, SENT_WORDS, fsm.SENT)]
)
def test_every_cell_of_the_tables(text, words, table):
    for (opcode, state), (what, after) in cells(text).items():
        assert tuple(table[opcode, state]) == (words[what], after), (opcode, state)
    assert table.shape == (len(Opcode), len(State), 2)
    assert not table.flags.writeable


def test_opcodes_and_states_are_those_of_the_specification():
    assert [o.name for o in Opcode] == [
        "OPEN", "OPEN_ACK", "OPEN_NACK", "CLOSE", "CLOSE_ACK", "CLOSE_NACK", "PAYLOAD", "ACK", "NACK", "NACK_FULL",
        "NACK_NOLINK",
    ]  # fmt: skip
    assert [int(o) for o in Opcode] == list(range(11))
    assert [s.name for s in State] == ["CLOSED", "OPEN_SENT", "OPEN_RECD", "OPEN", "CLOSE_SENT", "CLOSE_RECD"]


# What the machine does with one frame in each state that Rig.bring_to makes: the frame (tx, rx, size), then per state
# the answer (or None), the state after, and the counter that counts it (or the failure that is told).
# Our opening id is 1000 and the peer's 500. In OPEN and CLOSE_RECD our PAYLOAD 1001 is unacknowledged; in CLOSE_SENT
# our CLOSE has the id 1001; in CLOSE_RECD the peer's CLOSE had 501.
DOES: dict[Opcode, tuple[tuple[int, int, int], list[tuple]]] = {
    Op.OPEN: ((500, 0, 0), [
        ((Op.OPEN_ACK, 1001, 500), OPEN, None),  # through OPEN_RECD: the answer is a send
        ((Op.OPEN_ACK, 1001, 500), OPEN_SENT, None),  # passing ships
        ((Op.OPEN_ACK, 1001, 500), OPEN, None),
        ((Op.OPEN_ACK, 1001, 500), OPEN, None),
        ((Op.OPEN_ACK, 1001, 500), CLOSE_SENT, None),
        ((Op.OPEN_ACK, 1001, 500), CLOSE_RECD, None),
    ]),
    Op.OPEN_ACK: ((501, 1000, 0), [
        (None, CLOSED, "dropped_illegal"),
        (None, OPEN, None),
        (None, OPEN_RECD, None),
        (None, OPEN, None),
        (None, CLOSE_SENT, None),
        (None, CLOSE_RECD, None),
    ]),
    Op.OPEN_NACK: ((0, 1000, 0), [
        (None, CLOSED, "dropped_illegal"),
        (None, CLOSED, Failure.REFUSED),
        (None, OPEN_RECD, "dropped_illegal"),
        (None, OPEN, "dropped_illegal"),
        (None, CLOSE_SENT, "dropped_illegal"),
        (None, CLOSE_RECD, "dropped_illegal"),
    ]),
    Op.CLOSE: ((501, 1000, 0), [
        ((Op.CLOSE_ACK, 0, 501), CLOSED, None),
        ((Op.CLOSE_ACK, 0, 501), CLOSED, Failure.REFUSED),
        ((Op.CLOSE_ACK, 0, 501), OPEN_RECD, None),
        ((Op.CLOSE_NACK, 1001, 501), CLOSE_RECD, None),  # 1001 is not seen yet
        ((Op.CLOSE_ACK, 0, 501), CLOSED, None),
        ((Op.CLOSE_NACK, 1001, 501), CLOSE_RECD, None),
    ]),
    Op.CLOSE_ACK: ((0, 1001, 0), [
        (None, CLOSED, None),
        (None, OPEN_SENT, None),
        (None, OPEN_RECD, None),
        (None, OPEN, None),
        (None, CLOSED, None),
        (None, CLOSE_RECD, "dropped_stale"),  # our CLOSE would have the id 1002
    ]),
    Op.CLOSE_NACK: ((503, 1001, 0), [
        (None, CLOSED, "dropped_illegal"),
        (None, OPEN_SENT, "dropped_illegal"),
        (None, OPEN_RECD, "dropped_illegal"),
        (None, OPEN, "dropped_illegal"),
        (None, CLOSE_SENT, None),
        (None, CLOSE_RECD, "dropped_stale"),  # it never sent a CLOSE
    ]),
    Op.PAYLOAD: ((501, 0, 10), [
        ((Op.NACK_NOLINK, 0, 501), CLOSED, None),
        ((Op.NACK_NOLINK, 0, 501), OPEN_SENT, None),
        ((Op.NACK_NOLINK, 0, 501), OPEN_RECD, None),
        ((Op.ACK, 0, 501), OPEN, "payloads_received"),
        ((Op.NACK, 0, 501), CLOSE_SENT, "gaps_received"),  # until our CLOSE is answered
        ((Op.NACK_NOLINK, 0, 501), CLOSE_RECD, None),  # beyond the local closing id, 500
    ]),
    Op.ACK: ((0, 1001, 0), [
        (None, CLOSED, "dropped_stale"),
        (None, OPEN_SENT, "dropped_stale"),
        (None, OPEN_RECD, "dropped_stale"),
        (None, OPEN, None),
        (None, CLOSE_SENT, "dropped_illegal"),  # 1001 is the CLOSE, no PAYLOAD
        (None, CLOSE_RECD, None),
    ]),
    Op.NACK: ((0, 1001, 0), [
        (None, CLOSED, "dropped_stale"),
        (None, OPEN_SENT, "dropped_stale"),
        (None, OPEN_RECD, "dropped_stale"),
        (None, OPEN, "nacks_received"),
        (None, CLOSE_SENT, "dropped_stale"),
        (None, CLOSE_RECD, "nacks_received"),
    ]),
    Op.NACK_FULL: ((0, 0, 0), [
        (None, CLOSED, "dropped_stale"),
        (None, OPEN_SENT, "dropped_stale"),
        (None, OPEN_RECD, "dropped_stale"),
        (None, OPEN, "nack_fulls_received"),
        (None, CLOSE_SENT, "dropped_stale"),  # nothing is out that the peer could have refused
        (None, CLOSE_RECD, "nack_fulls_received"),
    ]),
    Op.NACK_NOLINK: ((0, 1001, 0), [
        (None, CLOSED, "dropped_lost"),
        (None, OPEN_SENT, "dropped_lost"),
        (None, OPEN_RECD, "dropped_lost"),
        (None, OPEN, "dropped_lost"),  # the peer has not shown yet that it is open
        (None, CLOSE_SENT, "dropped_stale"),
        (None, CLOSE_RECD, "dropped_stale"),
    ]),
}  # fmt: skip
COUNTERS = (
    "dropped_illegal", "dropped_stale", "dropped_lost", "payloads_received", "gaps_received", "nacks_received",
    "nack_fulls_received",
)  # fmt: skip


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("opcode", Opcode)
def test_what_each_received_cell_does(opcode, state):
    frame, row = DOES[opcode]
    answer, after, told = row[state]
    rig = Rig().bring_to(state)
    before = {name: rig[name] for name in COUNTERS}
    assert rig.feed(opcode, *frame) == ([answer] if answer else [])
    assert rig.state is after
    if answer:  # a send, from the state that the received cell names
        assert fsm.SENT[answer[0], fsm.RECEIVED[opcode, state, 1], 0] not in (Sent.ILLEGAL, Sent.NO_LINK, Sent.STALL)
    assert rig.failure is (told if isinstance(told, Failure) else Failure.NONE)
    for name in COUNTERS:
        assert rig[name] - before[name] == (name == told), name
    in_flight = rig["tx_next"] != rig["tx_una"]
    if after is CLOSED:
        assert rig["timer_at_ps"] == NEVER
    elif in_flight or after in (OPEN_SENT, CLOSE_SENT):
        assert rig["timer_at_ps"] == 100
    elif after is CLOSE_RECD:
        assert rig["timer_at_ps"] != NEVER or rig.poll()


# The same for what the owner and the clock ask: open, close, a PAYLOAD that waits, the timer.


@pytest.mark.parametrize("state", State)
def test_sending_open(state):
    rig = Rig().bring_to(state)
    n_out = machine.on_open_at(rig.links, 0, 7, rig.out, 0)
    if state is CLOSED:
        assert rig.taken(n_out) == [(Op.OPEN, 1000, 0)]
        assert (rig.state, rig["timer_at_ps"]) == (OPEN_SENT, 107)
    else:
        assert n_out == Status.ILLEGAL_SEND
        assert rig.state is state


@pytest.mark.parametrize("state", State)
def test_sending_close(state):
    rig = Rig().bring_to(state)
    n_out = machine.on_close_at(rig.links, 0, 7, rig.out, 0)
    assert n_out == (Status.NOT_OPEN if state is CLOSED else 0)
    assert rig.state is state  # OPEN and CLOSE_RECD have data out; the others cannot, or have sent it
    assert rig["is_closing"] == (state is not CLOSED)
    if state is OPEN:
        assert rig.feed(Op.ACK, 0, 1001) == [(Op.CLOSE, 1002, 500)]
        assert rig.state is CLOSE_SENT


@pytest.mark.parametrize("state", State)
def test_sending_payload(state):
    rig = Rig().bring_to(state)
    status = machine.on_submit_at(rig.links, 0, 250)
    assert status == (Status.OK if state in (OPEN_SENT, OPEN_RECD, OPEN) else Status.NOT_OPEN)
    if state is OPEN:
        assert rig.poll() == [(1002, 100), (1003, 100), (1004, 50)]
    else:
        assert rig.poll() == []


@pytest.mark.parametrize(
    ("state", "sent"),
    [
        (OPEN_SENT, [(Op.OPEN, 1000, 0)]), (OPEN, []), (CLOSE_SENT, [(Op.CLOSE, 1001, 500)]), (CLOSE_RECD, []),
    ],
)  # fmt: skip
def test_local_timeout(state, sent):
    rig = Rig().bring_to(state)
    assert rig.timeout() == sent
    assert rig.state is state
    assert rig.poll() == ([(1001, 100)] if state in (OPEN, CLOSE_RECD) else [])
    assert rig["timer_at_ps"] == 300  # 100, then 200


@pytest.mark.parametrize("state", [CLOSED, OPEN_RECD])
def test_nothing_times_out(state):
    rig = Rig().bring_to(state)
    assert rig["timer_at_ps"] == NEVER
    assert machine.on_timeout_at(rig.links, 0, rig.params, NEVER - 1, rig.out, 0) == 0
    assert rig["timeouts"] == 0


@pytest.mark.parametrize("state", State)
def test_a_full_output_changes_nothing(state):
    for opcode in Opcode:
        rig = Rig().bring_to(state)
        before = rig.links.tobytes()
        rig.inbox[0] = (opcode, 0, 2, *DOES[opcode][0])
        room = len(rig.out) - machine.MAX_ANSWERS + 1
        arguments = (rig.links, 0, rig.ring, rig.pools, 0, rig.params, rig.inbox, 0, 0, rig.out, room)
        assert machine.on_frame_at(*arguments) == Status.OUT_FULL
        assert machine.on_timeout_at(rig.links, 0, rig.params, NEVER, rig.out, room) == Status.OUT_FULL
        if state is not CLOSED:
            assert machine.on_close_at(rig.links, 0, 0, rig.out, room) == Status.OUT_FULL
        else:
            assert machine.on_open_at(rig.links, 0, 0, rig.out, room) == Status.OUT_FULL
        assert rig.links.tobytes() == before
    rig = Rig().bring_to(OPEN)
    rig.submit(1)
    before = rig.links.tobytes()
    full = (rig.links, 0, rig.ring, rig.pools, 0, rig.params, 0, rig.out, len(rig.out))
    assert machine.poll_payload_at(*full) == Status.OUT_FULL
    assert rig.links.tobytes() == before

"""What a state of the search is: two links, their owners, the frames between them, and the trouble still to come.

A state is `STATE_BYTES` bytes. Between steps it lies in a table; for a step it is unpacked into a `World`, whose link
rows are those of the machine. Every field of LINK is named here with the way it is kept, so a new field must find its
place before anything is searched again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ttpoe.state import LINK


class Kept(IntEnum):
    """How a field of a link lies in a state."""

    FIXED = 0  # not at all: set anew for each step, or read by no rule
    SMALL = 1  # a byte
    SEQ = 2  # an id, as its distance from one of the opening ids
    BYTES = 3  # a byte offset or room, NEVER as 255
    ARMED = 4  # a time that is NEVER or not: when it comes is left open
    SAMPLED = 5  # a time that is 0 or not
    CONSTANT = 6  # not at all: no rule changes it within the bounds, which is checked


COUNTERS = (
    "payloads_sent payloads_resent bytes_resent timeouts probes_sent resends_spurious acks_sent acks_repeated "
    "nacks_sent nacks_received nacks_stale nack_fulls_sent nack_fulls_received duplicates_received gaps_received "
    "marks_received echoes_received dropped_illegal dropped_stale dropped_lost"
)
"""Fields that no rule reads: a test fills them with anything and finds the same states."""

_FIELDS = {
    Kept.SMALL: (
        "state failure has_ended is_closing close_answered rx_nacked rx_is_full has_rx_closing timer_is_probe retries "
        "payloads_received"
    ),
    Kept.SEQ: "rx_seq rx_gap_seq rx_closing_seq tx_una tx_next tx_max",
    Kept.BYTES: (
        "proven_at_byte rx_bytes rx_read_bytes acked_bytes sent_bytes cut_bytes submitted_bytes peer_room_bytes "
        "tail_bytes probed_byte"
    ),
    Kept.ARMED: "timer_at_ps min_rtt_ps",
    Kept.SAMPLED: "srtt_ps",
    # from the owner's incarnation, or because time is left open
    Kept.FIXED: (
        "initial_seq rto_ps rtt_ps rttvar_ps last_sent_at_ps proven_at_ps recover_until_ps full_wait_ps " + COUNTERS
    ),
    # of the bounds, of congestion control, and of the profile for the reference module
    Kept.CONSTANT: (
        "vc rx_limit_bytes ring_base ring_mask cwnd_bytes cwnd_q20 pace_at_ps decreased_at_ps ssthresh_bytes "
        "ca_acked_bytes alpha_q20 marked_bytes share_from_byte share_until_byte reduced_until_byte is_reduction_due "
        "rules open_timeout_ps "
        "close_timeout_ps repeat_at_ps repeats repeat_rx_seq reopens reopened_at_byte skipped_bytes"
    ),
}
KEPT = {name: kind for kind, names in _FIELDS.items() for name in names.split()}
"""How each field of LINK is kept."""

GUARDED_LINK = np.dtype([*((name, "i8") for name in LINK.names or ()), ("removed_rule", "i8")], align=True)
"""LINK, and which rule the kernels of :mod:`ttpoe.check.removals` do without; 0: none."""

OWNER = np.dtype(
    [(name, "i8") for name in ("opens", "submits", "closes", "incarnation", "delivered_bytes", "timed_out")]
)
"""What an owner may still do; how often its end was made new; what of its stream reached the peer's owner; and whether
its timer ran out last, while the peer's was running: then it is the peer's turn."""

BUDGET = np.dtype([(name, "i8") for name in ("losses", "duplicates", "delays", "early_timeouts", "crashes")])
"""Trouble that may still come."""

FLIGHT = np.dtype([(name, "i8") for name in ("opcode", "tx_seq", "rx_seq", "payload_bytes", "start_byte")])
"""A frame between the ends, and where its payload begins in its sender's stream, as real payload would show."""

MODEL = np.dtype([(name, "i8") for name in ("trouble", "duplicates", "crashes", "submit_bytes", "line_frames")])
"""Bounds that steps look at: losses, delays and early timeouts together; copies; crashes; bytes of a submit; frames
on a line from which on a PAYLOAD waits."""

SLOTS = 4
"""Unacknowledged ids a link may have."""
LINE = 8
"""Frames a line holds."""
LATE = 4
"""Frames that may be on a detour at once, each way."""
INCARNATIONS = 3
"""Times an end may begin: the first, and after crashes of either."""
BASES = 8
SPAN = 32
BELOW = 2
"""An id is a byte: which of `BASES` it is near, and its distance from `BELOW` before that, less than `SPAN`."""

_LINK_BYTES = sum(kind not in (Kept.FIXED, Kept.CONSTANT) for kind in KEPT.values()) + SLOTS
_SIDE_BYTES = _LINK_BYTES + len(OWNER.names or ()) + 2 + 4 * (LINE + LATE)
STATE_BYTES = -(-(2 * _SIDE_BYTES + len(BUDGET.names or ())) // 8) * 8

NOW_PS = 1_000_000
RTT_PS = 1_000
RTO_PS = 10_000
"""Times as the machine sees them in a step: an answer takes one round trip, unless the step is about a NACK that came
too early; a timer was started a round trip ago, or is due."""


class World(NamedTuple):
    """Where one state is unpacked, with all that a step needs. Index 0 is A, 1 is B."""

    links: np.ndarray
    words: np.ndarray
    """The links again, as int64 (2, fields)."""
    fresh: np.ndarray
    """Links made new, int64 (2, fields); FIXED fields come from here before each step."""
    kinds: np.ndarray
    ring: np.ndarray
    pools: np.ndarray
    params: np.ndarray
    inbox: np.ndarray
    out: np.ndarray
    owners: np.ndarray
    budget: np.ndarray
    line: np.ndarray
    """FLIGHT (2, LINE): on the way to A, to B, in order."""
    late: np.ndarray
    """FLIGHT (2, LATE): on a detour to A, to B; each may come at any time."""
    counts: np.ndarray
    """int64 (2, 2): frames in ``line`` and in ``late``."""
    bases: np.ndarray
    model: np.ndarray


class Step(IntEnum):
    """What can happen at one side, or to the frames on their way to it."""

    OPEN = 0
    SUBMIT = 1
    CLOSE = 2
    READ = 3
    POLL = 4  # a PAYLOAD goes on the line
    TIMEOUT = 5  # the timer, with nothing on the lines and nothing to put there
    EARLY_TIMEOUT = 6  # the timer, before what it waits for can have come
    DELIVER = 7
    LOSE = 8
    DUPLICATE = 9  # a copy takes a detour
    DELAY = 10  # the frame takes a detour, and others overtake it
    CRASH = 11  # the end forgets the link, and begins anew
    LATE = 12  # to 12 + LATE - 1: a frame comes from its detour
    DELIVER_EARLY = 16  # a NACK, less than a round trip after the id was sent again
    LATE_EARLY = 17  # to 17 + LATE - 1
    LONG_TIMEOUT = 21  # the timer, so late that no answer from before the peer was known to be open can come


STEPS = 22
TROUBLE = (Step.LOSE, Step.DUPLICATE, Step.DELAY, Step.EARLY_TIMEOUT, Step.CRASH)
WISHES = (Step.OPEN, Step.SUBMIT, Step.CLOSE)
FAIR_MASK = sum(1 << kind for kind in range(STEPS) if kind not in TROUBLE and kind not in WISHES)
"""Steps that a network without trouble takes by itself, and a reader who reads: these alone must end every debt."""


class Violation(IntEnum):
    """Promises that a step or a state can break."""

    NONE = 0
    CUT = 1  # not a violation: the line has no room, and the search does not go on here
    STATUS = 2
    TWICE = 3
    WRONG_BYTES = 4
    ACKNOWLEDGED = 5
    WINDOW = 6
    OFFSETS = 7
    UNDRIVEN = 8
    HOLDS = 9
    RESTS = 10
    REVIVED = 11
    RETRIES = 12
    GAVE_UP = 13
    UNTOLD = 14
    BUFFER = 15
    OUTSIDE = 16
    STUCK = 17
    OWES = 18
    CLOSE_FORGOTTEN = 19
    HALF_CLOSED = 20
    UNREAD = 21
    ENDLESS = 22
    CIRCLE = 23


SAYS = {
    Violation.STATUS: "a kernel returned an error",
    Violation.TWICE: "bytes were delivered twice",
    Violation.WRONG_BYTES: "what was delivered is not the next of the sender's stream",
    Violation.ACKNOWLEDGED: "bytes were acknowledged that no owner was given",
    Violation.WINDOW: "more is unacknowledged than the window allows",
    Violation.OFFSETS: "ids, offsets and the pool do not fit each other",
    Violation.UNDRIVEN: "something is to be waited for, and no timer runs",
    Violation.HOLDS: "the link holds for a full peer, and nothing will ask it",
    Violation.RESTS: "a link rests in OPEN_RECD",
    Violation.REVIVED: "a link that has ended lives again, or one that failed goes on",
    Violation.RETRIES: "more timeouts in a row than the retry limit allows, and the owner was not told",
    Violation.GAVE_UP: "the link failed without a reason: fewer frames were lost than it may retry, or the peer lives",
    Violation.UNTOLD: "the link ended in order while bytes of its owner were never acknowledged",
    Violation.BUFFER: "more waits for the reader than the buffer allows",
    Violation.OUTSIDE: "a number left the range that the bounds can bring about",
    Violation.STUCK: "nothing can happen any more, and a link is neither open nor closed",
    Violation.OWES: "nothing can happen any more, and bytes that were submitted are neither delivered nor given up",
    Violation.CLOSE_FORGOTTEN: "nothing can happen any more, and the owner's close did not come to an end",
    Violation.HALF_CLOSED: "nothing can happen any more, and one end closed in order while the other is open",
    Violation.UNREAD: "nothing can happen any more, and the reader was not given what arrived",
    Violation.ENDLESS: "no way leads from here to a state in which nothing is owed",
    Violation.CIRCLE: "the ends can go round for ever though the network is in order and the readers read",
}

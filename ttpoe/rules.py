"""Switches by which a link follows the reference module in place of the specification, and the profiles made of them.

Seen on the wire of that module; docs/reference-profile.md has each with its rule and its test. Knows no link rows.
"""

from __future__ import annotations

from enum import IntFlag


class Rule(IntFlag):
    """What a link does as the reference module does it, or bears from it; 0 is the specification and our readings."""

    # What is written
    START_AT_ONE = 1 << 0  # opening id 1, the peer's too; OPEN carries rx, and an OPEN_ACK with tx 0 names no id
    OPEN_ACK_ZERO = 1 << 1  # OPEN_ACK: tx is 0
    ACK_LAST = 1 << 2  # ACK: rx is the last id delivered in order, also for duplicates
    NACK_LAST = 1 << 3  # NACK: rx is the last good id
    NOLINK_ECHO = 1 << 4  # NACK_NOLINK: rx is the request's rx
    CLOSE_ACK_ECHO = 1 << 5  # CLOSE_ACK, CLOSE_NACK: rx is the request's rx, of a second CLOSE_ACK the link's; tx 0
    CLOSE_ZERO = 1 << 6  # CLOSE: tx and rx are 0
    # Opening and closing
    OPEN_ACK_ANY_ID = 1 << 7  # an OPEN_ACK opens whatever it names
    OPEN_SHORTCUT = 1 << 8  # OPEN while OPEN_SENT: straight to OPEN
    OPEN_RESYNC = 1 << 9  # OPEN on a link that is up: go on behind its id, whatever it is
    OPEN_AGAIN = 1 << 10  # the owner may open a link that is open: an OPEN with the last acknowledged id
    REOPEN = 1 << 11  # NACK_NOLINK on OPEN: open again with the last acknowledged id, then resend
    REOPEN_BLINDLY = 1 << 12  # even with nothing unacknowledged, and go on receiving where we were
    REFUSE_SILENTLY = 1 << 13  # no way left: no OPEN_NACK
    CLOSE_STAYS = 1 << 14  # CLOSE while OPEN_SENT: CLOSE_ACK, stay
    CLOSE_PRINTED = 1 << 15  # CLOSE_NACK by the printed condition: an rx beyond what we sent
    CLOSE_TWICE = 1 << 16  # CLOSE on OPEN: its answer, then a CLOSE_ACK, then CLOSED; any CLOSE_ACK ends ours
    CLOSE_AT_ONCE = 1 << 17  # the owner's CLOSE does not wait for acknowledgements
    CLOSE_ANY_ID = 1 << 18  # ids on CLOSE and CLOSE_ACK mean nothing
    # Receiving PAYLOAD
    NACK_EACH = 1 << 19  # NACK for each id beyond the expected one, and for each empty PAYLOAD
    TAKE_WHILE_CLOSING = 1 << 20  # take PAYLOAD while our CLOSE is unanswered
    PLAIN_ORDER = 1 << 21  # ids compare as plain numbers: duplicates from before the wrap, and id 0, get NACK
    SHORT_SHIM = 1 << 22  # PAYLOAD with a shim length below its headers: NACK, as an empty one
    ONE_TIMER = 1 << 23  # any PAYLOAD received stops the link's timer
    # Sending PAYLOAD
    STOP_AND_WAIT = 1 << 24  # one id at a time, so that an ACK counts for the head alone
    MISMATCH_RESENDS = 1 << 25  # an ACK of another id resends the head at once
    NACK_RESENDS = 1 << 26  # so does a NACK, whatever it names and however early
    NACK_EITHER = 1 << 27  # NACK names the failed id or the last good one
    FULL_WAITS = 1 << 28  # NACK_FULL changes nothing: the timer resends
    SKIP_LOST = 1 << 29  # after the retry limit the id is dropped without a word, and the next one sent


SPECIFICATION = Rule(0)
"""The specification with our readings, which docs/design.md lists."""
REFERENCE = (
    Rule.START_AT_ONE | Rule.OPEN_ACK_ZERO | Rule.ACK_LAST | Rule.NACK_LAST | Rule.NOLINK_ECHO | Rule.CLOSE_ACK_ECHO
    | Rule.CLOSE_ZERO | Rule.OPEN_SHORTCUT | Rule.OPEN_RESYNC | Rule.REOPEN | Rule.CLOSE_STAYS
    | Rule.CLOSE_ANY_ID | Rule.NACK_EACH | Rule.TAKE_WHILE_CLOSING | Rule.SHORT_SHIM | Rule.NACK_EITHER
)  # fmt: skip
"""A peer that the module understands, and that bears all of the module's ways, without those that lose data."""
MODULE = ~(Rule.CLOSE_ANY_ID | Rule.NACK_EITHER)
"""The module itself, faults included. CLOSE_TWICE and NACK_RESENDS leave the two others nothing to say."""

PROFILES = ("spec", "reference", "module")
"""Names of the profiles, as a user types them; :meth:`ttpoe.config.EndpointConfig.profile` makes them."""

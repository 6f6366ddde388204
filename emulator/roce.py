"""RoCE hosts: a reliable connection that sends one stream of RDMA WRITE, with go-back-N or go-back-0.

Same verbs as :mod:`ttpoe.machine`, on QP rows. Packet indices are int64 inside; PSNs are their low 24 bits from a
random start. Source: InfiniBand Architecture Specification 1.4, chapter 9, and its annexes A16 (RoCE) and A17 (RoCEv2);
go-back-0 as told by Guo et al., "RDMA over commodity Ethernet at scale", SIGCOMM 2016, section 4.1.
"""

from __future__ import annotations

import numpy as np

from ttpoe._jit import kernel
from ttpoe.units import NEVER

ROCE_FRAME = np.dtype(
    [("opcode", "i2"), ("syndrome", "i4"), ("psn", "i8"), ("msn", "i8"), ("payload_bytes", "i8")], align=True
)
"""A header row that lies in memory like a TTPoE FRAME, so that one array can hold either."""

QP = np.dtype(
    [
        (name, "i8")
        for name in (
            "initial_psn",
            "failure",  # a ttpoe.state.Failure
            # requester: packet indices una <= next <= max
            "message_bytes", "packets", "una", "next", "max",
            "window_packets",  # unacknowledged at most
            "timer_at_ps", "retries",
            # responder
            "expected", "is_nak_sent", "unacknowledged", "rx_bytes", "msn",
            "trimmed",  # first packet beyond a gap of which only headers came, since the last NAK; 0: none
            # counters
            "packets_resent", "bytes_resent", "timeouts", "naks_sent", "naks_received", "acks_sent",
            "duplicates_received", "dropped_stale",
        )
    ],
    align=True,
)

ROCE_PARAMS = np.dtype(
    [
        (name, "i8")
        for name in (
            "mtu_bytes", "rto_ps", "retry_limit", "ack_every_packets",
            "recovery",  # one of the four below
            "few_packets", "rto_low_ps",  # the timeout while no more than so many are in flight
            "reorder_ps",
        )
    ],
    align=True,
)  # fmt: skip

GO_BACK_N, GO_BACK_0, SELECTIVE_REPEAT, REORDERING = range(4)
RECOVERIES = {
    "go-back-n": GO_BACK_N, "go-back-0": GO_BACK_0, "selective": SELECTIVE_REPEAT, "reordering": REORDERING,
}  # fmt: skip
"""What is sent again after a loss; the last two are :mod:`emulator.selective`."""

WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY, ACKNOWLEDGE = 0x06, 0x07, 0x08, 0x0A, 0x11
CNP = 0x81
"""Congestion notification, annex A17.9."""
SYNDROME_ACK = 0x1F
"""ACK with the end-to-end credit field saying 'no credits in use'."""
SYNDROME_NAK_SEQUENCE = 0x60
"""NAK, PSN sequence error."""

PSN_MASK = 0xFFFFFF
_PSN_HALF = 0x800000
MAX_OUTSTANDING_PACKETS = _PSN_HALF - 1

_RETRY_LIMIT = 1  # Failure.RETRY_LIMIT

ETHERNET_IP_UDP_BYTES = 14 + 20 + 8
"""Before the BTH of RoCEv2."""
ETHERNET_GRH_BYTES = 14 + 40
"""Before the BTH of RoCEv1."""
BTH_BYTES, RETH_BYTES, AETH_BYTES, ICRC_BYTES, CNP_RESERVED_BYTES = 12, 16, 4, 4, 16
LINE_BYTES = 4 + 20
"""FCS, preamble and gap."""


@kernel(inline=True)
def psn_diff(newer, older):
    """Signed distance between two 24-bit PSNs."""
    return ((newer - older + _PSN_HALF) & PSN_MASK) - _PSN_HALF


@kernel(export=True, inline=True)
def wire_bytes(opcode, payload_bytes, header_bytes=ETHERNET_IP_UDP_BYTES):
    """Bytes on the line of a RoCE frame: payload padded to 4, headers, ICRC, FCS, preamble and gap."""
    size = header_bytes + BTH_BYTES + ICRC_BYTES + ((payload_bytes + 3) & ~3)
    if opcode == ACKNOWLEDGE:
        size += AETH_BYTES
    elif opcode == WRITE_FIRST or opcode == WRITE_ONLY:
        size += RETH_BYTES
    elif opcode == CNP:
        size += CNP_RESERVED_BYTES
    return max(size, 60) + LINE_BYTES


@kernel(inline=True)
def payload_bytes_at(qp, params, index):
    """Payload of packet ``index`` of the message."""
    if index == qp["packets"] - 1:
        return qp["message_bytes"] - index * params["mtu_bytes"]
    return params["mtu_bytes"]


@kernel(inline=True)
def roce_is_ready(qp):
    """1 if :func:`roce_poll` would append a packet."""
    if qp["failure"] != 0 or qp["next"] >= qp["packets"]:
        return 0
    if qp["next"] < qp["max"]:
        return 1
    return 1 if qp["max"] - qp["una"] < qp["window_packets"] else 0


@kernel(inline=True)
def rto_ps(qp, params):
    """The timeout of what is in flight now."""
    return params["rto_ps"] if qp["max"] - qp["una"] > params["few_packets"] else params["rto_low_ps"]


@kernel
def roce_poll(qp, params, now_ps, out, n_out):
    """Append the next WRITE packet, if one may be sent; as :func:`ttpoe.machine.poll_payload`."""
    if roce_is_ready(qp) == 0:
        return n_out
    index = qp["next"]
    last = qp["packets"] - 1
    length = payload_bytes_at(qp, params, index)
    if index < qp["max"]:
        qp["packets_resent"] += 1
        qp["bytes_resent"] += length
    else:
        qp["max"] = index + 1
        if params["few_packets"] > 0 and qp["max"] - qp["una"] == params["few_packets"] + 1:
            if qp["timer_at_ps"] != NEVER:
                qp["timer_at_ps"] += params["rto_ps"] - params["rto_low_ps"]  # they are not few any more
    qp["next"] = index + 1
    if qp["timer_at_ps"] == NEVER:
        qp["timer_at_ps"] = now_ps + rto_ps(qp, params)
    row = out[n_out]
    if last == 0 or params["recovery"] >= SELECTIVE_REPEAT:
        row["opcode"] = WRITE_ONLY
    elif index == 0:
        row["opcode"] = WRITE_FIRST
    elif index == last:
        row["opcode"] = WRITE_LAST
    else:
        row["opcode"] = WRITE_MIDDLE
    row["syndrome"] = 1 if index == last else 0  # the acknowledge request
    row["psn"] = (qp["initial_psn"] + index) & PSN_MASK
    row["msn"] = 0
    row["payload_bytes"] = length
    return n_out + 1


@kernel(inline=True)
def _answer(qp, syndrome, psn, out, n_out):
    row = out[n_out]
    row["opcode"] = ACKNOWLEDGE
    row["syndrome"] = syndrome
    row["psn"] = psn & PSN_MASK
    row["msn"] = qp["msn"]
    row["payload_bytes"] = 0
    return n_out + 1


@kernel
def roce_on_frame(qp, params, frame, now_ps, out, n_out):
    """React to one packet; answers are appended to ``out`` (ROCE_FRAME array).

    Parameters
    ----------
    qp : QP row, modified in place
        Requester for acknowledgements, responder for WRITE.
    params : ROCE_PARAMS row
    frame : ROCE_FRAME row
    now_ps, n_out : int64

    Returns
    -------
    int64
        Rows of ``out`` in use afterwards.

    Notes
    -----
    Source: IBTA 9.7.5 (responder: in order, duplicate, sequence error NAK once until the expected PSN comes) and
    9.7.7 (requester: an acknowledgement is cumulative, a sequence-error NAK implies all before its PSN). A WRITE
    without payload was trimmed by a switch: it shows a gap at its own PSN, each time it comes; headers overtake
    payloads, so one that comes too early is remembered. This is ours.
    """
    psn = frame["psn"]
    if int(frame["opcode"]) != ACKNOWLEDGE:
        distance = psn_diff(psn, (qp["initial_psn"] + qp["expected"]) & PSN_MASK)
        if params["recovery"] == GO_BACK_0 and qp["msn"] == 0 and distance != 0:
            if distance > 0 or psn == qp["initial_psn"]:  # a gap, or the message once more
                qp["expected"] = qp["rx_bytes"] = qp["unacknowledged"] = 0
                distance = psn_diff(psn, qp["initial_psn"])
        is_trimmed = frame["payload_bytes"] == 0
        if distance > 0 or (distance == 0 and is_trimmed):
            if qp["is_nak_sent"] != 0 and distance > 0:
                if is_trimmed and (qp["trimmed"] == 0 or qp["expected"] + distance < qp["trimmed"]):
                    qp["trimmed"] = qp["expected"] + distance
                return n_out
            qp["is_nak_sent"] = 1
            qp["trimmed"] = 0
            qp["naks_sent"] += 1
            return _answer(qp, SYNDROME_NAK_SEQUENCE, qp["initial_psn"] + qp["expected"], out, n_out)
        if distance < 0:
            qp["duplicates_received"] += 1
            qp["acks_sent"] += 1
            return _answer(qp, SYNDROME_ACK, qp["initial_psn"] + qp["expected"] - 1, out, n_out)
        qp["is_nak_sent"] = 0
        qp["expected"] += 1
        qp["rx_bytes"] += frame["payload_bytes"]
        qp["unacknowledged"] += 1
        is_last = int(frame["opcode"]) == WRITE_LAST or int(frame["opcode"]) == WRITE_ONLY
        if is_last:
            qp["msn"] += 1
        if qp["trimmed"] != 0 and qp["trimmed"] <= qp["expected"]:
            is_next = qp["trimmed"] == qp["expected"] and not is_last
            qp["trimmed"] = 0
            if is_next:
                qp["is_nak_sent"] = 1
                qp["naks_sent"] += 1
                qp["unacknowledged"] = 0
                return _answer(qp, SYNDROME_NAK_SEQUENCE, qp["initial_psn"] + qp["expected"], out, n_out)
        if is_last or qp["unacknowledged"] >= params["ack_every_packets"]:
            qp["unacknowledged"] = 0
            qp["acks_sent"] += 1
            return _answer(qp, SYNDROME_ACK, psn, out, n_out)
        return n_out
    is_nak = int(frame["syndrome"]) == SYNDROME_NAK_SEQUENCE
    if is_nak and params["recovery"] == GO_BACK_0 and qp["una"] < qp["packets"]:
        qp["naks_received"] += 1
        qp["una"] = qp["next"] = 0
        qp["timer_at_ps"] = NEVER
        return n_out
    base = (qp["initial_psn"] + qp["una"]) & PSN_MASK
    acknowledged = qp["una"] + psn_diff(psn, base) + (0 if is_nak else 1)
    if acknowledged < qp["una"] or acknowledged > qp["max"] or qp["failure"] != 0:
        qp["dropped_stale"] += 1
        return n_out
    if acknowledged > qp["una"]:
        qp["una"] = acknowledged
        qp["retries"] = 0
        qp["next"] = max(qp["next"], acknowledged)
        qp["timer_at_ps"] = NEVER if qp["una"] == qp["next"] else now_ps + params["rto_ps"]
    if is_nak:
        qp["naks_received"] += 1
        qp["next"] = qp["una"]
        qp["timer_at_ps"] = NEVER
    return n_out


@kernel(inline=True)
def retry(qp, params, now_ps):
    """Count a timeout that is due; past the retry limit the QP fails. Returns 1 if something is to be sent again."""
    if now_ps < qp["timer_at_ps"]:
        return 0
    qp["timer_at_ps"] = NEVER
    qp["timeouts"] += 1
    qp["retries"] += 1
    if qp["retries"] > params["retry_limit"]:
        qp["failure"] = _RETRY_LIMIT
        return 0
    return 1


@kernel
def roce_on_timeout(qp, params, now_ps):
    """Go back to the oldest unacknowledged packet, or to the first; early calls change nothing."""
    if retry(qp, params, now_ps) != 0:
        if params["recovery"] == GO_BACK_0:
            qp["una"] = 0
        qp["next"] = qp["una"]


@kernel
def roce_on_submit(qp, params, length_bytes):
    """Post one WRITE of ``length_bytes``. One message a QP so far."""
    qp["message_bytes"] = length_bytes
    qp["packets"] = (length_bytes + params["mtu_bytes"] - 1) // params["mtu_bytes"]

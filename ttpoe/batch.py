"""Compiled calls over many frames: what stands between arrays of received bytes and the machine, and back.

One call takes a batch of frames from the line through parsing, the link table and the machine, writes the answers as
bytes and gathers the payload; another cuts PAYLOAD frames of one link from its send buffer. Python pays for a call,
not for a frame. Knows nothing of sockets, clocks and owners.

Row 0 of the LINK array belongs to nobody: it stays CLOSED and answers, from the state tables, for links unknown.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np

from ttpoe._jit import kernel
from ttpoe.constants import HEADER_BYTES, MIN_FRAME_BYTES, SHIM_LENGTH_BASE, TOTAL_LENGTH_BASE
from ttpoe.fsm import Opcode, State
from ttpoe.ipv4 import build_ipv4_header, parse_ipv4_header, set_ipv4_lengths
from ttpoe.machine import MAX_ANSWERS, next_payload_bytes, on_frame, on_timeout, poll_payload
from ttpoe.state import Failure
from ttpoe.units import NEVER
from ttpoe.wire import Mode, Reason, build_header, parse_header


class LinkEvent(IntFlag):
    """What happened on a link since its owner last looked."""

    OPENED = 1
    DATA = 2  # bytes can be read
    ACKED = 4  # the send buffer has more room
    CLOSED = 8  # an orderly end
    FAILED = 16  # another end: ``link["failure"]``


class Stop(IntEnum):
    """Why :func:`take_frames` returned."""

    DONE = 0
    LINK_ENDED = 1  # release its row, then go on
    STRANGER_OPENS = 2  # an OPEN for no row: give it a row and go on at the same frame, or refuse and skip it
    ANSWERS_FULL = 3  # no room for answers: send them first


DROPS = (
    *(reason.name.lower() for reason in Reason),
    "foreign_destination", "bad_source", "unknown_link", "answers_full",
)  # fmt: skip
"""Names of the counters of refused frames: the reasons of :mod:`ttpoe.wire`, then those of an endpoint."""
FOREIGN_DESTINATION, BAD_SOURCE, UNKNOWN_LINK, ANSWERS_FULL = range(len(Reason), len(DROPS))

BATCH = np.dtype(
    [(name, "i8") for name in ("next_frame", "n_answers", "n_changed", "n_deliveries", "stop")],
    align=True,
)
"""Where a batch stands. ``n_answers`` goes in and out, the rest comes out."""

_OPEN, _PAYLOAD, _S_CLOSED, _S_OPEN = int(Opcode.OPEN), int(Opcode.PAYLOAD), int(State.CLOSED), int(State.OPEN)
_PEER_RESTARTED = int(Failure.PEER_RESTARTED)
_E_OPENED, _E_DATA, _E_ACKED = int(LinkEvent.OPENED), int(LinkEvent.DATA), int(LinkEvent.ACKED)
_E_CLOSED, _E_FAILED = int(LinkEvent.CLOSED), int(LinkEvent.FAILED)
_DONE, _LINK_ENDED = int(Stop.DONE), int(Stop.LINK_ENDED)
_STRANGER_OPENS, _STOP_ANSWERS_FULL = int(Stop.STRANGER_OPENS), int(Stop.ANSWERS_FULL)
_GROUP_BIT = 1 << 40  # of a MAC in an int: multicast and broadcast
_IPV4 = int(Mode.IPV4)


@kernel(export=True)
def link_key(address, vc):
    """Key of a link in the table: the peer's address (its IPv4 address in IPv4 mode, else its MAC) and channel."""
    return (address << 2) | vc


@kernel(inline=True)
def _hash(key):
    return key ^ (key >> 11) ^ (key >> 27)


@kernel
def find_row(table, key):
    """Row of a link, or 0. ``table``: int64 (slots, 2) of key and row, slots a power of two, key -1 where free."""
    mask = len(table) - 1
    at = _hash(key) & mask
    while table[at, 0] >= 0:
        if table[at, 0] == key:
            return table[at, 1]
        at = (at + 1) & mask
    return 0


@kernel(export=True)
def index_rows(keys, table):
    """Fill ``table`` (modified in place) from ``keys``, the int64 key of each row, negative for a row not in use."""
    mask = len(table) - 1
    for at in range(len(table)):
        table[at, 0] = -1
    for row in range(1, len(keys)):
        if keys[row] >= 0:
            at = _hash(keys[row]) & mask
            while table[at, 0] >= 0:
                at = (at + 1) & mask
            table[at, 0] = keys[row]
            table[at, 1] = row


@kernel(inline=True)
def _copy(source, source_at, target, target_at, count):
    for k in range(count):  # a slice assignment would allocate
        target[target_at + k] = source[source_at + k]


@kernel
def _write_frame(header, frame, slot):
    """Bytes of ``frame`` (FRAME row) before its payload, addressed as ``header`` (HEADER row, modified in place)."""
    length = frame["payload_bytes"]
    header["opcode"] = frame["opcode"]
    header["vc"] = frame["vc"]
    header["tx_seq"] = frame["tx_seq"]
    header["rx_seq"] = frame["rx_seq"]
    if header["mode"] == _IPV4:
        set_ipv4_lengths(header, length)
        build_ipv4_header(header, slot)
    else:
        header["shim_length"] = SHIM_LENGTH_BASE + length
        header["total_length"] = TOTAL_LENGTH_BASE + length
        build_header(header, slot)


@kernel
def _is_from_a_peer(header, own_mac, own_ip):
    """Source addresses that a peer can have: a host's, and not ours."""
    src_mac, src_ip = header["src_mac"], header["src_ip"]
    if src_mac == own_mac or src_mac & _GROUP_BIT != 0:
        return False
    network = src_ip >> 24
    return own_ip == 0 or (src_ip != own_ip and 1 <= network < 224 and network != 127)


@kernel
def _note(link, row, state, rx_bytes, acked_bytes, events, changed, n_changed):
    """Compare a link with its fields before, add what happened to ``events[row]``; returns the rows in ``changed``."""
    news = 0
    if link["rx_bytes"] != rx_bytes:
        news |= _E_DATA
    if link["acked_bytes"] != acked_bytes:
        news |= _E_ACKED
    if link["state"] != state:
        if link["state"] == _S_OPEN:
            news |= _E_OPENED
        elif link["state"] == _S_CLOSED:
            news |= _E_CLOSED if link["failure"] == 0 else _E_FAILED
    if news != 0:
        if events[row] == 0:
            changed[n_changed] = row
            n_changed += 1
        events[row] |= news
    return n_changed


@kernel(export=True)
def write_answers(out, n_out, headers, row, answers, n_answers):
    """Bytes of the first ``n_out`` rows of ``out`` into ``answers`` from ``n_answers`` on; returns those in use."""
    for k in range(n_out):
        _write_frame(headers[row], out[k], answers[n_answers + k])
    return n_answers + n_out


@kernel(export=True)
def take_frames(
    first, n_frames, now_ps, own_mac, own_ip, max_payload_bytes, slots, lengths, batch, links, ring, pools, params,
    headers, table, header, frame, out, answers, events, changed, deliveries, delivered, drops,
):
    """Take received frames through the machine, until all are taken or the caller has something to decide.

    Parameters
    ----------
    first, n_frames : int64
        Frames ``first`` to ``n_frames - 1`` of ``slots`` are taken.
    now_ps, own_mac, own_ip, max_payload_bytes : int64
        ``own_ip`` is our IPv4 address in IPv4 mode, and 0 in Ethernet mode.
    slots : uint8 array, shape (n, bytes)
    lengths : int64 array, shape (n,)
        Bytes received in each slot.
    batch : BATCH array, shape (1,), modified in place
    links, ring, pools, params : arrays of the machine, modified in place
    headers : HEADER array, modified in place
        Addresses of each link.
    table : int64 array
        See :func:`find_row`.
    header, frame, out : HEADER (1,), FRAME (1,) and FRAME (MAX_ANSWERS,) arrays, modified in place
        Scratch; after STRANGER_OPENS ``header`` and ``frame`` hold the OPEN.
    answers : uint8 array, shape (n, 64), modified in place
        Frames to send, from ``batch["n_answers"]`` on. Zero behind byte 60.
    events, changed : int64 arrays, one per row, modified in place
        `LinkEvent` bits of each row, and the rows that have some.
    deliveries : int64 array, shape (n, 3), modified in place
        Row, start and end in ``delivered`` of payload in order; neighbours of one link are joined.
    delivered : uint8 array, modified in place
        Room for the payload of all slots.
    drops : int64 array, modified in place
        Counts by `DROPS`.
    """
    n_answers = batch[0]["n_answers"]
    n_changed = 0
    n_deliveries = 0
    end = 0
    stop = _DONE
    k = first
    while k < n_frames:
        if n_answers + MAX_ANSWERS > len(answers):
            stop = _STOP_ANSWERS_FULL
            break
        if own_ip == 0:
            reason = int(parse_header(slots[k], lengths[k], max_payload_bytes, header[0]))
            peer = header[0]["src_mac"]
        else:
            reason = int(parse_ipv4_header(slots[k], lengths[k], max_payload_bytes, header[0]))
            peer = header[0]["src_ip"]
        if reason == 0:
            if header[0]["dst_mac"] != own_mac or (own_ip != 0 and header[0]["dst_ip"] != own_ip):
                reason = FOREIGN_DESTINATION
            elif not _is_from_a_peer(header[0], own_mac, own_ip):
                reason = BAD_SOURCE
        if reason != 0:
            drops[reason] += 1
            k += 1
            continue
        frame[0]["opcode"] = header[0]["opcode"]
        frame[0]["vc"] = header[0]["vc"]
        frame[0]["tx_seq"] = header[0]["tx_seq"]
        frame[0]["rx_seq"] = header[0]["rx_seq"]
        frame[0]["payload_bytes"] = header[0]["payload_bytes"]
        opcode = int(frame[0]["opcode"])
        row = find_row(table, link_key(peer, int(frame[0]["vc"])))
        link = links[row]
        if row == 0:
            if opcode == _OPEN:
                stop = _STRANGER_OPENS
                break
            if opcode == _PAYLOAD:
                drops[UNKNOWN_LINK] += 1
            link["vc"] = frame[0]["vc"]
            headers[0]["dst_mac"] = header[0]["src_mac"]
            headers[0]["dst_node"] = header[0]["src_mac"] & 0xFFFFFF
            headers[0]["dst_ip"] = header[0]["src_ip"]
        state = link["state"]
        rx_bytes = link["rx_bytes"]
        acked_bytes = link["acked_bytes"]
        n_out = on_frame(link, ring, pools[0], params[0], frame[0], now_ps, out, 0)
        for j in range(n_out):
            _write_frame(headers[row], out[j], answers[n_answers])
            n_answers += 1
        n_changed = _note(link, row, state, rx_bytes, acked_bytes, events, changed, n_changed)
        length = link["rx_bytes"] - rx_bytes
        if length > 0:
            if n_deliveries == 0 or deliveries[n_deliveries - 1, 0] != row:
                deliveries[n_deliveries, 0] = row
                deliveries[n_deliveries, 1] = end
                n_deliveries += 1
            _copy(slots[k], HEADER_BYTES, delivered, end, length)
            end += length
            deliveries[n_deliveries - 1, 2] = end
        if row != 0 and link["state"] == _S_CLOSED:
            stop = _LINK_ENDED
            if link["failure"] != _PEER_RESTARTED:  # else the same OPEN comes again, as a stranger's
                k += 1
            break
        k += 1
    batch[0]["next_frame"] = k
    batch[0]["n_answers"] = n_answers
    batch[0]["n_changed"] = n_changed
    batch[0]["n_deliveries"] = n_deliveries
    batch[0]["stop"] = stop


@kernel(export=True)
def expire_timers(now_ps, batch, links, params, headers, out, answers, events, changed):
    """:func:`ttpoe.machine.on_timeout` on every link whose time has come. Parameters as for :func:`take_frames`."""
    n_answers = batch[0]["n_answers"]
    n_changed = 0
    for row in range(1, len(links)):
        link = links[row]
        if link["timer_at_ps"] > now_ps or n_answers + MAX_ANSWERS > len(answers):
            continue
        state = link["state"]
        acked_bytes = link["acked_bytes"]
        n_out = on_timeout(link, params[0], now_ps, out, 0)
        for j in range(n_out):
            _write_frame(headers[row], out[j], answers[n_answers])
            n_answers += 1
        n_changed = _note(link, row, state, link["rx_bytes"], acked_bytes, events, changed, n_changed)
    batch[0]["n_answers"] = n_answers
    batch[0]["n_changed"] = n_changed


@kernel(export=True)
def earliest_deadline_ps(links, ring, pools, params):
    """Smallest ``timer_at_ps`` of all rows, or ``pace_at_ps`` of one that may send then; NEVER if none waits."""
    earliest = NEVER
    for row in range(len(links)):
        link = links[row]
        earliest = min(earliest, link["timer_at_ps"])
        if 0 < link["pace_at_ps"] < earliest and next_payload_bytes(link, pools[0], params[0], ring) > 0:
            earliest = link["pace_at_ps"]
    return earliest


@kernel(export=True)
def next_sendable(links, after, ring, pools, params, now_ps):
    """Row that may send a PAYLOAD now, the first behind row ``after`` in a circle; 0 if none may."""
    n_rows = len(links)
    for step in range(1, n_rows + 1):
        row = (after + step) % n_rows
        if row == 0 or links[row]["pace_at_ps"] > now_ps:
            continue
        if next_payload_bytes(links[row], pools[0], params[0], ring) > 0:
            return row
    return 0


@kernel(export=True)
def cut_payloads(links, row, ring, pools, params, headers, send_buffer, now_ps, out, slots, lengths):
    """Write PAYLOAD frames of one link into ``slots`` until they are full or none may be sent; returns how many.

    Parameters
    ----------
    links, row, ring, pools, params, headers, out :
        As for :func:`take_frames`.
    send_buffer : uint8 array
        Byte ``offset`` of the stream is at ``offset % len(send_buffer)``.
    now_ps : int64
    slots : uint8 array, shape (n, bytes), modified in place
    lengths : int64 array, shape (n,), modified in place
        Bytes of each frame, padding to 64 included.
    """
    capacity = len(send_buffer)
    link = links[row]
    n = 0
    while n < len(slots):
        if poll_payload(link, ring, pools[0], params[0], now_ps, out, 0) != 1:
            break
        slot = slots[n]
        _write_frame(headers[row], out[0], slot)
        length = out[0]["payload_bytes"]
        at = (link["sent_bytes"] - length) % capacity
        until_wrap = min(length, capacity - at)
        _copy(send_buffer, at, slot, HEADER_BYTES, until_wrap)
        _copy(send_buffer, 0, slot, HEADER_BYTES + until_wrap, length - until_wrap)
        lengths[n] = max(HEADER_BYTES + length, MIN_FRAME_BYTES)
        for k in range(HEADER_BYTES + length, MIN_FRAME_BYTES):
            slot[k] = 0
        n += 1
    return n

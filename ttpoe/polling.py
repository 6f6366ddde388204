"""PAYLOAD, pulled when the line can take it: resends first, then new data. Knows nothing of frames received."""

from __future__ import annotations

from ttpoe._jit import kernel
from ttpoe.congestion import IDLE, flight_room_bytes, pace, payload_marks, tell_policy, window_room_bytes
from ttpoe.fsm import SENT, Opcode, Sent
from ttpoe.recovery import start_timer, tail_probe_at_ps
from ttpoe.sequence import seq_add, seq_diff
from ttpoe.state import CongestionControl, Status
from ttpoe.units import NEVER

_PAYLOAD = int(Opcode.PAYLOAD)
_T_SEND, _T_UNTIL = int(Sent.SEND), int(Sent.UNTIL_CLOSING_ID)
_OUT_FULL = int(Status.OUT_FULL)
_DCTCP = int(CongestionControl.DCTCP)


@kernel(inline=True)
def next_payload_bytes(link, pool, params, ring):
    """Payload of the PAYLOAD that may be sent, from ``pace_at_ps`` on; 0: a window, the state or the data forbid it.

    Resends come first and need no room in the transmit memory: they are held there already.
    """
    rule = int(SENT[_PAYLOAD, link["state"], 0])
    if rule != _T_SEND and rule != _T_UNTIL:
        return 0
    if link["tx_next"] != link["tx_max"]:
        length = ring[link["ring_base"] + (link["tx_next"] & link["ring_mask"])]["end_byte"] - link["sent_bytes"]
        return 0 if length > flight_room_bytes(link) else length
    if rule == _T_UNTIL:
        return 0  # a new id would lie beyond the remote closing id, which is tx_max - 1 from the CLOSE on
    length = link["submitted_bytes"] - link["cut_bytes"]
    length = min(length, params["mtu_bytes"])
    if length > window_room_bytes(link, pool, params) or length > flight_room_bytes(link):
        return 0
    if seq_diff(link["tx_max"], link["tx_una"]) > link["ring_mask"]:
        return 0
    return length


@kernel
def poll_payload(link, ring, pool, params, now_ps, out, n_out):
    """Append the next PAYLOAD, if one may be sent now: a resend first, else new data. As for :func:`on_frame`."""
    if now_ps < link["pace_at_ps"]:
        return n_out
    length = next_payload_bytes(link, pool, params, ring)
    if length == 0:
        return n_out
    if n_out >= len(out):
        return _OUT_FULL
    seq = link["tx_next"]
    slot = ring[link["ring_base"] + (seq & link["ring_mask"])]
    if seq == link["tx_max"]:
        if seq == link["tx_una"]:
            link["timer_at_ps"] = NEVER  # with nothing in flight it is for no PAYLOAD
            if now_ps - link["last_sent_at_ps"] > link["rto_ps"]:
                tell_policy(link, params, IDLE, 0, now_ps)  # RFC 5681, 4.1
        link["tx_max"] = seq_add(seq, 1)
        link["cut_bytes"] += length
        link["tail_bytes"] = length
        pool["held_bytes"] += length
        slot["end_byte"] = link["cut_bytes"]
        slot["is_resent"] = 0
    else:
        slot["is_resent"] = 1
        link["payloads_resent"] += 1
        link["bytes_resent"] += length
    slot["sent_at_ps"] = now_ps
    link["last_sent_at_ps"] = now_ps
    if link["pace_at_ps"] != 0:
        pace(link)
    link["tx_next"] = seq_add(seq, 1)
    link["sent_bytes"] += length
    link["payloads_sent"] += 1
    if link["timer_at_ps"] == NEVER:
        start_timer(link, params, now_ps)
    else:  # a probe that the timer stands for already is for this one as well
        probe_at_ps = tail_probe_at_ps(link, params, now_ps)
        if probe_at_ps < link["timer_at_ps"]:
            link["timer_at_ps"] = probe_at_ps
            link["timer_is_probe"] = 1
    row = out[n_out]
    row["opcode"] = _PAYLOAD
    row["marks"] = payload_marks(link) if params["congestion_control"] == _DCTCP else 0
    row["vc"] = link["vc"]
    row["tx_seq"] = seq
    row["rx_seq"] = 0  # has no meaning on PAYLOAD; the reference module sends 0
    row["payload_bytes"] = length
    return n_out + 1

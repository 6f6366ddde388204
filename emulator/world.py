"""The arrays that the compiled loop works on, in one named tuple, and the rows that belong to no single concern.

Whoever builds a World owns its arrays; the kernels only borrow them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from emulator.rows import whole_lines
from ttpoe.state import FRAME
from ttpoe.units import PS_PER_S


def _int64(*names: str) -> list[tuple[str, str]]:
    return [(name, "i8") for name in names]


ENGINE = np.dtype(
    _int64(
        "now_ps", "free_head", "free_count", "kick_count", "protocol",
        "events", "packet_hops", "data_hops",
        # conservation: created = delivered + dropped + lost + in queues and on lines
        "created", "delivered", "dropped", "lost",
        "bad_icrc",  # of those lost: refused by a RoCE host
        "pfc_frames", "pfc_quanta", "pause_reaction_ps", "paused_count",
        "is_sharing",  # the links of a host share a window
        "drain_bytes", "drain_ps",  # a reader takes so many bytes in so much time; 0 bytes: all at once
        "unfinished", "is_tracing", "trace_count",
        "series_bucket_ps", "series_index", "series_until_ps", "series_kept",
        "no_route",
        "framing", "line_only_bytes",  # what frames are made of; see framing.py
        "event_margin",  # events that one event may add
        "looks_ahead",  # rows are more than near caches hold
        "stop",  # number of the change for which the loop returned
        "retry_bytes", "largest_wire_bytes",  # replay buffer of each line; 0: none
        "trim_priority",  # of frames cut to their headers; -1: none are
        "is_credited", "credit_refresh_ps", "credit_frames",
        "watchdog_detect_ps", "watchdog_restore_ps", "incidents",  # detect: NEVER without a watchdog
        "is_paced",  # ends have a rate
        "data_ecn",  # the ECN field of data that hosts send
        "is_notifying", "cnp_priority",  # receivers answer marks
    ),
    align=True,
)
"""One row: the loop's own state and the counters of a run."""

TTPOE = 0
ROCE = 1
TCP = 2
"""Protocols of ``engine["protocol"]``."""

PORT = whole_lines(
    [
        # what every frame touches, within a cache line
        *_int64(
            "tie",  # tie-break: hash of seed and name, counted up with each event
            "busy_until_ps",
            "delay_ps",  # propagation, and the far switch's pipeline
            "ps_per_byte",  # 0 where the division is not exact
        ),
        ("line_head", "i4"), ("line_tail", "i4"),  # frames on the line, in order; the head's arrival is scheduled
        ("pfc_due", "i2"),  # bit n: the peer is to be told about priority n (pauses or credits), ahead of all frames
        ("storm", "i2"),  # bit n: the watchdog drops what priority n would send
        ("switch", "i4"), ("far_switch", "i4"),  # what the port and its line's end belong to; -1: a host
        ("waiting", "i2"), ("paused", "i2"),  # bit n: priority n has something to send, is paused by the peer
        ("is_departure_pending", "i1"),  # 1; with IS_DOWN of emulator.outage while its line is down
        ("is_kicked", "i1"), ("is_captured", "i1"),
        ("is_watched", "i1"),  # 1 + the priority whose queue is sampled, or 0
        ("impairment", "i4"),  # row of ``impairments`` for its line, or -1
        # the next line of the cache: what each frame sent touches first
        *_int64("tx_frames", "tx_bytes", "rate_bps"),
        ("weighted", "i2"),  # bit n: priority n shares the line by weight
        ("pfc_last", "i2"),  # the priority that the peer was told about last
        ("xoff", "i2"), ("told_xoff", "i2"),  # bit n: the peer's priority n is to be paused, was told so last
        *_int64(
            "timer_pending_ps", "quantum_ps", "quantum_rest",  # 512 bit times are quantum_ps + quantum_rest / rate_bps
        ),
        ("react_head", "i4"), ("react_tail", "i4"),  # PFC frames received that have not taken effect yet
        *_int64(
            "trimmed",  # frames that were to leave by it, cut to their headers
            "stuck_until_ps",  # hosts: a faulty NIC pauses its peer's priorities ``xoff`` until then
        ),
        ("blocked_head", "i4"), ("blocked_tail", "i4"),  # hosts: ends that wait for room in the shared window
        ("link_down", "i4"),  # frames lost since its line was down, was where they were, or went down before they left
        ("cut", "i4"),  # of those: frames that were on the line
    ]
)
"""A port's sending side; the port at the other end of its cable is its index with the lowest bit flipped."""

END = whole_lines(
    [
        ("timer_pending_ps", "i8"),  # the earliest timer event in the heap
        ("drain_from_ps", "i8"), ("drain_base_bytes", "i8"),  # the reader has been busy since, having read so much then
        ("send_at_ps", "i8"),  # no data before, by its rate; an event then puts it back in its NIC's round
        ("host", "i4"), ("port", "i4"), ("nic", "i4"), ("peer_nic", "i4"),
        ("entropy", "i4"),  # hash of what ECMP looks at
        ("next_ready", "i4"), ("next_blocked", "i4"), ("is_ready", "i1"), ("is_blocked", "i1"), ("priority", "i1"),
        ("answer_priority", "i1"),
    ],
)
"""One end of a flow: end 2f sends, end 2f+1 receives. Its transport row has the same index. One cache line."""

FLOW = np.dtype(
    _int64(
        "size_bytes", "start_ps", "finished_rx_ps", "finished_tx_ps", "drops", "corrupted", "failure", "is_over",
        "unmet",  # ends that must still be done before it may start
        "delay_ps",  # from then to its start, or until start_ps if that is later
    ),
    align=True,
)

TRACE = np.dtype(
    [
        ("time_ps", "i8"), ("cookie", "i8"), ("port", "i4"), ("is_out", "i1"), ("kind", "i1"), ("priority", "i1"),
        ("ecn", "i1"), ("is_corrupted", "i1"), ("end", "i4"), ("frame", FRAME),
    ],
    align=True,
)
"""A captured frame, headers only. Stamps: the first bit of an outgoing frame, the last bit of an incoming one (at a
switch, when it is through the pipeline)."""

SERIES = np.dtype(_int64("depth_max_bytes", "depth_bytes", "paused_max", "paused", "is_touched"), align=True)
"""One bucket of time: the watched queue's depth and the number of paused (port, priority) pairs, maximum and last."""


class World(NamedTuple):
    """Every array of a run; shapes in units of ports, ends (two a flow), flows, hosts and switches."""

    engine: np.ndarray
    schedule: np.ndarray
    nodes: np.ndarray  # EVENT
    far: np.ndarray  # EVENT, a heap
    due: np.ndarray  # int64: the bucket being served
    due_subject: np.ndarray  # int32
    spare: np.ndarray  # as the two above, for sorting
    spare_subject: np.ndarray
    ports: np.ndarray
    queues: np.ndarray  # (8, ports): the rows of one priority lie side by side, as most runs use one or two
    ingress: np.ndarray  # (8, ports)
    switches: np.ndarray
    shared: np.ndarray  # SHARED: pools of the switches
    rules: np.ndarray  # RULES, (8, switches)
    credits: np.ndarray  # CREDITS, (ports * 8,) where links have them, else (1,)
    retries: np.ndarray  # RETRY, (ports,) where links retry, else (1,)
    dwrr: np.ndarray  # DWRR, (ports,) where any priority has a weight, else (1,)
    storms: np.ndarray  # int64 (ports * 8,): pause storms, by the queue that they stopped
    incidents: np.ndarray  # INCIDENT: the first ones
    marking: np.ndarray  # MARKING, (ports,)
    packets: np.ndarray
    frames: np.ndarray  # FRAME, (packets,)
    roce_frames: np.ndarray  # the same memory as ROCE_FRAME
    tcp_frames: np.ndarray  # and as TCP_FRAME
    out: np.ndarray  # FRAME, a few rows of scratch for answers
    roce_out: np.ndarray
    tcp_out: np.ndarray
    flows: np.ndarray
    dependents: np.ndarray  # int32: flows that wait for an end to be done, end by end
    dependents_first: np.ndarray  # int32 (ends + 1,): where each end's begin
    ends: np.ndarray
    links: np.ndarray  # LINK, (ends,) under TTPoE, else (1,)
    ring: np.ndarray
    pools: np.ndarray  # (hosts + 1,): the last one is without a limit
    params: np.ndarray
    qps: np.ndarray  # QP, (ends,) under RoCE, else (1,)
    roce_params: np.ndarray
    selective: np.ndarray  # SELECTIVE, (ends,) where queue pairs resend selectively, else (1,)
    bits: np.ndarray  # int64: their rings of 32 bits a word
    rates: np.ndarray  # RATE, (ends,) where ends have a rate, else (1,)
    dcqcn: np.ndarray  # DCQCN_PARAMS, (1,)
    tcps: np.ndarray  # TCP, (ends,) under TCP, else (1,)
    tcp_params: np.ndarray
    slots: np.ndarray  # SLOT: the packets that senders have outstanding
    received: np.ndarray  # int8: which packets receivers have out of order
    blocks: np.ndarray  # int64: their newest SACK blocks
    group_of: np.ndarray  # int32 (switches, nics): the group of ports towards a NIC
    groups: np.ndarray  # GROUP
    members: np.ndarray  # int32: ports, group by group
    routing: np.ndarray  # ROUTING, (1,)
    flowlets: np.ndarray  # FLOWLET
    kicks: np.ndarray  # int32 (ports,): ports to try at the end of this event
    impairments: np.ndarray  # IMPAIRMENT, one a line that has any
    ordinals: np.ndarray  # int64: frames to be lost or damaged, line by line
    trace: np.ndarray
    series: np.ndarray


def set_rate(ports: np.ndarray, i: int | slice, rate_bps: int | np.ndarray) -> None:
    """Give ports (PORT array, modified in place) a line rate, and what is derived from it."""
    ports["rate_bps"][i] = rate_bps
    exact = 8 * PS_PER_S % rate_bps == 0
    ports["ps_per_byte"][i] = np.where(exact, 8 * PS_PER_S // rate_bps, 0)
    ports["quantum_ps"][i], ports["quantum_rest"][i] = np.divmod(512 * PS_PER_S, rate_bps)

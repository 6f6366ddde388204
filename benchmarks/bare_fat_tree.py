"""A bare permutation on a fat tree, as the yardstick of speed: what the same frames cost with nothing switched on.

One pending event per line, a 4-ary heap of times, first-in-first-out ports, a fixed window, one acknowledgement a
frame, the path of each flow drawn beforehand. No shared buffer, no PFC, no loss, no tie-break, no state machine, no
counters.
"""

from __future__ import annotations

import numpy as np
from bare_loop import PACKET, PORT, _pop, _push
from numba import njit

from emulator.topology import Topology

MOST_HOPS = 6


def draw_paths(topology: Topology, flows: list[tuple[int, int]], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ports on a random shortest path of each flow and of its acknowledgements.

    Returns
    -------
    int32 array, shape (2 * flows, 6); int32 array, shape (2 * flows,)
        Ports, and how many.
    """
    rng = np.random.default_rng(seed)
    paths = np.full((2 * len(flows), MOST_HOPS), -1, np.int32)
    lengths = np.zeros(2 * len(flows), np.int32)
    for k, (src, dst) in enumerate(flows):
        for way, (a, b) in enumerate(((src, dst), (dst, src))):
            ports = [int(topology.nic_port[a])]
            while (switch := int(topology.port_switch[ports[-1] ^ 1])) >= 0:
                ports.append(int(rng.choice(topology.routes.ports(switch, b))))
            paths[2 * k + way, : len(ports)] = ports
            lengths[2 * k + way] = len(ports)
    return paths, lengths


@njit(cache=True, nogil=True)
def bare_permutation(paths, lengths, n_ports, packets_each, window, data_bytes, ack_bytes, ps_per_byte, delay_ps):
    """Run it; returns the end in picoseconds, events and packet-hops."""
    flows = paths.shape[0] // 2
    ports = np.zeros(n_ports, PORT)
    for i in range(n_ports):
        ports[i]["queue_head"] = ports[i]["queue_tail"] = ports[i]["line_head"] = ports[i]["line_tail"] = -1
    rows = flows * (window + 2) * 2
    packets = np.zeros(rows, PACKET)
    free = np.arange(rows).astype(np.int32)
    n_free = rows
    times = np.empty(4 * n_ports + 16, np.int64)
    keys = np.empty(4 * n_ports + 16, np.int64)
    n_events = 0
    una, nxt, expected = np.zeros(flows, np.int32), np.zeros(flows, np.int32), np.zeros(flows, np.int32)
    todo = np.empty(flows * window + 8, np.int32)
    n_todo = 0
    done = hops = events = now = 0
    for f in range(flows):
        for _ in range(min(window, packets_each)):
            n_free -= 1
            p = free[n_free]
            packets[p]["flow"], packets[p]["seq"] = 2 * f, nxt[f]
            packets[p]["size"], packets[p]["hop"] = data_bytes, 0
            nxt[f] += 1
            todo[n_todo] = p
            n_todo += 1
    while True:
        for z in range(n_todo):
            p = todo[z]
            i = paths[packets[p]["flow"], packets[p]["hop"]]
            port = ports[i]
            packets[p]["next"] = -1
            if port["is_pending"] == 0 and now >= port["busy"]:
                port["busy"] = now + packets[p]["size"] * ps_per_byte
                packets[p]["arrive"] = port["busy"] + delay_ps
                hops += 1
                if port["line_tail"] < 0:
                    port["line_head"] = p
                    n_events = _push(times, keys, n_events, port["busy"] + delay_ps, (i << 1) | 1)
                else:
                    packets[port["line_tail"]]["next"] = p
                port["line_tail"] = p
                continue
            if port["queue_tail"] < 0:
                port["queue_head"] = p
            else:
                packets[port["queue_tail"]]["next"] = p
            port["queue_tail"] = p
            port["queued"] += packets[p]["size"]
            if port["is_pending"] == 0:
                port["is_pending"] = 1
                n_events = _push(times, keys, n_events, port["busy"], i << 1)
        n_todo = 0
        if n_events == 0 or done == flows:
            break
        now = times[0]
        event = keys[0]
        n_events = _pop(times, keys, n_events)
        events += 1
        i = event >> 1
        port = ports[i]
        if event & 1 == 0:  # the line is free
            p = port["queue_head"]
            if p < 0:
                port["is_pending"] = 0
                continue
            port["queue_head"] = packets[p]["next"]
            if port["queue_head"] < 0:
                port["queue_tail"] = -1
            port["queued"] -= packets[p]["size"]
            port["busy"] = now + packets[p]["size"] * ps_per_byte
            packets[p]["arrive"] = port["busy"] + delay_ps
            packets[p]["next"] = -1
            hops += 1
            if port["line_tail"] < 0:
                port["line_head"] = p
                n_events = _push(times, keys, n_events, port["busy"] + delay_ps, (i << 1) | 1)
            else:
                packets[port["line_tail"]]["next"] = p
            port["line_tail"] = p
            if port["queue_head"] >= 0:
                n_events = _push(times, keys, n_events, port["busy"], i << 1)
            else:
                port["is_pending"] = 0
            continue
        p = port["line_head"]  # arrives
        port["line_head"] = packets[p]["next"]
        if port["line_head"] < 0:
            port["line_tail"] = -1
        else:
            n_events = _push(times, keys, n_events, packets[port["line_head"]]["arrive"], event)
        way = packets[p]["flow"]
        packets[p]["hop"] += 1
        if packets[p]["hop"] < lengths[way]:
            todo[n_todo] = p
            n_todo += 1
            continue
        f = way >> 1
        if way & 1 == 0:
            if packets[p]["seq"] == expected[f]:
                expected[f] += 1
            packets[p]["flow"], packets[p]["seq"] = way | 1, expected[f]
            packets[p]["size"], packets[p]["hop"] = ack_bytes, 0
            todo[n_todo] = p
            n_todo += 1
            continue
        acknowledged = packets[p]["seq"]
        free[n_free] = p
        n_free += 1
        if acknowledged > una[f]:
            una[f] = acknowledged
            if acknowledged >= packets_each:
                done += 1
        while nxt[f] < packets_each and nxt[f] - una[f] < window:
            n_free -= 1
            p = free[n_free]
            packets[p]["flow"], packets[p]["seq"] = way & ~1, nxt[f]
            packets[p]["size"], packets[p]["hop"] = data_bytes, 0
            nxt[f] += 1
            todo[n_todo] = p
            n_todo += 1
    return now, events, hops

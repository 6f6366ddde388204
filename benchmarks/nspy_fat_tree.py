"""The same fat tree in ns.py (TCP Reno on SimPy), unlimited buffers so that it ends: a peer in Python."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import simpy
from ns.flow.cc import TCPReno
from ns.flow.flow import Flow
from ns.packet.tcp_generator import TCPPacketGenerator
from ns.packet.tcp_sink import TCPSink
from ns.port.port import Port
from ns.port.wire import Wire
from nspy_incast import ACK_FLOW_OFFSET


class _FarEnd:
    """What stands at the end of a port's line: counts the crossing, and passes packets on along their paths."""

    crossings = 0

    def __init__(self, number: int, ports: list[Any], following: list[dict[int, int]], ends: list[Any]) -> None:
        self.number, self.ports, self.following, self.ends = number, ports, following, ends

    def put(self, packet: Any) -> None:
        _FarEnd.crossings += 1
        flow = packet.flow_id
        way = 2 * flow if flow < ACK_FLOW_OFFSET else 2 * (flow - ACK_FLOW_OFFSET) + 1
        after = self.following[way].get(self.number)
        (self.ends[way] if after is None else self.ports[after]).put(packet)


def nspy_permutation(
    paths: np.ndarray, lengths: np.ndarray, n_ports: int, packets_each: int, mtu: int, rate_bps: float, delay_s: float
) -> tuple[float, int]:
    """Flows of ``packets_each`` segments over the paths of :func:`bare_fat_tree.draw_paths`.

    Returns
    -------
    float, int
        Processor seconds, and link crossings, those of acknowledgements included.
    """
    env = simpy.Environment()
    size = packets_each * mtu
    ports: list[Any] = []
    ends: list[Any] = []
    following = [
        dict(zip(ways[: n - 1].tolist(), ways[1:n].tolist(), strict=True))
        for ways, n in zip(paths, lengths.tolist(), strict=True)
    ]
    for number in range(n_ports):
        port = Port(env, rate_bps)
        port.out = Wire(env, lambda: delay_s)
        port.out.out = _FarEnd(number, ports, following, ends)
        ports.append(port)
    generators = []
    for k in range(len(paths) // 2):
        flow = Flow(k, f"a{k}", f"b{k}", size=size, start_time=0, finish_time=1e9)
        generator = TCPPacketGenerator(env, flow, TCPReno(mss=mtu, cwnd=mtu * 10, ssthresh=size))
        generator.mss = mtu
        generator.out = ports[paths[2 * k, 0]]
        sink = TCPSink(env, rec_arrivals=False, rec_waits=False, rec_flow_ids=False)
        sink.out = ports[paths[2 * k + 1, 0]]
        generators.append(generator)
        ends += [sink, generator]
    _FarEnd.crossings = 0
    started = time.process_time()
    while any(generator.last_ack < size for generator in generators):
        before = _FarEnd.crossings
        env.run(until=env.now + 200e-6)
        if _FarEnd.crossings == before and env.now > 10:
            raise RuntimeError("ns.py's senders stalled")
    return time.process_time() - started, _FarEnd.crossings

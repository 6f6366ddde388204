"""The same incast in ns.py (TCP Reno on SimPy), unlimited buffers so that it ends: a peer in Python."""

from __future__ import annotations

import time

import simpy
from ns.demux.flow_demux import FlowDemux
from ns.flow.cc import TCPReno
from ns.flow.flow import Flow
from ns.packet.tcp_generator import TCPPacketGenerator
from ns.packet.tcp_sink import TCPSink
from ns.port.port import Port
from ns.port.wire import Wire

ACK_FLOW_OFFSET = 10_000
"""ns.py's own: an acknowledgement's flow id is its data's plus this."""


def nspy_incast(senders: int, packets_each: int, mtu: int, rate_bps: float, delay_s: float) -> tuple[float, int, float]:
    """N senders of ``packets_each`` segments over two links each way; returns (wall s, link crossings, last ack s)."""
    env = simpy.Environment()
    crossings = 0

    def wire(out: object) -> Wire:
        made = Wire(env, lambda: delay_s)
        made.out = out
        return made

    class Counter:
        """Counts what passes a link, and when last."""

        def __init__(self, out: object) -> None:
            self.out = out

        def put(self, packet: object) -> None:
            nonlocal crossings, last
            crossings += 1
            last = env.now
            self.out.put(packet)  # type: ignore[attr-defined]

    last = 0.0
    size = packets_each * mtu
    generators, sinks = [], []
    for k in range(senders):
        flow = Flow(k, f"h{k + 1}", "h0", size=size, start_time=0, finish_time=1e9)
        generator = TCPPacketGenerator(env, flow, TCPReno(mss=mtu, cwnd=mtu * 10, ssthresh=size))
        generator.mss = mtu
        generators.append(generator)
        sinks.append(TCPSink(env, rec_arrivals=False, rec_waits=False, rec_flow_ids=False))
    to_receiver = Port(env, rate_bps)
    to_receiver.out = wire(Counter(FlowDemux(sinks)))
    acks = Port(env, rate_bps)
    to_senders = []
    for generator, sink in zip(generators, sinks, strict=True):
        nic = Port(env, rate_bps)
        nic.out = wire(Counter(to_receiver))
        generator.out = nic
        sink.out = acks
        back = Port(env, rate_bps)
        back.out = wire(Counter(generator))
        to_senders.append(back)

    class AckDemux:
        def put(self, packet: object) -> None:
            to_senders[packet.flow_id - ACK_FLOW_OFFSET].put(packet)  # type: ignore[attr-defined]

    acks.out = wire(Counter(AckDemux()))
    started = time.perf_counter()
    while any(generator.last_ack < size for generator in generators):
        before = crossings
        env.run(until=env.now + 200e-6)
        if crossings == before and env.now > 10:
            raise RuntimeError("ns.py's senders stalled")
    return time.perf_counter() - started, crossings, last

"""Coverage-guided fuzzing of a listening endpoint: ``NUMBA_DISABLE_JIT=1 python tests/fuzz/listener.py [-runs=N]``.

An input is a script: frames of two peers on two channels, honest and not, raw bytes, time that passes, and what the
owner does. A PAYLOAD of a peer always carries the bytes that belong to its id, so whatever is delivered must be what a
peer sent after the OPEN that raised the link, in order, once. Options are libFuzzer's; ``--seed-corpus DIRECTORY``
writes some exchanges there and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(
    include=["ttpoe.machine", "ttpoe.control", "ttpoe.receiving", "ttpoe.owner", "ttpoe.polling", "ttpoe.recovery",
             "ttpoe.congestion", "ttpoe.batch", "ttpoe.link", "ttpoe.endpoint"]
):  # fmt: skip
    from ttpoe.endpoint import Endpoint

from ttpoe.config import EndpointConfig
from ttpoe.errors import LocalProtocolError, RemoteProtocolError
from ttpoe.fsm import Opcode, State
from ttpoe.units import NEVER, PS_PER_MS
from ttpoe.wire import build, make_header, parse

MAC = 0x98ED5C000001
PEERS = (0x98ED5C000002, 0x98ED5C000003)
BASES = (0xFFFFFFFD, 0x7FFFFFFD, 5, 1 << 20)
CONFIG = EndpointConfig(
    mtu_bytes=8,
    window_bytes=24,
    send_buffer_bytes=32,
    receive_buffer_bytes=24,
    tag_sets=1,
    tag_ways=1,
    idle_timeout_ps=500 * PS_PER_MS,
    backlog=2,
    retry_limit=2,
    burst_frames=2,
)
MOST_STEPS = 40
_MASK = 0xFFFFFFFF


def payload_of(seq: int) -> bytes:
    """The bytes of an id: 1 to 8 of them."""
    return bytes((seq * 37 + k) & 255 for k in range(1 + seq % 8))


class Script:
    """Numbers out of an input, a byte or two each; zeros when it is used up."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, at most 256 values."""
        self.at += 1
        return low + (self.data[self.at - 1] if self.at <= len(self.data) else 0) % (high - low + 1)

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def is_over(self) -> bool:
        return self.at >= len(self.data)


class Run:
    """One script against one endpoint, with what must hold after every step."""

    def __init__(self, data: bytes) -> None:
        self.script = Script(data)
        self.now_ps = 0
        self.draws = 0
        self.endpoint = Endpoint(MAC, CONFIG, draw_seq=self.draw)
        self.endpoint.is_listening = True
        self.frames = 0
        self.links: list = []
        self.delivered: dict = {}

    def draw(self) -> int:
        self.draws += 1
        return (0xFFFFFFFE + (self.draws - 1) * 0x10000000) & _MASK

    def run(self) -> None:
        steps = (self.hear, self.own, self.wait, self.hear_bytes)
        for _ in range(MOST_STEPS):
            if self.script.is_over():
                break
            steps[self.script.number(0, 3)]()
            self.look()

    def hear(self) -> None:
        """A frame of a peer, with ids near those in use."""
        script = self.script
        who, opcode = script.number(0, 3), script.number(0, 11)
        base = BASES[script.number(0, 3)]
        near = self.links[script.number(0, len(self.links) - 1)] if self.links else None
        tx = (base + script.number(-2, 6)) & _MASK
        rx = (script.number(-2, 6) + (near.field("tx_una") if near is not None else 0)) & _MASK
        payload = payload_of(tx) if opcode == Opcode.PAYLOAD else b""
        header = make_header(
            dst_mac=MAC, src_mac=PEERS[who >> 1], opcode=opcode, vc=who & 1, tx_seq=tx, rx_seq=rx,
            payload_bytes=len(payload),
        )  # fmt: skip
        self.receive(build(header, payload))

    def hear_bytes(self) -> None:
        """Anything; and a valid frame with some bytes changed, PAYLOAD never, since its bytes would be the peer's."""
        script = self.script
        frame = bytearray(script.bytes(script.number(0, 90)))
        if script.number(0, 1):
            header = make_header(dst_mac=MAC, src_mac=PEERS[0], opcode=script.number(0, 5), vc=0, tx_seq=5, rx_seq=5)
            frame = bytearray(build(header))
            at = script.number(0, 63)
            frame[at] ^= script.number(0, 255)
        if len(frame) > 42 and frame[42] & 0x3F == Opcode.PAYLOAD:
            frame[42] = Opcode.ACK
        self.receive(bytes(frame))

    def receive(self, frame: bytes) -> None:
        self.frames += 1
        self.endpoint.receive([frame], self.now_ps)
        self.send()

    def send(self) -> None:
        """Whatever the endpoint says is a frame to a peer that an endpoint would take."""
        for _ in range(64):
            out = self.endpoint.poll_transmit(self.now_ps)
            if out is None:
                return
            header = parse(bytes(out)).header[0]
            if header["src_mac"] != MAC:
                raise AssertionError("spoke for another")
        raise AssertionError("would not stop sending")

    def wait(self) -> None:
        self.now_ps += PS_PER_MS << self.script.number(0, 12)
        self.endpoint.handle_timeout(self.now_ps)
        self.send()

    def own(self) -> None:
        """The owner accepts, writes, reads, closes or forgets."""
        script, endpoint = self.script, self.endpoint
        what = script.number(0, 5)
        if what == 0 and (link := endpoint.accept()) is not None:
            self.links.append(link)
            self.delivered[link] = b""
        elif what == 1:
            peer, vc = PEERS[script.number(0, 1)], script.number(0, 1)
            try:
                link = endpoint.connect(peer, vc, self.now_ps)
                self.links.append(link)
                self.delivered[link] = b""
            except LocalProtocolError:
                pass  # one is there already, or there are too many
        elif self.links:
            link = self.links[script.number(0, len(self.links) - 1)]
            if what == 2:
                try:
                    link.submit(script.bytes(script.number(1, 20)) or b"x")
                except LocalProtocolError:
                    if not (link.has_ended or link.field("is_closing")):
                        raise
                except RemoteProtocolError:
                    if not link.has_ended and link.state is not State.CLOSE_RECD:
                        raise
            elif what == 3:
                self.read(link, script.number(-1, 9))
            elif what == 4:
                endpoint.close(link, self.now_ps)
            elif what == 5:
                endpoint.forget(link)
        self.send()

    def read(self, link, count: int) -> None:
        self.delivered[link] += link.read(count)

    def look(self) -> None:
        """Bounds, counters, and every byte that was delivered."""
        endpoint = self.endpoint
        if len(endpoint.links) > 3 * CONFIG.tag_sets * CONFIG.tag_ways or endpoint.answers_waiting:
            raise AssertionError("more links or answers than allowed")
        for link in self.links:
            row = {name: link.field(name) for name in (
                "rx_seq", "payloads_received", "rx_bytes", "submitted_bytes", "acked_bytes", "cut_bytes", "state",
                "timer_at_ps",
            )}  # fmt: skip
            got = self.delivered[link] + bytes(link._received)
            first = row["rx_seq"] - row["payloads_received"]
            sent = b"".join(payload_of((first + k) & _MASK) for k in range(1, row["payloads_received"] + 1))
            if got != sent or len(got) != row["rx_bytes"]:
                raise AssertionError(f"delivered {got!r} of {sent!r}")
            if link.readable_bytes > CONFIG.receive_buffer_bytes:
                raise AssertionError("more waits for the reader than the buffer allows")
            if not row["acked_bytes"] <= row["cut_bytes"] <= row["submitted_bytes"]:
                raise AssertionError("offsets out of order")
            if row["cut_bytes"] - row["acked_bytes"] > CONFIG.window_bytes and not link.has_ended:
                raise AssertionError("more is unacknowledged than the window allows")
            if link.has_ended and link in endpoint.links:
                raise AssertionError("an ended link is kept")
        counters = endpoint.counters()
        if counters["acks_sent"] != counters["payloads_received"] + counters["duplicates_received"]:
            raise AssertionError(f"acknowledged {counters['acks_sent']} times")
        if sum(endpoint.drops().values()) > self.frames:
            raise AssertionError("more frames dropped than came")
        deadline_ps = endpoint.next_deadline_ps()
        if deadline_ps != NEVER and not endpoint.links:
            raise AssertionError("a timer runs for no link")


HEAR, OWN, WAIT, _ = range(4)
SEEDS = {
    # opcode, base, (link,) tx - base + 2, rx - tx_una + 2 of peer 0 on channel 0, and what the owner does in between
    "data": [HEAR, 0, 0, 0, 2, 0, OWN, 0, *(b for k in (3, 4, 4, 6, 5) for b in (HEAR, 0, 6, 0, 0, k, 0)),
             OWN, 3, 0, 0],
    "answers": [HEAR, 0, 0, 0, 2, 0, OWN, 0, OWN, 2, 0, 19, *range(20), HEAR, 0, 7, 0, 0, 0, 2, HEAR, 0, 8, 0, 0, 0, 3,
                HEAR, 0, 9, 0, 0, 0, 2, WAIT, 9, WAIT, 10, WAIT, 11, WAIT, 12],
    "close": [HEAR, 0, 0, 0, 2, 0, OWN, 0, OWN, 2, 0, 1, 7, 7, HEAR, 0, 3, 0, 0, 3, 1, HEAR, 0, 7, 0, 0, 0, 2,
              HEAR, 0, 3, 0, 0, 3, 2],
    "active": [OWN, 1, 0, 0, HEAR, 0, 1, 0, 0, 3, 1, OWN, 2, 0, 1, 7, 7, OWN, 4, 0, HEAR, 0, 7, 0, 0, 0, 2,
               HEAR, 0, 5, 0, 0, 2, 2, HEAR, 0, 4, 0, 0, 0, 2],
}  # fmt: skip


def test_one_input(data: bytes) -> None:
    """Run one script."""
    Run(data).run()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seed-corpus"]:
        for name, seed in SEEDS.items():
            Path(sys.argv[2], name).write_bytes(bytes(seed))
    else:
        np.seterr(all="raise")
        atheris.Setup(sys.argv, test_one_input)
        atheris.Fuzz()

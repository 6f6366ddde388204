"""Two queue pairs without an emulator: the test carries their packets."""

from __future__ import annotations

from collections import deque

import numpy as np

from emulator import roce, selective
from emulator.roce import (
    ACKNOWLEDGE,
    MAX_OUTSTANDING_PACKETS,
    PSN_MASK,
    QP,
    RECOVERIES,
    ROCE_FRAME,
    ROCE_PARAMS,
    SYNDROME_ACK,
    WRITE_MIDDLE,
)
from ttpoe._jit import kernel
from ttpoe.units import NEVER

US = 10**6
RTO_PS = 67_108_864_000  # 4.096 us x 2^14
RTO_LOW_PS, RTO_HIGH_PS = 100 * US, 320 * US
SLOTS = 64


@kernel(export=True)
def on_submit(qps, i, params, length_bytes):
    roce.roce_on_submit(qps[i], params[0], length_bytes)


@kernel(export=True)
def on_frame(qps, sels, bits, i, params, frames, j, now_ps, out):
    if params[0]["recovery"] >= roce.SELECTIVE_REPEAT:
        return selective.selective_on_frame(qps[i], sels[i], bits, params[0], frames[j], now_ps, out, 0)
    return roce.roce_on_frame(qps[i], params[0], frames[j], now_ps, out, 0)


@kernel(export=True)
def on_timeout(qps, sels, i, params, now_ps, out):
    if params[0]["recovery"] >= roce.SELECTIVE_REPEAT:
        return selective.selective_on_timeout(qps[i], sels[i], params[0], now_ps, out, 0)
    roce.roce_on_timeout(qps[i], params[0], now_ps)
    return 0


@kernel(export=True)
def poll(qps, sels, bits, i, params, now_ps, out):
    if params[0]["recovery"] >= roce.SELECTIVE_REPEAT:
        return selective.selective_poll(qps[i], sels[i], bits, params[0], now_ps, out, 0)
    return roce.roce_poll(qps[i], params[0], now_ps, out, 0)


@kernel(export=True)
def psn_diff(newer, older):
    return roce.psn_diff(newer, older)


class Pair:
    """A requester (row 0) and a responder (row 1)."""

    def __init__(
        self, size: int, *, mtu: int = 1000, window: int = NEVER, psn: int = 0, every: int = 1, retries: int = 7,
        recovery: str = "go-back-n",
    ) -> None:  # fmt: skip
        self.qps = np.zeros(2, QP)
        self.qps["initial_psn"] = psn
        self.qps["timer_at_ps"] = NEVER
        self.selective = np.zeros(2, selective.SELECTIVE)
        self.selective["first_word"] = 0, SLOTS >> selective.WORD_SHIFT
        self.selective["mask"] = SLOTS - 1
        self.bits = np.zeros(2 * SLOTS >> selective.WORD_SHIFT, np.int64)
        few, low, high = (3, RTO_LOW_PS, RTO_HIGH_PS) if recovery == "selective" else (0, RTO_PS, RTO_PS)
        self.qps["window_packets"] = min(window // mtu, MAX_OUTSTANDING_PACKETS)
        fields = (mtu, high, retries, every, RECOVERIES[recovery], few, low, 100 * US)
        self.params = np.array([fields], ROCE_PARAMS)
        self.out = np.zeros(4, ROCE_FRAME)
        self.now_ps = 0
        on_submit(self.qps, 0, self.params, size)

    def send(self) -> np.ndarray | None:
        """The next packet, if one may be sent."""
        n = poll(self.qps, self.selective, self.bits, 0, self.params, self.now_ps, self.out)
        return self.out[:1].copy() if n else None

    def send_all(self) -> list[np.ndarray]:
        """All that may be sent."""
        sent = []
        while (packet := self.send()) is not None:
            sent.append(packet)
        return sent

    def give(self, to: int, packet: np.ndarray) -> np.ndarray | None:
        """Deliver a packet; its answer."""
        n = on_frame(self.qps, self.selective, self.bits, to, self.params, packet, 0, self.now_ps, self.out)
        assert n in (0, 1)
        return self.out[:1].copy() if n else None

    def timeout(self, at_ps: int | None = None) -> None:
        """Let the requester's timer fire, or call it at another time."""
        self.now_ps = int(self.qps["timer_at_ps"][0]) if at_ps is None else at_ps
        assert on_timeout(self.qps, self.selective, 0, self.params, self.now_ps, self.out) == 0

    def missed(self) -> np.ndarray:
        """Let the responder's timer fire; what it tells."""
        self.now_ps = max(self.now_ps, int(self.qps["timer_at_ps"][1]))
        assert on_timeout(self.qps, self.selective, 1, self.params, self.now_ps, self.out) == 1
        return self.out[:1].copy()


def write(psn: int, opcode: int = WRITE_MIDDLE, size: int = 1000) -> np.ndarray:
    """A data packet."""
    return np.array([(opcode, 0, psn & PSN_MASK, 0, size)], ROCE_FRAME)


def ack(psn: int, syndrome: int = SYNDROME_ACK) -> np.ndarray:
    """An acknowledgement."""
    return np.array([(ACKNOWLEDGE, syndrome, psn & PSN_MASK, 0, 0)], ROCE_FRAME)


def carry(pair: Pair, fates: list[str]) -> None:
    """Carry packets both ways over a line that loses, doubles and delays as told, and is good after that."""
    todo = deque(fates)
    lines: list[deque[np.ndarray]] = [deque(), deque()]  # towards requester, responder
    late: list[tuple[int, np.ndarray]] = []

    def put(to: int, packet: np.ndarray | None) -> None:
        if packet is None:
            return
        fate = todo.popleft() if todo else "ok"
        if fate == "late":
            late.append((to, packet))
        elif fate != "lose":
            lines[to] += [packet] * (2 if fate == "twice" else 1)
        if len(late) > 2 or (late and not todo):
            where, old = late.pop(0)
            lines[where].append(old)

    for _ in range(20_000):
        pair.now_ps += US
        qp = pair.qps[0]
        if qp["una"] == qp["packets"]:
            break
        packet = pair.send()
        if packet is not None:
            put(1, packet)
        elif lines[1]:
            put(0, pair.give(1, lines[1].popleft()))
        elif lines[0]:
            assert pair.give(0, lines[0].popleft()) is None
        elif pair.qps["timer_at_ps"][1] < qp["timer_at_ps"]:
            put(0, pair.missed())
        else:
            assert qp["timer_at_ps"] != NEVER
            pair.timeout()

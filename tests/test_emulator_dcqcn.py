"""DCQCN against its formulas, step by step, and against what is published of whole runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from emulated import COMPILED, examples, flows, incast, make, result_of, traced
from hypothesis import given
from hypothesis import strategies as st

from emulator import dcqcn
from emulator.config import ConfigError, make_scenario
from emulator.packet import ANSWER, CE, DATA
from emulator.queue_pairs import make_dcqcn_params
from emulator.roce import CNP, ROCE_FRAME, wire_bytes
from emulator.roce_config import DcqcnConfig
from ttpoe._jit import kernel
from ttpoe.units import NEVER

US = 10**6
LINE = 100_000_000_000


@kernel(export=True)
def on_cnp(rates, params, now_ps):
    dcqcn.on_cnp(rates[0], params[0], now_ps)


@kernel(export=True)
def on_sent(rates, params, size, now_ps):
    return dcqcn.rate_after(rates[0], params[0], size, now_ps)


@kernel(export=True)
def on_mark(rates, params, now_ps, out):
    return dcqcn.on_mark(rates[0], params[0], now_ps, out, 0)


class Sender:
    """One RATE row."""

    def __init__(self, **fields: Any) -> None:
        self.params = make_dcqcn_params(DcqcnConfig(**fields))
        self.rates = np.zeros(1, dcqcn.RATE)
        for name in ("line_bps", "rate_bps", "target_bps"):
            self.rates[name] = LINE
        self.rates["increase_at_ps"] = self.rates["decrease_at_ps"] = NEVER

    def cnp(self, now_ps: int) -> int:
        on_cnp(self.rates, self.params, now_ps)
        return self["rate_bps"]

    def sent(self, now_ps: int, size: int = 0) -> int:
        return int(on_sent(self.rates, self.params, size, now_ps))

    def __getitem__(self, name: str) -> int:
        return int(self.rates[name][0])


@dataclass
class Model:
    """The algorithm in floating point with a clock that ticks each of its periods: slow and plain."""

    config: DcqcnConfig
    now: int = 0
    rate: float = LINE
    target: float = LINE
    alpha: float = 0.0
    alpha_at: int = 0
    has_cnp: bool = False
    increase_at: int = NEVER
    decrease_at: int = NEVER
    decreased_at: int = -NEVER
    counts: list[int] = field(default_factory=lambda: [0, 0])
    sent_bytes: int = 0
    is_limited: bool = False

    def __getattr__(self, name: str) -> Any:
        return self.config.value(name)

    def until(self, now: int) -> None:
        while True:
            alpha_due = self.alpha_at + self.alpha_period_ps if self.is_limited else NEVER
            due = min(alpha_due, self.decrease_at, self.increase_at)
            if due > now:
                return
            if alpha_due == due:  # before a decrease at the same time
                self.alpha *= 1 - self.gain
                if self.has_cnp:
                    self.alpha += self.gain
                self.has_cnp = False
                self.alpha_at = due
            elif self.decrease_at == due:
                if self.is_target_clamped or sum(self.counts):
                    self.target = self.rate
                self.rate = max(self.rate * (1 - self.alpha / 2), min(self.min_rate_bps, self.rate))
                self.counts, self.sent_bytes = [0, 0], 0
                self.decreased_at, self.decrease_at = due, NEVER
                self.increase_at = due + self.increase_period_ps
            else:
                self.increase(0)
                self.increase_at += self.increase_period_ps

    def increase(self, which: int) -> None:
        if max(self.counts) >= self.threshold:
            step = self.hyper_bps if min(self.counts) > self.threshold else self.additive_bps
            self.target = min(self.target + step, LINE)
        self.rate = (self.rate + self.target) / 2
        self.counts[which] += 1

    def cnp(self, now: int) -> None:
        if not self.is_limited:
            self.is_limited, self.alpha, self.alpha_at = True, self.initial_alpha, now
        self.until(now)
        if self.decrease_at == NEVER:
            self.decrease_at = max(now, self.decreased_at + self.decrease_gap_ps)
            self.until(now)
        if self.is_alpha_at_cnp:
            self.alpha = (1 - self.gain) * self.alpha + self.gain
            self.alpha_at = now
        else:
            self.has_cnp = True

    def sent(self, now: int, size: int) -> None:
        if self.is_limited:
            self.until(now)
            self.sent_bytes += size
            while self.sent_bytes >= self.increase_bytes:
                self.sent_bytes -= self.increase_bytes
                self.increase(1)


@given(
    preset=st.sampled_from(["nic", "paper"]),
    script=st.lists(
        st.tuples(st.booleans(), st.sampled_from([0, 1, 3, 50, 400, 3000]), st.integers(0, 10**6)), max_size=60
    ),
)
@examples(200)
def test_rates_follow_the_formulas(preset: str, script: list[tuple[bool, int, int]]) -> None:
    """Whatever comes when; to the rounding of alpha, which is a part in 10^5."""
    config = DcqcnConfig(preset=preset)  # type: ignore[arg-type]
    sender, model, now = Sender(preset=preset), Model(config), 0
    for is_cnp, wait_us, rest_ps in script:
        now += wait_us * US + rest_ps
        if is_cnp:
            sender.cnp(now)
            model.cnp(now)
        else:
            sender.sent(now, 4194)
            model.sent(now, 4194)
            assert sender["rate_bps"] == pytest.approx(model.rate, rel=2e-4, abs=100)
            assert sender["target_bps"] == pytest.approx(model.target, rel=2e-4, abs=100)
    assert [sender["timer_count"], sender["byte_count"]] == model.counts or not model.is_limited


def test_the_first_decreases_of_the_paper() -> None:
    """R <- R (1 - alpha / 2) with alpha = 1, then (1 - g) alpha + g, which stays 1."""
    sender = Sender(preset="paper")
    assert sender.sent(0) == LINE
    assert sender.cnp(US) == LINE // 2
    assert sender["target_bps"] == LINE
    assert sender.cnp(51 * US) == LINE // 4
    assert sender["target_bps"] == LINE // 2


def test_the_first_decreases_of_a_nic() -> None:
    """Alpha begins at 1023/1024; the target stays until an increase has passed; decreases are 4 us apart."""
    sender = Sender(preset="nic")
    first = sender.cnp(US)
    assert first == LINE - LINE * 1023 // 2048
    assert sender.cnp(2 * US) == first  # waits
    alpha = 1023 / 1024
    for had_cnp in (True, True, False, False):  # the periods that end at 2, 3, 4, 5 us; CNPs came at 1 and 2
        alpha = alpha * 1019 / 1024 + (5 / 1024 if had_cnp else 0)
    assert sender.sent(5 * US - 1) == first
    assert sender.sent(5 * US) == pytest.approx(first * (1 - alpha / 2), rel=1e-5)
    assert sender["target_bps"] == LINE


def test_fast_recovery_additive_and_hyper_increase_by_the_timer() -> None:
    """F = 5 halvings of the distance to the target, then 40 Mb/s a period: time alone does not make it hyper."""
    sender = Sender(preset="paper")
    sender.cnp(0)
    sender.cnp(50 * US)  # target 50G, rate 25G
    at, expected = 50 * US, 25e9
    for _ in range(5):
        at += 55 * US
        expected = (expected + 50e9) / 2
        assert sender.sent(at) == pytest.approx(expected, abs=8)
        assert sender["target_bps"] == LINE // 2
    for k in range(1, 20):
        at += 55 * US
        expected = (expected + 50e9 + k * 40e6) / 2
        assert sender.sent(at) == pytest.approx(expected, abs=8)


def test_bytes_increase_too_and_both_together_are_hyper() -> None:
    sender = Sender(preset="paper", increase_bytes=10_000)
    sender.cnp(0)
    sender.cnp(50 * US)
    assert sender.sent(50 * US, 9_999) == LINE // 4
    assert sender.sent(50 * US, 1) == LINE * 3 // 8
    for _ in range(5):
        sender.sent(50 * US, 10_000)
    assert (sender["byte_count"], sender["target_bps"]) == (6, 50_040_000_000)
    sender.sent((50 + 6 * 55) * US)
    assert (sender["timer_count"], sender["target_bps"]) == (6, 50_040_000_000 + 6 * 40_000_000)
    sender.sent((50 + 7 * 55) * US)
    assert sender["target_bps"] == 50_040_000_000 + 6 * 40_000_000 + 50_000_000


def test_the_line_rate_is_reached_and_kept() -> None:
    sender = Sender(preset="nic")
    sender.cnp(0)
    assert sender.sent(3_600 * 10**12) == LINE  # an hour, at once
    assert sender["timer_count"] == 3_600 * 10**12 // (300 * US)
    assert sender["increase_at_ps"] > 3_600 * 10**12


@pytest.mark.parametrize("idle_us", [1, 10, 1000, 10**6])
def test_alpha_decays_while_nothing_happens(idle_us: int) -> None:
    """1019/1024 a microsecond; the next decrease shows it."""
    sender = Sender(preset="nic")
    sender.cnp(0)
    sender.cnp(US * idle_us + 10 * US)
    kept = 1023 / 1024 * 1019 / 1024 + 5 / 1024
    assert sender["alpha_q20"] / 2**20 == pytest.approx(kept * (1019 / 1024) ** (idle_us + 9), abs=1e-5)


def test_the_rate_has_a_floor() -> None:
    sender = Sender(preset="paper", min_rate_bps=1_000_000_000)
    for k in range(30):
        sender.cnp(50 * US * k)
    assert sender["rate_bps"] == 1_000_000_000


def test_notifications_keep_their_distance() -> None:
    receiver, out = Sender(preset="nic"), np.zeros(2, ROCE_FRAME)
    times = [0, 1, 4 * US - 1, 4 * US, 5 * US, 8 * US, 100 * US]
    assert [int(on_mark(receiver.rates, receiver.params, now, out)) for now in times] == [1, 0, 0, 1, 0, 1, 1]
    assert out[0].tolist() == (CNP, 0, 0, 0, 0)
    assert (receiver["marks_received"], receiver["cnps_sent"]) == (7, 4)


def test_a_mark_becomes_a_notification_and_that_a_lower_rate() -> None:
    """On the lines: data ECT until the switch marks it, CNPs in a priority of their own and 4 us apart."""
    fabric, result, rows = traced(incast(3, 1_000_000), "roce-dcqcn", {"h0", "h1"})
    port = {name: k for k, name in enumerate(fabric.topology.port_names)}
    data = rows[rows["kind"] == DATA]
    assert (data[data["port"] == port["h1"]]["ecn"] == 2).all()
    marked = data[(data["port"] == port["h0"]) & (data["ecn"] == CE)]
    assert len(marked) == result.counters["marks_received"] == result.counters["ecn_marked"] > 0
    cnps = rows[(rows["kind"] == ANSWER) & (rows["frame"]["opcode"] == CNP)]
    assert (cnps["priority"] == 6).all()
    assert (cnps["ecn"] == 0).all()
    sent = cnps[cnps["port"] == port["h0"]]
    assert len(sent) == result.counters["cnps_sent"]
    for end in (0, 2, 4):
        assert (np.diff(sent[sent["end"] == end]["time_ps"]) >= 4 * US - 98 * 80).all()
    assert (fabric.world.rates["rate_bps"][0::2] < LINE).all()
    assert wire_bytes(CNP, 0) == 14 + 20 + 8 + 12 + 16 + 4 + 24


@COMPILED
@pytest.mark.parametrize(("preset", "senders"), [("paper", 8), ("paper", 16), ("nic", 4)])
def test_an_incast_settles_without_pauses_and_shares_evenly(preset: str, senders: int) -> None:
    """Zhu et al. 2015, section 6: with thresholds below PFC's, flows converge and pauses end with the first burst."""
    result = result_of(incast(senders, 20_000_000, dcqcn={"preset": preset}), "roce-dcqcn")
    assert result.unfinished == []
    assert result.summary()["jain"] > 0.98
    after = result.series_edges_ps[1:]
    later = result.series[(after > result.end_ps // 4) & (after < result.end_ps * 3 // 4)]
    assert len(later) > 10
    assert later["paused_max"].max() == 0
    if preset == "paper":
        assert later["depth_max_bytes"].max() < 1_600_000  # kmax at 100 Gb/s


@COMPILED
def test_a_victim_is_spared() -> None:
    """A flow that shares an uplink with an incast but not its receiver: pauses spread to it, with DCQCN there are none.

    Zhu et al. 2015, figures 4 and 9.
    """
    topology = {"kind": "leaf-spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 1, "uplink": {"rate_bps": "400G"}}
    values = flows(*((k, 4, 50_000_000) for k in range(3)), (3, 5, 10_000_000), topology=topology)
    spread, spared = (result_of(values, transport).flows[3] for transport in ("roce-pfc", "roce-dcqcn"))
    assert spread["fct_rx_ps"] > 2 * spread["ideal_ps"]
    assert spared["fct_rx_ps"] < 1.01 * spared["ideal_ps"]


def test_a_slow_flow_need_not_wait_for_its_old_rate() -> None:
    """At 1 Mb/s a packet waits 33 ms; increases in between shorten what is left of it."""
    values = incast(3, 1_000_000, dcqcn={"preset": "nic", "initial_alpha": 1.0, "decrease_gap_ps": 0, "cnp_gap_ps": 0})
    fabric = make(values, "roce-dcqcn")
    result = fabric.run()
    assert result.unfinished == []
    assert result.flows["fct_rx_ps"].max() < 10 * 10**9


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"dcqcn": {"preset": "best"}}, "dcqcn.preset: "),
        ({"dcqcn": {"gain": 0.0}}, "dcqcn.gain: "),
        ({"dcqcn": {"gian": 0.5}}, "dcqcn.gian: there is no such field; did you mean gain?"),
        ({"cnp_priority": 9}, "cnp_priority: "),
    ],
)
def test_the_sentence_names_the_field(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_scenario(values)
    assert str(refused.value).startswith(says)

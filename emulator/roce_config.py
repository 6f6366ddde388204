"""What of RoCE is modelled: fields of a scenario for its queue pairs, for DCQCN, and for selective resending."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from emulator import roce
from emulator.quantities import STRICT, Bps, Bytes, Mtu, Picoseconds, PositivePicoseconds
from ttpoe import units


@dataclass(frozen=True, config=STRICT)
class RoceConfig:
    """Reliable connections."""

    version: Literal[1, 2] = 2
    """1: a GRH behind EtherType 0x8915; 2: IPv4 and UDP, which are 12 bytes less."""
    mtu_bytes: Mtu = 4_096
    """InfiniBand has 256 to 4096 in powers of two; other sizes are allowed for comparison."""
    window_bytes: Bytes | None = None
    """Payload unacknowledged; None: what the transport's profile says."""
    rate_bps: Bps | None = None
    """What a queue pair sends at most, in bytes on the line; None: as fast as the line."""
    rto_exponent: Annotated[int, Field(ge=0, le=31, strict=True)] = 14
    """Timeout 4.096 us x 2^n; 14 (67 ms) is what perftest sets, NCCL sets more. 0: no timeout (IBTA 9.7.6.1.3)."""
    retry_limit: Annotated[int, Field(ge=1, le=7, strict=True)] = 7
    """Timeouts in a row that are retried; one more and the QP fails. The verbs API has three bits for it."""
    ack_every_packets: Annotated[int, Field(ge=1, le=2**20, strict=True)] = 1
    ecn: Annotated[bool, Field(strict=True)] = False
    """Data is ECN-capable, ECT(0), under transports too that do not answer marks; ``roce-dcqcn`` always is."""

    @model_validator(mode="after")
    def _check(self) -> RoceConfig:
        if self.window_bytes is not None and self.window_bytes < self.mtu_bytes * self.ack_every_packets:
            raise ValueError("window_bytes is below ack_every_packets packets of mtu_bytes; raise it")
        return self

    @property
    def rto_ps(self) -> int:
        """4.096 us x 2^rto_exponent, or NEVER."""
        return 4_096_000 << self.rto_exponent if self.rto_exponent else units.NEVER

    @property
    def header_bytes(self) -> int:
        """Before the BTH."""
        return roce.ETHERNET_GRH_BYTES if self.version == 1 else roce.ETHERNET_IP_UDP_BYTES


@dataclass(frozen=True, config=STRICT)
class SelectiveConfig:
    """What IRN and in-NIC reordering add to reliable connections."""

    rto_low_ps: PositivePicoseconds = 100 * units.PS_PER_US
    """IRN's timeout while at most ``few_packets`` are in flight, too few to show each other's loss."""
    rto_high_ps: PositivePicoseconds = 320 * units.PS_PER_US
    """IRN's timeout else."""
    few_packets: Annotated[int, Field(ge=0, le=2**16, strict=True)] = 3
    reorder_ps: Picoseconds = 100 * units.PS_PER_US
    """In-NIC reordering: a gap is told as lost after so long. Ours: NVIDIA publishes none."""

    @model_validator(mode="after")
    def _check(self) -> SelectiveConfig:
        if self.rto_low_ps > self.rto_high_ps:
            raise ValueError("rto_low_ps is above rto_high_ps; lower it")
        return self


@dataclass(frozen=True, config=STRICT)
class DcqcnConfig:
    """DCQCN. ``preset`` gives the values of fields that are left out.

    nic: defaults of NVIDIA's adapters (ConnectX-4 and later, DOCA's list of DCQCN parameters). paper: those that Zhu et
    al. (2015) settle on.
    """

    preset: Literal["nic", "paper"] = "nic"
    gain: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = None
    """Weight of a new sign in alpha; nic 5/1024 (dce_tcp_g keeps 1019/1024), paper 1/256."""
    initial_alpha: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    """nic 1023/1024, paper 1."""
    alpha_period_ps: PositivePicoseconds | None = None
    """nic 1 us (dce_tcp_rtt), paper 55 us."""
    cnp_gap_ps: Picoseconds | None = None
    """Least time between CNPs of a queue pair; nic 4 us, paper 50 us."""
    decrease_gap_ps: Picoseconds | None = None
    """Least time between decreases; nic 4 us (rate_reduce_monitor_period), paper 0."""
    increase_period_ps: PositivePicoseconds | None = None
    """nic 300 us (rpg_time_reset), paper 55 us."""
    increase_bytes: Annotated[int, Field(ge=1_000, lt=2**50, strict=True)] | None = None
    """nic 32767 (rpg_byte_reset), paper 10 MB."""
    threshold: Annotated[int, Field(ge=1, le=1_000, strict=True)] | None = None
    """Increases by timer or bytes that are fast recovery; nic 1, paper 5."""
    additive_bps: Bps | None = None
    """nic 5 Mb/s, paper 40 Mb/s."""
    hyper_bps: Bps | None = None
    """Once timer and bytes have both passed the threshold; 50 Mb/s (rpg_hai_rate, and IEEE 802.1Qau's)."""
    min_rate_bps: Bps | None = None
    """nic 1 Mb/s, paper 40 Mb/s."""
    is_target_clamped: Annotated[bool, Field(strict=True)] | None = None
    """The target falls to the rate at each decrease (paper), or only at the first after an increase (nic:
    clamp_tgt_rate off, clamp_tgt_rate_after_time_inc on)."""
    is_alpha_at_cnp: Annotated[bool, Field(strict=True)] | None = None
    """Alpha rises when a CNP comes (paper), or at the end of its period (nic)."""

    def value(self, name: str) -> int | float:
        """A field, or what the preset says."""
        given = getattr(self, name)
        return _DCQCN[self.preset][name] if given is None else given


_DCQCN: dict[str, dict[str, int | float]] = {
    "nic": {
        "gain": 5 / 1024, "initial_alpha": 1023 / 1024, "alpha_period_ps": units.PS_PER_US,
        "cnp_gap_ps": 4 * units.PS_PER_US, "decrease_gap_ps": 4 * units.PS_PER_US,
        "increase_period_ps": 300 * units.PS_PER_US, "increase_bytes": 32_767, "threshold": 1,
        "additive_bps": 5_000_000, "hyper_bps": 50_000_000, "min_rate_bps": 1_000_000,
        "is_target_clamped": False, "is_alpha_at_cnp": False,
    },
    "paper": {
        "gain": 1 / 256, "initial_alpha": 1.0, "alpha_period_ps": 55 * units.PS_PER_US,
        "cnp_gap_ps": 50 * units.PS_PER_US, "decrease_gap_ps": 0,
        "increase_period_ps": 55 * units.PS_PER_US, "increase_bytes": 10_000_000, "threshold": 5,
        "additive_bps": 40_000_000, "hyper_bps": 50_000_000, "min_rate_bps": 40_000_000,
        "is_target_clamped": True, "is_alpha_at_cnp": True,
    },
}  # fmt: skip

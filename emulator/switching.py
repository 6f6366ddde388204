"""The fields of a switch; what they do is in the kernels' modules."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from emulator.ecn import MAX_THRESHOLD_BYTES, default_thresholds
from emulator.quantities import STRICT, Bytes, Picoseconds, quantity
from ttpoe import units

_Threshold = Annotated[int, quantity(units.parse_size_bytes), Field(ge=0, le=MAX_THRESHOLD_BYTES, strict=True)]
_Probability = Annotated[float, quantity(units.parse_fraction), Field(ge=0, le=1, strict=True)]


@dataclass(frozen=True, config=STRICT)
class EcnConfig:
    """RED on the depth of a queue; ``kmin_bytes = kmax_bytes`` is a step."""

    kmin_bytes: _Threshold | None = None
    """No frame is marked up to here; None, with ``kmax_bytes``: by the port's rate (:data:`emulator.ecn.DEFAULTS`)."""
    kmax_bytes: _Threshold | None = None
    """Every frame is marked above."""
    pmax: _Probability | None = None
    """Probability at ``kmax_bytes``; None: by the port's rate."""

    @model_validator(mode="after")
    def _check(self) -> EcnConfig:
        if (self.kmin_bytes is None) != (self.kmax_bytes is None):
            raise ValueError("kmin_bytes and kmax_bytes: give both, or neither for those of the port's rate")
        if self.kmin_bytes is not None and self.kmax_bytes is not None and self.kmin_bytes > self.kmax_bytes:
            raise ValueError(f"kmin_bytes {self.kmin_bytes} is above kmax_bytes {self.kmax_bytes}; lower it")
        return self

    def thresholds(self, rate_bps: int) -> tuple[int, int, float]:
        """Thresholds kmin, kmax and pmax of a port."""
        kmin, kmax, pmax = default_thresholds(rate_bps)
        if self.kmin_bytes is not None and self.kmax_bytes is not None:
            kmin, kmax = self.kmin_bytes, self.kmax_bytes
        return kmin, kmax, pmax if self.pmax is None else self.pmax


def _by_rate(given: Any) -> Any:
    return {} if given == "auto" else given


@dataclass(frozen=True, config=STRICT)
class SwitchConfig:
    """A shared-buffer, store-and-forward switch. No default is universal: each is a parameter."""

    buffer_bytes: Annotated[int, quantity(units.parse_size_bytes), Field(gt=0, le=2**40, strict=True)] = 12_000_000
    """Headroom included; 12 MB is of the Trident II class."""
    alpha: Annotated[float, Field(ge=1 / 1024, le=64, strict=True)] = 1.0
    """Dynamic threshold factor (Choudhury and Hahne), rounded to a multiple of 1/65536."""
    headroom_bytes: Bytes | None = None
    """Per lossless (port, priority); None: the bound of :func:`emulator.topology.headroom_bound_bytes`."""
    resume_offset_bytes: Annotated[int, quantity(units.parse_size_bytes), Field(ge=0, le=2**40, strict=True)] = 3_000
    """XON this far below the threshold (HPCC's switch)."""
    pipeline_latency_ps: Picoseconds = 0
    pause_quanta: Annotated[int, Field(ge=1, le=65_535, strict=True)] = 65_535
    """Of each pause; renewed at half. Too few to be renewed in time need a ``headroom_bytes`` of your own."""
    pause_reaction_ps: Picoseconds = 0
    """From the last bit of a PFC frame to its effect on the sender."""
    ecn: Annotated[EcnConfig | None, BeforeValidator(_by_rate)] = None
    """Marking; None: none, "auto": thresholds by each port's rate."""

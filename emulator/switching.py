"""The fields of a switch; what they do is in the kernels' modules."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from emulator.ecn import MAX_THRESHOLD_BYTES, default_thresholds
from emulator.quantities import STRICT, Bytes, Picoseconds, PositivePicoseconds, quantity
from ttpoe import units

_Memory = Annotated[int, quantity(units.parse_size_bytes), Field(ge=0, le=2**40, strict=True)]
_Key = Annotated[int, Field(ge=0, le=7)]
"""A priority as the key of a table, which is text in TOML."""
_Alpha = Annotated[float, Field(ge=1 / 1024, le=64, strict=True)]

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


@dataclass(frozen=True, config=STRICT)
class PriorityConfig:
    """How switches treat one priority; None: as the switch's field of the same name says."""

    alpha: _Alpha | None = None
    reserve_bytes: _Memory | None = None
    static_threshold_bytes: _Memory | None = None
    weight: Annotated[int, Field(ge=1, le=1000, strict=True)] | None = None
    """Share of the line among priorities with a weight (deficit weighted round robin); None: strict, before them."""
    is_lossless: Annotated[bool, Field(strict=True)] = True
    """Under a transport with PFC; False: lossy there as well."""


@dataclass(frozen=True, config=STRICT)
class WatchdogConfig:
    """A pause that lasts is a storm; frames that would leave by its queue are dropped until it is over."""

    detect_ps: PositivePicoseconds = 200 * units.PS_PER_MS
    """A queue is dropped once its peer has paused it for so long (SONiC: 200 to 400 ms)."""
    restore_ps: PositivePicoseconds = 2 * units.PS_PER_S
    """And restored once it was not paused for so long (SONiC: 2 s)."""


def _by_rate(given: Any) -> Any:
    return {} if given == "auto" else given


@dataclass(frozen=True, config=STRICT)
class SwitchConfig:
    """A shared-buffer, store-and-forward switch. No default is universal: each is a parameter."""

    buffer_bytes: Annotated[int, quantity(units.parse_size_bytes), Field(gt=0, le=2**40, strict=True)] = 12_000_000
    """Headroom and reserves included; 12 MB is of the Trident II class."""
    alpha: _Alpha = 1.0
    """Dynamic threshold factor (Choudhury and Hahne), rounded to a multiple of 1/65536."""
    static_threshold_bytes: _Memory | None = None
    """Most that a (port, priority) may hold of the shared pool, whatever ``alpha`` allows; None: no such limit."""
    reserve_bytes: _Memory = 0
    """Of each (port, priority) in use, apart from the shared pool."""
    lossy_fraction: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = None
    """Part of the shared memory that lossy priorities have for themselves, and lossless ones not; None: one pool."""
    headroom_bytes: Bytes | None = None
    """Per lossless (port, priority); None: the bound of :func:`emulator.topology.headroom_bound_bytes`."""
    headroom_pool_bytes: Bytes | None = None
    """Headroom of all together, as SONiC's shared headroom pool; None: each has its own to itself."""
    resume_offset_bytes: _Memory = 3_000
    """XON this far below the threshold (HPCC's switch)."""
    pipeline_latency_ps: Picoseconds = 0
    pause_quanta: Annotated[int, Field(ge=1, le=65_535, strict=True)] = 65_535
    """Of each pause; renewed at half. Too few to be renewed in time need a ``headroom_bytes`` of your own."""
    pause_reaction_ps: Picoseconds = 0
    """From the last bit of a PFC frame to its effect on the sender."""
    ecn: Annotated[EcnConfig | None, BeforeValidator(_by_rate)] = None
    """Marking; None: none, "auto": thresholds by each port's rate."""
    watchdog: WatchdogConfig | None = None
    """None: a pause may last for ever."""
    priorities: dict[_Key, PriorityConfig] = field(default_factory=dict)
    """What differs for some priorities."""

    def rules(self, priority: int) -> PriorityConfig:
        """What differs for ``priority``."""
        return self.priorities.get(priority, PriorityConfig())

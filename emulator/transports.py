"""Transports by name: which protocol the hosts run, what it does about congestion and loss, and how links keep from
overflowing.

A name is a profile; what a profile decides is written here once, and the rest of the emulator asks the profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emulator.world import ROCE, TTPOE

FlowControl = Literal["none", "pfc"]
CongestionControl = Literal["none", "dcqcn"]
Recovery = Literal["go-back-n", "go-back-0", "selective", "reordering"]
WindowLimit = Literal["psn", "bdp"]
RoutingName = Literal["ecmp", "flowlet", "round-robin", "random", "adaptive"]


@dataclass(frozen=True)
class Profile:
    """One transport.

    Attributes
    ----------
    name : str
    protocol : int
        `emulator.world.TTPOE` or `ROCE`: whose endpoint kernels hosts run.
    flow_control : str
        Of links: ``none`` (the switch is drop-tail) or ``pfc``.
    congestion_control : str
        Of RoCE: ``none`` or ``dcqcn``, with marks from switches. TTPoE's is ``ttpoe.congestion_control``.
    recovery : str
        Of RoCE, a key of :data:`emulator.roce.RECOVERIES`.
    window : str
        Of RoCE: ``psn``, what sequence numbers allow, or ``bdp``, the bandwidth-delay product of the longest path.
    routing : str
        A key of :data:`emulator.routing.POLICIES`, unless the scenario names some.
    """

    name: str
    protocol: int
    flow_control: FlowControl = "none"
    congestion_control: CongestionControl = "none"
    recovery: Recovery = "go-back-n"
    window: WindowLimit = "psn"
    routing: RoutingName = "ecmp"

    @property
    def is_ttpoe(self) -> bool:
        """Whether hosts run :mod:`ttpoe.machine`."""
        return self.protocol == TTPOE

    @property
    def is_lossless(self) -> bool:
        """Whether links promise not to drop."""
        return self.flow_control != "none"

    @property
    def is_selective(self) -> bool:
        """Whether hosts run :mod:`emulator.selective`."""
        return self.recovery in ("selective", "reordering")

    @property
    def is_ect(self) -> bool:
        """Whether its data is ECN-capable, switches mark it by default, and receivers answer marks."""
        return self.congestion_control == "dcqcn"

    def fault(self) -> str | None:
        """Why this cannot be, as ``field: reason``, or None."""
        if not self.is_ttpoe:
            return None
        if self.congestion_control != "none":
            return (
                "congestion_control: dcqcn answers ECN marks, which TTPoE frames have no field for; base it on a "
                "RoCE transport, or set ttpoe.congestion_control"
            )
        if self.recovery != "go-back-n":
            return f"recovery: TTPoE goes back N; base {self.recovery} on a RoCE transport"
        if self.window != "psn":
            return "window: bdp is for RoCE; set ttpoe.window_bytes"
        return None


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("ttpoe", TTPOE),
        Profile("ttpoe-pfc", TTPOE, flow_control="pfc"),
        Profile("roce-pfc", ROCE, flow_control="pfc"),
        Profile("roce", ROCE),
        Profile("roce-dcqcn", ROCE, flow_control="pfc", congestion_control="dcqcn"),
        Profile("irn", ROCE, recovery="selective", window="bdp"),
        Profile("irn-pfc", ROCE, flow_control="pfc", recovery="selective", window="bdp"),
        Profile(
            "spectrum", ROCE, flow_control="pfc", congestion_control="dcqcn", recovery="reordering", routing="adaptive"
        ),
    )
}
TRANSPORTS = tuple(PROFILES)
DEFAULT_TRANSPORTS = ("ttpoe", "roce-pfc", "roce")

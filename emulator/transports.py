"""Transports by name: which protocol the hosts run, what it does about congestion and loss, and how links keep from
overflowing.

A name is a profile; what a profile decides is written here once, and the rest of the emulator asks the profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emulator.tcp_congestion import POLICIES
from emulator.world import ROCE, TCP, TTPOE
from ttpoe.state import CONGESTION_CONTROLS

FlowControl = Literal["none", "pfc", "credits"]
CongestionControl = Literal["none", "dcqcn", "fixed", "reno", "swift", "cubic", "dctcp"]
Recovery = Literal["go-back-n", "go-back-0", "selective", "reordering"]
WindowLimit = Literal["psn", "bdp"]
RoutingName = Literal["ecmp", "weighted", "flowlet", "round-robin", "random", "adaptive"]


@dataclass(frozen=True)
class Profile:
    """One transport.

    Attributes
    ----------
    name : str
    protocol : int
        `emulator.world.TTPOE`, `ROCE` or `TCP`: whose endpoint kernels hosts run.
    flow_control : str
        Of links: ``none`` (the switch is drop-tail), ``pfc`` or ``credits``.
    is_infiniband : bool
        Whether frames of :mod:`emulator.roce` are InfiniBand's: no Ethernet, IP and UDP around them.
    congestion_control : str
        Of RoCE: ``none`` or ``dcqcn``; of TCP: ``reno``, ``cubic`` or ``dctcp``; of TTPoE: one of
        `ttpoe.state.CONGESTION_CONTROLS`, or ``none`` for what ``ttpoe.congestion_control`` says.
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
    is_infiniband: bool = False

    @property
    def is_ttpoe(self) -> bool:
        """Whether hosts run :mod:`ttpoe.machine`."""
        return self.protocol == TTPOE

    @property
    def is_tcp(self) -> bool:
        """Whether hosts run :mod:`emulator.tcp`."""
        return self.protocol == TCP

    @property
    def is_roce(self) -> bool:
        """Whether hosts run :mod:`emulator.roce` or :mod:`emulator.selective`."""
        return self.protocol == ROCE

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
        return self.congestion_control in ("dcqcn", "dctcp")

    def fault(self) -> str | None:
        """Why this cannot be, as ``field: reason``, or None."""
        if self.is_roce:
            if self.congestion_control not in ("none", "dcqcn"):
                return f"congestion_control: RoCE has none and dcqcn; base {self.congestion_control} on iwarp or ttpoe"
            return None
        if self.is_tcp:
            if self.congestion_control not in POLICIES:
                return f"congestion_control: TCP has {', '.join(POLICIES)}; it cannot have {self.congestion_control}"
            if self.recovery != "go-back-n":
                return f"recovery: TCP has its own; base {self.recovery} on a RoCE transport"
            if self.window != "psn":
                return "window: bdp is for RoCE; set tcp.window_bytes"
            return None
        if self.congestion_control not in ("none", *CONGESTION_CONTROLS):
            return (
                f"congestion_control: TTPoE has {', '.join(CONGESTION_CONTROLS)}; it cannot have "
                f"{self.congestion_control}"
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
        Profile("ttpoe-reno", TTPOE, congestion_control="reno"),
        Profile("ttpoe-swift", TTPOE, congestion_control="swift"),
        Profile("ttpoe-dctcp", TTPOE, congestion_control="dctcp"),
        Profile("roce-pfc", ROCE, flow_control="pfc"),
        Profile("roce", ROCE),
        Profile("roce-dcqcn", ROCE, flow_control="pfc", congestion_control="dcqcn"),
        Profile("irn", ROCE, recovery="selective", window="bdp"),
        Profile("irn-pfc", ROCE, flow_control="pfc", recovery="selective", window="bdp"),
        Profile(
            "spectrum", ROCE, flow_control="pfc", congestion_control="dcqcn", recovery="reordering", routing="adaptive"
        ),
        Profile("ib", ROCE, flow_control="credits", is_infiniband=True),
        Profile("iwarp", TCP, congestion_control="cubic"),
        Profile("iwarp-reno", TCP, congestion_control="reno"),
        Profile("iwarp-dctcp", TCP, congestion_control="dctcp"),
    )
}
TRANSPORTS = tuple(PROFILES)
DEFAULT_TRANSPORTS = ("ttpoe", "roce-pfc", "roce")

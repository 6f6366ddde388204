"""Transports by name: which protocol the hosts run, and how links keep from overflowing.

A name is a profile; what a profile decides is written here once, and the rest of the emulator asks the profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from emulator.world import ROCE, TTPOE

TransportName = Literal["ttpoe", "ttpoe-pfc", "roce-pfc", "roce", "ib"]


@dataclass(frozen=True)
class Profile:
    """One transport.

    Attributes
    ----------
    name : str
    protocol : int
        `emulator.world.TTPOE` or `ROCE`: whose endpoint kernels hosts run.
    flow_control : str
        Of links: ``none`` (the switch is drop-tail), ``pfc`` or ``credits``.
    is_infiniband : bool
        Whether frames of :mod:`emulator.roce` are InfiniBand's: no Ethernet, IP and UDP around them.
    """

    name: TransportName
    protocol: int
    flow_control: Literal["none", "pfc", "credits"] = "none"
    is_infiniband: bool = False

    @property
    def is_ttpoe(self) -> bool:
        """Whether hosts run :mod:`ttpoe.machine`."""
        return self.protocol == TTPOE

    @property
    def is_lossless(self) -> bool:
        """Whether links promise not to drop."""
        return self.flow_control != "none"


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("ttpoe", TTPOE),
        Profile("ttpoe-pfc", TTPOE, flow_control="pfc"),
        Profile("roce-pfc", ROCE, flow_control="pfc"),
        Profile("roce", ROCE),
        Profile("ib", ROCE, flow_control="credits", is_infiniband=True),
    )
}
assert tuple(PROFILES) == get_args(TransportName)
TRANSPORTS = tuple(PROFILES)

"""What the commands say about transports: the emulator's own table."""

from __future__ import annotations

from emulator.routing import POLICIES
from emulator.transports import DEFAULT_TRANSPORTS, PROFILES, TRANSPORTS

TRANSPORT_HELP = f"{', '.join(TRANSPORTS)}, with commas. [{','.join(DEFAULT_TRANSPORTS)}]"
_ADAPTIVE = ", ".join(name for name, profile in PROFILES.items() if profile.routing == "adaptive")
ROUTING_HELP = f"{', '.join(POLICIES)}, with commas. [ecmp; adaptive for {_ADAPTIVE}]"

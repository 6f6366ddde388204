"""TTPoE: Tesla's transport protocol over Ethernet, as compiled kernels with drivers for real sockets.

The package knows nothing of the emulator that runs the same kernels behind emulated switches.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # checkers read it as true; typing alone would take longer than the rest
if TYPE_CHECKING:
    from typing import Any

    from ttpoe.aio import open_endpoint
    from ttpoe.config import EndpointConfig

_EXPORTS = {"open_endpoint": "ttpoe.aio", "EndpointConfig": "ttpoe.config"}

__all__ = ["EndpointConfig", "open_endpoint"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import on first use: ``import ttpoe`` alone stays instant."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)

"""What of TCP is modelled: the fields of a scenario, and the arrays of a fabric's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from emulator import ideal, tcp_rows
from emulator.quantities import STRICT, Bytes, Mtu, PositivePicoseconds
from emulator.tcp_congestion import PACKET_Q20, POLICIES
from ttpoe import units

if TYPE_CHECKING:
    from emulator.fabric import Fabric


@dataclass(frozen=True, config=STRICT)
class TcpConfig:
    """Connections of ``iwarp``, up at the start. Which congestion control they have is their profile's."""

    mtu_bytes: Mtu = 1_440
    """Payload of one frame; with the framing of MPA, DDP and RDMAP 1460 bytes, which fill Ethernet's 1500."""
    window_bytes: Bytes = 4_000_000
    """Receive window, in payload."""
    initial_window_packets: Annotated[int, Field(ge=1, le=tcp_rows.MAX_WINDOW_PACKETS, strict=True)] = 10
    """Congestion window at the start (RFC 6928)."""
    rto_min_ps: PositivePicoseconds = 200 * units.PS_PER_MS
    """Linux's; data centres lower it to a round trip or so."""
    rto_max_ps: PositivePicoseconds = 120 * units.PS_PER_S
    retry_limit: Annotated[int, Field(ge=1, le=1_000, strict=True)] = 15
    """Timeouts in a row that are retried; Linux's tcp_retries2."""
    ack_every_packets: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """2 with ``ack_delay_ps`` is the delayed acknowledgement of RFC 1122."""
    ack_delay_ps: PositivePicoseconds = 40 * units.PS_PER_MS
    """An acknowledgement waits no longer for more packets."""
    ecn: Annotated[bool, Field(strict=True)] = False
    """Reno and CUBIC take a mark as a loss (RFC 3168). DCTCP's data is always ECN-capable."""

    @model_validator(mode="after")
    def _check(self) -> TcpConfig:
        if not self.mtu_bytes <= self.window_bytes:
            raise ValueError(f"window_bytes {self.window_bytes} is below mtu_bytes {self.mtu_bytes}; raise it")
        limit = tcp_rows.MAX_WINDOW_PACKETS
        if self.window_packets > limit:
            most = limit * self.mtu_bytes
            raise ValueError(f"window_bytes {self.window_bytes} is above {limit} packets; give {most}")
        if self.rto_min_ps > self.rto_max_ps:
            raise ValueError("rto_min_ps is above rto_max_ps; lower it")
        return self

    @property
    def window_packets(self) -> int:
        """The receive window in packets."""
        return self.window_bytes // self.mtu_bytes


def build_tcp(fabric: Fabric, ends: np.ndarray, ports: np.ndarray) -> dict[str, np.ndarray]:
    """Fields of the World; single rows where hosts do not run TCP."""
    config, profile = fabric.scenario.tcp, fabric.profile
    params = np.zeros(1, tcp_rows.TCP_PARAMS)
    arrays = {
        "tcps": np.zeros(1, tcp_rows.TCP), "tcp_params": params, "slots": np.zeros(1, tcp_rows.SLOT),
        "received": np.zeros(1, np.int8), "blocks": np.zeros(1, np.int64),
    }  # fmt: skip
    if not profile.is_tcp:
        return arrays
    params[0] = (
        config.mtu_bytes, config.window_packets, config.initial_window_packets * PACKET_Q20,
        POLICIES[profile.congestion_control], config.rto_min_ps, config.rto_max_ps,
        config.retry_limit, config.ack_every_packets, config.ack_delay_ps,
    )  # fmt: skip
    largest = max(message.size_bytes for message in fabric.messages)
    in_flight = min(config.window_packets, -(-largest // config.mtu_bytes))
    slots = 1 << (in_flight - 1).bit_length()
    flows = len(ends) // 2
    arrays["tcps"] = tcp_rows.init_connections(_handshakes_ps(fabric, ports), slots, params[0])
    return arrays | {
        "slots": np.zeros(flows * slots, tcp_rows.SLOT), "received": np.zeros(flows * slots, np.int8),
        "blocks": np.zeros(flows * tcp_rows.BLOCK_WORDS, np.int64),
    }  # fmt: skip


def _handshakes_ps(fabric: Fabric, ports: np.ndarray) -> np.ndarray:
    """int64 (flows,): round trip of each connection's SYN and SYN-ACK, which had the path to themselves."""
    syn = int(tcp_rows.ack_wire_bytes(0, 0))
    known: dict[tuple[tuple[int, int], ...], int] = {}
    trips = np.zeros(len(fabric.flow_nics), np.int64)
    for k, nics in enumerate(fabric.flow_nics.tolist()):
        way = fabric.topology.path(*nics)
        path = [*way, *(i ^ 1 for i in reversed(way))]
        key = tuple((int(ports[i]["rate_bps"]), int(ports[i]["delay_ps"])) for i in path)
        if key not in known:
            known[key] = ideal.control_path_ps([ideal.Hop(*hop) for hop in key], syn)
        trips[k] = known[key]
    return trips

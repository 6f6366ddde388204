"""Speed of a permutation on fat trees beside its yardsticks, in one run: a bare loop of the same frames, ns.py, htsim.

    python benchmarks/fat_tree.py [--hosts 16 128 1024] [--repeat 3] [--size 2MB] [--htsim PATH] [--json]

Best of the repeats, taken in turns so that a busy machine slows all alike; processor time, which a busy machine adds
little to. Everything is switched on, captures are off. ``growth`` is the cost of a hop over that on the first fabric,
``relative`` ours over the bare loop's. ns.py takes the same paths with flows of ``--nspy-size``, as it needs minutes
for a million hops; its rate depends little on their size. htsim is run where ``--htsim`` names a built ``htsim_roce``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

from bare_fat_tree import bare_permutation, draw_paths
from htsim_fat_tree import HtsimError, htsim_permutation
from rich.console import Console
from rich.table import Table

from emulator.config import make_scenario
from emulator.fabric import Fabric
from ttpoe.units import parse_size_bytes

MTU = 4096
BARE_WINDOW, BARE_DATA_BYTES, BARE_ACK_BYTES = 64, 4160, 64
PS_PER_BYTE, DELAY_PS = 80, 1_000_000
TRANSPORTS = ("roce-pfc", "ttpoe")


def _timed(call) -> tuple[float, object]:
    started = time.process_time()
    told = call()
    return time.process_time() - started, told


def measure(
    hosts: int, size_bytes: int, repeat: int, nspy_bytes: int = 0, htsim: Path | None = None
) -> list[dict[str, object]]:
    """Best rates in million packet-hops per second of processor time, a row a transport."""
    scenario = make_scenario({
        "topology": {"kind": "fat-tree", "hosts": hosts},
        "workload": {"kind": "permutation", "size_bytes": size_bytes},
        "switch": {"buffer_bytes": "32MB"},
        "ttpoe": {"mtu_bytes": MTU},
    })
    first = Fabric(scenario, "roce-pfc", 1)
    flows = [(message.src, message.dst) for message in first.messages]
    paths, lengths = draw_paths(first.topology, flows, 1)
    packets_each = -(-size_bytes // MTU)
    n_ports = len(first.topology.port_names)
    bare = 0.0
    ours = dict.fromkeys(TRANSPORTS, 0.0)
    hops = dict.fromkeys(TRANSPORTS, 0)
    for _ in range(repeat):
        spent, told = _timed(lambda: bare_permutation(
            paths, lengths, n_ports, packets_each, BARE_WINDOW, BARE_DATA_BYTES, BARE_ACK_BYTES, PS_PER_BYTE, DELAY_PS
        ))  # fmt: skip
        bare = max(bare, told[2] / spent / 1e6)  # type: ignore[index]
        for transport in TRANSPORTS:
            fabric = Fabric(scenario, transport, 1)
            spent, result = _timed(fabric.run)
            assert result.unfinished == []  # type: ignore[attr-defined]
            hops[transport] = result.counters["packet_hops"]  # type: ignore[attr-defined]
            ours[transport] = max(ours[transport], hops[transport] / spent / 1e6)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    peers: dict[str, float] = {}
    if nspy_bytes:
        from nspy_fat_tree import nspy_permutation  # needs the extra "bench"

        spent, crossings = nspy_permutation(
            paths, lengths, n_ports, -(-nspy_bytes // MTU), MTU, 8e12 / PS_PER_BYTE, DELAY_PS / 1e12
        )
        peers["nspy"] = crossings / spent / 1e6
    if htsim is not None:
        spent, crossings = htsim_permutation(htsim, hosts, flows, size_bytes, MTU, lengths[0::2].tolist())
        peers["htsim"] = crossings / spent / 1e6
    return [
        {"hosts": hosts, "transport": name, "packet_hops": hops[name], "ours": ours[name], "bare": bare,
         "ratio": ours[name] / bare, "peak_mib": peak, **peers,
         **{f"over_{peer}": ours[name] / rate for peer, rate in peers.items()}}
        for name in TRANSPORTS
    ]  # fmt: skip


def _shown(value: object) -> str:
    if isinstance(value, float) and value < 100:
        return f"{value:.2f}"
    return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 128, 1024])
    parser.add_argument("--size", default="2MB")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--nspy-size", default="100kB", help="0 leaves ns.py out")
    parser.add_argument("--htsim", type=Path, help="a built htsim_roce of uet-htsim")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.htsim is not None and not os.access(options.htsim, os.X_OK):
        parser.error(f"--htsim: {options.htsim} cannot be run; give the path of a built htsim_roce")
    measure(16, 100_000, 1)  # compiles
    rows: list[dict[str, object]] = []
    for hosts in options.hosts:
        nspy_bytes = parse_size_bytes(options.nspy_size)
        try:
            rows += measure(hosts, parse_size_bytes(options.size), options.repeat, nspy_bytes, options.htsim)
        except HtsimError as error:
            print(f"--htsim: {error}", file=sys.stderr)
            raise SystemExit(2) from None
    for row in rows:
        first = next(other for other in rows if other["transport"] == row["transport"])
        row["growth"] = first["ours"] / row["ours"]  # type: ignore[operator]
        row["relative"] = row["growth"] / (first["bare"] / row["bare"])  # type: ignore[operator]
    if options.json:
        print(json.dumps(rows))
        return
    names = ("hosts", "transport", "packet_hops", "ours", "bare", "ratio", "growth", "relative", "peak_mib",
             "nspy", "over_nspy", "htsim", "over_htsim")
    table = Table(title=f"permutation of {options.size} each: million packet-hops per second of processor time")
    names = tuple(name for name in names if name in rows[0])
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(_shown(row[name]) for name in names))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()

"""Speed of an incast beside its yardsticks, in one run: a bare loop of the same frames, and ns.py.

    python benchmarks/incast.py [--repeat 5] [--json]

Best of the repeats, taken in turns so that a busy machine slows all alike. Everything is switched on, captures are off.
"""

from __future__ import annotations

import argparse
import json
import time

from bare_loop import bare_incast
from nspy_incast import nspy_incast
from rich.console import Console
from rich.table import Table

from emulator.config import make_scenario
from emulator.fabric import Fabric
from emulator.framing import message_wire_bytes
from emulator.world import ROCE, TTPOE

SIZE_BYTES = 1_000_000
PS_PER_BYTE, DELAY_PS = 80, 1_000_000
STAGGER_PS = 7
"""Between senders' starts in the bare loop that has to order its events, as ours does."""
CASES = (("roce-pfc", ROCE, 4096, 86), ("ttpoe", TTPOE, 1024, 88))
NSPY_UP_TO = 32
"""More senders take ns.py minutes."""


def measure(senders: int, transport: str, protocol: int, mtu: int, ack_bytes: int, repeat: int) -> dict[str, object]:
    """Best rates in million packet-hops per second."""
    wire = message_wire_bytes(protocol, mtu, SIZE_BYTES)
    scenario = make_scenario({
        "workload": {"kind": "incast", "senders": senders, "size_bytes": SIZE_BYTES},
        "switch": {"buffer_bytes": "64MB"},
        "ttpoe": {"mtu_bytes": mtu},
        "roce": {"mtu_bytes": mtu},
    })
    window = 1_000_000 // mtu if protocol == TTPOE else len(wire)
    tied = ordered = ours = 0.0
    Fabric(scenario, transport, 1).run()
    for _ in range(repeat):
        for stagger in (0, STAGGER_PS):
            started = time.perf_counter()
            hops = bare_incast(senders, len(wire), window, int(wire[1]), ack_bytes, PS_PER_BYTE, DELAY_PS, stagger)[2]
            rate = hops / (time.perf_counter() - started) / 1e6
            if stagger:
                ordered = max(ordered, rate)
            else:
                tied = max(tied, rate)
        run = Fabric(scenario, transport, 1).run().summary()
        ours = max(ours, run["packet_hops_per_s"] / 1e6)
    row: dict[str, object] = {
        "senders": senders, "transport": transport, "mtu": mtu, "ours": ours, "bare": ordered, "ratio": ours / ordered,
        "bare_tied": tied, "ratio_tied": ours / tied, "packet_hops": run["packet_hops"], "drops": run["drops"],
        "pauses": run["pauses"],
    }  # fmt: skip
    if senders <= NSPY_UP_TO:
        wall_s, crossings, _ = nspy_incast(senders, len(wire), mtu, 8e12 / PS_PER_BYTE, DELAY_PS / 1e12)
        row["nspy"] = crossings / wall_s / 1e6
        row["ratio_nspy"] = ours / row["nspy"]  # type: ignore[operator]
    return row


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if value < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--senders", type=int, nargs="+", default=[8, 32, 128, 512])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bare_incast(2, 3, 2, 100, 88, 80, 1000, 0)
    rows = [measure(n, *case, options.repeat) for n in options.senders for case in CASES]
    if options.json:
        print(json.dumps(rows))
        return
    table = Table(title="incast of 1 MB each: million packet-hops per second")
    headings = ("senders", "transport", "MTU", "ours", "bare loop", "ratio", "bare, tied", "ratio", "ns.py", "ratio",
                "hops", "drops", "pauses")  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        names = ("senders", "transport", "mtu", "ours", "bare", "ratio", "bare_tied", "ratio_tied", "nspy",
                 "ratio_nspy", "packet_hops", "drops", "pauses")  # fmt: skip
        table.add_row(*(_shown(row.get(name)) for name in names))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

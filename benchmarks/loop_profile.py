"""Where the time of a permutation on a fat tree goes, by concern, and which caches it misses.

    python benchmarks/loop_profile.py [--hosts 16 128 1024] [--transports roce-pfc ttpoe] [--size 2MB]
    python benchmarks/loop_profile.py --misses [--hosts 16 128 1024] [--transports roce-pfc ttpoe]

Time: the loop is compiled once more with line tables (the same machine code), ``perf record`` samples the run's
processor time, and each sample is put down to the source line whose code it fell into, wherever that was inlined. A
load that waits for memory is put down to the line that needs it.

Misses: cachegrind counts, on a model of two caches (the sizes of ``--near`` and ``--next``), what one more packet-hop
misses: the difference of two runs of different sizes. Counters of the processor would tell the same of the machine
itself; a virtual machine seldom has them. Cachegrind does not follow hints to fetch ahead, so these are misses with
nothing fetched ahead.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONCERNS = {
    "event queue": ("emulator/schedule.py",),
    "looking ahead": ("emulator/lookahead.py",),
    "dispatch": ("emulator/engine.py:run", "emulator/engine.py:_try_kicked"),
    "routing": ("emulator/routing.py",),
    "ports, queues and lines": ("emulator/port.py", "emulator/packet.py", "emulator/engine.py", "emulator/ecn.py"),
    "buffer accounting": ("emulator/buffer.py", "emulator/engine.py:_admit", "emulator/port.py:leave_switch"),
    "PFC": ("emulator/pfc.py", "emulator/series.py"),
    "hosts": ("emulator/host.py", "emulator/framing.py", "emulator/dcqcn.py"),
    "RoCE": ("emulator/roce.py", "emulator/selective.py"),
    "TTPoE": ("ttpoe/",),
}
"""By source file, or a function of it, which comes before the file."""
BEYOND = ("results and growth (Python)", "fresh memory (the kernel)")
MISS_SIZES = (50_000, 200_000)
LEAST_HOPS = 3_000_000
LARGEST_KERNEL_BYTES = 1 << 14
_LINE = re.compile(r"^(\S+\.py|<string>)\s+(\d+|-)\s+(?:0x)?([0-9a-f]+)\b")


def _scenario(hosts: int, size_bytes: int):
    from emulator.config import make_scenario

    return make_scenario({
        "topology": {"kind": "fat-tree", "hosts": hosts},
        "workload": {"kind": "permutation", "size_bytes": size_bytes},
        "switch": {"buffer_bytes": "32MB"},
        "ttpoe": {"mtu_bytes": 4096},
    })


class Concerns:
    """Finds the concern of a line of a source file."""

    def __init__(self) -> None:
        self._functions: dict[str, list[tuple[int, int, str]]] = {}

    def find(self, file: str, line: int) -> str | None:
        """``file``: a name as line tables have it, without its folder; None if it is not ours."""
        room = next((room for room in ("emulator", "ttpoe") if (ROOT / room / file).is_file()), None)
        if room is None:
            return None
        path = f"{room}/{file}"
        if path not in self._functions:
            tree = ast.parse((ROOT / path).read_text())
            self._functions[path] = [
                (node.lineno, node.end_lineno or node.lineno, node.name)
                for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            ]  # fmt: skip
        function = next((name for first, last, name in self._functions[path] if first <= line <= last), "")
        for wanted in (f"{path}:{function}", path, f"{room}/"):
            for concern, places in CONCERNS.items():
                if wanted in places:
                    return concern
        return path


class Loop:
    """The loop compiled with line tables, and which concern each of its addresses belongs to."""

    def __init__(self, scratch: Path) -> None:
        from emulator.engine import run

        compiled = next(iter(run.overloads.values()))
        code = scratch / "loop.o"
        code.write_bytes(compiled.library._get_compiled_object())
        symbol = compiled.fndesc.llvm_func_name
        names = subprocess.run(["nm", code], check=True, capture_output=True, text=True).stdout
        offset = next(int(line.split()[0], 16) for line in names.splitlines() if line.endswith(f" {symbol}"))
        self.start = compiled.library.get_pointer_to_function(symbol) - offset
        self._addresses: list[int] = []
        self._concerns: list[str] = []
        dump = ["readelf", "--debug-dump=decodedline", "-W", code]
        lines = subprocess.run(dump, check=True, capture_output=True, text=True)
        found = (_LINE.match(line) for line in lines.stdout.splitlines())
        rows = sorted((int(m[3], 16), m[1], 0 if m[2] == "-" else int(m[2])) for m in found if m)
        concerns = Concerns()
        for address, file, line in rows:
            concern = concerns.find(file, line)  # numba's own min and max belong to what is around them
            self._addresses.append(address)
            self._concerns.append(concern or (self._concerns[-1] if self._concerns else "dispatch"))
        self.end = self.start + (self._addresses[-1] if rows else 0)
        self._called = sorted(_called_kernels(concerns))

    def concern_of(self, address: int) -> str:
        """Of an address of this process."""
        if address >> 63:
            return BEYOND[1]
        if self.start <= address <= self.end:
            return self._concerns[bisect.bisect_right(self._addresses, address - self.start) - 1]
        k = bisect.bisect_right(self._called, (address, "~")) - 1
        if k >= 0 and address - self._called[k][0] < LARGEST_KERNEL_BYTES:
            return self._called[k][1]
        return BEYOND[0]


def _called_kernels(concerns: Concerns) -> Iterator[tuple[int, str]]:
    """Addresses and concerns of all kernels compiled on the way: those not inlined run there, not in the loop."""
    from numba.core.dispatcher import Dispatcher

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("emulator", "ttpoe"):
            continue
        for value in vars(module).values():
            for compiled in value.overloads.values() if isinstance(value, Dispatcher) else ():
                code = value.py_func.__code__
                concern = concerns.find(Path(code.co_filename).name, code.co_firstlineno + 1)
                start = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
                if concern and start:
                    yield start, concern


def compile_with_lines(cache: str) -> None:
    """Have numba write line tables from now on, and nothing else that changes code."""
    os.environ.update(NUMBA_DEBUGINFO="1", NUMBA_BOUNDSCHECK="0", NUMBA_CACHE_DIR=cache)  # a cached loop has no tables
    from numba.core import cpu, errors

    warnings.simplefilter("ignore", errors.NumbaDebugInfoWarning)  # of files edited meanwhile
    finalize = cpu.CPUTargetOptions.finalize

    def only_lines(self, flags, options) -> None:
        finalize(self, flags, options)
        flags.dbg_directives_only = True
        flags.dbg_extend_lifetimes = False

    cpu.CPUTargetOptions.finalize = only_lines


def sample(hosts: int, transport: str, size_bytes: int, scratch: Path) -> tuple[float, collections.Counter[str]]:
    """Million packet-hops per second of processor time, and samples of runs by concern: many, of a small fabric."""
    from emulator.fabric import Fabric

    scenario = _scenario(hosts, size_bytes)
    hops = Fabric(scenario, transport, 1).run().counters["packet_hops"]
    loop = Loop(scratch)
    fabrics = [Fabric(scenario, transport, 1) for _ in range(min(-(-LEAST_HOPS // hops), 50))]
    data = scratch / "perf.data"
    recorder = subprocess.Popen(
        ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4999", "-p", str(os.getpid()), "-o", data],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(1)  # until it is attached
    started = time.process_time()
    for fabric in fabrics:
        fabric.run()
    spent = time.process_time() - started
    recorder.send_signal(signal.SIGINT)
    _, told = recorder.communicate()
    if not data.exists():
        raise SystemExit(f"perf record made no samples: {told.strip() or 'it said nothing'}")
    script = subprocess.run(["perf", "script", "-i", data, "-F", "ip"], check=True, capture_output=True, text=True)
    counts = collections.Counter(loop.concern_of(int(address, 16)) for address in script.stdout.split())
    return len(fabrics) * hops / spent / 1e6, counts


def show_time(options: argparse.Namespace, scratch: Path) -> None:
    """A table of shares of time, a column a run."""
    from rich.console import Console
    from rich.table import Table

    from ttpoe.units import parse_size_bytes

    table = Table(title=f"permutation of {options.size} each: % of processor time")
    table.add_column("concern")
    columns, rates = [], []
    for transport in options.transports:
        for hosts in options.hosts:
            rate, counts = sample(hosts, transport, parse_size_bytes(options.size), scratch)
            table.add_column(f"{transport} {hosts}", justify="right")
            columns.append(counts)
            rates.append(rate)
    known = [*CONCERNS, *BEYOND]
    others = sorted({name for counts in columns for name in counts} - set(known))
    for name in [*known, *others]:
        table.add_row(name, *(f"{100 * counts[name] / counts.total():.1f}" for counts in columns))
    table.add_row("samples", *(f"{counts.total():,}" for counts in columns))
    table.add_row("million packet-hops/s", *(f"{rate:.2f}" for rate in rates))
    Console(width=140).print(table)


def totals_of(told: str) -> list[int]:
    """Instructions, references to data, misses of the near and the next cache, from what cachegrind prints."""
    names = (r"I\s+refs", r"D\s+refs", r"D1\s+misses", "LLd misses")
    found = (re.search(rf"{name}:\s+([\d,]+)", told) for name in names)
    return [int(match[1].replace(",", "")) for match in found if match]


def count_misses(hosts: int, transport: str, size_bytes: int, options: argparse.Namespace, cache: str) -> list[int]:
    """Packet-hops, instructions, references to data, misses of the near and the next cache, of one whole process."""
    asked = ["--hosts", str(hosts), "--transports", transport, "--size", str(size_bytes)]
    child = [sys.executable, __file__, "--run", *asked]
    # Valgrind knows no AVX-512; the model has no other use of the processor's name.
    environment = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": cache}
    subprocess.run(child, check=True, capture_output=True, env=environment)  # compiles
    done = subprocess.run(
        ["valgrind", "--tool=cachegrind", "--cache-sim=yes", f"--D1={options.near}", f"--LL={options.next}",
         "--cachegrind-out-file=/dev/null", *child],
        check=False, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"valgrind ended with status {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    return [int(done.stdout), *totals_of(done.stderr)]


def show_misses(options: argparse.Namespace) -> None:
    """A table of misses for each packet-hop more."""
    from rich.console import Console
    from rich.table import Table

    small, large = MISS_SIZES
    table = Table(title=f"of each packet-hop more, from {small // 1000} to {large // 1000} kB a flow, by cachegrind")
    for name in ("hosts", "transport", "instructions", "data references", f"misses of {options.near}",
                 f"misses of {options.next}"):  # fmt: skip
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory() as cache:
        for transport in options.transports:
            for hosts in options.hosts:
                less, more = (count_misses(hosts, transport, size, options, cache) for size in MISS_SIZES)
                hops, *rest = (b - a for a, b in zip(less, more, strict=True))
                table.add_row(str(hosts), transport, *(f"{value / hops:.1f}" for value in rest))
    Console(width=140).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 128, 1024])
    parser.add_argument("--transports", nargs="+", default=["roce-pfc", "ttpoe"])
    parser.add_argument("--size", default="2MB")
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--near", default="49152,12,64", help="bytes, ways and line of the first cache")
    parser.add_argument("--next", default="2097152,16,64", help="of the second")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        from emulator.fabric import Fabric

        result = Fabric(_scenario(options.hosts[0], int(options.size)), options.transports[0], 1).run()
        print(result.counters["packet_hops"])
        return
    needed = ["valgrind"] if options.misses else ["perf", "nm", "readelf"]
    for tool in needed:
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is not here; install it (Linux: packages linux-tools, binutils, valgrind)")
    if options.misses:
        show_misses(options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        compile_with_lines(scratch)
        show_time(options, Path(scratch))


if __name__ == "__main__":
    main()

"""The same permutation in htsim, a peer in C++: uet-htsim's ``htsim_roce``, RoCE and PFC with ECMP by flow."""

from __future__ import annotations

import re
import resource
import subprocess
import tempfile
from pathlib import Path

_FINISHED = re.compile(r"^Flow (\S+) \d+ finished at (\S+) total bytes (\d+)$", re.MULTILINE)
_END_US = 50_000
_QUEUE_PACKETS = 1000


class HtsimError(RuntimeError):
    """htsim did not do what it was asked to."""


def connection_matrix(hosts: int, flows: list[tuple[int, int]], size_bytes: int) -> str:
    """A ``.cm`` file: all flows start at 0."""
    lines = [f"{src}->{dst} id {k + 1} start 0 size {size_bytes}" for k, (src, dst) in enumerate(flows)]
    return "\n".join([f"Nodes {hosts}", f"Connections {len(flows)}", *lines, ""])


def packets_of(text: str, n_flows: int) -> int:
    """Data packets of all flows, from what htsim printed; its "total bytes" counts packets.

    Raises
    ------
    HtsimError
        If it did not reach its end, or not all flows finished.
    """
    if not re.search(r"^\.?Done$", text, re.MULTILINE):
        raise HtsimError("htsim ended without its last line, Done; is this htsim_roce of uet-htsim?")
    finished = _FINISHED.findall(text)
    if len(finished) != n_flows:
        raise HtsimError(f"{len(finished)} of {n_flows} flows finished in htsim within {_END_US} us of its time")
    return sum(int(packets) for _, _, packets in finished)


def _run(arguments: list[str], folder: str) -> tuple[float, str]:
    """Processor time of a child in seconds, and what it printed; it leaves files where it runs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(arguments, check=False, capture_output=True, text=True, cwd=folder)
    except OSError as error:
        raise HtsimError(f"{arguments[0]} cannot be run: {error.strerror}; give a built htsim_roce") from None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()
        raise HtsimError(f"htsim ended with status {done.returncode}: {last[-1] if last else 'it printed nothing'}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def htsim_permutation(
    htsim: Path, hosts: int, flows: list[tuple[int, int]], size_bytes: int, mtu: int, hops_of: list[int]
) -> tuple[float, int]:
    """Processor time of the run without its setup, and link crossings: each packet and its ACK cross their flow's path.

    Setup is what a run of the same flows takes that ends after 1 us. PAUSE frames are not counted, as htsim does not
    tell their number.

    Parameters
    ----------
    hops_of : list of int
        Links from end to end, a flow; htsim's hosts lie in racks and pods in the same order.
    """
    with tempfile.TemporaryDirectory() as scratch:
        matrix = Path(scratch, "permutation.cm")
        matrix.write_text(connection_matrix(hosts, flows, size_bytes))
        command = [
            str(htsim.resolve()), "-tm", str(matrix), "-nodes", str(hosts), "-tiers", "3", "-linkspeed", "100000",
            "-mtu", str(mtu), "-q", str(_QUEUE_PACKETS), "-strat", "ecmp_host", "-paths", "64",
            "-o", str(Path(scratch, "log")), "-end",
        ]  # fmt: skip
        setup_s, _ = _run([*command, "1"], scratch)
        spent_s, told = _run([*command, str(_END_US)], scratch)
    each = packets_of(told, len(flows)) // len(flows)
    return max(spent_s - setup_s, 1e-3), 2 * each * sum(hops_of)

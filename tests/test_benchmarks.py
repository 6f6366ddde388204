"""The peers that the benchmarks run: what they are asked, and how what they print is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FLOWS = [(0, 5), (5, 1), (1, 0)]
HOPS = [4, 4, 2]

FAKE = """#!{python}
import re, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
matrix = open(arguments["-tm"]).read().splitlines()
assert matrix[0] == "Nodes " + arguments["-nodes"] and matrix[1] == "Connections " + str(len(matrix) - 2)
flows = [re.fullmatch(r"(\\d+)->(\\d+) id (\\d+) start 0 size (\\d+)", line).groups() for line in matrix[2:]]
print("traffic matrix input file: " + arguments["-tm"], "no_of_nodes " + arguments["-nodes"], "tiers 3", sep="\\n")
print("no of paths 64\\nendtime(us) " + arguments["-end"] + "\\nParsed args\\nLogging to " + arguments["-o"])
for src, dst, number, size in flows:
    print(f"Connection {{src}}->{{dst}} starting at 0 size {{size}}")
    print(f"startflow Roce_{{src}}_{{dst}} at 0")
print("Starting simulation")
print("Source Roce_0_5 RESUME 7.23\\nPAUSE")
done = flows[:{finishing}] if int(arguments["-end"]) > 1000 else []
for src, dst, number, size in done:
    packets = -(-int(size) // int(arguments["-mtu"]))
    print(f"Flow Roce_{{src}}_{{dst}} {{24000 + int(number)}} finished at 1272.69 total bytes {{packets}}")
print("{end}")
print("New: 0 Rtx: 0")
sys.exit({status})
"""


@pytest.fixture
def htsim(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import htsim_fat_tree

    return htsim_fat_tree


def fake(folder: Path, finishing: int = 9, end: str = ".Done", status: int = 0) -> Path:
    """What stands in for a built htsim: it checks its matrix and prints lines as uet-htsim's htsim_roce does."""
    path = folder / "htsim_roce"
    path.write_text(FAKE.format(python=sys.executable, finishing=finishing, end=end, status=status))
    path.chmod(0o755)
    return path


def test_htsim_crosses_each_link_twice_a_packet(htsim: ModuleType, tmp_path: Path) -> None:
    """Packets and their ACKs; the last packet of a flow is short and counts."""
    spent_s, crossings = htsim.htsim_permutation(fake(tmp_path), 16, FLOWS, 10_000, 4096, HOPS)
    assert crossings == 2 * 3 * sum(HOPS)
    assert spent_s > 0


@pytest.mark.parametrize(("made", "told"), [
    ({"finishing": 2}, "2 of 3 flows finished"),
    ({"end": "Segmentation fault"}, "without its last line"),
    ({"status": 1}, "ended with status 1: New: 0 Rtx: 0"),
])  # fmt: skip
def test_htsim_that_fails_is_told(htsim: ModuleType, tmp_path: Path, made: dict[str, object], told: str) -> None:
    with pytest.raises(htsim.HtsimError, match=told):
        htsim.htsim_permutation(fake(tmp_path, **made), 16, FLOWS, 10_000, 4096, HOPS)  # type: ignore[arg-type]


def test_a_path_that_is_no_htsim() -> None:
    script = BENCHMARKS / "fat_tree.py"
    done = subprocess.run([sys.executable, script, "--htsim", "nowhere"], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "nowhere cannot be run; give the path of a built htsim_roce" in done.stderr


def test_nspy_crosses_each_link_twice_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without loss each segment and its ACK cross each link of its path once."""
    pytest.importorskip("ns")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from bare_fat_tree import draw_paths
    from nspy_fat_tree import nspy_permutation

    from emulator.config import make_scenario
    from emulator.shapes import build_topology

    scenario = make_scenario({"topology": {"kind": "fat-tree", "hosts": 16}, "workload": {"kind": "permutation"}})
    topology = build_topology(scenario.topology, scenario.link, 16)
    paths, lengths = draw_paths(topology, [(0, 1), (2, 13), (13, 2)], 1)
    assert lengths.tolist() == [2, 2, 6, 6, 6, 6]
    _, crossings = nspy_permutation(paths, lengths, len(topology.port_names), 30, 4096, 100e9, 1e-6)
    assert crossings == 30 * int(lengths.sum())


def test_every_place_that_the_profile_names_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import loop_profile

    concerns = loop_profile.Concerns()
    for concern, places in loop_profile.CONCERNS.items():
        for place in places:
            path, _, function = place.partition(":")
            if path.endswith("/"):
                assert (loop_profile.ROOT / path).is_dir()
                continue
            lines = (loop_profile.ROOT / path).read_text().splitlines()
            line = next(k for k, text in enumerate(lines, 1) if text.startswith(f"def {function}"))
            assert concerns.find(Path(path).name, line) == concern or not function
    assert concerns.find("machine.py", 1) == "TTPoE"
    assert concerns.find("builtins.py", 600) is None


def test_totals_of_cachegrind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Valgrind 3.19 prints them, of /bin/true."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import loop_profile

    told = """==7== I   refs:      127,785
==7== I1  misses:      1,091
==7== LLi misses:      1,072
==7== D   refs:       39,671  (29,405 rd   + 10,266 wr)
==7== D1  misses:      1,489  ( 1,154 rd   +    335 wr)
==7== LLd misses:      1,327  ( 1,016 rd   +    311 wr)
==7== LL misses:       2,399  ( 2,088 rd   +    311 wr)
"""
    assert loop_profile.totals_of(told) == [127_785, 39_671, 1489, 1327]

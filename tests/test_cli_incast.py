"""``ttpoe incast`` and ``ttpoe run``: what is printed, written and told to the shell, when all is well and when not."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from emulated import COMPILED

from emulator.config import ScenarioConfig, make_scenario
from ttpoe import cli

SMALL = ("--senders", "3", "--size", "20KB")
TTPOE = (sys.executable, "-c", "from ttpoe.cli import main; main()")


class Cli:
    """Runs a command line in this process; keeps what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str | Path) -> int:
        self._monkeypatch.setattr(sys, "argv", ["ttpoe", *map(str, arguments)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        self.out, self.err = self._capsys.readouterr()
        return int(end.value.code or 0)  # type: ignore[arg-type]


@pytest.fixture
def ttpoe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def strict(text: str) -> Any:
    """JSON without NaN and infinities."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


# --- JSON ------------------------------------------------------------------------------------------------------------

RUN_KEYS = [
    "transport", "routing", "seed", "flows", "finished", "reasons", "fct_us", "makespan_us", "goodput_gbps",
    "goodput_limit_gbps", "wire_bound_us", "slowdown_p99", "drops", "drop_causes", "lost",
    "frames_impaired", "corrupted", "pauses",
    "paused_us", "max_queue_bytes", "resent_packets", "timeouts", "nack_fulls", "marks", "cnps", "jain", "size_bins",
    "groups", "collective", "data_hops", "packet_hops",
    "events", "wall_s", "packet_hops_per_s", "digest",
]  # fmt: skip


def test_the_shape_of_the_json(ttpoe: Cli) -> None:
    assert ttpoe("incast", *SMALL, "--repeat", "2", "--json") == 0
    told = strict(ttpoe.out)
    assert list(told) == ["runs", "summary"]
    assert [(r["transport"], r["seed"]) for r in told["runs"]] == [
        ("ttpoe", 1), ("ttpoe", 2), ("roce-pfc", 1), ("roce-pfc", 2), ("roce", 1), ("roce", 2)]  # fmt: skip
    for run in told["runs"]:
        assert list(run) == RUN_KEYS
        assert list(run["fct_us"]) == ["min", "p50", "p99", "max"]
        assert set(run["drop_causes"]) == {"queue_threshold", "buffer_full", "headroom_full", "watchdog"}
        assert run["flows"] == run["finished"] == 3
        fct = run["fct_us"]
        assert 0 < fct["min"] <= fct["p50"] <= fct["p99"] <= fct["max"]
        assert run["packet_hops_per_s"] == pytest.approx(run["packet_hops"] / run["wall_s"])
        assert run["data_hops"] >= 2 * 3 * 5
        assert 1 / 3 <= run["jain"] <= 1
        assert len(run["digest"]) == 64
    for row in told["summary"]:
        assert list(row) == ["transport", "routing", "metric", "median", "ci95"]
    metrics = [row["metric"] for row in told["summary"] if row["transport"] == "roce"]
    assert {"fct_us_p99", "goodput_gbps", "slowdown_p99", "drops", "pauses", "jain"} <= set(metrics)
    for row in told["summary"]:
        if row["metric"] == "fct_us_max":
            values = sorted(r["fct_us"]["max"] for r in told["runs"] if r["transport"] == row["transport"])
            assert row["median"] == pytest.approx(sum(values) / 2)
            assert values[0] <= row["ci95"][0] <= row["median"] <= row["ci95"][1] <= values[1]


def test_one_seed_has_no_interval(ttpoe: Cli) -> None:
    assert ttpoe("incast", *SMALL, "--transport", "roce", "--json") == 0
    assert all(row["ci95"] is None for row in strict(ttpoe.out)["summary"])


@COMPILED
def test_the_default_incast(ttpoe: Cli) -> None:
    """32 senders of 1 MB: all finish, PFC drops nothing and pauses, drop-tail drops, nobody beats the wire."""
    digests = []
    for order in ("ttpoe,roce-pfc,roce", "roce,roce-pfc,ttpoe"):
        assert ttpoe("incast", "--senders", "32", "--size", "1MB", "--transport", order, "--json") == 0
        runs = {run["transport"]: run for run in strict(ttpoe.out)["runs"]}
        digests.append({name: run["digest"] for name, run in runs.items()})
    assert digests[0] == digests[1]
    assert all(run["finished"] == 32 for run in runs.values())
    assert all(run["fct_us"]["max"] >= run["wire_bound_us"] for run in runs.values())
    assert runs["roce-pfc"]["drops"] == 0
    assert runs["roce-pfc"]["pauses"] > 0
    assert runs["roce-pfc"]["fct_us"]["max"] <= 1.01 * runs["roce-pfc"]["wire_bound_us"]
    assert runs["roce-pfc"]["wire_bound_us"] == pytest.approx(2611 + 2.3, abs=1)
    assert runs["roce"]["drops"] > 0
    assert runs["roce"]["pauses"] == runs["ttpoe"]["pauses"] == 0


def test_options_arrive_where_they_belong(ttpoe: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ScenarioConfig] = []

    def keep(scenario: ScenarioConfig, **_: Any) -> int:
        seen.append(scenario)
        return 0

    monkeypatch.setattr("ttpoe.cli.experiment.run_scenario", keep)
    assert ttpoe(
        "incast", "--transport", "roce, ttpoe-pfc", "--senders", "5", "--size", "2MiB", "--rate", "25G", "--delay",
        "3us", "--mtu", "512", "--buffer", "2MB", "--window", "64KB", "--jitter", "7ns", "--seed", "9", "--repeat", "4",
        "--alpha", "0.5", "--rto-min", "2ms",
    ) == 0  # fmt: skip
    assert seen == [make_scenario({
        "transports": ["roce", "ttpoe-pfc"], "seed": 9, "repeat": 4,
        "link": {"rate_bps": 25 * 10**9, "delay_ps": 3 * 10**6},
        "workload": {"kind": "incast", "senders": 5, "size_bytes": 2**21, "jitter_ps": 7000},
        "switch": {"buffer_bytes": 2 * 10**6, "alpha": 0.5}, "ttpoe": {"mtu_bytes": 512, "window_bytes": 64_000},
        "roce": {"mtu_bytes": 512}, "tcp": {"mtu_bytes": 512, "rto_min_ps": 2 * 10**9},
    })]  # fmt: skip
    assert ttpoe("incast") == 0
    assert seen[1] == make_scenario({})


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table(ttpoe: Cli) -> None:
    assert ttpoe("incast", *SMALL, "--transport", "ttpoe,roce", "--mtu", "2000") == 0
    assert "ttpoe-jumbo" in ttpoe.out
    assert "3/3" in ttpoe.out
    assert "wire bound, us" in ttpoe.out
    assert max(len(line) for line in ttpoe.out.splitlines()) <= 80
    assert ttpoe.err == ""


def test_a_name_is_text_not_markup(ttpoe: Cli, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('name = "[/] [red]x"\ntransports = ["roce"]\nworkload = {kind = "incast", senders = 1}\n')
    assert ttpoe("run", path) == 0
    assert "[/] [red]x" in ttpoe.out


# --- files -----------------------------------------------------------------------------------------------------------


def test_files(ttpoe: Cli, tmp_path: Path) -> None:
    out = tmp_path / "new" / "dir"
    assert ttpoe("incast", *SMALL, "--transport", "ttpoe,roce-pfc", "--repeat", "2", "--out", out, "--capture",
                 "h1,s0.p0") == 0  # fmt: skip
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    captures = {f"{t}/{port}.pcapng" for t in ("ttpoe", "roce-pfc") for port in ("h1", "s0.p0")}
    assert names == {"results.json", "flows.csv", "ports.csv", "incast.png"} | captures
    assert (out / "incast.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    told = strict((out / "results.json").read_text())
    assert told["scenario"]["workload"]["senders"] == 3
    assert make_scenario(told["scenario"]).repeat == 2
    assert [len(run.get("ports", ())) for run in told["runs"]] == [8, 0, 8, 0]  # of each transport's first run
    assert told["runs"][0]["counters"]["in_network"] >= 0
    assert told["runs"][0]["status"] == "finished"
    assert told["is_interrupted"] is False
    assert set(told["captures"]) == captures
    with (out / "ports.csv").open(newline="") as file:
        ports = list(csv.DictReader(file))
    assert [(row["transport"], row["seed"]) for row in ports] == 8 * [("ttpoe", "1")] + 8 * [("roce-pfc", "1")]
    assert [row["name"] for row in ports[:2]] == ["h0", "s0.p0"]
    with (out / "flows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 3
    assert {"seed", "sender", "drops", "fct_rx_us", "ideal_us", "size_bytes", "goodput_gbps"} <= set(rows[0])
    for row in rows:
        assert float(row["slowdown"]) >= 1.0
        assert float(row["goodput_gbps"]) == pytest.approx(20_000 * 8e-3 / float(row["fct_rx_us"]), rel=1e-5)
    for run in told["runs"]:
        mine = [r for r in rows if (r["transport"], r["seed"]) == (run["transport"], str(run["seed"]))]
        assert max(float(r["fct_rx_us"]) for r in mine) == run["fct_us"]["max"]
        assert sum(int(r["drops"]) for r in mine) == run["drops"]


def test_captures_of_earlier_runs_stay_and_are_told_apart(ttpoe: Cli, tmp_path: Path) -> None:
    run = ("incast", *SMALL, "--out", tmp_path)
    assert ttpoe(*run, "--transport", "ttpoe", "--capture", "h0,h1") == 0
    assert ttpoe.out.splitlines()[-1] == "captures: ttpoe/h0.pcapng, ttpoe/h1.pcapng"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "h0.txt").touch()
    assert ttpoe(*run, "--transport", "ttpoe,roce", "--capture", "h0") == 0
    assert ttpoe.out.splitlines()[-2:] == [
        "captures: roce/h0.pcapng, ttpoe/h0.pcapng", "left there by earlier runs: ttpoe/h1.pcapng"]  # fmt: skip
    assert strict((tmp_path / "results.json").read_text())["captures"] == ["roce/h0.pcapng", "ttpoe/h0.pcapng"]
    assert ttpoe(*run, "--transport", "roce") == 0
    assert ttpoe.out.splitlines()[-1].startswith("left there by earlier runs: roce/h0.pcapng, ttpoe/h0.pcapng")
    assert len(list(tmp_path.glob("*/*"))) == 4


def test_a_second_run_replaces_files(ttpoe: Cli, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        assert ttpoe("incast", *SMALL, "--transport", "roce", "--seed", seed, "--out", tmp_path) == 0
        assert strict((tmp_path / "results.json").read_text())["runs"][0]["seed"] == int(seed)
    assert not list(tmp_path.glob(".*"))


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--transport", "tcp"), ("--transport", ""), ("--transport", "roce,roce"), ("--transport", "roce,,nope"),
        ("--senders", "0"), ("--senders", "-1"), ("--senders", "65536"), ("--senders", "many"), ("--senders", "1e3"),
        ("--size", "0"), ("--size", "-1"), ("--size", "1.5"), ("--size", "nan"), ("--size", "inf"), ("--size", "1Q"),
        ("--size", "2000000TB"), ("--rate", "0"), ("--rate", "1"), ("--rate", "100"), ("--rate", "99T"),
        ("--rate", "nan"), ("--delay", "1"), ("--delay", "-1us"), ("--delay", "2h"), ("--delay", "4000s"),
        ("--delay", "1e99s"), ("--mtu", "0"), ("--mtu", "9001"), ("--buffer", "1KB"), ("--buffer", "2TB"),
        ("--buffer", "x"), ("--alpha", "0"), ("--alpha", "nan"), ("--alpha", "x"),
        ("--window", "1023"), ("--window", "0"), ("--jitter", "1"), ("--jitter", "-1us"),
        ("--seed", "-1"), ("--seed", "4294967296"), ("--seed", "x"), ("--repeat", "0"), ("--repeat", "10001"),
        ("--capture", "h9"), ("--capture", ","), ("--capture", ""), ("--timestamps", "us"), ("--nope", "1"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_and_nothing_is_written(ttpoe: Cli, tmp_path: Path, option: str, value: str) -> None:
    out = tmp_path / "out"
    assert ttpoe("incast", *SMALL, option, value, "--out", out) == 2
    last = ttpoe.err.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert option in last
    assert "Traceback" not in ttpoe.err
    assert ttpoe.out == ""
    assert not out.exists()


def test_capture_needs_out(ttpoe: Cli) -> None:
    assert ttpoe("incast", *SMALL, "--capture", "h0") == 2
    assert "--capture needs --out" in ttpoe.err


@pytest.mark.parametrize("profile", [{"base": "ib"}, {"base": "roce-pfc", "flow_control": "credits"}])
def test_frames_of_a_profile_with_credits_are_not_captured(ttpoe: Cli, tmp_path: Path, profile: dict[str, str]) -> None:
    scenario, out = tmp_path / "own.toml", tmp_path / "out"
    fields = "\n".join(f'{field} = "{value}"' for field, value in {"name": "own", **profile}.items())
    scenario.write_text(
        f'transports = ["roce", "own"]\n[[profiles]]\n{fields}\n[workload]\nkind = "incast"\nsenders = 2\n'
    )
    assert ttpoe("run", scenario, "--out", out, "--capture", "h0") == 2
    assert "--capture: InfiniBand frames are no Ethernet frames; leave the transport own out" in ttpoe.err
    assert not out.exists()


def test_out_must_be_a_directory_that_can_be_written_to(ttpoe: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below", Path("/proc/self"), Path("/proc/nope")):
        assert ttpoe("incast", *SMALL, "--out", path) == 2
        assert "--out" in ttpoe.err.splitlines()[-1]
        assert str(path) in ttpoe.err
        assert ttpoe.out == ""


def test_a_disk_that_fails_at_the_end_still_prints_the_results(
    ttpoe: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("emulator.experiments.report.write_flows", fail)
    assert ttpoe("incast", *SMALL, "--out", tmp_path, "--json") == 1
    assert len(strict(ttpoe.out)["runs"]) == 3
    assert f"--out: cannot write to directory {tmp_path}: No space left on device" in ttpoe.err
    assert not (tmp_path / "flows.csv").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("seed =\n", "Invalid value (at line 1"),
        ("sed = 1\n", "sed: there is no such field"),
        ("[switch]\nalpha = nan\n", "switch.alpha: "),
        ('[link]\nrate_bps = "fast"\n', "link.rate_bps: 'fast' is not a rate"),
        ("[topology]\nhosts = 4\n", "topology.hosts: the workload names host 32"),
        ("[switch]\nbuffer_bytes = 1000\n", "switch.buffer_bytes: 1000 is too small"),
        ("[switch]\npause_quanta = 100\n", "switch.pause_quanta: 100"),
    ],
)
def test_a_wrong_scenario_file(ttpoe: Cli, tmp_path: Path, content: str, says: str) -> None:
    path, out = tmp_path / "s.toml", tmp_path / "out"
    path.write_text(content)
    assert ttpoe("run", path, "--out", out) == 2
    assert says in ttpoe.err.splitlines()[-1]
    assert not out.exists()


def test_no_scenario_file(ttpoe: Cli, tmp_path: Path) -> None:
    assert ttpoe("run", tmp_path / "none.toml") == 2
    assert "none.toml: No such file or directory" in ttpoe.err
    assert ttpoe("run") == 2
    assert ttpoe("run", tmp_path) == 2


# --- runs that end badly ---------------------------------------------------------------------------------------------


def write_scenario(path: Path, until: str = "60s", lost: str = "[]", headroom: str = "") -> Path:
    path.write_text(f"""
transports = ["roce", "roce-pfc"]
until_ps = "{until}"
topology = {{ links = [{{ hosts = [2], bad_fcs_frames = {lost} }}] }}
roce = {{ rto_exponent = 4 }}
[switch]
buffer_bytes = 700_000
{headroom}
[workload]
kind = "incast"
senders = 6
size_bytes = "100KB"
""")
    return path


def test_a_run_out_of_time_exits_3_and_names_its_flows(ttpoe: Cli, tmp_path: Path) -> None:
    path = write_scenario(tmp_path / "s.toml", until="30us")
    assert ttpoe("run", path, "--json") == 3
    runs = strict(ttpoe.out)["runs"]
    assert all(run["finished"] == 0 and run["fct_us"]["p50"] is None and run["jain"] is None for run in runs)
    assert "unfinished: roce, seed 1: 6 of 6 flows: h1>h0, h2>h0, h3>h0" in ttpoe.err
    assert "why: roce, seed 1: 6 were not done by until_ps, 30 us; raise it" in ttpoe.err
    assert all(run["reasons"] == ["6 were not done by until_ps, 30 us; raise it"] for run in runs)
    assert ttpoe("run", path) == 3


def test_what_arrived_changed_exits_3_and_is_named(ttpoe: Cli, tmp_path: Path) -> None:
    path = write_scenario(tmp_path / "s.toml")
    bad = 'links = [{ hosts = [2], impairments = { corrupt_undetected = "5%" } }]'
    text = path.read_text().replace('"roce", "roce-pfc"', '"ttpoe", "roce"').replace(
        "links = [{ hosts = [2], bad_fcs_frames = [] }]", bad)  # fmt: skip
    path.write_text(text)
    assert ttpoe("run", path, "--out", tmp_path / "out") == 3
    assert ttpoe.err.splitlines() == ["arrived changed: ttpoe, seed 1: 1 of 6 flows: h2>h0"]
    with (tmp_path / "out" / "flows.csv").open(newline="") as file:
        assert {row["flow"] for row in csv.DictReader(file) if int(row["corrupted"])} == {"h2>h0"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"flows.csv", "ports.csv", "results.json", "s.png"}


def test_a_failed_flow_exits_3_with_its_reason(ttpoe: Cli, tmp_path: Path) -> None:
    path = write_scenario(tmp_path / "s.toml", lost=str(list(range(1, 400))))
    assert ttpoe("run", path, "--out", tmp_path / "out") == 3
    assert "unfinished: roce, seed 1: 1 of 6 flows: h2>h0 (retry_limit)" in ttpoe.err
    assert "why: roce, seed 1: 1 gave up after 8 timeouts in a row (65.54 us): lines lost or changed" in ttpoe.err
    told = strict((tmp_path / "out" / "results.json").read_text())
    assert told["runs"][0]["unfinished"] == ["h2>h0 (retry_limit)"]
    with (tmp_path / "out" / "flows.csv").open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["flow"] == "h2>h0")
    assert (row["failure"], row["fct_rx_us"], row["slowdown"], row["ideal_us"]) == ("retry_limit", "", "", "")


def test_a_broken_promise_exits_4_with_its_cause(ttpoe: Cli, tmp_path: Path) -> None:
    tight = "alpha = 0.03125\nheadroom_bytes = 9000"
    path = write_scenario(tmp_path / "s.toml", headroom=tight)
    assert ttpoe("run", path, "--json") == 4
    runs = {run["transport"]: run for run in strict(ttpoe.out)["runs"]}
    assert runs["roce-pfc"]["drop_causes"]["headroom_full"] == runs["roce-pfc"]["drops"] > 0
    assert "error: roce-pfc, seed 1: " in ttpoe.err
    assert "lossless priority as headroom was full" in ttpoe.err
    # More urgent than a flow that did not finish.
    assert ttpoe("run", write_scenario(path, until="30us", headroom=tight)) == 4


@COMPILED
def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    """In the middle of a long repeat: exit 130, whole files of the finished runs, and they are told."""
    out = tmp_path / "out"
    command = [*TTPOE, "incast", "--senders", "8", "--size", "100KB", "--transport", "ttpoe,roce", "--repeat", "10000",
               "--out", str(out), "--capture", "h1", "--json"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(out.glob("ttpoe/*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        printed, complained = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in complained
    runs = strict(printed)["runs"]
    assert 0 < len(runs) < 20_000
    assert f"interrupted: {len(runs)} of 20000 runs are kept" in complained
    assert len(strict((out / "results.json").read_text())["runs"]) == len(runs)
    with (out / "flows.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 8 * len(runs)
    assert (out / "incast.png").exists()
    assert (out / "ttpoe" / "h1.pcapng").stat().st_size > 10_000
    assert not list(out.rglob(".*"))


@COMPILED
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_a_reader_that_leaves_changes_neither_files_nor_status(tmp_path: Path, extra: list[str]) -> None:
    """As in ``ttpoe incast | head -0``."""
    read, write = os.pipe()
    os.close(read)
    command = [*TTPOE, "incast", *SMALL, "--out", str(tmp_path), *extra]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 0
    assert done.stderr == ""
    assert (tmp_path / "results.json").exists()


def test_help_is_complete(ttpoe: Cli) -> None:
    assert ttpoe("incast", "--help") == 0
    for option in ("--transport", "--senders", "--size", "--rate", "--delay", "--mtu", "--buffer", "--window",
                   "--jitter", "--seed", "--repeat", "--out", "--capture", "--timestamps", "--json"):  # fmt: skip
        assert option in ttpoe.out

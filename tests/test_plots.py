"""The figure: it is written whole or not at all, says what it shows, and stands any result."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from emulator.config import make_scenario
from emulator.engine import RunStatus
from emulator.fabric import Fabric
from emulator.results import FLOW_RESULT, RunResult
from emulator.world import SERIES
from traces import plots

US = 1_000_000


def make_result(transport: str = "ttpoe", seed: int = 1, fct_us: tuple[float, ...] = (100, 200), *,
                depth: int = 0, paused: int = 0, buckets: int = 100) -> RunResult:
    flows = np.zeros(len(fct_us), FLOW_RESULT)
    flows["src"] = np.arange(1, len(fct_us) + 1)
    flows["size_bytes"] = 100_000
    flows["fct_rx_ps"] = [-1 if us < 0 else round(us * US) for us in fct_us]
    series = np.zeros(buckets, SERIES)
    series["depth_max_bytes"][buckets // 3] = depth
    series["paused_max"][buckets // 2] = paused
    return RunResult(
        transport=transport, routing="ecmp", seed=seed, status=RunStatus.FINISHED, flows=flows,
        flow_names=tuple(f"h{k}>h0" for k in flows["src"]), flow_groups=("",) * len(flows), collective=None,
        counters={"drops": 3, "pauses": paused,
                                                                      "resent_packets": 1234},
        drop_causes={}, frames_impaired={}, ports=[], series=series,
        series_edges_ps=np.arange(buckets + 1) * (max(int(max(fct_us)), 1) * US // buckets + 1),
        end_ps=max(int(max(fct_us)), 1) * US, goodput_limit_gbps=90.0, wire_bound_ps=22 * US,
        wall_s=1.0, setup_s=1.0)


def drawn(results: list[RunResult], path: Path) -> plots.Figure:
    """The figure that was saved, for a look at its parts; any warning is an error."""
    kept = []
    save = plots._save
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(plots, "_save", lambda figure, path: (kept.append(figure), save(figure, path)))
        plots.plot_incast(results, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = (int.from_bytes(data[k : k + 4], "big") for k in (16, 20))
    assert width >= 1200
    assert height >= 800
    return kept[0]


def curves(panel: object) -> list[tuple[np.ndarray, np.ndarray]]:
    """Data of the solid and dashed lines, without markers and the dotted bounds."""
    lines = [line for line in panel.get_lines() if line.get_linestyle() != ":" and len(line.get_xdata()) > 1]
    return [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in lines]


def test_axes_say_what_they_show(tmp_path: Path) -> None:
    figure = drawn([make_result(depth=2_500_000, paused=3), make_result("roce", fct_us=(150, 300))],
                   tmp_path / "a.png")
    completion, goodput, depth, pauses = figure.axes
    assert completion.get_xlabel() == "time to the last byte at the receiver (us)"
    assert completion.get_ylabel() == "fraction of flows (CDF)"
    assert goodput.get_xlabel() == "sender (host number)"
    assert goodput.get_ylabel() == "goodput (Gb/s)"
    assert depth.get_ylabel() == "largest depth (MB)"
    assert depth.get_xlabel() == pauses.get_xlabel() == "time since the start (us)"
    assert pauses.get_ylabel() == "pairs paused at once (count)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "ttpoe: 3 drops, 3 pauses, 1,234 resent", "roce: 3 drops, 0 pauses, 1,234 resent"]
    assert figure.get_suptitle() == "2 flows of 100 kB to h0, seed 1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png"]


def test_cdf_pools_seeds_and_counts_unfinished_flows(tmp_path: Path) -> None:
    figure = drawn([make_result(fct_us=(100, 300)), make_result(seed=2, fct_us=(200, -1))], tmp_path / "a.png")
    ((x, y),) = curves(figure.axes[0])
    assert x.tolist() == [100, 100, 200, 300]
    assert y.tolist() == [0, 0.25, 0.5, 0.75]
    label = figure.legends[0].get_texts()[0].get_text()
    assert label == "ttpoe: 3 drops, 0 pauses, 1,234 resent (median), 1 of 4 flows unfinished"
    assert figure.get_suptitle().endswith("2 seeds from 1")


def test_goodput_is_payload_over_completion(tmp_path: Path) -> None:
    figure = drawn([make_result(fct_us=(100, 200))], tmp_path / "a.png")
    (points,) = figure.axes[1].collections
    assert points.get_offsets().tolist() == [[1, 8.0], [2, 4.0]]
    (share,) = figure.axes[1].get_lines()
    assert list(share.get_ydata()) == [45, 45]


def test_goodput_over_seeds_is_median_and_range(tmp_path: Path) -> None:
    results = [make_result(seed=k, fct_us=(us, 100)) for k, us in enumerate((100, 200, 400))]
    figure = drawn(results, tmp_path / "a.png")
    ranges, points = figure.axes[1].collections
    assert points.get_offsets().tolist() == [[1, 4.0], [2, 8.0]]
    assert [segment[:, 1].tolist() for segment in ranges.get_segments()] == [[2, 8], [8, 8]]


def test_wire_bound_is_where_it_should_be(tmp_path: Path) -> None:
    figure = drawn([make_result()], tmp_path / "a.png")
    bounds = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in bounds] == [22]


def test_no_bound_where_flows_do_not_share_start_and_end(tmp_path: Path) -> None:
    elsewhere, later = dataclasses.replace(make_result(), wire_bound_ps=None), make_result()
    later.flows["start_ps"] = [0, 9]
    for result in (elsewhere, later):
        figure = drawn([result], tmp_path / "a.png")
        assert not [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
        assert "dotted" not in figure.axes[0].get_title() + figure.axes[1].get_title()


@pytest.mark.parametrize(("last_us", "scale"), [(1_900, "linear"), (2_100, "log")])
def test_axis_is_logarithmic_above_20_times(tmp_path: Path, last_us: float, scale: str) -> None:
    results = [make_result(fct_us=(100, 100)), make_result("roce", fct_us=(100, last_us))]
    for result in results:
        result.flows["start_ps"] = [0, 1]  # no dotted line then, which would widen the range of goodput
    figure = drawn(results, tmp_path / "a.png")
    completion, goodput, depth, pauses = figure.axes
    assert [completion.get_xscale(), goodput.get_yscale(), depth.get_xscale(), pauses.get_xscale()] == [scale] * 4


@pytest.mark.parametrize("is_log", [False, True])
def test_series_keep_their_peaks_and_their_times(tmp_path: Path, is_log: bool) -> None:
    results = [make_result(fct_us=(100, 1000), depth=7_000, paused=5, buckets=1000)]
    if is_log:
        results.append(make_result("roce", fct_us=(1, 2), buckets=10))
    results.append(make_result(seed=2, depth=999_999_999))
    figure = drawn(results, tmp_path / "a.png")
    x, y = curves(figure.axes[2])[0]
    assert y.max() == 7
    assert x[np.argmax(y)] == pytest.approx(333, rel=0.02)
    assert x[-1] == pytest.approx(1000, rel=0.01)
    x, y = curves(figure.axes[3])[0]
    assert y.max() == 5
    assert x[np.argmax(y)] == pytest.approx(500, rel=0.02)
    assert figure.axes[2].get_title().endswith("(first seed)")


def test_each_transport_has_a_colour_and_dashes_of_its_own(tmp_path: Path) -> None:
    names = ("ttpoe", "ttpoe-pfc", "roce-pfc", "roce", "ttpoe-jumbo", "another", "and another")
    figure = drawn([make_result(name) for name in names], tmp_path / "a.png")
    handles = figure.legends[0].get_lines()
    assert len({line.get_color() for line in handles}) == len(names) - 1
    assert handles[0].get_color() == handles[4].get_color(), "jumbo is ttpoe in another size"
    assert "no pauses" in [text.get_text() for text in figure.axes[3].texts]


def test_no_two_curves_look_alike(tmp_path: Path) -> None:
    """Transports with several routings too; a transport keeps its style for the first of them."""
    names = ("ttpoe", "roce-pfc", "roce", "irn", "spectrum", "ib", "iwarp", "roce-dcqcn")
    runs = [dataclasses.replace(make_result(name), routing=routing)
            for name in names for routing in ("ecmp", "flowlet", "adaptive")]  # fmt: skip
    handles = drawn(runs, tmp_path / "a.png").legends[0].get_lines()
    assert len({(line.get_color(), line.get_marker()) for line in handles}) == len(runs)
    alone = drawn([make_result(name) for name in names], tmp_path / "b.png").legends[0].get_lines()
    for label, line in (("ttpoe, ecmp", alone[0]), ("roce-pfc, ecmp", alone[1])):
        first = next(handle for handle in handles if str(handle.get_label()).startswith(label))
        assert (first.get_color(), first.get_marker()) == (line.get_color(), line.get_marker())


def test_the_queue_is_named_where_there_are_several_receivers(tmp_path: Path) -> None:
    one, several = make_result(), make_result()
    several.flows["dst"] = [3, 4]
    assert drawn([one], tmp_path / "a.png").axes[2].get_title() == "Queue towards the receiver"
    assert drawn([several], tmp_path / "a.png").axes[2].get_title() == "Queue towards the NIC that is sent most"


def test_frames_that_lines_lost_are_told(tmp_path: Path) -> None:
    lossy = make_result()
    lossy.counters["lost"] = 5639
    legend = drawn([lossy, make_result("roce")], tmp_path / "a.png").legends[0]
    assert [line.get_label() for line in legend.get_lines()] == [
        "ttpoe: 3 drops, 5,639 lost, 0 pauses, 1,234 resent", "roce: 3 drops, 0 pauses, 1,234 resent",
    ]  # fmt: skip


def test_stands_empty_results(tmp_path: Path) -> None:
    figure = drawn([make_result(fct_us=(-1, -1)), make_result("roce", fct_us=(-1, -1), buckets=1)], tmp_path / "a.png")
    assert [panel.texts[0].get_text() for panel in figure.axes[:2]] == ["no flow finished"] * 2
    drawn([make_result(fct_us=(5,))], tmp_path / "a.png")
    with pytest.raises(ValueError, match="no result"):
        plots.plot_incast([], tmp_path / "b.png")


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def fail(self: object, target: Path, **_: object) -> None:
        target.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(plots.Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plots.plot_incast([make_result()], path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
    assert path.read_bytes() == b"old"


def test_real_runs(tmp_path: Path) -> None:
    scenario = make_scenario({
        "workload": {"kind": "incast", "senders": 6, "size_bytes": 60_001},
        "switch": {"buffer_bytes": 600_000, "alpha": 0.05},
    })
    results = [Fabric(scenario, name, 1).run() for name in ("ttpoe", "roce-pfc", "roce")]
    figure = drawn(results, tmp_path / "a.png")
    deepest = max(int(result.series["depth_max_bytes"].max()) for result in results)
    assert max(y.max() for _, y in curves(figure.axes[2])) == pytest.approx(deepest / 1000)
    assert len(curves(figure.axes[3])) == 1, "only roce-pfc pauses"


def test_changes_of_links_are_marked(tmp_path: Path) -> None:
    events = [{"at_ps": "7us", "what": "flap", "link": "h1", "down_ps": "3us"},
              {"at_ps": "1s", "what": "fail", "link": "h1"}]  # fmt: skip
    values = {"workload": {"kind": "incast", "senders": 2, "size_bytes": 200_000}, "events": events}
    results = [Fabric(make_scenario(values), name, 1).run() for name in ("ttpoe", "ib")]
    figure = drawn(results, tmp_path / "a.png")
    for panel in figure.axes[2:4]:
        marks = [segment[0, 0] for lines in panel.collections for segment in lines.get_segments()]
        assert marks == [7, 10]
    assert "links change" in figure.axes[2].get_title()
    assert "links change" not in drawn([make_result()], tmp_path / "b.png").axes[2].get_title()


def test_does_not_touch_pyplot() -> None:
    code = "import sys, traces.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""`rankwise report`: what is on the page is what is in the log, whatever became of the run."""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import browser
import runlogs
from rankwise import cli, history
from rankwise.errors import UsageError
from rankwise.report import account, compose, curves, means, summary, tables
from rankwise.report.thinning import kept
from rankwise.report.timeline import Timeline
from rankwise.report.view import Axes, views_of
from runlogs import BEGAN, PHASES
from test_page import ARTIFACTS

NOW = BEGAN + 1000.0


def call(*words: str) -> int:
    """The exit code of `rankwise words`, in this process."""
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def restarted() -> list[runlogs.Line]:
    """Three epochs of 49 steps; after step 110 the ranks fail, and go on from step 98, 5 seconds later."""
    lines = runlogs.training(seed=4, micro_batch=64)
    at = next(number for number, line in enumerate(lines) if line["step"] > 98)
    late = [{**line, "time": line["time"] + 5.0} for line in lines[at:]]
    return [*lines[:at], runlogs.start(step=98, epoch=2, time=lines[at - 1]["time"] + 4.5, attempt=1, seed=4,
                                       micro_batch=64), *late]


def read(folder: Path, lines: list[Any], **how: Any) -> history.History:
    return history.read(runlogs.write(folder, lines, **how))


# What is in the log

def test_a_log_is_read_back(tmp_path: Path) -> None:
    """Every line becomes an event of its kind, with what it says."""
    lines = restarted()
    found = read(tmp_path / "run", lines)
    assert len(found.events) == len(lines)
    assert found.damaged == 0
    assert [start.attempt for start in found.starts] == [0, 1]
    assert found.starts[0].settings["micro_batch"] == 64
    assert [each.step for each in found.checkpoints] == [49, 98, 147]
    assert found.splits[0].ranks[1].seconds == pytest.approx({name: 1.5 * value for name, value in PHASES.items()})
    assert found.splits[0].ranks[0].memory_bytes == (300_010_000.0,)
    assert found.end is not None
    assert found.end.how == "finished"
    assert len(found.end.lines) == 5


@pytest.mark.parametrize("damage", [
    "", "{", "[1, 2]", "null", '"text"', '{"step": "x", "epoch": 0}', '{"step": 1}', '{"record": "start", "step": 0}',
    '{"record": "unheard of", "step": 1, "epoch": 0}', '{"step": 1, "epoch": 0, "loss": {"a": 1}}',
    '{"record": "split", "step": 1, "epoch": 0, "ranks": [{}]}', "\x00\x00\x00"])
def test_a_damaged_line_is_left_out(tmp_path: Path, damage: str) -> None:
    """It is counted, and the others count."""
    lines = runlogs.training(epochs=1)
    found = read(tmp_path / "run", [lines[0], damage, *lines[1:]])
    assert len(found.events) == len(lines)
    assert found.damaged == (1 if damage else 0)


def test_the_last_line_may_be_cut(tmp_path: Path) -> None:
    """A killed run leaves half a line, and no end."""
    lines = runlogs.training(epochs=1)
    found = read(tmp_path / "run", lines, cut=True)
    assert (len(found.events), found.damaged, found.end) == (len(lines) - 1, 1, None)


def test_an_end_counts_until_the_next_start(tmp_path: Path) -> None:
    """A run that was preempted and is resumed has no end yet."""
    lines = runlogs.training(epochs=1)
    end, start = lines[-1], runlogs.start(step=49, epoch=1, time=BEGAN + 90)
    assert read(tmp_path / "a", [*lines[:-1], {**end, "how": "preempted"}]).end is not None
    assert read(tmp_path / "b", [*lines[:-1], {**end, "how": "preempted"}, start]).end is None


def test_the_latest_part_of_a_long_log(tmp_path: Path) -> None:
    """Its last lines are found without the rest, and nothing is found where nothing is."""
    lines = [runlogs.numbers(step, 0, BEGAN + step, loss=float(step)) for step in range(1, 6001)]
    found = history.latest(runlogs.write(tmp_path / "run", lines))
    assert found.last_step == 6000
    assert 100 < len(found.events) < 6000
    assert found.damaged == 0
    assert history.latest(tmp_path / "none").events == ()


# Where events stand

def test_epochs_are_parts_of_known_lengths(tmp_path: Path) -> None:
    """Epochs of 49 and of 30 steps; the third has not ended, and is taken to be as long as the second."""
    lines = [runlogs.start(), runlogs.numbers(49, 0, BEGAN + 1, epoch_loss=1.0),
             runlogs.numbers(64, 1, BEGAN + 2, loss=1.0), runlogs.numbers(79, 1, BEGAN + 3, epoch_loss=1.0),
             runlogs.numbers(94, 2, BEGAN + 4, loss=1.0)]
    found = read(tmp_path / "run", lines)
    timeline = Timeline(found)
    assert [timeline.epochs(event) for event in found.events] == [0.0, 1.0, 1.5, 2.0, 2.5]


def test_epochs_of_a_run_that_goes_on_from_another_one(tmp_path: Path) -> None:
    """Its log begins in the third epoch, after 98 steps; epochs have 49."""
    lines = [runlogs.start(step=98, epoch=2), runlogs.numbers(147, 2, BEGAN + 1, epoch_loss=1.0),
             runlogs.numbers(196, 3, BEGAN + 1, epoch_loss=1.0), runlogs.numbers(245, 4, BEGAN + 1, loss=1.0)]
    found = read(tmp_path / "run", lines)
    assert [Timeline(found).epochs(event) for event in found.events] == [2.0, 3.0, 4.0, 5.0]


def test_what_was_no_finite_number_is_told(tmp_path: Path) -> None:
    """A gap in the curve, a word in its table, and a sentence: how often, and since when."""
    lines = [runlogs.start(), *(runlogs.numbers(step, 0, BEGAN + step, loss=1.0 if step < 30 else None)
                                for step in (10, 20, 30, 40))]
    page = compose.page_of([read(tmp_path / "run", lines)], now=NOW).to_html()
    assert "run: loss was no finite number in 2 of 4 entries, first at step 30." in page
    assert '<td class="number">not finite</td>' in page


def test_seconds_leave_out_what_lies_between_launches(tmp_path: Path) -> None:
    """A restart by the launcher is waited for; the night before a run is resumed is not."""
    lines = [runlogs.start(), runlogs.numbers(10, 0, BEGAN + 10, loss=1.0),
             runlogs.start(step=10, time=BEGAN + 15, attempt=1), runlogs.numbers(20, 0, BEGAN + 20, loss=1.0),
             runlogs.start(step=20, time=BEGAN + 40_000), runlogs.numbers(30, 0, BEGAN + 40_007, loss=1.0)]
    found = read(tmp_path / "run", lines)
    timeline = Timeline(found)
    assert [timeline.seconds(event) for event in found.events] == [0.0, 10.0, 15.0, 20.0, 20.0, 27.0]


@given(st.lists(st.one_of(st.just(math.nan), st.floats(-1e6, 1e6)), max_size=300), st.integers(4, 40))
def test_thinning_keeps_ends_peaks_and_troughs(values: list[float], limit: int) -> None:
    """What stays is in order, no more than the limit, and has the extremes of all."""
    chosen = kept(values, limit)
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= limit or len(values) <= limit
    known = [value for value in values if not math.isnan(value)]
    if values:
        assert {0, len(values) - 1} <= set(chosen)
    if known:
        stay = [values[place] for place in chosen]
        assert max(known) in stay
        assert min(known) in stay


def test_a_mean_counts_steps(tmp_path: Path) -> None:
    """30 steps of one length and 10 of twice that: 1.25 of the first, of each rank and over both of them."""
    lines = [runlogs.start(), runlogs.split(30, 0, BEGAN + 1, steps=30, factors=(1.0, 3.0)),
             runlogs.split(40, 0, BEGAN + 2, steps=10, factors=(2.0, 6.0))]
    splits = read(tmp_path / "run", lines).splits
    assert means.of_rank(splits, 0).seconds["forward"] == pytest.approx(0.005)
    assert means.of_rank(splits, 1).seconds["forward"] == pytest.approx(0.015)
    assert means.mean_over_ranks(splits).seconds["forward"] == pytest.approx(0.010)
    assert means.mean_over_ranks(splits).communication_total == pytest.approx(0.0125)
    assert [mean.steps for mean in means.merged(splits, 1)] == [40]
    assert [mean.steps for mean in means.merged(splits, 2)] == [30, 10]


# What is said of a run

@pytest.mark.parametrize(("how", "said"), [
    ("finished", "Finished at step 147"), ("failed", "Failed at step 147"),
    ("preempted", "Was asked to end, and saved, at step 147"), ("interrupted", "Was interrupted at step 147")])
def test_how_it_ended_is_said(tmp_path: Path, how: str, said: str) -> None:
    lines = runlogs.training()
    [view] = views_of([read(tmp_path / "run", [*lines[:-1], {**lines[-1], "how": how}])])
    assert said in summary.sentence(view, NOW)


def test_of_a_killed_run_it_is_said_what_is_known(tmp_path: Path) -> None:
    """No end, up to which step, and how old the last word is."""
    [view] = views_of([read(tmp_path / "run", runlogs.training()[:-1])])
    said = summary.sentence(view, BEGAN + 2 + 147 * 0.02 + 30.0)
    assert "No end is on record: the run was killed, or is still running. It is known up to step 147" in said
    assert "30.0 s before this page was made" in said


def test_of_a_killed_run_there_is_what_it_would_have_said(tmp_path: Path) -> None:
    """The five lines of an end, from its splits: rank 1 is 1.5 times as slow as rank 0, which waits for nobody else."""
    lines = account.lines(read(tmp_path / "run", runlogs.training()[:-1]))
    assert [line.split("  ")[0] for line in lines] == ["throughput", "step", "memory", "slowest rank", "advice"]
    assert "mean over 140 steps" in lines[0]
    assert "others at most 301 MB (rank 1)" in lines[2]
    assert "rank 1: 7.25 ms a step behind" in lines[3]   # half of all phases but communication
    assert account.lines(read(tmp_path / "new", [runlogs.start()])) == []


def test_the_first_step_of_a_start_is_left_out(tmp_path: Path) -> None:
    """Its split is no measure of a step; a later interval of one step is."""
    lines = [runlogs.start(), runlogs.split(1, 0, BEGAN + 9, steps=1), runlogs.split(2, 0, BEGAN + 9, steps=1),
             runlogs.start(step=2, attempt=1, time=BEGAN + 12), runlogs.split(3, 0, BEGAN + 20, steps=1)]
    assert [split.step for split in read(tmp_path / "run", lines).splits] == [2]


def test_settings_that_differ_are_told(tmp_path: Path) -> None:
    """From the default, and between runs; the latter are marked."""
    views = views_of([read(tmp_path / "a", runlogs.training(seed=4, epochs=1)),
                      read(tmp_path / "b", runlogs.training(seed=4, epochs=1, micro_batch=64))])
    differing, every = tables.settings(views)
    assert [list(row) for row in differing.rows] == [
        ["--mode", "auto", "ddp", "ddp"], ["--devices", "-", "2", "2"], ["--seed", "0", "4", "4"],
        ["--micro-batch", "-", "-", "64"]]
    assert [differing.rows[number][0] for number in differing.marked] == ["--micro-batch"]
    assert len(every.rows) == len(runlogs.start()["settings"])


def test_happenings_are_listed(tmp_path: Path) -> None:
    """With the silence before a restart, in order."""
    [view] = views_of([read(tmp_path / "run", restarted())])
    told = [(row[0], row[1], row[5]) for row in tables.happenings(view).rows]
    assert told == [("start", 0, "mode ddp, 2 devices"), ("checkpoint", 49, "checkpoints/step-000049"),
                    ("checkpoint", 98, "checkpoints/step-000098"),
                    ("restart", 98, "attempt 2, mode ddp, 2 devices; after 4.50 s without a word"),
                    ("checkpoint", 147, "checkpoints/step-000147"), ("finished", 147, "")]


def test_two_runs_have_one_colour_each(tmp_path: Path) -> None:
    """The same in every chart, and the same axes; a run without epochs puts both on steps."""
    short = [runlogs.start(), runlogs.numbers(10, 0, BEGAN + 1, loss=1.0, samples_per_second=5.0)]
    views = views_of([read(tmp_path / "a" / "run", runlogs.training()), read(tmp_path / "b" / "run", short)])
    assert [view.name for view in views] == [str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run")]
    axes = Axes.of(views)
    for name in ("loss", "samples_per_second"):
        chart = curves.logged(name, name, "", "", views, axes)
        assert [series.colour for series in chart.series] == [0, 1]
        assert chart.x.title == "steps"
        assert chart.series[1].x == [10.0]
        assert chart.series[1].other_x == [1.0]


# The command

def data_of(page: Path) -> dict[str, Any]:
    """What stands in the page's own data."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"))
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_report_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands in the run's folder, whose log alone it was made from, and has its numbers."""
    folder = runlogs.write(tmp_path / "runs" / "mine", restarted())
    (folder / "settings.json").write_text("{}")
    assert call("report", "mine", "--runs", str(tmp_path / "runs")) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    data = data_of(folder / "report.html")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    by_title = {chart["title"]: chart for chart in data["charts"]}
    for title, name in (("Loss", "loss"), ("Loss of each epoch", "epoch_loss"), ("accuracy", "accuracy"),
                        ("Samples per second", "samples_per_second")):
        logged = [line for line in lines if name in line]
        assert by_title[title]["traces"][0]["plotly"]["y"] == [line[name] for line in logged]
        epochs, seconds = by_title[title]["traces"][0]["x"]
        assert epochs == pytest.approx([line["step"] / 49 for line in logged])
        assert seconds == pytest.approx([line["time"] - BEGAN for line in logged])
    splits = [line for line in lines if line.get("record") == "split"]
    for trace in by_title["Split of the step: mine"]["traces"]:
        milliseconds = [500 * sum(rank[trace["plotly"]["name"]] for rank in line["ranks"]) for line in splits]
        assert trace["plotly"]["y"] == pytest.approx(milliseconds)
    assert [trace["plotly"]["y"][-1] for trace in by_title["Memory"]["traces"]] == pytest.approx(
        [rank["memory_bytes"][0] / 1e6 for rank in splits[-1]["ranks"]])
    [run] = data["values"]["runs"]
    assert (run["step"], run["ended"], run["last"]["accuracy"]) == (147, "finished", 0.7)
    assert [rank["step"] for rank in run["ranks"]] == pytest.approx([0.0165, 0.02475])
    assert run["lines"] == lines[-1]["lines"]


def test_reports_of_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by name, by folder and as `latest`; the page stands where it is asked for, or here."""
    monkeypatch.chdir(tmp_path)
    runlogs.write(tmp_path / "runs" / "one", runlogs.training(epochs=1))
    runlogs.write(tmp_path / "elsewhere" / "two", restarted()[:-1])
    assert call("report", "latest", "elsewhere/two") == 0
    assert call("report", "one", str(tmp_path / "elsewhere" / "two"), "--output", "both.html") == 0
    names = [run["name"] for run in data_of(tmp_path / "both.html")["values"]["runs"]]
    assert names == [run["name"] for run in data_of(tmp_path / "report.html")["values"]["runs"]] == ["one", "two"]
    charts = {chart["title"]: chart for chart in data_of(tmp_path / "both.html")["charts"]}
    assert [trace["colour"] for trace in charts["Loss"]["traces"]] == [0, 1, 1]   # the second was restarted
    assert charts["Split of the step, run by run"]["traces"][1]["plotly"]["y"] == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize(("words", "said"), [
    (["report", "mien"], "Did you mean mine?"), (["report", "nothing-like-it"], "Runs are: empty, mine."),
    (["report", "empty"], "has no metrics.jsonl"), (["report", "blank"], "It is empty."),
    (["report", "mine", "--output", "no/such/folder/page.html"], "cannot be written"), (["report"], "RUN")])
def test_what_cannot_be_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                 words: list[str], said: str) -> None:
    """Exit code 2, and what to do; no traceback."""
    monkeypatch.chdir(tmp_path)
    runlogs.write(tmp_path / "runs" / "empty", [])
    (tmp_path / "runs" / "empty" / "metrics.jsonl").unlink()
    runlogs.write(tmp_path / "runs" / "mine", runlogs.training(epochs=1))
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "metrics.jsonl").write_text("")
    assert call(*words) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_a_run_with_little_to_say(tmp_path: Path) -> None:
    """Only a start, or numbers of an older rankwise without times and records: a page all the same, which says so."""
    started = compose.page_of([read(tmp_path / "a", [runlogs.start()])], now=NOW).to_html()
    assert "No number is on record." in started
    assert "No throughput is on record." in started
    old = [{"step": step, "epoch": 0, "loss": 1.0 / step} for step in range(1, 4)]
    page = compose.page_of([read(tmp_path / "b", old)], now=NOW).to_html()
    assert "The log has no times: it is of an older rankwise." in page
    assert "steps take their place" in html.unescape(" ".join(page.split()))


def test_thousands_of_lines_are_thinned(tmp_path: Path) -> None:
    """Which is said; the peak stays."""
    lines = [runlogs.start()] + [runlogs.numbers(step, 0, BEGAN + step, loss=9.0 if step == 1234 else 1 / step)
                                 for step in range(1, 5001)]
    page = compose.page_of([read(tmp_path / "run", lines)], now=NOW)
    [chart] = [block["chart"] for section in page.sections for block in section.blocks if block["kind"] == "chart"]
    assert len(chart.series[0].y) <= 600
    assert max(chart.series[0].y) == 9.0
    assert "thinned for the screen" in page.to_html()


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium, which is not here")
def test_reports_in_a_browser(tmp_path: Path) -> None:
    """One run and two: no error, no request, every chart drawn, at two widths; screenshots are kept."""
    mine = runlogs.write(tmp_path / "mine", restarted())
    other = runlogs.write(tmp_path / "other", runlogs.training(epochs=4, loss=2.5))
    with browser.opened() as chromium:
        for name, folders in (("report", [mine]), ("reports", [mine, other])):
            page = tmp_path / f"{name}.html"
            compose.page_of([history.read(folder) for folder in folders], now=NOW).write(page)
            for width in (390, 1280):
                chromium.open(page.as_uri(), width=width, dark=width < 500, touch=width < 500)
                chromium.screenshot(ARTIFACTS / f"{name}-{width}.png")
                assert chromium.complaints == []
                assert chromium.requests == [page.as_uri()]
                assert chromium.evaluate("[...document.querySelectorAll('.chart')].every((chart) => "
                                         "chart.querySelector('.trace'))")
                assert chromium.evaluate("document.documentElement.scrollWidth") <= width
            shown = chromium.evaluate("document.getElementById('chart-0').data[0].y")
            logged = [line["loss"] for line in map(json.loads, (mine / "metrics.jsonl").read_text().splitlines())
                      if "loss" in line]
            assert shown == logged


def test_what_is_no_run_is_no_usage_of_another(tmp_path: Path) -> None:
    """A folder without a log is told by name."""
    with pytest.raises(UsageError, match=f"The run {tmp_path.name} has no metrics.jsonl"):
        history.read(tmp_path)

"""Pages in a real browser: they ask for nothing, complain of nothing, and show the numbers that they were given."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import browser
from browser import Browser
from rankwise.page import Axis, Column, Mark, Page, Series, Table, areas, bars, lines, stacked_bars

ARTIFACTS = Path(__file__).parent.parent / "artifacts"
NASTY = "</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"
PARTS = ("data", "forward", "backward")

pytestmark = [pytest.mark.timeout(120),
              pytest.mark.skipif(browser.find() is None, reason="needs Chromium, which is not here")]


@pytest.fixture
def chromium() -> Iterator[Browser]:
    with browser.opened() as opened:
        yield opened


def page() -> Page:
    """One of everything."""
    made = Page(f"Everything {NASTY}", NASTY, values={"none": math.nan, "text": NASTY})
    curve = Series(name=NASTY, x=[0.5, 1.0, 2.0], other_x=[3.0, 6.0, 12.5], y=[3.0, None, 2.25])
    other = Series(name="other", x=[0.5, 1.5], other_x=[4.0, 9.0], y=[1.0, 0.5], colour=3)
    marks = [Mark(name="saved", x=[1.0], other_x=[6.0], texts=[NASTY]),
             Mark(name="restart", x=[1.5], other_x=[9.0], texts=["attempt 2"], is_line=True)]
    made.section("Lines").paragraph(NASTY).chart(lines(
        "Curves", "Two of them.", x=Axis("epochs"), other_x=Axis("seconds"), y=Axis(NASTY, from_zero=False),
        series=[curve, other], marks=marks))
    made.section("Parts").chart(areas("Areas", "Three parts.", x=Axis("epochs"), y=Axis("ms"), series=[
        Series(name=part, x=[1, 2, 3], y=[1.0, 2.0, 1.5]) for part in PARTS])).chart(stacked_bars(
            "Stack", "Three parts.", x=Axis("layout"), y=Axis("ms"), series=[
                Series(name=part, x=["single on 1", "ddp on 2"], y=[1.0, 0.5]) for part in PARTS]))
    made.section("Bars").chart(bars("Speed-up", "With bounds.", x=Axis("layout"), y=Axis("speed-up"), series=[
        Series(name="median", x=["single on 1", "ddp on 2"], y=[1.0, 1.75], low=[0.9, 1.5], high=[1.1, 2.0])]))
    made.section("Words").points([NASTY]).facts({"device": NASTY, "cores": 2, "share": None}).table(Table(
        "A table", [Column("layout"), Column("time (ms)", is_number=True)],
        [["single on 1", 12.5], ["ddp on 2", math.nan]], marked=[1])).table(Table(
            "Another", [Column("name")], [[NASTY]]), folded="Closed at first")
    return made


def drawn(chromium: Browser, chart: int) -> list[dict[str, Any]]:
    """What plotly.js holds of the traces of a chart."""
    found: list[dict[str, Any]] = chromium.evaluate(f"document.getElementById('chart-{chart}').data.map("
                                                    "(t) => ({name: t.name, x: t.x, y: t.y, error: t.error_y}))")
    return found


def test_it_opens_anywhere(chromium: Browser, tmp_path: Path) -> None:
    """No error, no request, all charts, and nothing wider than the screen; a screenshot is kept."""
    page().write(tmp_path / "page.html")
    url = (tmp_path / "page.html").as_uri()
    for width, dark in itertools.product((390, 1280), (False, True)):
        chromium.open(url, width=width, dark=dark, touch=width < 500)
        chromium.screenshot(ARTIFACTS / f"page-{width}-{'dark' if dark else 'light'}.png")
        assert chromium.complaints == []
        assert chromium.requests == [url]
        assert chromium.evaluate("[...document.querySelectorAll('.chart')].map((chart) => "
                                 "chart.querySelectorAll('.trace').length)") == [2 + 2, 3, 3, 1]
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width


def test_what_it_is_given_is_text(chromium: Browser, tmp_path: Path) -> None:
    """Markup in names, texts and values is shown as it is, in the page and in its data."""
    page().write(tmp_path / "page.html")
    chromium.open((tmp_path / "page.html").as_uri())
    assert chromium.evaluate("document.title") == f"Everything {NASTY}"
    assert chromium.evaluate("document.querySelector('main li').textContent") == NASTY
    assert chromium.evaluate("JSON.parse(document.getElementById('data').textContent).values") == {
        "none": None, "text": NASTY}
    assert chromium.evaluate("document.querySelectorAll('img').length") == 0
    assert drawn(chromium, 0)[0]["name"] == NASTY
    compare_numbers(chromium)


def compare_numbers(chromium: Browser) -> None:
    """In the charts and in the tables below them stand those that were given; gaps and what is no number too."""
    curve, other, saved, restart = drawn(chromium, 0)
    assert (curve["x"], curve["y"]) == ([0.5, 1.0, 2.0], [3.0, None, 2.25])
    assert (other["x"], other["y"]) == ([0.5, 1.5], [1.0, 0.5])
    assert saved["x"] == [1.0]
    assert restart["x"] == [1.5, 1.5, None]
    [median] = drawn(chromium, 3)
    assert median["error"]["array"] == pytest.approx([0.1, 0.25])
    assert median["error"]["arrayminus"] == pytest.approx([0.1, 0.25])
    cells = ("[...document.querySelectorAll('{} tbody tr')].map((row) => [...row.children]"
             ".map((cell) => cell.textContent))")
    assert chromium.evaluate(cells.format("section:nth-of-type(1)")) == [
        [NASTY, "0.5", "3", "3"], [NASTY, "1", "6", "not measured"], [NASTY, "2", "12.5", "2.25"],
        ["other", "0.5", "4", "1"], ["other", "1.5", "9", "0.5"]]
    assert chromium.evaluate(cells.format("section:nth-of-type(3)")) == [
        ["median", "single on 1", "1", "0.9", "1.1"], ["median", "ddp on 2", "1.75", "1.5", "2"]]
    assert chromium.evaluate(cells.format("section:nth-of-type(4)"))[:2] == [
        ["single on 1", "12.5"], ["ddp on 2", "not finite"]]


def test_the_other_axis_is_chosen_by_keyboard(chromium: Browser, tmp_path: Path) -> None:
    """The radio buttons are hidden without the script, and change all charts that have two axes."""
    page().write(tmp_path / "page.html")
    assert '<fieldset id="axis" hidden>' in (tmp_path / "page.html").read_text()
    chromium.open((tmp_path / "page.html").as_uri())
    chromium.evaluate("document.querySelector('#axis input').focus()")
    chromium.press("ArrowRight", 39)
    chromium.settle()
    assert drawn(chromium, 0)[0]["x"] == [3.0, 6.0, 12.5]
    assert drawn(chromium, 0)[3]["x"] == [9.0, 9.0, None]
    assert drawn(chromium, 1)[0]["x"] == [1, 2, 3]
    assert chromium.evaluate("document.getElementById('chart-0').layout.xaxis.title.text") == "seconds"
    assert chromium.complaints == []


CONTRASTS = """(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const computed = (name) => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`;
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return light(colour);
  };
  const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const names = ["--text", "--quiet", "--link", ...[...Array(8).keys()].map((number) => `--colour-${number}`)];
  return Object.fromEntries(names.map((name) => [name, Math.min(
    ...["--background", "--raised", "--marked"].map((back) => ratio(computed(name), computed(back))))]));
})()"""


def test_it_can_be_read(chromium: Browser, tmp_path: Path) -> None:
    """Contrasts as WCAG 2.1 has them (1.4.3: 4.5 for text, 1.4.11: 3 for lines); what a screen reader needs is there.

    Charts are drawn anew when the reader's colour scheme changes.
    """
    page().write(tmp_path / "page.html")
    chromium.open((tmp_path / "page.html").as_uri())
    backgrounds = []
    for dark in (False, True):
        chromium.prefer(dark=dark)
        chromium.settle()
        backgrounds.append(chromium.evaluate("document.getElementById('chart-0').layout.paper_bgcolor"))
        for name, ratio in chromium.evaluate(CONTRASTS).items():
            assert ratio >= (3.0 if name.startswith("--colour") else 4.5), (name, dark)
    assert backgrounds[0] != backgrounds[1]
    assert chromium.evaluate("document.documentElement.lang") == "en"
    levels = chromium.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert chromium.evaluate("[...document.querySelectorAll('.chart')].every((c) => c.getAttribute('role') === 'img' "
                             "&& c.getAttribute('aria-label').length > 10)")
    assert chromium.evaluate("[...document.querySelectorAll('table')].every((t) => t.caption && "
                             "[...t.tHead.querySelectorAll('th')].every((h) => h.scope === 'col'))")
    assert chromium.evaluate("[...document.querySelectorAll('.wide')].every((box) => box.tabIndex === 0)")


def test_its_policy_forbids_what_it_does_not_do(chromium: Browser, tmp_path: Path) -> None:
    """Were something to ask for a file or to add a script, the browser would refuse it."""
    page().write(tmp_path / "page.html")
    chromium.open((tmp_path / "page.html").as_uri())
    assert chromium.evaluate("fetch('http://127.0.0.1:9/').then(() => 'got', () => 'refused')") == "refused"
    chromium.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))")
    chromium.settle()
    assert chromium.evaluate("window.ran") is None
    assert any(text.startswith("Connecting to 'http://127.0.0.1:9/' violates") for text in chromium.complaints)
    assert any(text.startswith("Executing inline script violates") for text in chromium.complaints)


def test_the_checks_see_what_they_look_for(chromium: Browser, tmp_path: Path) -> None:
    """A page that asks for a picture, logs an error and throws is caught at all three."""
    (tmp_path / "bad.html").write_text("<!doctype html><img src='http://127.0.0.1:9/x.png'><script>console.error('e1');"
                                       "throw new Error('e2')</script>")
    chromium.open((tmp_path / "bad.html").as_uri())
    assert "http://127.0.0.1:9/x.png" in chromium.requests
    said = "\n".join(chromium.complaints)
    assert "e1" in said
    assert "e2" in said


def test_series_and_rows_have_to_fit() -> None:
    """What would be drawn shifted is refused."""
    with pytest.raises(ValueError, match="2 values at 3 places"):
        Series(name="short", x=[1, 2, 3], y=[1.0, 2.0])
    with pytest.raises(ValueError, match="a row of 1 cells in 2 columns"):
        Table("short", [Column("a"), Column("b")], [["x"]])

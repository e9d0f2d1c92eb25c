"""One HTML page that needs nothing else: text, tables and charts from plain values, in a file that opens anywhere.

    page = Page("rankwise compare fashion", "Step times of three layouts on this machine.", values=everything)
    speed = page.section("Throughput").paragraph("Two devices are 1.7 times as fast as one.")
    speed.chart(lines("Samples per second", "Higher is better.", x=Axis("devices"), y=Axis("samples/s"), series=[...]))
    speed.table(Table("Step time", [Column("layout"), Column("median (ms)", is_number=True)], rows))
    page.write(Path("compare.html"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise.page.charts import Axis, Chart, Mark, Series, areas, bars, lines, stacked_bars
from rankwise.page.tables import Cell, Column, Table, numbers_of

__all__ = ["Axis", "Cell", "Chart", "Column", "Mark", "Page", "Section", "Series", "Table", "areas", "bars", "lines",
           "stacked_bars"]


class Section:
    """A heading and what stands below it, in the order in which it was added; each method returns the section."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.blocks: list[dict[str, Any]] = []

    def paragraph(self, text: str) -> Section:
        return self._add("paragraph", text=text)

    def points(self, texts: Sequence[str]) -> Section:
        """A list; nothing where it is empty."""
        return self._add("points", texts=texts) if texts else self

    def facts(self, facts: Mapping[str, Cell]) -> Section:
        """Names and what they are, such as versions."""
        return self._add("facts", facts=facts)

    def table(self, table: Table, *, folded: str = "") -> Section:
        """A table; with `folded` it is closed at first, under these words."""
        return self._add("table", table=table, folded=folded)

    def chart(self, chart: Chart) -> Section:
        """A chart, with its numbers in a table that is closed at first."""
        return self._add("chart", chart=chart, numbers=numbers_of(chart))

    def _add(self, kind: str, **content: Any) -> Section:
        self.blocks.append({"kind": kind, **content})
        return self


class Page:
    """A title, a sentence or two below it, and sections.

    `values` are plain values that a program may want, such as those of a JSON file beside the page: they stand in the
    page's own data, under that name. What is no finite number is null there.
    """

    def __init__(self, title: str, lead: str = "", *, values: Any = None) -> None:
        self.title, self.lead, self.values = title, lead, values
        self.sections: list[Section] = []

    def section(self, title: str) -> Section:
        """A new section, at the end."""
        self.sections.append(Section(title))
        return self.sections[-1]

    def to_html(self) -> str:
        """The whole document, some 5 MB: the chart library is in it."""
        from rankwise.page.document import document  # loads the template engine and the chart library
        return document(self)

    def write(self, path: Path) -> None:
        """Put the page there at once, so that no half of it is ever seen. Raises OSError."""
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text(self.to_html(), "utf-8")
        temporary.replace(path)

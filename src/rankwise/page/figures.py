"""From a chart to what plotly.js draws; colours come from the page's style, which knows light from dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rankwise.page.charts import Chart, Mark, Series

_POINTS_WITH_MARKERS = 40   # beyond these a line is a curve
_FOOT = 0.015               # of the chart's height


def figure(chart: Chart) -> dict[str, Any]:
    """Plain values: the traces, each with its places on every horizontal axis and its colour, and the layout."""
    axes = [axis for axis in (chart.x, chart.other_x) if axis is not None]
    drawn = [{"x": _on_each_axis(series.x, series.other_x), "colour": index if series.colour is None else series.colour,
              "plotly": _trace(chart, series)} for index, series in enumerate(chart.series)]
    marked = [{"x": _on_each_axis(*_spread(mark)), "colour": mark.colour, "plotly": _mark(mark)} for mark in chart.marks
              if mark.x]
    layout: dict[str, Any] = {
        "yaxis": {"title": {"text": chart.y.title}, "type": "log" if chart.y.is_log else "linear",
                  "rangemode": "tozero" if chart.y.from_zero and not chart.y.is_log else "normal"},
        "hovermode": "x unified" if chart.kind in ("lines", "areas") else "closest",
        "showlegend": len(drawn) + len(marked) > 1,
    }
    if chart.kind in ("bars", "stacked bars"):
        layout |= {"barmode": "stack" if chart.kind == "stacked bars" else "group"}
    if marked:   # a second vertical axis, from 0 at the foot to 1 at the head, which nobody sees
        layout["yaxis2"] = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return {"title": chart.title, "kind": chart.kind, "traces": drawn + marked, "layout": layout,
            "axes": [{"title": {"text": axis.title},
                      "type": "category" if "bars" in chart.kind else "log" if axis.is_log else "linear"}
                     for axis in axes]}


def _on_each_axis(x: Sequence[Any], other_x: Sequence[Any]) -> list[list[Any]]:
    return [list(places) for places in (x, other_x) if len(places)]


def _trace(chart: Chart, series: Series) -> dict[str, Any]:
    trace: dict[str, Any] = {"name": series.name, "y": list(series.y)}
    if series.low:
        trace["error_y"] = {"type": "data", "symmetric": False, "thickness": 1.5, "width": 4,
                            "array": _distances(series.high, series.y), "arrayminus": _distances(series.y, series.low)}
    if "bars" in chart.kind:
        return trace | {"type": "bar"}
    trace |= {"type": "scatter", "mode": "lines+markers" if len(series.x) <= _POINTS_WITH_MARKERS else "lines"}
    return trace | ({"stackgroup": "parts"} if chart.kind == "areas" else {})


def _distances(upper: Sequence[float | None], lower: Sequence[float | None]) -> list[float]:
    return [0.0 if above is None or below is None or not math.isfinite(above - below) else max(0.0, above - below)
            for above, below in zip(upper, lower, strict=True)]


def _spread(mark: Mark) -> tuple[list[Any], list[Any]]:
    """A line is drawn from the foot to the head, and then comes a gap."""
    if not mark.is_line:
        return list(mark.x), list(mark.other_x)
    x, other_x = ([part for place in places for part in (place, place, None)] for places in (mark.x, mark.other_x))
    return x, other_x


def _mark(mark: Mark) -> dict[str, Any]:
    common = {"type": "scatter", "name": mark.name, "yaxis": "y2", "hoverinfo": "text+name"}
    if mark.is_line:
        return common | {"mode": "lines", "y": [0, 1, None] * len(mark.x), "line": {"dash": "dash", "width": 1.5},
                         "text": [part for text in mark.texts for part in (text, text, None)]}
    return common | {"mode": "markers", "y": [_FOOT] * len(mark.x), "text": list(mark.texts),
                     "marker": {"symbol": "triangle-up", "size": 10}}

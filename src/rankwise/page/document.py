"""The HTML of a page: template, style, script and chart library in one document that asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from rankwise.page.figures import figure
from rankwise.page.tables import shown

if TYPE_CHECKING:
    from rankwise.page import Page


def document(page: Page) -> str:
    """The document as text. Whatever stands in the page's values, none of it becomes markup or code."""
    charts = [block["chart"] for section in page.sections for block in section.blocks if block["kind"] == "chart"]
    scripts = [get_plotlyjs(), _asset("page.js")]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                  lstrip_blocks=True).from_string(_asset("page.html"))
    return template.render(
        page=page, shown=shown, charts=charts, switch=next((each for each in charts if each.other_x), None),
        policy=_policy(scripts), style=Markup(_asset("page.css")),  # noqa: S704 - files of this package
        scripts=[Markup(script) for script in scripts],  # noqa: S704
        data=Markup(_data({"values": page.values, "charts": [figure(chart) for chart in charts]})))  # noqa: S704


def _asset(name: str) -> str:
    return resources.files("rankwise.page").joinpath("assets").joinpath(name).read_text("utf-8")


def _policy(scripts: list[str]) -> str:
    """A Content-Security-Policy: these scripts run and no others, and nothing is loaded from anywhere."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
                      for script in scripts)
    return (f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
            "base-uri 'none'; form-action 'none'")


def _data(values: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(_finite(values), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """The same values; what is no finite number is None."""
    if isinstance(value, dict):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""A comparison as plain values, for `compare.json` and for programs; what was not measured is None."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rankwise.compare.layouts import Refusal
from rankwise.compare.measured import Series
from rankwise.compare.result import Result, Row
from rankwise.compare.rounds import WARM_UP
from rankwise.compare.verdict import Verdict
from rankwise.compare.words import notes


def as_values(result: Result, verdict: Verdict) -> dict[str, Any]:
    """All numbers of a comparison. Seconds, bytes and shares, as the names say; what is no finite number is None."""
    found = result.measurements
    values: dict[str, Any] = _finite({
        "target": result.target,
        "scaling": "weak" if result.scaling.is_weak else "strong",
        "batch_size": result.scaling.batch_size,
        "steps": result.measured_steps, "warm_up_steps": WARM_UP, "rounds": result.rounds,
        "machine": asdict(result.machine),
        "control": result.control,
        "baseline": str(found.baseline.layout),
        "baseline_again": {"rounds": _rounds(found.control)},
        "layouts": [{**_row(row), "rounds": _rounds(series)} for row, series in zip(
            result.rows, [found.baseline, *(each for each in found.others if each.rounds)], strict=True)],
        "could_not_run": [_refusal(each) for each in result.missing],
        "best": str(verdict.best.layout),
        "verdict": verdict.lines,
        "notes": notes(result),
    })
    return values


def _row(row: Row) -> dict[str, Any]:
    values = asdict(row)
    del values["rounds"], values["layout"]
    same = row.sameness
    return {"layout": str(row.layout), **asdict(row.layout), "processes": row.layout.processes, **values,
            "sameness": None if same is None else {**asdict(same), "is_same": same.is_same}}


def _rounds(series: Series) -> list[dict[str, Any]]:
    return [{"round": number + 1, **asdict(each)} for number, each in series.rounds.items()]


def _refusal(refusal: Refusal) -> dict[str, Any]:
    return {"layout": str(refusal.layout), **asdict(refusal.layout), "reason": refusal.reason}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

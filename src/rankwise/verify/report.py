"""A verification's result: as a table for people, and as plain values for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from rankwise.verify.compare import Comparison
from rankwise.verify.findings import Finding
from rankwise.verify.verification import Result, Verdict


def show(console: Console, result: Result) -> None:
    """The table, the findings, and what to do."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("layout", "", "steps", "loss", "gradient norm", "weights"):
        table.add_column(name, justify="left" if name in ("layout", "") else "right", no_wrap=True)
    table.add_row("single on 1", "reference", str(result.reference.steps))
    table.add_row("  run again", *_numbers(result.rerun))
    if result.nudged is not None:
        table.add_row("  rounded", *_numbers(result.nudged))
    for verdict in result.verdicts:
        table.add_row(str(verdict.layout), *_numbers(verdict.comparison, verdict=_word(verdict)))
    console.print(table)
    console.print(_limit(result), highlight=False)
    for finding in findings_of(result):
        _tell(console, finding)
    for note in notes(result):
        console.print(f"\n{note}", highlight=False)
    console.print(f"\n{_conclusion(result)}", highlight=False, style="bold")


def _numbers(comparison: Comparison, verdict: str = "") -> list[str]:
    tensors = [*comparison.parameters, *comparison.buffers]
    worst = comparison.worst(tensors)
    return [verdict, str(comparison.steps), _number(comparison.loss.largest),
            _number(comparison.gradient_norm.largest), _number(worst.relative) if worst else "-"]


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}" if math.isfinite(value) else "not finite"


def _word(verdict: Verdict) -> str:
    return "the same" if verdict.is_same else "differs" if verdict.ran else "did not run"


def _limit(result: Result) -> str:
    allowed = result.tolerance.at(max(1, result.reference.steps))
    if allowed == 0:
        return "Largest relative differences; the same bits are asked for."
    said = f"Largest relative differences; allowed after {result.reference.steps} steps: {allowed:.1e}."
    if result.nudged is not None:
        said += "\n`rounded` is the reference from weights that are moved by one rounding each."
    return said


def findings_of(result: Result) -> list[Finding]:
    """All findings; one that several layouts share is told once, for the first."""
    every = [*result.findings, *(finding for verdict in result.verdicts for finding in verdict.findings)]
    return list({finding.code: finding for finding in reversed(every)}.values())[::-1]


def _tell(console: Console, finding: Finding) -> None:
    console.print(f"\n{finding.layout}: {finding.code}", highlight=False, style="bold")
    for name, text in (("seen", finding.seen), ("cause", finding.cause), ("remedy", finding.remedy)):
        indented = text.replace("\n", "\n          ")
        console.print(f"  {name + ':':<8}{indented}", highlight=False, markup=False)


def notes(result: Result) -> list[str]:
    """What the steps that were run cannot show."""
    found = [f"{each.layout} was left out: {each.evidence.ranks[0].error}" for each in result.refused]
    found += [f"{each.layout}: the rows that the model is given are others than the reference's, and all numbers are "
              "the same: rows are not samples here, it seems." for each in result.verdicts
              if each.is_same and each.comparison.samples is not None]
    sizes = {result.reference.samples(step).total() for step in range(1, result.reference.steps + 1)}
    if len(sizes) == 1 and 0 not in sizes:
        found.append(f"Every step had {min(sizes)} samples: a smaller last batch of an epoch was not seen. "
                     "More --steps, or less data, would show it.")
    if sizes == {0}:
        found.append("No samples were seen: the model's forward takes no tensor of data first.")
    return found


def _conclusion(result: Result) -> str:
    if result.is_same:
        return f"The same training in {len(result.verdicts) + 1} layouts, over {result.reference.steps} steps."
    return "Not the same training: see above." if result.exit_code == 1 else "A layout did not run: see above."


def as_values(result: Result) -> dict[str, Any]:
    """The result for `--json`: numbers, strings and lists; what is no finite number is None."""
    values: dict[str, Any] = _finite(_all_values(result))
    return values


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _all_values(result: Result) -> dict[str, Any]:
    return {
        "verdict": ("same", "differs", "could not run")[result.exit_code],
        "steps": result.reference.steps,
        "tolerance": result.tolerance.at(max(1, result.reference.steps)),
        "reference": {"layout": "single on 1", "seconds": round(result.reference.seconds, 2),
                      "losses": [result.reference.loss(step) for step in range(1, result.reference.steps + 1)]},
        "rerun": _values(result.rerun),
        "rounded": _values(result.nudged) if result.nudged is not None else None,
        "layouts": [{"layout": str(each.layout), "mode": each.layout.mode, "devices": each.layout.devices,
                     "verdict": "same" if each.is_same else "differs" if each.ran else "could not run",
                     "seconds": round(each.evidence.seconds, 2),
                     **_values(each.comparison), "findings": _codes(each.findings)} for each in result.verdicts],
        "findings": _codes(findings_of(result)),
        "experiments": [{"change": each.name, "layout": each.layout, "vanished": each.vanished}
                        for each in result.experiments],
        "notes": notes(result),
    }


def _codes(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [{"code": each.code, "layout": each.layout, "step": each.step, "tensor": each.tensor,
             "ranks": list(each.ranks), "seen": each.seen, "cause": each.cause, "remedy": each.remedy}
            for each in findings]


def _values(comparison: Comparison) -> dict[str, Any]:
    parameter, buffer = comparison.worst(comparison.parameters), comparison.worst(comparison.buffers)
    return {
        "steps": comparison.steps, "loss": comparison.loss.largest, "gradient_norm": comparison.gradient_norm.largest,
        "first_step": comparison.first, "first_tensor": comparison.first_gradient, "first_samples": comparison.samples,
        "first_learning_rate": comparison.learning_rate,
        **{kind: None if worst is None else {"name": worst.name, "largest": worst.largest, "relative": worst.relative,
                                             "roundings": worst.roundings}
           for kind, worst in (("parameters", parameter), ("buffers", buffer))}}

"""`rankwise verify`: whether a training is the same on other numbers of devices, and if not, why."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.errors import UsageError
from rankwise.settings import Settings

if TYPE_CHECKING:
    from rankwise.verify.verification import Result

_EXAMPLES = """\b
Examples:
  rankwise verify fashion                                a recipe that comes with rankwise
  rankwise verify train.py --worlds 1,3 -- --lr 0.1      three devices against one, an option of the script
  rankwise verify train.py --exact 4                     the same bits, in exact mode
  rankwise verify train.py --json > verify.json          for machines

Exit code: 0 the same training, 1 another one, 2 it could not be run.
"""


def add_to(app: typer.Typer) -> None:
    """Make it a command of `app`."""
    app.command("verify", short_help="Is a training the same on other numbers of devices?", epilog=_EXAMPLES)(_verify)


def _verify(
    target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="A script (train.py), the name "
                                          "of a recipe (fashion), or with -m a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", show_default=False,
                                                          help="Options of the target itself.")] = None, *,
    module: Annotated[bool, typer.Option("-m", help="TARGET is a module, as for `python -m`.")] = False,
    worlds: Annotated[str, typer.Option(help="numbers of devices to compare")] = "1,2,4",
    modes: Annotated[str | None, typer.Option(help="modes to compare (default: single,dp,ddp; dp where it takes the "
                                              "training)", show_default=False)] = None,
    steps: Annotated[int, typer.Option(min=1, help="updates to run in each layout")] = 20,
    exact: Annotated[int | None, typer.Option(min=1, show_default=False, help="run in exact mode with this many "
                                              "virtual shards, and ask for the same bits")] = None,
    tolerance: Annotated[float | None, typer.Option(min=0.0, show_default=False, help="largest relative difference "
                                                    "that is allowed (default: what rounding can do)")] = None,
    explain: Annotated[bool, typer.Option(help="find the cause of a difference by running again with one suspect "
                                          "changed")] = True,
    timeout: Annotated[float, typer.Option(min=1.0, help="seconds without a step after which a rank is stuck")] = 60.0,
    accelerator: Annotated[str, typer.Option(help="kind of device: auto, cpu, cuda or mps")] = "auto",
    amp: Annotated[str, typer.Option(help="mixed precision: no, bf16 or fp16")] = "no",
    seed: Annotated[int, typer.Option(help="seed of the order, of augmentation and of torch")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> int:
    """Run a training for a few steps in several layouts, and tell whether it is the same training.

    The reference is one device. Losses, gradients, learning rates, samples and weights of each other layout are
    compared with it, step by step, up to what rounding can do. Where they differ the cause is named, and what to
    change in the script. The script runs as it is, up to that many steps; what it writes, it writes.
    """
    settings = Settings(accelerator=accelerator, amp=amp, seed=seed, exact=exact)
    from rankwise.jobprogress import Progress
    from rankwise.launcher.target import resolve
    from rankwise.verify.layouts import layouts
    found = resolve(target, as_module=module)
    if exact is not None and not found.uses_rankwise:
        raise UsageError(f"--exact is {exact}, and {target} does not use rankwise.",
                         "Exact mode is a mode of rankwise's own step.", "Leave --exact out.")
    chosen = layouts(worlds, modes or "single,dp,ddp", exact=exact is not None, uses_rankwise=found.uses_rankwise)
    from rankwise.verify.jobs import Jobs
    from rankwise.verify.verification import CouldNotRunError, verify
    bound = 0.0 if exact is not None else tolerance
    with tempfile.TemporaryDirectory(prefix="rankwise-verify-") as folder:
        jobs = Jobs(found, arguments or [], settings, steps=steps, patience_seconds=timeout, folder=Path(folder))
        try:
            with Progress(steps, len(chosen) + (3 if bound is None else 2)) as progress:
                result = verify(jobs, chosen, progress.tell, tolerance=bound,
                                explain=explain, leave_out="dp" if modes is None else None)
        except CouldNotRunError as error:
            if as_json:
                print(json.dumps({"verdict": "could not run", "message": str(error)}, indent=2))
            raise
    _print(result, as_json=as_json)
    return result.exit_code


def _print(result: Result, *, as_json: bool) -> None:
    from rankwise.verify import report
    if as_json:
        print(json.dumps(report.as_values(result), indent=2))
        return
    from rich.console import Console
    report.show(Console(soft_wrap=True), result)

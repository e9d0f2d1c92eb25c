"""`rankwise compare`: a training in several layouts, timed against one device, with a verdict."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.outputs import writable
from rankwise.errors import UsageError
from rankwise.settings import Settings

if TYPE_CHECKING:
    from rankwise.compare.result import Result

_EXAMPLES = """\b
Examples:
  rankwise compare fashion                               single, dp and ddp on 1, 2 and 4 devices
  rankwise compare train.py --devices 1,2 -- --lr 0.1    two devices against one, an option of the script
  rankwise compare fashion --devices 1,2 --threads 1     on a CPU: a device is one core
  rankwise compare train.py --weak --batch-size 64       64 samples a step for each device
  rankwise compare train.py --devices 1 --amp no,bf16    two precisions on one device

Exit code: 0 compared, 2 it could not be run, 130 interrupted.
"""


def add_to(app: typer.Typer) -> None:
    """Make it a command of `app`."""
    app.command("compare", short_help="Time a training in several layouts: which is fastest, and why?",
                epilog=_EXAMPLES)(_compare)


def _compare(
    target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="A script (train.py), the name "
                                          "of a recipe (fashion), or with -m a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", show_default=False,
                                                          help="Options of the target itself.")] = None, *,
    module: Annotated[bool, typer.Option("-m", help="TARGET is a module, as for `python -m`.")] = False,
    devices: Annotated[str, typer.Option(help="numbers of devices to compare; one is always among them")] = "1,2,4",
    modes: Annotated[str | None, typer.Option(help="modes to compare (default: all that there are)",
                                              show_default=False)] = None,
    amp: Annotated[str, typer.Option(help="precisions to compare: no, bf16 or fp16")] = "no",
    batch_size: Annotated[int | None, typer.Option(min=1, show_default=False, help="handed to the target as its own "
                                                   "--batch-size: samples of one step")] = None,
    weak: Annotated[bool, typer.Option("--weak", help="weak scaling: --batch-size is that of one device, and grows "
                                       "with the devices")] = False,
    steps: Annotated[int | None, typer.Option(min=1, show_default=False, help="updates that are measured in each job "
                                              "(default: those of a second, 30 to 300)")] = None,
    rounds: Annotated[int, typer.Option(min=3, help="times that each layout runs")] = 3,
    output: Annotated[Path | None, typer.Option(show_default=False, help="folder for compare.json and compare.html "
                                                "(default: compare/TARGET-TIME)")] = None,
    accelerator: Annotated[str, typer.Option(help="kind of device: auto, cpu, cuda or mps")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, show_default=False, help="CPU threads a rank (default: cores "
                                                "// ranks)")] = None,
    timeout: Annotated[float, typer.Option(min=1.0, help="seconds without progress after which a job is "
                                            "stuck")] = 300.0,
    seed: Annotated[int, typer.Option(help="seed of the order, of augmentation and of torch")] = 0,
) -> int:
    """Time a training in several layouts, and say which to use, why, and by how much.

    Each layout is a job of its own, for a few steps, in several rounds of changing order; one device is the baseline
    and runs twice a round, which shows how large a difference has to be to count. The global batch is the same in every
    layout, unless --weak. The script runs as it is, up to that many steps; what it writes, it writes.
    """
    settings = Settings(accelerator=accelerator, threads=threads, seed=seed, timeout=timeout, stall_timeout=timeout)
    from rankwise.launcher.target import resolve
    found = resolve(target, as_module=module)
    if amp != "no" and not found.uses_rankwise:
        raise UsageError(f"--amp is {amp}, and {target} does not use rankwise.",
                         "Such a script chooses its precision itself.", "Leave --amp out.")
    from rankwise.compare.layouts import choose
    from rankwise.compare.scaling import Scaling
    scaling = Scaling(batch_size=batch_size, is_weak=weak, uses_rankwise=found.uses_rankwise)
    choice = choose(settings, devices=devices, modes=modes, amp=amp, uses_rankwise=found.uses_rankwise)
    folder = writable(output or Path("compare") / f"{found.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    from rankwise.compare.machine import this_machine
    from rankwise.compare.result import Result
    from rankwise.compare.rounds import FEWEST_STEPS, WARM_UP, measure, steps_of_a_second
    from rankwise.jobprogress import Progress
    from rankwise.trials import Trials
    machine = this_machine(settings)
    with tempfile.TemporaryDirectory(prefix="rankwise-compare-") as scratch:
        trials = Trials(found, arguments or [], settings, folder=Path(scratch))
        if steps is None:
            with Progress(WARM_UP + FEWEST_STEPS, 1) as progress:
                steps = steps_of_a_second(trials, choice.baseline, scaling, progress.tell)
        with Progress(WARM_UP + steps, rounds * (len(choice.others) + 2)) as progress:
            measurements = measure(trials, choice, scaling, steps=steps, rounds=rounds, tell=progress.tell)
    _tell(Result(target=target, scaling=scaling, machine=machine, steps=steps, rounds=rounds,
                 measurements=measurements, refusals=choice.refusals), folder)
    return 0


def _tell(result: Result, folder: Path) -> None:
    """The table on the terminal, and both files."""
    import json

    from rich.console import Console

    from rankwise.compare.pages import page_of
    from rankwise.compare.table import show
    from rankwise.compare.values import as_values
    from rankwise.compare.verdict import verdict
    judged = verdict(result)
    show(Console(soft_wrap=True), result, judged)
    values = as_values(result, judged)
    (folder / "compare.json").write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", "utf-8")
    page_of(result, judged, values).write(folder / "compare.html")
    print(f"\nWritten: {folder / 'compare.json'} and {folder / 'compare.html'}")

"""`rankwise plan`: step time and memory of a training on devices that are not here."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.cli.outputs import writable
from rankwise.errors import UsageError
from rankwise.settings import Settings

if TYPE_CHECKING:
    from rankwise.plan.findings import Result

_EXAMPLES = """\b
Examples:
  rankwise plan fashion                                        a recipe, over a link like the one inside this machine
  rankwise plan train.py --devices 8,64 --link 100gbit         your script, over a network of 100 Gbit/s
  rankwise plan train.py --link 25gbit --link-inside nvlink --devices-per-node 8
  rankwise plan train.py --link 40gbit:20us --global-batch 4096 -- --lr 0.1
"""


def add_to(app: typer.Typer) -> None:
    """Make it a command of `app`."""
    app.command("plan", short_help="Predict a training on devices that are not here.", epilog=_EXAMPLES)(_plan)


def _plan(
    target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="A script (train.py), the name "
                                          "of a recipe (fashion), or with -m a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", show_default=False,
                                                          help="Options of the target itself.")] = None, *,
    module: Annotated[bool, typer.Option("-m", help="TARGET is a module, as for `python -m`.")] = False,
    devices: Annotated[str, typer.Option(help="numbers of devices to plan for")] = "8,64,1024",
    devices_per_node: Annotated[int, typer.Option(min=1, help="devices that share a node, and its link")] = 1,
    link: Annotated[str | None, typer.Option(show_default=False, help="the link between nodes: 100gbit, nvlink, ..., "
                                             "or a rate, and perhaps a latency: 40gbit:20us (default: measured "
                                             "between two devices here)")] = None,
    link_inside: Annotated[str | None, typer.Option(show_default=False, help="the link between devices of a node "
                                                    "(default: measured here)")] = None,
    global_batch: Annotated[int | None, typer.Option(min=1, show_default=False, help="another global batch than the "
                                                     "training's own")] = None,
    steps: Annotated[int, typer.Option(min=5, help="updates to measure at each size")] = 20,
    accelerator: Annotated[str, typer.Option(help="kind of device: auto, cpu, cuda or mps")] = "auto",
    amp: Annotated[str, typer.Option(help="mixed precision: no, bf16 or fp16")] = "no",
    threads: Annotated[int | None, typer.Option(min=1, show_default=False, help="CPU threads of a device (default: "
                                                "all cores)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
    output: Annotated[Path | None, typer.Option(show_default=False, help="folder for plan.json and plan.html")] = None,
) -> int:
    """Predict step time, throughput and memory of a training on devices that are not here.

    The training runs for a few updates on one device, at several sizes of a micro-batch; what communication would cost
    follows from the link. Each prediction has a range, and what that does not cover is said. The global batch is the
    training's own on any number of devices, unless another is asked for. The script runs as it is; what it writes, it
    writes.
    """
    from rankwise.listoptions import numbers
    from rankwise.plan.links import link as named
    numbers_of_devices = numbers("--devices", devices)
    between = named("--link", link) if link else None
    inside = named("--link-inside", link_inside) if link_inside else None
    if inside is not None and devices_per_node == 1:
        raise UsageError(f"--link-inside is {link_inside} with --devices-per-node 1.",
                         "A node with one device has no link inside.", "Give --devices-per-node 8, for example.")
    from rankwise.launcher.target import resolve
    found = resolve(target, as_module=module)
    if not found.uses_rankwise:
        raise UsageError(f"{target} does not use rankwise.",
                         "A plan measures slices of several sizes, and only run.loader can cut them.",
                         "Use rankwise in it (docs/from-torchrun.md), or time it as it is: rankwise compare.")
    if output is not None:
        writable(output)
    from rankwise.plan.planning import Request, plan
    request = Request(devices=numbers_of_devices, devices_per_node=devices_per_node, inside=inside, between=between,
                      global_batch=global_batch, steps=steps)
    settings = Settings(accelerator=accelerator, amp=amp, threads=threads)
    with tempfile.TemporaryDirectory(prefix="rankwise-plan-") as folder:
        result = plan(found, arguments or [], settings, request, Path(folder))
    if output is not None:
        _write(result, output)
    _print(result, output, as_json=as_json)
    return 0


def _write(result: Result, folder: Path) -> None:
    from rankwise.plan.findings import as_values
    from rankwise.plan.webpage import page_of
    (folder / "plan.json").write_text(json.dumps(as_values(result), indent=2) + "\n", encoding="utf-8")
    page_of(result).write(folder / "plan.html")


def _print(result: Result, folder: Path | None, *, as_json: bool) -> None:
    from rankwise.plan import report
    from rankwise.plan.findings import as_values
    if as_json:
        print(json.dumps(as_values(result), indent=2))
        return
    from rich.console import Console
    report.show(Console(soft_wrap=True), result)
    if folder is not None:
        print(f"\nWritten: {folder / 'plan.json'} and {folder / 'plan.html'}")

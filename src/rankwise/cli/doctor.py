"""`rankwise doctor`: whether this machine, or this cluster, is fit to train on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise import environment
from rankwise.cli.settings import given_in
from rankwise.errors import RankwiseError, UsageError
from rankwise.settings import Settings
from rankwise.world import World

if TYPE_CHECKING:
    from rankwise.doctor.examination import Examination

_EXAMPLES = """\b
Examples:
  rankwise doctor                                  this machine, with ranks on all of its devices
  rankwise doctor --quick                          no ranks; some seconds, for a container's health check
  rankwise doctor --markdown                       for a bug report: nothing private
  rankwise doctor --nodes 2 --node-rank 0 --endpoint HOST:29500      and the same on machine 1, with its number
  torchrun --nproc-per-node 4 -m rankwise doctor   in a job that another launcher has started
  srun --ntasks-per-node 1 rankwise doctor         on each machine of Slurm's job; Slurm says the rest

Exit code: 0 no fault (there may be warnings), 1 a fault, 2 it could not be run, 130 interrupted.
"""


def add_to(app: typer.Typer) -> None:
    """Make it a command of `app`."""
    app.command("doctor", short_help="Is this machine, or this cluster, fit to train on?",
                epilog=_EXAMPLES)(_doctor)


def _doctor(context: typer.Context, *,
    quick: Annotated[bool, typer.Option("--quick", help="start no ranks; say one line where all is well")] = False,
    devices: Annotated[int | None, typer.Option(min=1, show_default=False, help="devices of one node, a rank on each "
                                                "(default: all; on a CPU as many processes as cores, 2 to 4)")] = None,
    accelerator: Annotated[str, typer.Option(help="kind of device: auto, cpu, cuda or mps")] = "auto",
    nodes: Annotated[int, typer.Option(min=1, help="machines that take part")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="number of this machine, from 0")] = 0,
    endpoint: Annotated[str | None, typer.Option(show_default=False, help="HOST:PORT of machine 0, where the machines "
                                                 "meet")] = None,
    timeout: Annotated[float, typer.Option(min=1.0, max=3600.0, help="seconds after which a step that does not end "
                                           "is a fault")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="print the findings as JSON")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print them as Markdown, without anything "
                                              "private")] = False,
) -> int:
    """Look whether this machine is fit to train on: each check says what it sees, and what to change.

    Python and torch, driver and versions, GPUs, the host, its network and variables are looked at; then a rank on each
    device runs real collectives, which are checked and timed. With --nodes, or in a job of torchrun or srun, the links
    between machines are tested pair by pair. Nothing is changed on the machine.
    """
    if as_json and as_markdown:
        raise UsageError("--json and --markdown are both given.", "The output is one of the two.", "Leave one out.")
    values = {"accelerator": accelerator, "devices": devices, "nodes": str(nodes), "node_rank": node_rank,
              "endpoint": endpoint, "timeout": timeout}
    from rankwise.launcher.srun import placed
    given, world = given_in(context), environment.world()
    starts_ranks = world is None or world.size == 1 or _is_of_a_launcher(given)
    settings = Settings(**placed(values, given) if starts_ranks else values)
    _refuse_what_contradicts(settings, given, quick=quick)
    show = partial(_print, quick=quick, as_json=as_json, as_markdown=as_markdown)
    rank = None if starts_ranks else world
    if rank is not None and not quick:
        return _as_rank(rank, settings, show)
    examination = _examined(settings, quick=quick)
    if rank is None or rank.local_rank == 0:   # one process of a machine tells what all of its ranks see
        show(examination)
    return examination.exit_code


def _refuse_what_contradicts(settings: Settings, given: set[str], *, quick: bool) -> None:
    about_ranks = [f"--{name}" for name in ("devices", "accelerator") if quick and name in given]
    if about_ranks:
        raise UsageError(f"--quick and {about_ranks[0]} are both given.",
                         f"--quick starts no ranks, which {about_ranks[0]} is about.", "Leave one of them out.")
    if settings.endpoint is None:
        return
    if settings.node_range[1] == 1:
        raise UsageError(f"--endpoint is {settings.endpoint}, and --nodes is 1.", "It is where several machines meet.",
                         "Give --nodes and --node-rank, or leave --endpoint out.")
    from rankwise.doctor.facts.network import host_and_port
    if None in host_and_port(settings.endpoint):
        raise UsageError(f"--endpoint is {settings.endpoint}.", "It is HOST:PORT of machine 0.",
                         "Give --endpoint 10.0.0.1:29500, for example.")


def _examined(settings: Settings, *, quick: bool) -> Examination:
    from rankwise.doctor import examining
    from rankwise.jobprogress import Progress
    step = "facts of this machine"
    with Progress(1, 2) as progress:
        def tell(what: str) -> None:
            nonlocal step
            step = what
            progress.tell(what, 0)

        tell(step)
        try:
            return examining.look(settings) if quick else examining.look_and_start(settings, tell)
        except KeyboardInterrupt:
            print(f"rankwise doctor: interrupted in step `{step}`.", file=sys.stderr)
            raise
        except OSError as error:
            raise RankwiseError("The examination could not be made.", f"The system says: {error.strerror or error}.",
                                "See the limits of this shell: ulimit -a") from error


def _is_of_a_launcher(given: set[str]) -> bool:
    """Whether a process of a job starts ranks itself, one for each machine, and is not a rank."""
    step = environment.step() if environment.meeting_place() else None
    return "nodes" in given or (step is not None and (step.is_a_task_a_node or "devices" in given))


def _as_rank(world: World, settings: Settings, show: Callable[[Examination], None]) -> int:
    if settings.devices is not None:
        raise UsageError(f"--devices is {settings.devices}, in a job of {world.size} ranks.",
                         "The launcher of this job has started its ranks.", "Leave --devices out.")
    from rankwise.doctor.examining import take_part
    from rankwise.launcher.srun import meeting
    with meeting():
        return take_part(world, settings, show)


def _print(examination: Examination, *, quick: bool, as_json: bool, as_markdown: bool) -> None:
    from rich.console import Console

    from rankwise.doctor import table, values
    if as_json:
        print(json.dumps(values.as_values(examination), indent=2, allow_nan=False))
    elif as_markdown:
        print(values.as_markdown(examination))
    else:
        (table.show_short if quick else table.show)(Console(), examination)

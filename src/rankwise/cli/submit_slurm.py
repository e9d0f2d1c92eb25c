"""`rankwise submit slurm`: a training as a Slurm job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rankwise.cli.settings import with_settings

_EXAMPLES = """\b
Examples:
  rankwise submit slurm train.py --nodes 2 --devices 4 --dry-run
"""


def add_to(group: typer.Typer) -> None:
    """Make it a command of `group`."""
    group.command("slurm", epilog=_EXAMPLES)(with_settings(_slurm, but=("node_rank", "endpoint")))


def _slurm(target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="A script (train.py), the "
                                                 "name of a recipe (fashion), with -m a module; or `doctor`.")],
           arguments: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", show_default=False,
                                                                 help="Options of the target itself.")] = None, *,
           module: Annotated[bool, typer.Option("-m", help="TARGET is a module, as for `python -m`.")] = False,
           **settings: Any) -> int:
    """Run a training on machines of a Slurm cluster."""
    from rankwise.submit.work import Work
    work = Work.of(target, arguments, settings, is_module=module)
    print(work.words())
    return 0

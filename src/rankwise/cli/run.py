"""`rankwise run`: a script, a module or a recipe, on as many devices as asked for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rankwise.cli.settings import given_in, with_settings
from rankwise.settings import Settings

_EXAMPLES = """\b
Examples:
  rankwise run fashion --devices 2
  rankwise run train.py --mode ddp --devices 4 -- --epochs 20
  rankwise run train.py -- --help                the options of the script itself
  rankwise run -m package.module --resume latest
  rankwise run train.py --nodes 2 --node-rank 0 --endpoint HOST:29500
  srun --nodes 2 --ntasks-per-node 1 rankwise run train.py --devices 4      Slurm says the rest
"""


def add_to(app: typer.Typer) -> None:
    """Make it a command of `app`."""
    app.command("run", epilog=_EXAMPLES)(with_settings(_run))


def _run(context: typer.Context,
         target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="A script (train.py), "
                                               "the name of a recipe (fashion), or with -m a module.")],
         arguments: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", show_default=False,
                                                               help="Options of the target itself.")] = None, *,
         module: Annotated[bool, typer.Option("-m", help="TARGET is a module, as for `python -m`.")] = False,
         **settings: Any) -> int:
    """Run a script, a module or a recipe on N devices.

    The target's batch size is the global batch: the number of devices changes how fast it trains, not what it computes.
    A script that knows nothing of rankwise runs too, as under torchrun.
    """
    from rankwise.launcher.signals import ended_before_it_began
    ended_before_it_began()
    from rankwise.launcher.srun import placed
    chosen = Settings(**placed(settings, given_in(context)))
    from rankwise.launcher.target import resolve
    found = resolve(target, as_module=module)
    from rankwise.launcher.agent import run_target
    return run_target(found, arguments or [], chosen)

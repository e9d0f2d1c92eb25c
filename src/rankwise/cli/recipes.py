"""`rankwise recipes`: complete training scripts, to list and to copy."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path
from typing import Annotated

import typer

from rankwise.errors import UsageError
from rankwise.launcher.target import RECIPES, recipes


def add_to(app: typer.Typer) -> None:
    """Make it a group of commands of `app`."""
    group = typer.Typer(help="Show complete training scripts: list them, copy one.")
    group.callback(invoke_without_command=True)(_recipes)
    group.command("list")(_list)
    group.command("copy")(_copy)
    app.add_typer(group, name="recipes")


def _recipes(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _list() -> None:
    """List the recipes; `rankwise run NAME` runs one."""
    found = recipes()
    width = max(map(len, found))
    for name, meaning in found.items():
        print(f"{name:<{width}}  {meaning}")


def _copy(name: Annotated[str, typer.Argument(help="The recipe.", show_default=False)],
          to: Annotated[Path, typer.Argument(help="Folder or file to copy it to.")] = Path()) -> None:
    """Copy a recipe's script, to run and to change."""
    found = recipes()
    if name not in found:
        close = difflib.get_close_matches(name, found, n=1)
        raise UsageError(f"There is no recipe `{name}`.", f"Recipes are {', '.join(found)}.",
                         f"Did you mean {close[0]}?" if close else "Choose one of these.")
    target = to / f"{name}.py" if to.is_dir() else to
    if target.exists():
        raise UsageError(f"The file {target} is there already.", "A copy would overwrite it.",
                         f"Give another name: rankwise recipes copy {name} my_{name}.py")
    try:
        shutil.copyfile(RECIPES / f"{name}.py", target)
    except OSError as error:
        raise UsageError(f"The recipe cannot be copied to {target}.", f"The system says: {error.strerror}.",
                         "Give a folder that is there and can be written.") from None
    print(f"{target}\nRun it: python {target}, or on two devices: rankwise run {target} --devices 2")

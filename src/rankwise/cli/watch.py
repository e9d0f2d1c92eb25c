"""`rankwise watch`: a run while it trains, its ranks side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankwise import runfolder
from rankwise.errors import EXIT_FAILED

_EXAMPLES = """\b
Examples:
  rankwise watch latest                    the run that was started last
  rankwise watch fashion-20261130-164631   a run by its name, or by its folder

Exit code: 0 the run has ended, 1 it has failed, 2 there is none, 130 stopped by Ctrl-C; the run goes on.
"""


def add_to(app: typer.Typer) -> None:
    """Make it a command of `app`."""
    app.command("watch", short_help="Watch the ranks of a run while it trains.", epilog=_EXAMPLES)(_watch)


def _watch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run: its name in --runs, its folder, or `latest`.")]
    = "latest", *,
    runs: Annotated[str, typer.Option(help="folder in which runs are kept")] = "runs",
) -> int:
    """Watch a run while it trains: each rank's step, speed, memory and state, and where the time of a step goes.

    It reads files that the ranks leave in the run's folder, so that the run does not notice. It follows restarts, and
    ends with the run. Start and stop it at any time. Without a terminal it prints a line now and then.
    """
    folder = runfolder.find(run, Path(runs)).resolve()
    from rich.console import Console

    from rankwise.watch.follow import follow
    sight = follow(folder, Console())
    return EXIT_FAILED if sight.has_failed else 0

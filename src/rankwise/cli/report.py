"""`rankwise report`: a page of a run, or of several side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rankwise import runfolder
from rankwise.errors import UsageError

_EXAMPLES = """\b
Examples:
  rankwise report latest                          the newest run of this folder's runs/
  rankwise report fashion-20261130-164631         a run by its name, or by its folder
  rankwise report base wide --output both.html    two runs, one upon the other
"""


def add_to(app: typer.Typer) -> None:
    """Make it a command of `app`."""
    app.command("report", epilog=_EXAMPLES)(_report)


def _report(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", show_default=False, help="Runs: names in --runs, "
                                             "folders, or `latest`.")], *,
    output: Annotated[Path | None, typer.Option(show_default=False, help="file to write (default: report.html, in the "
                                                "run's folder, or here for several runs)")] = None,
    runs: Annotated[str, typer.Option(help="folder in which runs are kept")] = "runs",
) -> int:
    """Make one HTML page of a run, or of several runs side by side.

    Curves over epochs and seconds, throughput, the split of the step, memory, restarts and checkpoints, settings and
    environment. The page is one file that opens without a network. It is made from what the run has logged so far, so
    that a run that was killed, or is still running, has one too.
    """
    folders = list(dict.fromkeys(runfolder.find(name, Path(runs)).resolve() for name in run))
    target = output or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    from rankwise.history import read
    from rankwise.report.compose import page_of
    page = page_of([read(folder) for folder in folders], now=time.time())
    try:
        page.write(target)
    except OSError as error:
        raise UsageError(f"The page cannot be written to {target}.", f"The system says: {error.strerror}.",
                         "Give --output a file in a folder that is there and can be written.") from None
    print(target)
    return 0

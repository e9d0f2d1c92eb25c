"""The command `rankwise`: one file a command, whose work is imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from rankwise.cli import compare, doctor, image, plan, recipes, report, run, submit, verify, watch
from rankwise.errors import EXIT_INTERRUPTED, EXIT_USAGE, RankwiseError

_START = """\b
Start here:
  rankwise doctor                     is this machine fit to train on, and if not, what to change
  rankwise run fashion --devices 2    train a small data set on two devices
  rankwise run train.py --devices 4   your own script; its options come after `--`
  rankwise verify train.py            is it the same training on 1, 2 and 4 devices?
  rankwise compare train.py           how fast is it in each mode, and why
  rankwise watch latest               the run that was started last, while it trains
  rankwise report latest              a page of it: curves, split of the step, memory, advice
  rankwise recipes copy toy .         the shortest script, to change
  rankwise image list                 containers to train and to work in, with CUDA or without
  rankwise submit slurm train.py --nodes 2 --devices 4     as a job of the cluster; k8s and ray are the others
"""

app = typer.Typer(name="rankwise", add_completion=True, epilog=_START, rich_markup_mode=None,
                  context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
run.add_to(app)
verify.add_to(app)
compare.add_to(app)
plan.add_to(app)
report.add_to(app)
watch.add_to(app)
recipes.add_to(app)
image.add_to(app)
doctor.add_to(app)
submit.add_to(app)


def _version(asked: bool) -> None:
    if asked:
        from rankwise import __version__
        print(f"rankwise {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _rankwise(context: typer.Context, version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_version, is_eager=True)) -> None:
    """The same PyTorch training, on more devices."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 success, 1 the training failed, 2 usage, 130 interrupted."""
    try:
        code = app(list(sys.argv[1:] if argv is None else argv), prog_name="rankwise", standalone_mode=False)
    except RankwiseError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except Exception as error:
        message = getattr(error, "format_message", None)   # the parser's own errors, whatever their class is called
        if message is None:
            raise
        print(_explained(message(), getattr(error, "option_name", None)), file=sys.stderr)
        code = EXIT_USAGE
    sys.exit(code or 0)


def _explained(message: str, unknown_option: str | None) -> str:
    hint = ("  Options of your own script come after `--`: rankwise run train.py --devices 4 -- --epochs 20\n"
            if unknown_option else "")
    return f"{message}\n{hint}  `rankwise COMMAND --help` lists what each command takes."

"""`launch`: the one call that starts a training function, wherever it stands."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwise import environment
from rankwise.errors import EXIT_INTERRUPTED, RankwiseError, UsageError
from rankwise.settings import Settings
from rankwise.world import World

_OF_THE_LAUNCHER = ("mode", "devices", "accelerator", "threads", "name", "runs", "resume", "timeout", "nodes",
                    "node_rank", "endpoint", "max_restarts")


def launch(function: Callable[..., Any], *, arguments: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Run `function(run, **arguments)` on every device; returns what rank 0's call returned.

    In a script, arguments and settings are read from the command line, where `settings` are the defaults: one device
    unless `--devices` says more. A process that torchrun, srun or `rankwise run` started is one of their ranks. With
    `arguments` (or in a notebook) the command line is left alone, and the function is sent to the ranks by value.

    Raises UsageError for what cannot be used, and RankwiseError where a rank failed, with its traceback. A script
    ends instead, with the message and the error's exit code.
    """
    in_script = arguments is None and not _is_interactive()
    if not in_script or environment.settings() is not None:   # whoever started this rank tells of its failure
        return _launch(function, arguments, settings)
    try:
        return _launch(function, None, settings)
    except RankwiseError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    except Exception:
        from rankwise.launcher.failure import hide_our_frames
        hide_our_frames()
        raise


def _launch(function: Callable[..., Any], arguments: dict[str, Any] | None, defaults: dict[str, Any]) -> Any:
    from rankwise.launcher.lastwords import recorded
    world = environment.world()
    with recorded():
        given, settings = _read(function, arguments, defaults)
    if world is not None:
        from rankwise.launcher.session import run_rank
        from rankwise.launcher.srun import meeting
        with meeting():
            return run_rank(function, given, settings, world, folder=environment.run_folder(),
                            target=name_of(function), is_hosted=_is_interactive())
    return _from_here(function, given, settings, in_script=arguments is None and not _is_interactive())


def _read(function: Callable[..., Any], arguments: dict[str, Any] | None,
          defaults: dict[str, Any]) -> tuple[dict[str, Any], Settings]:
    """The function's arguments, and the settings: the command line's, else the launcher's, else the script's."""
    handed = environment.settings()
    settings = Settings().having(**defaults) if handed is None else _filled(handed, defaults)
    if arguments is not None or _is_interactive():
        _require_fitting(function, arguments or {})
        return arguments or {}, settings
    from rankwise.launcher.options import parse
    given, changes = parse(function, sys.argv[1:], with_settings=handed is None)
    return given, settings.having(**changes)


def _require_fitting(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        name = getattr(function, "__name__", "train")
        raise UsageError(f"{name}{signature} cannot be called with these arguments.",
                         f"Python says: {error}.",
                         f"It is called as {name}(run, **arguments): give `arguments` what it asks for.") from None


def _filled(handed: Settings, defaults: dict[str, Any]) -> Settings:
    """A launcher's settings, and the script's own where the launcher has none and they do not describe its ranks."""
    plain = Settings()
    Settings().having(**defaults)   # names and values are checked here as anywhere
    return handed.having(**{name: value for name, value in defaults.items()
                            if name not in _OF_THE_LAUNCHER and getattr(handed, name) == getattr(plain, name)})


def _from_here(function: Callable[..., Any], arguments: dict[str, Any], settings: Settings, *, in_script: bool) -> Any:
    """No launcher started this process: it is the only rank, or the launcher of several."""
    from rankwise.launcher import layout
    settings = layout.with_devices(settings)
    if layout.is_one_process(settings):
        from rankwise.launcher.session import run_rank
        return run_rank(function, arguments, settings, World(), folder=None, target=name_of(function),
                        is_hosted=not in_script or bool(sys.flags.interactive))
    from rankwise.launcher.agent import choose_folder, raise_failure, run_ranks
    from rankwise.launcher.privatefolder import private_folder
    from rankwise.launcher.shipping import result, ship
    with private_folder() as folder:
        job = ship(function, arguments, folder, has_terminal=not _is_interactive() or sys.stdout.isatty())
        run_folder = choose_folder(settings, name_of(function))
        outcome = run_ranks(job, settings, run_folder, folder)
        if outcome.is_preempted or (outcome.failure is not None and in_script):
            outcome.show()
            raise SystemExit(outcome.exit_code)
        raise_failure(outcome)
        return result(folder)


def name_of(function: Callable[..., Any]) -> str:
    """The word that a run is named after: the script's, else the function's."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).stem if file and not _is_interactive() else getattr(function, "__name__", "run")


def _is_interactive() -> bool:
    """Whether somebody types at this interpreter: a REPL or a notebook, whose command line is not the function's."""
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")

"""A training function sent to other processes by value, and its result sent back."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwise import environment
from rankwise.errors import MisuseError, UsageError
from rankwise.launch.job import Job

_FUNCTION = "function.pickle"
_RESULT = "result.pickle"


def ship(function: Callable[..., Any], arguments: dict[str, Any], folder: Path) -> Job:
    """A job that calls `function(run, **arguments)`; what the function refers to goes with it.

    Raises UsageError for what cannot be sent.
    """
    import cloudpickle
    main = getattr(sys.modules["__main__"], "__file__", None)
    try:
        content = cloudpickle.dumps((function, arguments, main))
    except Exception as error:
        raise UsageError(f"The training function {getattr(function, '__name__', function)} cannot be sent to other "
                         f"processes.", f"It refers to something that cannot be pickled: {error}.",
                         "Create such things (open files, locks, generators) within the function.") from error
    file = folder / _FUNCTION
    file.write_bytes(content)
    return Job(function=str(file), argv=list(sys.argv), path=list(sys.path))


def run_shipped(job: Job, folder: Path) -> None:
    """In a rank: call the function, and on rank 0 keep what it returns in `folder`."""
    import cloudpickle
    sys.path[:] = job.path
    function, arguments, main = cloudpickle.loads(Path(job.function or "").read_bytes())
    _become_main(function, main)
    from rankwise.launch.session import run_rank
    world, settings = environment.world(), environment.settings()
    assert world is not None
    assert settings is not None
    value = run_rank(function, arguments, settings, world, environment.run_folder())
    if not world.is_main:
        return
    try:
        content = cloudpickle.dumps(value)
    except Exception as error:
        raise MisuseError(f"The training function returned a {type(value).__name__}.",
                          f"It cannot be sent back: {error}.", "Return numbers, tensors or plain containers.") from None
    (folder / _RESULT).write_bytes(content)


def result(folder: Path) -> Any:
    """What rank 0's function returned; None where rank 0 ran on another machine."""
    import cloudpickle
    file = folder / _RESULT
    return cloudpickle.loads(file.read_bytes()) if file.exists() else None


def _become_main(function: Callable[..., Any], file: str | None) -> None:
    """A `__main__` that holds what the function's own script defined: pickle looks classes up there by name.

    With its file, data workers that are spawned import it as they would from `python train.py`.
    """
    main = types.ModuleType("__main__")
    if getattr(function, "__module__", None) == "__main__":
        vars(main).update(getattr(function, "__globals__", {}))
    if file is not None:
        main.__file__ = file
    main.__name__ = "__main__"
    sys.modules["__main__"] = main

"""A training function sent to other processes by value, and its result sent back.

What a cell or a script defines goes with it, source lines included: a traceback in a rank reads as it would here.
"""

from __future__ import annotations

import io
import linecache
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwise import environment
from rankwise.errors import MisuseError, UsageError
from rankwise.launcher.job import Job

_FUNCTION = "function.pickle"
_RESULT = "result.pickle"


def ship(function: Callable[..., Any], arguments: dict[str, Any], folder: Path, *, has_terminal: bool = True) -> Job:
    """A job that calls `function(run, **arguments)`; what the function refers to goes with it.

    Raises UsageError for what cannot be sent.
    """
    content = io.BytesIO()
    pickler = _pickler(content)
    try:
        pickler.dump((function, arguments, getattr(sys.modules["__main__"], "__file__", None)))
    except Exception as error:
        raise UsageError(f"The training function {getattr(function, '__name__', function)} cannot be sent to other "
                         f"processes.", f"It refers to something that cannot be pickled: {error}.",
                         "Create such things (open files, locks, generators) within the function.") from error
    file = folder / _FUNCTION
    file.write_bytes(content.getvalue())
    typed = {name for name in pickler.files if not Path(name).is_file()}
    return Job(function=str(file), argv=list(sys.argv), path=list(sys.path), has_terminal=has_terminal,
               sources={name: linecache.getlines(name) for name in typed})


def run_shipped(job: Job, folder: Path) -> None:
    """In a rank: call the function, and on rank 0 keep what it returns in `folder`."""
    import cloudpickle
    sys.path[:] = job.path
    for name, lines in job.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    function, arguments, main = cloudpickle.loads(Path(job.function or "").read_bytes())
    _become_main(function, main)
    from rankwise.launcher.session import run_rank
    world, settings = environment.world(), environment.settings()
    assert world is not None
    assert settings is not None
    value = run_rank(function, arguments, settings, world, folder=environment.run_folder(),
                     target=function.__name__)
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


def _pickler(file: io.BytesIO) -> Any:
    """A cloudpickle pickler that keeps the names of source files, which cloudpickle leaves out, and collects them."""
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file)
            self.files: set[str] = set()

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType) and obj.co_filename:
                self.files.add(obj.co_filename)
                return in_file, (obj.replace(co_filename=""), obj.co_filename)
            return super().reducer_override(obj)

    return Pickler(file)


def in_file(code: types.CodeType, name: str) -> types.CodeType:
    """The same code, as written in the file of that name; unpickling calls it."""
    return code.replace(co_filename=name)

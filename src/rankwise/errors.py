"""What rankwise raises: each error says what was given, what is true, and what to do.

    RankwiseError
    ├── UsageError        an option, target or value that cannot be used            exit code 2
    ├── MisuseError       a training function called things in an order that loses results
    ├── DataError         a data set is missing, damaged or of another kind
    ├── CheckpointError   a checkpoint is missing, damaged or of another training
    └── PeerError         another rank is lost, late or went another way

    Preempted         the system asked the training to end; it is no error              exit code 75

Exit codes of every command: 0 success, 1 the training failed, 2 usage, 75 preempted (to be continued), 130 interrupted.
"""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PREEMPTED = 75   # EX_TEMPFAIL of sysexits.h: the same command may succeed later
EXIT_INTERRUPTED = 130


class RankwiseError(Exception):
    """An error for the person at the keyboard, in three parts that read as one paragraph."""

    exit_code = EXIT_FAILED

    def __init__(self, given: str, truth: str, remedy: str) -> None:
        super().__init__(given, truth, remedy)
        self.given, self.truth, self.remedy = given, truth, remedy

    def __str__(self) -> str:
        return f"{self.given}\n  {self.truth}\n  {self.remedy}"

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows below the cell, by IPython's convention."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(RankwiseError):
    """An option, target or value that cannot be used."""

    exit_code = EXIT_USAGE


class MisuseError(RankwiseError):
    """A training function called things in an order that would lose results."""


class DataError(RankwiseError):
    """A data set is missing, damaged or of another kind."""


class CheckpointError(RankwiseError):
    """A checkpoint is missing, damaged or of another training."""


class PeerError(RankwiseError):
    """Another rank is lost, late or went another way."""


class Preempted(SystemExit):
    """The training was asked to end and has saved what it had; no `except Exception` holds it up."""

    def __init__(self) -> None:
        super().__init__(EXIT_PREEMPTED)

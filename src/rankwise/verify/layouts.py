"""The layouts that a training is verified in: a mode, and how many devices."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.errors import UsageError
from rankwise.listoptions import choices, numbers
from rankwise.modes import MODES


@dataclass(frozen=True)
class Layout:
    """A mode and its number of devices."""

    mode: str
    devices: int

    def __str__(self) -> str:
        return f"{self.mode} on {self.devices}"


REFERENCE = Layout("single", 1)


def layouts(worlds: str, modes: str, *, exact: bool, uses_rankwise: bool) -> list[Layout]:
    """The layouts to compare with the reference, which is one device, and left out here.

    Raises UsageError for what is no number or no mode, and where nothing is left to compare.
    """
    counts = numbers("--worlds", worlds)
    names = choices("--modes", modes, MODES)
    if exact or not uses_rankwise:   # exact mode has no dp; a plain script does not know it
        names = [name for name in names if name != "dp"]
    found = [Layout(name, count) for name in names for count in counts if name != "single" and count > 1]
    if not found:
        raise UsageError(f"--worlds is {worlds} and --modes is {modes}.",
                         "One device is the reference, and here is nothing to compare with it.",
                         "Give, for example, --worlds 1,2 --modes single,ddp.")
    return found

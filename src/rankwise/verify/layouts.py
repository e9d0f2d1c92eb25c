"""The layouts that a training is verified in: a mode, and how many devices."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.errors import UsageError
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
    numbers = sorted({_number(word) for word in _words("--worlds", worlds)})
    names = [_mode(word) for word in _words("--modes", modes)]
    if exact or not uses_rankwise:   # exact mode has no dp; a plain script does not know it
        names = [name for name in names if name != "dp"]
    found = [Layout(name, number) for name in dict.fromkeys(names) for number in numbers
             if name != "single" and number > 1]
    if not found:
        raise UsageError(f"--worlds is {worlds} and --modes is {modes}.",
                         "One device is the reference, and here is nothing to compare with it.",
                         "Give, for example, --worlds 1,2 --modes single,ddp.")
    return found


def _words(option: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{option} is empty.", "It is a list with commas between.", f"Leave {option} out.")
    return words


def _number(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise UsageError(f"--worlds has {word}.", "It is a list of numbers of devices, such as 1,2,4.",
                         "Give --worlds 1,2,4, for example.")
    return int(word)


def _mode(word: str) -> str:
    if word not in MODES:
        raise UsageError(f"--modes has {word}.", f"The modes are {', '.join(MODES)}.", "Choose among these.")
    return word

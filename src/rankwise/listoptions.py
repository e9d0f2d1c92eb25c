"""Options that are lists with commas between: `--devices 1,2,4`, `--modes single,ddp`."""

from __future__ import annotations

from collections.abc import Collection

from rankwise.errors import UsageError


def numbers(option: str, text: str) -> list[int]:
    """The whole numbers of a list, each once, smallest first.

    Raises UsageError for an empty list, and for what is no whole number from 1 on.
    """
    found = set()
    for word in _words(option, text):
        if not word.isdecimal() or int(word) < 1:
            raise UsageError(f"{option} has {word}.", "It is a list of numbers of devices, such as 1,2,4.",
                             f"Give {option} 1,2,4, for example.")
        found.add(int(word))
    return sorted(found)


def choices(option: str, text: str, allowed: Collection[str]) -> list[str]:
    """The words of a list, each once, in the order given; raises UsageError for one that is not among `allowed`."""
    words = list(dict.fromkeys(_words(option, text)))
    for word in words:
        if word not in allowed:
            raise UsageError(f"{option} has {word}.", f"It can have {', '.join(allowed)}.", "Choose among these.")
    return words


def _words(option: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{option} is empty.", "It is a list with commas between.", f"Leave {option} out.")
    return words

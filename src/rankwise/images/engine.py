"""Container engines: which of docker, podman and buildah is here and answers, and how each is told to do a thing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import UsageError

ENGINES = ("docker", "podman", "buildah")
_RUNNING = ("docker", "podman")   # buildah builds and does no more
_ANSWER_SECONDS = 20.0
_WORD = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"   # the grammar of references, as the distribution project gives it
_NAME = rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?{_WORD}(?:/{_WORD})*"
_TAG = rf"{_NAME}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
_REFERENCE = rf"{_TAG}(?:@sha256:[0-9a-f]{{64}})?"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A container engine by its name, and the program that is it."""

    name: str
    program: str

    def build(self, context: Path, tag: str, *, pip_conf: Path | None = None, ca: Path | None = None,
              options: Sequence[str] = ()) -> list[str]:
        """The command that builds the image of a context folder; both files are secrets that do not stay in it."""
        secrets = [f"--secret=id={name},src={file.resolve()}"
                   for name, file in (("pip_conf", pip_conf), ("ca", ca)) if file]
        # The health check is a word of docker's image format; the layers of the train image are those of dev.
        own = [] if self.name == "docker" else ["--format=docker", "--layers"]
        return [self.program, "build", *own, *secrets, *options, f"--file={context / 'Containerfile'}",
                f"--tag={tag}", str(context)]

    def inspect(self, tag: str) -> list[str]:
        """The command that prints what an image is, as JSON."""
        return [self.program, "image", "inspect", tag]


def checked_tag(text: str) -> str:
    """The name that an image is to have. Raises UsageError for what is none."""
    return _matching(text, "--tag", _TAG, "NAME or NAME:TAG, with a NAME in small letters", "--tag team/rankwise:1")


def checked_reference(text: str) -> str:
    """The name of an image to begin from. Raises UsageError for what is none."""
    return _matching(text, "--base", _REFERENCE, "NAME, NAME:TAG or NAME:TAG@sha256:DIGEST, with a NAME in small "
                     "letters", "--base debian:bookworm-slim")


def _matching(text: str, option: str, pattern: str, form: str, example: str) -> str:
    if not re.fullmatch(pattern, text):
        raise UsageError(f"{option} is {text!r}.", f"It is the name of an image: {form}.",
                         f"Give {example}, for example.")
    return text


def find(name: str | None, *, to_run: bool) -> Engine:
    """The engine that is named, else the first that is here and answers.

    Raises UsageError where there is none, where it does not answer, and where it cannot run containers.
    """
    able = _RUNNING if to_run else ENGINES
    require_able(name, able)
    wanted = [name] if name else able
    silent = []
    for each in wanted:
        program = shutil.which(each)
        if program and _answers(each, program):
            return Engine(name=each, program=program)
        silent += [each] if program else []
    raise UsageError(
        f"No container engine answers: {' or '.join(wanted)}.",
        f"{' and '.join(silent)} is installed and does not answer: its daemon may not run, or may not be yours to use."
        if silent else "It is not installed here." if name else "None of them is installed here.",
        ("Start it, or install" if silent else "Install") +
        " podman (apt-get install podman), which needs no daemon; `rankwise image write` needs none of them.")


def unasked(name: str | None) -> Engine:
    """The engine that is named, else the first that is here, else docker: to show a command, not to run it.

    Raises UsageError for one that cannot run containers.
    """
    require_able(name, _RUNNING)
    chosen = name or next(filter(shutil.which, _RUNNING), _RUNNING[0])
    return Engine(name=chosen, program=chosen)


def require_able(name: str | None, able: Sequence[str]) -> None:
    """Raise UsageError for the name of an engine that there is not, or that is not able to do what is asked."""
    if name is not None and name not in ENGINES:
        raise UsageError(f"--engine is {name}.", f"It can be {', '.join(able)}.", "Choose one of these.")
    if name is not None and name not in able:
        raise UsageError(f"--engine is {name}.", "It builds images, and runs none.",
                         "Give --engine podman, which finds the images that buildah has built.")


def _answers(name: str, program: str) -> bool:
    """docker is a program and a daemon; the others are programs alone."""
    command = [program, "version", "--format={{.Server.Version}}"] if name == "docker" else [program, "--version"]
    try:
        return subprocess.run(command, capture_output=True, timeout=_ANSWER_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False

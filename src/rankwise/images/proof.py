"""The proof of an image: each thing that it promises is looked at in a container without network, and judged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError
from rankwise.images import containers, locks
from rankwise.images.engine import Engine

HEALTH = ["rankwise", "doctor", "--quick"]
TRAINING = ["rankwise", "run", "-m", "rankwise.images.digits", "--mode", "ddp", "--devices", "2", "--threads", "1"]
_ITEM_SECONDS = 300.0
_LINES_SHOWN = 3
STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Item:
    """One promise: what was seen, and whether it is kept."""

    name: str
    is_kept: bool
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command in a container came to; `code` is None where it did not end in time."""

    code: int | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All that was found of an image."""

    tag: str
    size_bytes: int
    layers: int
    labels: dict[str, str]
    items: tuple[Item, ...]

    @property
    def is_kept(self) -> bool:
        return all(item.is_kept for item in self.items)

    def as_values(self) -> dict[str, Any]:
        """For `--json`: everything above, and the verdict."""
        return {**asdict(self), "verdict": "ok" if self.is_kept else "fault"}


def prove(engine: Engine, tag: str, lock: str | None, tell: Callable[[str], None]) -> Proof:
    """Look at everything; `lock` is what the image must have (None: the lock that it carries); `tell` shows progress.

    Raises UsageError where there is no such image.
    """
    image = inspected(engine, tag)
    config = image.get("Config") or {}
    steps: list[tuple[str, Callable[[], list[Item]]]] = [
        ("user and health check", lambda: [judge_user(str(config.get("User") or "")),
                                           judge_health(config.get("Healthcheck") or image.get("Healthcheck") or {})]),
        ("packages", lambda: _packages(engine, tag, lock)),
        ("doctor", lambda: [judge_command("doctor", _answer(engine, tag, ["rankwise", "doctor"]), "rankwise doctor:")]),
        ("training", lambda: [judge_command("training", _answer(engine, tag, TRAINING), "devices:")]),
    ]
    items: list[Item] = []
    for name, step in steps:
        tell(name)
        items += step()
    return Proof(tag=tag, size_bytes=int(image["Size"]), layers=len(image["RootFS"]["Layers"]),
                 labels=config.get("Labels") or {}, items=tuple(items))


def judge_user(user: str) -> Item:
    """The image's own user is a number, which Kubernetes asks for, and not root's."""
    number = user.split(":")[0]
    return Item(name="user", is_kept=number.isdecimal() and int(number) > 0,
                evidence=f"runs as {user}" if user else "runs as root")


def judge_health(health: dict[str, Any]) -> Item:
    """The health check is the quick doctor."""
    test = health.get("Test") or []
    return Item(name="health check", is_kept=test == ["CMD", *HEALTH],
                evidence=" ".join(test[1:]) if test else "there is none")


def judge_command(name: str, answer: Answer, telling: str = "") -> Item:
    """A command that must succeed. The evidence is the line with `telling` in it; where it failed, its last lines."""
    lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
    last = " / ".join(lines[-_LINES_SHOWN:])
    if answer.code is None:
        return Item(name=name, is_kept=False, evidence=f"no end within {_ITEM_SECONDS:.0f} s. {last}".strip())
    if answer.code != 0:
        return Item(name=name, is_kept=False, evidence=f"exit code {answer.code}. {last}".strip())
    told = next((line for line in lines if telling in line), "")
    return Item(name=name, is_kept=bool(told), evidence=told or f"it succeeded, and did not say `{telling}`. {last}")


def judge_packages(found: dict[str, Any], lock: dict[str, str]) -> list[Item]:
    """What the program inside saw: versions against the lock, imports, torch.compile."""
    different = locks.differences(lock, found["installed"])
    failed, compile_failure = found["failed_imports"], found["compile_failure"]
    return [
        Item(name="lock", is_kept=bool(lock) and not different, evidence="; ".join(different) or
             f"{len(lock)} packages as locked" if lock else "there is no lock to compare with"),
        Item(name="imports", is_kept=not failed,
             evidence="; ".join(f"{name}: {why}" for name, why in failed.items()) or
             f"the top-level modules of {len(found['installed'])} packages"),
        Item(name="torch.compile", is_kept=not compile_failure, evidence=compile_failure or "compiled and computed"),
    ]


def _packages(engine: Engine, tag: str, lock: str | None) -> list[Item]:
    program = (Path(__file__).parent / "inside.py").read_text(encoding="utf-8")
    answer = _answer(engine, tag, ["python", "-"], program)
    try:
        found = json.loads(answer.text.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return [judge_command("packages", Answer(code=answer.code or 1, text=answer.text))]
    if lock is None:
        lock = _answer(engine, tag, ["sh", "-c", "cat /opt/rankwise/*.lock"]).text
    return judge_packages(found, locks.read(lock))


def inspected(engine: Engine, tag: str) -> dict[str, Any]:
    """What the engine knows of an image. Raises UsageError where there is none."""
    answer = _ended(engine.inspect(tag), None)
    if answer.code != 0:
        said = [line for line in answer.text.splitlines() if line.strip() not in ("", "[]")]
        raise UsageError(f"There is no image {tag} here.", f"{engine.name} says: {(said or ['nothing'])[-1][:200]}",
                         "Build it with `rankwise image build`, or give its name with --tag.")
    found: dict[str, Any] = json.loads(answer.text)[0]
    return found


def _answer(engine: Engine, tag: str, command: Sequence[str], program: str | None = None) -> Answer:
    """A command in a container of its own, with the image's own user and without network."""
    name = containers.new_name()
    try:
        return _ended([engine.program, "run", "--rm", f"--name={name}", "--network=none", "--no-healthcheck",
                       "--shm-size=1g", *(["--interactive"] if program else []), tag, *command], program)
    finally:
        containers.remove(engine, name)


def _ended(arguments: Sequence[str], program: str | None) -> Answer:
    try:
        ended = subprocess.run(arguments, input=program or "", capture_output=True, text=True, check=False,
                               timeout=_ITEM_SECONDS)
    except subprocess.TimeoutExpired as error:
        return Answer(code=None, text=str(error.stdout or ""))
    return Answer(code=ended.returncode, text=ended.stdout if ended.returncode == 0 else ended.stdout + ended.stderr)

"""A `kubectl` whose cluster is a script: each look at the pods shows the next moment of a job's life."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python} -SI
import json, pathlib, sys, time
folder = pathlib.Path({folder!r})
words = [word for word in sys.argv[1:] if not word.startswith(("--namespace=", "--request-timeout="))]
life = json.loads((folder / "life.json").read_text())
look = folder / "look"
now = int(look.read_text()) if look.exists() else 0
given = sys.stdin.read() if "--filename=-" in words else ""
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps([sys.argv[1:], given]) + "\\n")
known = life["answers"].get(" ".join(words))
moment = life["moments"][min(now, len(life["moments"]) - 1)] if life["moments"] else {{}}
if known is not None:
    sys.stderr.write(known.get("err", ""))
    sys.stdout.write(known.get("out", ""))
    sys.exit(known.get("code", 0))
if words[:2] == ["get", "pods"]:
    look.write_text(str(now + 1))
    json.dump({{"items": moment["pods"]}}, sys.stdout)
elif words[0] == "get" and "--output=json" in words and words[1] != "nodes":
    json.dump({{"status": {{"conditions": moment["conditions"]}}}}, sys.stdout)
elif words[0] == "logs":
    log = life["logs"][words[-1]]
    sys.stdout.write("begins\\n" if log is None else log)
    sys.stdout.flush()
    if log is None:
        time.sleep(600)
"""


class Kubectl:
    """What is called, and what it answers: `answers` by the words of a call, else the moments of the job's life."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "kubectl"
        self.program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)), "utf-8")
        self.program.chmod(0o755)
        self.lives()

    def lives(self, *moments: tuple[list[dict[str, Any]], list[dict[str, Any]]],
              logs: dict[str, str | None] | None = None, answers: dict[str, dict[str, Any]] | None = None) -> None:
        """Each moment: the job's conditions, and its pods. A log that is None does not end."""
        life = {"moments": [{"conditions": conditions, "pods": pods} for conditions, pods in moments],
                "logs": logs or {}, "answers": answers or {}}
        (self._folder / "life.json").write_text(json.dumps(life), "utf-8")

    def calls(self) -> list[tuple[list[str], str]]:
        """Every call so far: its words, and what was handed to it."""
        file = self._folder / "calls"
        return [tuple(json.loads(line)) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def condition(kind: str, message: str = "") -> dict[str, Any]:
    """A condition of a job that holds, as the API shows it."""
    return {"type": kind, "status": "True", "message": message}


def pod(name: str, number: int, phase: str, *, began: int = 0, code: int | None = None, unscheduled: str = "",
        waiting: str = "") -> dict[str, Any]:
    """A pod as the API shows it; `began` in seconds after noon."""
    state: dict[str, Any] = {"running": {}} if phase == "Running" else {}
    state = {"terminated": {"exitCode": code}} if code is not None else state
    state = {"waiting": {"reason": waiting}} if waiting else state
    unmet = [{"type": "PodScheduled", "status": "False", "message": unscheduled}] if unscheduled else []
    return {"metadata": {"name": name, "creationTimestamp": f"2026-12-01T12:00:{began:02}Z",
                         "annotations": {"batch.kubernetes.io/job-completion-index": str(number)}},
            "status": {"phase": phase, "conditions": unmet, "containerStatuses": [{"state": state}] if state else []}}

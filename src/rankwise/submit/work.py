"""What each machine of a cluster's job runs, as the words of a command: `rankwise run` with a target, or the doctor."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError
from rankwise.runfolder import AUTO, LATEST, named
from rankwise.settings import Settings, option

DOCTOR = "doctor"
_OF_THE_MACHINE = ("nodes", "node_rank", "endpoint")
_OF_THE_DOCTOR = ("devices", "accelerator", "timeout")
_MET_LATER = "HOST:PORT"   # where machines meet is known when the cluster has chosen them


@dataclass(frozen=True, kw_only=True)
class Work:
    """A target and its own options, and the settings of its run; `devices` of them is decided.

    `name` is that of the job, and of the run unless an earlier one is resumed in its own folder.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    settings: Settings
    name: str

    @classmethod
    def of(cls, target: str, arguments: list[str] | None, settings: Mapping[str, Any], *, is_module: bool) -> Work:
        """The work that a command line asks for: one device a machine unless it says more, and a run that goes on when
        it is started again, unless --resume names another.

        Raises UsageError for settings that cannot be used, that the doctor does not have, and for --nodes MIN:MAX.
        """
        if ":" in str(settings["nodes"]):
            raise UsageError(f"--nodes is {settings['nodes']}.", "A cluster gives a job a fixed number of machines.",
                             "Give --nodes 2, for example.")
        chosen = Settings(**{**settings, "devices": settings["devices"] or 1, "endpoint": _MET_LATER})
        name = chosen.name or f"{_stem(target)}-{time.strftime('%Y%m%d-%H%M%S')}"
        work = cls(target=target, is_module=is_module, arguments=tuple(arguments or ()), settings=chosen, name=name)
        if work.is_doctor:
            work._require_the_doctors()
        elif chosen.resume is None:
            return cls(**{**vars(work), "settings": chosen.having(name=name, resume=AUTO)})
        return work

    @property
    def nodes(self) -> int:
        return self.settings.node_range[0]

    @property
    def devices(self) -> int:
        return self.settings.devices or 1

    @property
    def is_doctor(self) -> bool:
        """Whether the machines are examined, rather than used."""
        return self.target == DOCTOR and not self.is_module and not Path(DOCTOR).is_file()

    @property
    def can_go_on(self) -> bool:
        """Whether the same command, run once more, goes on with the run that the first one began."""
        again = self.settings.resume
        return not self.is_doctor and (again == AUTO or (again != LATEST and self.settings.name is None))

    def require_name(self, *, resume: str | None) -> None:
        """Raise UsageError for a name that no run can have, or that one has which `resume` does not go on with."""
        named(self.settings.having(name=self.name, resume=resume))

    def words(self, *, target: str | None = None, node_rank: str | None = None,
              endpoint: str | None = None) -> tuple[str, ...]:
        """rankwise's words after `rankwise`: only settings that differ from the defaults, and the devices.

        `target` is the path of the script where the job runs, if it is another there. `node_rank` and `endpoint` are
        what a machine puts in their place, for a job of several; without them the machine finds them itself.
        """
        settings = self._changed(_OF_THE_DOCTOR if self.is_doctor else Settings.names())
        if self.nodes > 1:
            settings += ["--nodes", str(self.nodes)]
            settings += ["--node-rank", node_rank, "--endpoint", endpoint] if node_rank and endpoint else []
        if self.is_doctor:
            return (DOCTOR, *settings)
        module = ["-m"] * self.is_module
        own = ["--", *self.arguments] if self.arguments else []
        return ("run", *module, target or self.target, *settings, *own)

    def _changed(self, names: tuple[str, ...]) -> list[str]:
        """These settings as options, where they differ from the defaults."""
        words = ["--devices", str(self.devices)]
        for field in fields(Settings):
            value = getattr(self.settings, field.name)
            if field.name not in names or field.name in (*_OF_THE_MACHINE, "devices") or value == field.default:
                continue
            words += [option(field.name)] if value is True else [option(field.name), str(value)]
        return words

    def _require_the_doctors(self) -> None:
        known = (*_OF_THE_MACHINE, *_OF_THE_DOCTOR, "name")
        others = [field.name for field in fields(Settings)
                  if field.name not in known and getattr(self.settings, field.name) != field.default]
        given = " and ".join([*map(option, others), *(["options after --"] if self.arguments else [])])
        if given:
            raise UsageError(f"The target is doctor, with {given}.",
                             f"The doctor has {', '.join(map(option, _OF_THE_DOCTOR))}.", "Leave the others out.")


def _stem(target: str) -> str:
    """The word for a target in names: `train` of folder/train.py, `main` of package.main."""
    word = Path(target).stem if target.endswith(".py") else target.rpartition(".")[2]
    return re.sub(r"[^\w.+-]+", "-", word).strip("-._") or "run"

"""The options of rankwise itself: the same for the command line, `rw.launch` and a rank's environment."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rankwise.errors import UsageError

MODES = ("auto", "single", "dp", "ddp")
AMP = ("no", "bf16", "fp16")
ACCELERATORS = ("auto", "cpu", "cuda", "mps")
_TEXT_OR_NUMBER = ("save_every", "nodes", "profile")
_PROFILE_AFTER_STEPS = 10   # in which much is made
_SECONDS = {"s": 1, "min": 60, "h": 3600}
_SMALLER_IS_BETTER = {"loss", "error", "perplexity", "ppl", "mse", "mae", "rmse", "nll", "wer", "cer", "fid"}
_LARGER_IS_BETTER = {"accuracy", "acc", "f1", "auc", "precision", "recall", "bleu", "iou", "dice", "psnr", "ssim", "r2"}


def setting(default: Any, meaning: str) -> Any:
    """A field that carries its own help text."""
    from dataclasses import field
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to run a training; not one of these changes what it computes, but `seed`, `amp` and `exact`.

    Raises UsageError for a value that cannot be used.
    """

    mode: str = setting("auto", "how the replicas are laid out: auto, single, dp or ddp")
    devices: int | None = setting(None, "devices of one node (on a CPU: processes)")
    accelerator: str = setting("auto", "kind of device: auto, cpu, cuda or mps")
    amp: str = setting("no", "mixed precision: no, bf16 or fp16")
    seed: int = setting(0, "seed of the order, of augmentation and of torch")
    exact: int | None = setting(None, "virtual shards of a batch: the same bits on up to so many devices")
    micro_batch: int | None = setting(None, "most samples a device computes at once; accumulation follows from it")
    threads: int | None = setting(None, "CPU threads a rank (default: cores // ranks of this node)")
    name: str | None = setting(None, "name of the run (default: target and time)")
    runs: str = setting("runs", "folder in which runs are kept")
    resume: str | None = setting(None, "run to continue: its name, its folder, `latest`, or `auto` (--name's, if any)")
    init: str | None = setting(None, "file of weights that the first prepared model starts from")
    save_every: str | None = setting(None, "time between checkpoints: in steps (500) or by the clock (10min, 30s, 2h)")
    keep_last: int | None = setting(None, "newest checkpoints that are kept (default: all; with --keep-best 1)")
    keep_best: str | None = setting(None, "keep the best checkpoint too, by a metric: accuracy:max, loss:min")
    max_restarts: int = setting(0, "times that all ranks are started again after one has failed")
    grace_seconds: float = setting(30.0, "seconds to save and end in after SIGTERM or SIGUSR1")
    stall_timeout: float = setting(900.0, "seconds without progress of any rank before the run is ended (0: never)")
    timeout: float = setting(600.0, "seconds a rank waits for another before the run fails")
    log_every: int = setting(50, "steps between two entries in the log")
    profile: str | None = setting(None, "steps that torch's profiler records: 5 (from the 11th on), or 100:105")
    debug: bool = setting(False, "compare each collective over the ranks before it runs")
    nodes: str = setting("1", "machines that take part: a number, or MIN:MAX (2:4)")
    node_rank: int = setting(0, "number of this machine, from 0")
    endpoint: str | None = setting(None, "HOST:PORT of machine 0, where the machines meet")

    def __post_init__(self) -> None:
        self._require_types()
        _one_of("mode", self.mode, MODES)
        _one_of("amp", self.amp, AMP)
        _one_of("accelerator", self.accelerator, ACCELERATORS)
        for name, least in (("devices", 1), ("exact", 1), ("micro_batch", 1), ("threads", 1), ("log_every", 1),
                            ("keep_last", 1), ("max_restarts", 0), ("node_rank", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise UsageError(f"{option(name)} is {value!r}.", f"It must be a whole number, at least {least}.",
                                 f"Give {option(name)} {least} or more.")
        if not self.stall_timeout >= 0:
            raise UsageError(f"--stall-timeout is {self.stall_timeout!r}.",
                             "It is a number of seconds, not below 0; 0 stands for no limit.",
                             "Give --stall-timeout 900, for example.")
        if not isinstance(self.debug, bool):
            raise UsageError(f"--debug is {self.debug!r}.", "It is on or off.", "Give --debug, or debug=True.")
        for name, example in (("timeout", 600), ("grace_seconds", 30)):
            if not getattr(self, name) > 0:
                raise UsageError(f"{option(name)} is {getattr(self, name)!r}.",
                                 "It must be a positive number of seconds.",
                                 f"Give {option(name)} {example}, for example.")
        self._require_nodes()
        _ = self.save_interval, self.best_metric, self.profiled_steps   # they raise for what they cannot read

    def _require_types(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), str(field.type)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if kind.startswith("str") and not isinstance(value, (str, type(None))) and not (
                    is_number and field.name in _TEXT_OR_NUMBER):
                raise UsageError(f"{option(field.name)} is {value!r}.", "It is a text.",
                                 f'Give {field.name}="...", or leave it out.')
            if kind == "float" and not is_number:
                raise UsageError(f"{option(field.name)} is {value!r}.", "It is a number of seconds.",
                                 f"Give {field.name}={field.default}, for example.")

    def _require_nodes(self) -> None:
        least, most = self.node_range
        if self.node_rank >= most and ":" not in str(self.nodes):   # there it is a spare machine
            raise UsageError(f"--node-rank is {self.node_rank} with --nodes {self.nodes}.",
                             f"Machines are numbered 0 to {most - 1}.", "Give each machine its own number.")
        if least < most and self.max_restarts == 0:
            raise UsageError(f"--nodes is {self.nodes} and --max-restarts is 0.",
                             "A machine that is lost would end the run, for the ranks of the others fail with it.",
                             "Give --max-restarts 3, for example.")
        if most > 1 and not self.endpoint:
            raise UsageError(f"--nodes is {self.nodes} and --endpoint is not given.",
                             "The machines must know where to meet.",
                             "Give --endpoint HOST:PORT of machine 0, the same on every machine.")

    @property
    def node_range(self) -> tuple[int, int]:
        """The fewest and the most machines that --nodes asks for."""
        found = re.fullmatch(r"(\d+)(?::(\d+))?", str(self.nodes))
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= least <= most:
            raise UsageError(f"--nodes is {self.nodes!r}.",
                             "It is a number of machines, at least 1; or MIN:MAX, with MIN not above MAX.",
                             "Give --nodes 2, or --nodes 2:4, for example.")
        return least, most

    @property
    def save_interval(self) -> tuple[int | None, float | None]:
        """What --save-every says: (steps, None), (None, seconds), or neither."""
        if self.save_every is None:
            return None, None
        found = re.fullmatch(r"(\d+)(s|min|h)?", str(self.save_every))
        if found is None or int(found[1]) == 0:
            raise UsageError(f"--save-every is {self.save_every!r}.",
                             "It is a whole number of steps, at least 1; or of a time, in s, min or h.",
                             "Give --save-every 500 or --save-every 10min, for example.")
        count, unit = int(found[1]), found[2]
        return (count, None) if unit is None else (None, float(count * _SECONDS[unit]))

    @property
    def profiled_steps(self) -> tuple[int, int] | None:
        """The first and the last step that --profile asks for, counted from 1 in this start of the run."""
        if self.profile is None:
            return None
        found = re.fullmatch(r"(\d+)(?::(\d+))?", str(self.profile))
        first, last = (int(found[1]), int(found[2])) if found and found[2] else (
            (_PROFILE_AFTER_STEPS + 1, _PROFILE_AFTER_STEPS + int(found[1])) if found else (0, 0))
        if not 1 <= first <= last:
            raise UsageError(f"--profile is {self.profile!r}.", "It is a number of steps, or FIRST:LAST, from 1 on.",
                             "Give --profile 5, or --profile 100:105, for example.")
        return first, last

    @property
    def best_metric(self) -> tuple[str | None, bool]:
        """What --keep-best says: a metric (None: not given), and whether larger is better.

        Without `:min` or `:max` the name decides, where one of the common words is in it.
        """
        if self.keep_best is None:
            return None, False
        name, _, direction = self.keep_best.partition(":")
        if not name or direction not in ("", "min", "max"):
            raise UsageError(f"--keep-best is {self.keep_best!r}.",
                             "It is the name of a number that run.log is given (or loss), with :min or :max behind it.",
                             "Give --keep-best accuracy:max, for example.")
        if not direction:
            words = set(re.split(r"[^a-z0-9]+", name.lower()))
            direction = "min" if words & _SMALLER_IS_BETTER else "max" if words & _LARGER_IS_BETTER else ""
        if not direction:
            raise UsageError(f"--keep-best is {self.keep_best!r}.",
                             f"Whether a smaller {name} is better, or a larger one, is not known here.",
                             f"Give --keep-best {name}:min or --keep-best {name}:max.")
        return name, direction == "max"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        return cls(**json.loads(text))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that a training function cannot use for its own parameters."""
        return tuple(field.name for field in fields(cls))

    def having(self, **changes: Any) -> Settings:
        """The same settings with some changed; an unknown name is a UsageError."""
        for name in changes:
            if name not in self.names():
                raise UsageError(f"`{name}` is not a setting of rankwise.", f"Settings are: {', '.join(self.names())}.",
                                 "Give the training function's own parameters by keyword in `arguments`, "
                                 "or correct the name.")
        return replace(self, **changes)


def option(name: str) -> str:
    """The command-line spelling of a setting: micro_batch is --micro-batch."""
    return "--" + name.replace("_", "-")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        import difflib
        close = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.7)   # gpu does not mean cpu
        hint = f"Did you mean {option(name)} {close[0]}?" if close else f"Choose one of {', '.join(allowed)}."
        raise UsageError(f"{option(name)} is {value!r}.", f"It can be {', '.join(allowed)}.", hint)

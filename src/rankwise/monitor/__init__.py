"""What a run tells: its progress, its mean loss over all ranks, and the numbers that are logged."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rankwise import runfolder
from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.microbatch import MicroBatch
from rankwise.monitor.accounts import Accounts
from rankwise.monitor.log import Entry, Log
from rankwise.monitor.meter import HostCopy, loss_meter
from rankwise.monitor.profile import Profile
from rankwise.monitor.progress import Progress
from rankwise.monitor.sinks import Sink
from rankwise.monitor.start import facts_of_start
from rankwise.pulse import PULSE
from rankwise.settings import Settings

if TYPE_CHECKING:
    from rankwise.monitor.console import Console

__all__ = ["Monitor", "Sink"]

_OWN_NAMES = ("step", "epoch", "loss", "epoch_loss", "samples_per_second")


class Monitor:
    """The log of a run. Every rank calls every method at the same place; rank 0 shows and writes.

    Losses are added up on the device. Every `log_every` steps, and with the last step of an epoch, the ranks begin to
    add theirs together, and read the sum an interval later: no step waits for the device or for another rank.
    """

    def __init__(self, group: Group, folder: Path, settings: Settings, *, keeps_books: bool = True) -> None:
        """`keeps_books` says whether this monitor closes the rank's ledger with each interval, as one reader does."""
        self._group, self._folder, self._settings = group, folder, settings
        self._keeps_books = keeps_books
        self._accounts: Accounts | None = None
        self._profile: Profile | None = None
        self._mode, self._devices, self._lines, self._latest_checkpoint = "", 1, list[str](), ""
        self._meter = loss_meter(group, settings.exact)
        self._console: Console | None = None
        if group.is_main:
            from rankwise.monitor.console import Console  # loads rich, which the other ranks do without
            self._console = Console()
        self._log = Log(folder, writes=group.is_main, say=self.print)
        self._progress = Progress()
        self._epoch_seconds: list[float] = []
        self._logged: dict[str, float] = {}   # in this epoch
        self._logged_at: dict[str, int] = {}
        self._carried: dict[str, Any] | None = None
        self._step = self._reduced_step = 0
        self._draw_at = math.inf
        self._has_begun = self._has_saved = self._is_broken_off = False

    @property
    def sinks(self) -> list[Sink]:
        return self._log.sinks

    # Epochs and steps

    @contextlib.contextmanager
    def epoch(self, epoch: int, total: int) -> Iterator[None]:
        """One epoch of `total`; its line is shown at the end."""
        self._end_broken_off()
        PULSE.epoch = epoch
        self._require_begun(epoch)
        self._progress = Progress(epoch, total, carried=self._carried, earlier_seconds=self._epoch_seconds)
        self._carried = None
        self._logged = {}
        self._draw_later(self._progress.stepped())
        try:
            yield
        except GeneratorExit:   # a `break` out of the epochs; or a failure, after which nothing more is said
            self._is_broken_off = True
            raise
        self._begin_reduction()
        if self._accounts:
            self._log.add_all(self._accounts.settle())
        self._end_epoch()

    def _require_begun(self, epoch: int) -> None:
        """Log what begins here, once."""
        if self._has_begun:
            return
        self._has_begun = True
        facts = facts_of_start(self._group, self._settings, target=runfolder.target_of(self._folder), mode=self._mode,
                               devices=self._devices)
        self._log.tell(Entry(self._log.first_step, epoch, lambda: facts, record="start"))
        if self._settings.profiled_steps:
            first, last = (self._log.first_step + step for step in self._settings.profiled_steps)
            self._profile = Profile(self._folder, self._group.rank, first=first, last=last, device=self._group.device)

    def watch(self, module: nn.Module) -> None:
        """A module was prepared."""
        if self._accounts:
            self._accounts.watch(module)

    def expect(self, loader: Sized, micro_batch: MicroBatch) -> None:
        """The loop is handed a micro-batch of a training loader."""
        self._progress.expect(loader, micro_batch)
        if self._accounts:
            self._accounts.expect(micro_batch)

    def add_loss(self, loss: torch.Tensor, amount: torch.Tensor, *, is_sum: bool = False, shard: int = 0) -> None:
        """Note a loss, the mean (or the sum) over `amount` rows or weight of this rank; both 0-dim on the device."""
        self._meter.add(loss, amount, is_sum=is_sum, shard=shard)

    def after_step(self, step: int) -> None:
        """The `step`-th update is done."""
        self._step = step
        now = self._progress.stepped()
        if self._accounts:
            self._log.add_all(self._accounts.after_step(step, self._progress.epoch))
        if self._profile and self._profile.after_step(step):
            self.print(f"profile of rank 0 to open at ui.perfetto.dev: {_shown(self._profile.file)}")
        is_last = self._progress.batch == self._progress.batches
        if is_last or step % self._settings.log_every == 0:
            self._begin_reduction()
        if self._console and (now > self._draw_at or (is_last and self._console.is_live)):
            self._console.show(self._progress)
            self._draw_later(now)

    def _draw_later(self, now: float) -> None:
        if self._console:
            self._draw_at = now + self._console.redraw_seconds

    def _begin_reduction(self) -> None:
        """Of the losses since the last one; what that came to is written now."""
        if self._reduced_step == self._step:
            return
        self._require_begun(self._progress.epoch)
        self._reduced_step = self._step
        progress, reading = self._progress, self._meter.reduce()
        samples, seconds = progress.window()

        def values() -> dict[str, float]:
            total, amount = reading.numbers()
            progress.add_loss(total, amount)
            return {"loss": total / amount if amount > 0 else math.nan, "samples_per_second": samples / seconds}

        if self._accounts:
            self._log.add_all(self._accounts.close(self._step, progress.epoch))
        self._log.turn(Entry(self._step, progress.epoch, values))

    def _end_broken_off(self) -> None:
        if self._is_broken_off:
            self._is_broken_off = False
            self._end_epoch()

    def _end_epoch(self) -> None:
        self._log.settle()
        progress, loss = self._progress, self._progress.loss
        if loss is not None:
            self._log.add(Entry(self._step, progress.epoch, lambda: {"epoch_loss": loss}))
            self._log.settle()
        self._epoch_seconds.append(progress.whole_seconds)
        if self._console:
            self._console.end_epoch(progress, self._logged)

    # What is logged and shown

    def log(self, values: Mapping[str, Any], *, step: int, epoch: int) -> None:
        """Log numbers or 0-dim tensors; rank 0's are kept. A tensor on an accelerator is read later.

        Raises MisuseError for other values, and for names that rankwise logs itself.
        """
        for name, value in values.items():
            _require_loggable(name, value)
        self._logged_at.update(dict.fromkeys(values, step))
        if self._group.is_main:
            self._log.add(Entry(step, epoch, _on_the_way(values, self._logged)))

    def print(self, *words: Any) -> None:
        """A line on rank 0's console, above the progress line."""
        self._end_broken_off()
        self.tell(" ".join(map(str, words)))

    def tell(self, text: str) -> None:
        """A line on rank 0's console that needs no other rank: also when the training has failed."""
        if self._console:
            self._console.say(text)

    def begin(self, mode: str, devices: int) -> None:
        """Say how the run is laid out: the mode that is used, over how many devices."""
        self._mode, self._devices = mode, devices
        if self._keeps_books:
            self._accounts = Accounts(self._group, devices // self._group.size)
        chosen = " (chosen by auto)" if self._settings.mode == "auto" else ""
        if self._settings.exact is not None:
            chosen += f", exact over {self._settings.exact} virtual shards"
        self.print(f"mode {mode}{chosen}, {devices} {self._group.device.type} device{'s' * (devices > 1)}, "
                   f"seed {self._settings.seed}, run folder {_shown(self._folder)}")

    def resumed(self, folder: Path, epoch: int, steps: int, progress: dict[str, Any] | None) -> None:
        """All that was prepared was restored; `progress` is what `state_dict` gave in the middle of an epoch."""
        self._carried = progress
        self._log.first_step = self._step = self._reduced_step = steps
        if self._accounts:
            self._accounts.begin_after(steps)
        self.print(f"resumed from {_shown(folder)}: epoch {epoch + 1}, after step {steps}")

    def checkpointed(self, folder: Path, step: int, epoch: int) -> None:
        """A checkpoint was taken, and is being written."""
        path = str(folder.relative_to(self._folder)) if folder.is_relative_to(self._folder) else folder.name
        if path == self._latest_checkpoint:   # taken anew, at the same step
            return
        self._latest_checkpoint = path
        self._log.tell(Entry(step, epoch, lambda: {"path": path}, record="checkpoint"))

    def saved(self) -> None:
        """A checkpoint is on the disk."""
        self._has_saved = True

    def exported(self, path: Path) -> None:
        """The weights were written."""
        self.print(f"weights written to {_shown(path)}")

    def finished(self) -> None:
        """The training function returned: say where the results are, and what to try next."""
        self._end_broken_off()
        self._log.settle()
        self._lines = self._accounts.lines() if self._accounts else []
        for line in self._lines:
            self.print(line)
        if self._log.first_step and not self._epoch_seconds:
            self.print("no epoch was left to train: ask for more epochs to train on")
            self._require_begun(max(0, self._progress.epochs - 1))
        target = runfolder.target_of(self._folder)
        is_complete = self._progress.epoch + 1 >= self._progress.epochs
        if self._has_saved and target and not is_complete:
            self.print(f"to go on: rankwise run {target} --resume {self._folder.name}")
        self.print(f"run folder {_shown(self._folder)}; to look at it: rankwise report {_shown(self._folder)}")

    # What a checkpoint keeps

    def metrics(self, step: int) -> dict[str, float | None]:
        """What is known of the weights after `step`: the epoch's mean loss so far, and what was logged at this step.

        None stands for what is no finite number. Asked for by all ranks together; rank 0's answer counts.
        """
        self._begin_reduction()
        self._log.settle()
        logged = {name: value for name, value in self._logged.items() if self._logged_at[name] == step}
        return {name: value if value is not None and math.isfinite(value) else None
                for name, value in {"loss": self._progress.loss, **logged}.items()}

    def state_dict(self) -> dict[str, Any]:
        """How far the epoch is, and its loss so far: asked for by all ranks together."""
        self._begin_reduction()
        self._log.settle()
        return self._progress.state_dict()

    def close(self, how: str = "finished") -> None:
        """Log how the run ended, and close the console and the sinks; what is not reduced yet is left alone, for other
        ranks may be gone."""
        if self._profile:
            self._profile.close()
        if self._has_begun:
            lines = self._lines or (self._accounts.lines() if self._accounts else [])
            self._log.tell(Entry(self._step, self._progress.epoch, lambda: {"how": how, "lines": lines}, record="end"))
        if self._console:
            self._console.close()
        self._log.close()


def _shown(path: Path) -> Path:
    """The path as a person would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _require_loggable(name: str, value: Any) -> None:
    if name in _OWN_NAMES:
        raise MisuseError(f"run.log was given `{name}`.", f"rankwise logs {', '.join(_OWN_NAMES)} itself; its loss is "
                          "the mean over all ranks.", f"Give it another name, such as my_{name}.")
    if not hasattr(value, "__float__") or (hasattr(value, "shape") and value.shape):
        raise MisuseError(f"run.log was given {name}={value!r}.", "It takes numbers and 0-dim tensors.",
                          "Log each number under a name of its own.")


def _on_the_way(values: Mapping[str, Any], seen: dict[str, float]) -> Callable[[], Mapping[str, float]]:
    """A function that gives the values as numbers and notes them in `seen`; device tensors set out to the host now."""
    tensors = {name: value.detach() for name, value in values.items()
               if isinstance(value, torch.Tensor) and value.device.type != "cpu"}
    copy = HostCopy(torch.stack([value.float() for value in tensors.values()])) if tensors else None
    here = {name: value if isinstance(value, int) else float(value)
            for name, value in values.items() if name not in tensors}

    def numbers() -> Mapping[str, float]:
        arrived = dict(zip(tensors, copy.read(), strict=True)) if copy else {}
        found = {name: {**here, **arrived}[name] for name in values}
        seen.update(found)
        return found

    return numbers

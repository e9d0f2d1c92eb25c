"""The layouts that are compared: a mode, a number of devices and a precision; and those that cannot run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.errors import UsageError
from rankwise.launcher.layout import with_devices
from rankwise.listoptions import choices, numbers
from rankwise.modes import MODES, resolve
from rankwise.settings import AMP, Settings


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A mode, its number of devices, and the precision that it computes in."""

    mode: str
    devices: int = 1
    amp: str = "no"

    def __str__(self) -> str:
        return f"{self.mode} on {self.devices}{self._precision}"

    @property
    def family(self) -> str:
        """What it has in common with the same mode and precision on other numbers of devices."""
        return f"{self.mode}{self._precision}"

    @property
    def _precision(self) -> str:
        return "" if self.amp == "no" else f" {self.amp}"

    @property
    def processes(self) -> int:
        return MODES[self.mode].processes(self.devices)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A layout that was asked for and has no numbers, and why."""

    layout: Layout
    reason: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is compared: the baseline is one device, in the first of the precisions."""

    baseline: Layout
    others: Sequence[Layout]
    refusals: Sequence[Refusal]


def choose(settings: Settings, *, devices: str, modes: str | None, amp: str, uses_rankwise: bool) -> Choice:
    """The layouts that these options name; each precision has one device among them, to be compared with.

    Raises UsageError for what is no number, mode or precision, and where nothing is left beside the baseline.
    """
    counts = [count for count in numbers("--devices", devices) if count > 1]
    names = choices("--modes", modes, MODES) if modes is not None else list(MODES)
    precisions = choices("--amp", amp, AMP)
    alone = resolve(Settings(devices=1))
    asked = [layout for precision in precisions for layout in (
        Layout(mode=alone, amp=precision),
        *(Layout(mode=name, devices=count, amp=precision) for name in names for count in counts if name != alone))]
    baseline, *rest = asked
    with_devices(settings.having(mode=baseline.mode, devices=1, amp=baseline.amp))
    reasons = {layout: _reason(settings, layout, uses_rankwise) for layout in rest}
    refusals = [Refusal(layout=layout, reason=reason) for layout, reason in reasons.items() if reason]
    others = [layout for layout, reason in reasons.items() if not reason]
    if not others:
        raise UsageError(
            f"--devices is {devices}{'' if modes is None else f' and --modes is {modes}'}.",
            " ".join(f"{each.layout} cannot run here: {each.reason}" for each in refusals)
            or f"The baseline is {baseline}, and here is nothing to compare with it.",
            "Give, for example, --devices 1,2, or --amp no,bf16 for two precisions on one device.")
    return Choice(baseline=baseline, others=others, refusals=refusals)


def _reason(settings: Settings, layout: Layout, uses_rankwise: bool) -> str:
    """Why this layout cannot run here; empty where it may."""
    if not uses_rankwise and layout.processes != layout.devices:
        return (f"The script does not use rankwise, and in mode {layout.mode} it is rankwise that uses "
                f"{layout.devices} devices in one process.")
    try:
        with_devices(settings.having(mode=layout.mode, devices=layout.devices, amp=layout.amp))
    except UsageError as error:
        return error.truth
    return ""

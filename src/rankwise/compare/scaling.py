"""What stays as it is when devices are added: the global batch (strong scaling), or the batch of a device (weak)."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.errors import UsageError

OPTION = "--batch-size"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """`batch_size` is handed to the target: as it is, or with `is_weak` times the number of devices.

    Raises UsageError for weak scaling of an unknown batch, and for a target that lays out its batches itself.
    """

    batch_size: int | None = None
    is_weak: bool = False
    uses_rankwise: bool = True

    def __post_init__(self) -> None:
        if self.batch_size is not None and not self.uses_rankwise:
            raise UsageError(f"{OPTION} is {self.batch_size}, and the script does not use rankwise.",
                             "Whether its batch is that of all devices or of one is its own affair.",
                             f"Give the script its own option, after --: -- {OPTION} {self.batch_size}")
        if self.is_weak and self.batch_size is None:
            raise UsageError(f"--weak is given without {OPTION}.",
                             "Weak scaling keeps the batch of one device, and it is not known.",
                             f"Give --weak {OPTION} 64, for example: 64 samples a step for each device.")

    @property
    def meaning(self) -> str:
        """What the numbers are of, in a sentence."""
        if self.is_weak:
            return (f"Weak scaling: {self.batch_size} samples a step for each device, so the global batch grows with "
                    "the devices, and with it the training changes.")
        if not self.uses_rankwise:
            return ("The script cuts its batches itself. Speed-ups compare steps, which is right where the batch over "
                    "all devices stays as it is.")
        size = "" if self.batch_size is None else f" of {self.batch_size} samples"
        return f"Strong scaling: the global batch{size} is the same in every layout."

    def arguments(self, devices: int) -> list[str]:
        """What the target is given besides its own options."""
        if self.batch_size is None:
            return []
        return [OPTION, str(self.batch_size * (devices if self.is_weak else 1))]

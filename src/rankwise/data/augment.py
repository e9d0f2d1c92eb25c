"""Augmentation of whole batches on the device, random by sample: the same pixels on any number of ranks.

An augmentation is a callable `(images, keys) -> images`: images [n, ...] and one random int64 key a sample, both on the
device. Draw with `integers`; write your own beside those here. `run.loader(..., augment=[Crop(4), Flip()])` applies
them in order to the first element of each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from rankwise.errors import UsageError

Augmentation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# The mixing function of rankwise.keys with its constants as signed 64-bit integers, which wrap round on every device.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def mixed(keys: torch.Tensor, word: int) -> torch.Tensor:
    """New keys from keys, int64 [n], and a small number: `rankwise.keys.mix_array` in signed arithmetic."""
    state = (keys ^ word) * _GOLDEN + _GOLDEN
    state = (state ^ _right(state, 30)) * _FIRST
    state = (state ^ _right(state, 27)) * _SECOND
    return state ^ _right(state, 31)


def integers(keys: torch.Tensor, word: int, below: int) -> torch.Tensor:
    """Random integers 0 .. below-1 by sample, int64 [n]; another `word` is another draw from the same keys."""
    return (_right(mixed(keys, word), 33) * below) >> 31


def _right(state: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that brings in zeros; torch's own brings in the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


class Flip:
    """Mirrors half of the images from left to right: [n, c, h, w], any dtype."""

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        mirrored = integers(keys, 0, 2).bool().view(-1, 1, 1, 1)
        return torch.where(mirrored, images.flip(-1), images)


class Crop:
    """Shifts each image by up to `padding` pixels in both directions: [n, c, h, w], any dtype.

    What comes in at the edges is 0, or with mode="reflect" the image mirrored there. Raises UsageError for a padding
    below 1 or an unknown mode.
    """

    def __init__(self, padding: int, mode: str = "zero") -> None:
        if not isinstance(padding, int) or padding < 1:
            raise UsageError(f"Crop was given a padding of {padding!r}.", "It is a number of pixels, at least 1.",
                             "Crop(4) is usual for images of 32 pixels.")
        if mode not in ("zero", "reflect"):
            raise UsageError(f"Crop was given mode={mode!r}.", "The modes are zero and reflect.",
                             "Leave it out for zero.")
        self._padding, self._mode = padding, mode

    def __call__(self, images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        height, width = images.shape[-2:]
        places = 2 * self._padding + 1
        windows = self._padded(images).unfold(2, height, 1).unfold(3, width, 1)   # a view: [n, c, places, places, h, w]
        rows = torch.arange(len(images), device=images.device)
        return windows[rows, :, integers(keys, 0, places), integers(keys, 1, places)]

    def _padded(self, images: torch.Tensor) -> torch.Tensor:
        if self._mode == "zero":
            return F.pad(images, [self._padding] * 4)
        height, width = images.shape[-2:]
        if self._padding >= min(height, width):
            raise UsageError(f"Crop({self._padding}, 'reflect') was given images of {height} x {width} pixels.",
                             "A mirrored edge is narrower than the image.", "Use a smaller padding.")
        down = _mirrored(height, self._padding, images.device)
        across = _mirrored(width, self._padding, images.device)
        return images.index_select(2, down).index_select(3, across)   # F.pad mirrors floats only


def _mirrored(length: int, padding: int, device: torch.device) -> torch.Tensor:
    """0 .. length-1 with `padding` places mirrored about both ends."""
    places = torch.arange(-padding, length + padding, device=device).abs()
    return torch.minimum(places, 2 * (length - 1) - places)


class Normalise:
    """(x - mean) / std for each channel: [n, c, ...] -> float32; uint8 is first divided by 255.

    `mean` and `std` have one number a channel, for values between 0 and 1. Raises UsageError where their lengths differ
    or a std is not positive.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std) or not len(mean) or not all(value > 0 for value in std):
            raise UsageError(f"Normalise was given mean={mean!r} and std={std!r}.",
                             "Both have one number a channel, and a std is above 0.",
                             "Give them for pixel values between 0 and 1.")
        self._mean = torch.tensor(mean, dtype=torch.float64)
        self._std = torch.tensor(std, dtype=torch.float64)
        self._terms: dict[tuple[torch.device, bool, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, images: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:
        factor, offset = self._on(images)
        return images.float().mul(factor).add_(offset)   # as one operation it would round once here and twice there

    def _on(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Factor and offset, float32 [c, 1, ...], kept on the device of the images."""
        key = (images.device, images.dtype == torch.uint8, images.ndim)
        if key not in self._terms:
            if images.ndim < 2 or len(self._mean) not in (1, images.shape[1]):
                raise UsageError(f"Normalise for {len(self._mean)} channels was given a batch {list(images.shape)}.",
                                 "Its second dimension is the channel.", "Give one mean and std for each channel.")
            factor = 1 / (self._std * (255 if images.dtype == torch.uint8 else 1))
            shape = (-1,) + (1,) * (images.ndim - 2)
            self._terms[key] = tuple(  # type: ignore[assignment]
                term.float().view(shape).to(images.device) for term in (factor, -self._mean / self._std))
        return self._terms[key]


def apply(augmentations: Sequence[Augmentation], images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """All augmentations in order, each with keys of its own."""
    for number, augmentation in enumerate(augmentations):
        images = augmentation(images, mixed(keys, number))
    return images

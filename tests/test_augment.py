"""Augmentation on the device: the same pixels for a sample however the batch is divided, checked image by image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import keys as reference
from rankwise.data.augment import Augmentation, Crop, Flip, Normalise, apply, integers, mixed
from rankwise.errors import UsageError

quick = settings(max_examples=40, deadline=None)


def signed(key: int) -> int:
    return key - (1 << 64) if key >> 63 else key


def some_keys(n: int) -> torch.Tensor:
    return torch.tensor([signed(reference.mix(3, number)) for number in range(n)])


def some_images(n: int, dtype: torch.dtype = torch.uint8, height: int = 6, width: int = 7) -> torch.Tensor:
    return torch.arange(n * 3 * height * width).remainder(251).reshape(n, 3, height, width).to(dtype)


@quick
@given(key=st.integers(0, 2**64 - 1), word=st.integers(0, 1000), below=st.integers(1, 2**31 - 1))
def test_hash_is_that_of_the_samples(key: int, word: int, below: int) -> None:
    """Signed arithmetic on tensors gives the bits that unsigned arithmetic gives, and draws stay below their bound."""
    tensor = torch.tensor([signed(key)])
    expected = int(reference.mix_array(word, np.array([key], dtype=np.uint64))[0])
    assert mixed(tensor, word).tolist() == [signed(expected)]
    assert integers(tensor, word, below).tolist() == [(expected >> 33) * below >> 31]


def test_integers_are_uniform_and_independent() -> None:
    """Over samples each number is as likely, also together with another draw from the same keys."""
    keys = some_keys(36_000)
    pairs = torch.bincount(integers(keys, 0, 6) * 6 + integers(keys, 1, 6), minlength=36).double()
    assert ((pairs - 1000) ** 2 / 1000).sum() < 35 + 5 * 70**0.5 + 15


def by_hand(images: torch.Tensor, keys: torch.Tensor,
            change: Callable[[np.ndarray, int, int], np.ndarray]) -> torch.Tensor:
    """Each image by itself: `change(image, first draw, second draw)`, with draws from 0 to 4."""
    def draw(key: int, word: int, below: int) -> int:
        return (int(reference.mix_array(word, np.array([key % 2**64], dtype=np.uint64))[0]) >> 33) * below >> 31
    rows = [change(image, draw(key, 0, 5), draw(key, 1, 5))
            for image, key in zip(images.numpy(), keys.tolist(), strict=True)]
    return torch.from_numpy(np.stack(rows))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize(("mode", "numpy_mode"), [("zero", "constant"), ("reflect", "reflect")])
def test_crop_shifts_each_image(dtype: torch.dtype, mode: str, numpy_mode: Any) -> None:
    """A crop is a window of the padded image, as numpy pads it, at a place of the sample's own."""
    images, keys = some_images(40, dtype), some_keys(40)

    def shifted(image: np.ndarray, down: int, across: int) -> np.ndarray:
        padded = np.pad(image, ((0, 0), (2, 2), (2, 2)), mode=numpy_mode)
        return padded[:, down:down + 6, across:across + 7]

    cropped = Crop(2, mode)(images, keys)
    assert cropped.dtype == dtype
    assert torch.equal(cropped, by_hand(images, keys, shifted))
    assert not torch.equal(cropped, images)


def test_flip_mirrors_half_of_the_images() -> None:
    """An image is mirrored from left to right or left alone, about as often."""
    images, keys = some_images(1000), some_keys(1000)
    flipped = Flip()(images, keys)
    mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
    kept = (flipped == images).flatten(1).all(1)
    assert (mirrored ^ kept).all()
    assert 420 < int(mirrored.sum()) < 580


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_normalise_centres_each_channel(dtype: torch.dtype) -> None:
    """Bytes are divided by 255, then each channel has its mean taken off and is divided by its std."""
    images = some_images(4, dtype)
    mean, std = [0.1, 0.5, 0.9], [0.2, 0.3, 0.4]
    values = images.double().numpy() / (255 if dtype == torch.uint8 else 1)
    expected = (values - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    got = Normalise(mean, std)(images)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)
    assert torch.equal(images, some_images(4, dtype))


@pytest.mark.parametrize("augmentations", [[Flip()], [Crop(2)], [Crop(1, "reflect"), Flip(), Flip()],
                                           [Crop(2), Flip(), Normalise([0.5] * 3, [0.2] * 3)]])
def test_batch_may_be_divided_anyhow(augmentations: list[Augmentation]) -> None:
    """Images come out bit by bit the same in one batch, in pieces, one by one, and in a piece of none."""
    images, keys = some_images(13), some_keys(13)
    whole = apply(augmentations, images, keys)
    for sizes in ([5, 0, 8], [1] * 13):
        pieces = [apply(augmentations, part, key)
                  for part, key in zip(images.split(sizes), keys.split(sizes), strict=True)]
        assert torch.equal(torch.cat(pieces), whole)


def test_two_of_a_kind_draw_by_themselves() -> None:
    """The same augmentation twice in a list does not draw the same numbers twice."""
    images, keys = some_images(200), some_keys(200)
    once, twice = apply([Flip()], images, keys), apply([Flip(), Flip()], images, keys)
    assert not torch.equal(twice, images)
    assert not torch.equal(twice, once)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Crop(0), "padding of 0"),
    (lambda: Crop(1.5), "padding of 1.5"),  # type: ignore[arg-type]
    (lambda: Crop(2, "edge"), "mode='edge'"),
    (lambda: Crop(6, "reflect")(some_images(2), some_keys(2)), "6 x 7 pixels"),
    (lambda: Normalise([0.5], [0.0]), "above 0"),
    (lambda: Normalise([0.5, 0.5], [0.1]), "one number a channel"),
    (lambda: Normalise([], []), "one number a channel"),
    (lambda: Normalise([0.5] * 4, [0.1] * 4)(some_images(2)), "for 4 channels"),
])
def test_bad_input_has_a_message(make: Callable[[], Any], message: str) -> None:
    """Values that cannot be used are refused in three parts."""
    with pytest.raises(UsageError, match=message) as raised:
        make()
    assert str(raised.value).count("\n  ") == 2

"""Images in memory as bytes, and batches of all forms on their device."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from rankwise.data.arrays import Arrays
from rankwise.data.augment import Crop, Flip
from rankwise.data.placement import to_device
from rankwise.errors import UsageError
from stand_in import loader

PIXELS = np.arange(20 * 3 * 4 * 4, dtype=np.int64).reshape(20, 3, 4, 4).astype(np.uint8)


def arrays() -> Arrays:
    return Arrays(PIXELS, np.arange(20), mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7])


def test_arrays_give_normalised_images() -> None:
    """Batches are float32 images, normalised by channel, and int64 labels; single samples have the same bits."""
    expected = (PIXELS / 255 - np.reshape([0.1, 0.2, 0.3], (3, 1, 1))) / np.reshape([0.5, 0.6, 0.7], (3, 1, 1))
    images, labels = next(iter(loader(arrays(), 20)))
    assert (images.dtype, labels.dtype, labels.tolist()) == (torch.float32, torch.int64, list(range(20)))
    assert np.allclose(images.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert len(arrays()) == 20
    image, label = arrays()[7]
    assert torch.equal(image, images[7])
    assert label == 7
    assert torch.equal(next(iter(loader(arrays(), 20, collate_fn=torch.utils.data.default_collate)))[0], images)


def test_arrays_are_augmented_alike_on_any_number_of_ranks() -> None:
    """Shuffled and augmented, a sample's pixels have the same bits on 1 and 3 ranks, and others in the next pass."""
    def images_of(size: int, **options: Any) -> dict[tuple[int, int], list[float]]:
        found = {}
        for rank in range(size):
            reader = loader(arrays(), 7, rank=rank, size=size, shuffle=True, augment=[Crop(1), Flip()], **options)
            for number in range(2):
                for images, labels in reader:
                    for image, label in zip(images, labels.tolist(), strict=True):
                        found[number, label] = image.flatten().tolist()
        return found

    one = images_of(1)
    assert len(one) == 40
    assert images_of(3, micro_batch=2) == one
    assert any(one[0, label] != one[1, label] for label in range(20))


@pytest.mark.parametrize(("images", "labels"), [
    (PIXELS.astype(np.float32), np.arange(20)), (PIXELS[0], np.arange(3)), (PIXELS, np.arange(19))])
def test_arrays_of_another_kind_are_refused(images: Any, labels: Any) -> None:
    """Images that are no bytes, of another shape, or not as many as labels get a message that shows both."""
    with pytest.raises(UsageError, match="holds uint8 images"):
        Arrays(images, labels, mean=[0.5] * 3, std=[0.5] * 3)


Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Frozen:
    values: torch.Tensor
    name: str


class Own:
    def __init__(self, device: str = "nowhere") -> None:
        self.device = device

    def to(self, device: torch.device) -> Own:
        return Own(device.type)


def test_batches_of_all_forms_arrive_on_the_device() -> None:
    """Tensors are found in every container, objects with `.to` move themselves, the rest stays as it is."""
    meta, tensor, array = torch.device("meta"), torch.zeros(2), np.zeros(2)
    batch = [(tensor, 3), {"x": tensor, "y": [tensor]}, Pair(tensor, "text"), Frozen(tensor, "name"), Own(),
             UserDict(z=tensor), array, None]
    there: Any = to_device(batch, meta)
    assert [there[0][0].device, there[1]["x"].device, there[1]["y"][0].device, there[2].left.device,
            there[3].values.device, there[5]["z"].device] == [meta] * 6
    assert [type(part) for part in there] == [type(part) for part in batch]
    assert (there[0][1], there[2].right, there[3].name, there[4].device) == (3, "text", "name", "meta")
    assert there[6] is array
    assert tensor.device.type == "cpu"
    assert batch[3].values is tensor  # type: ignore[union-attr]

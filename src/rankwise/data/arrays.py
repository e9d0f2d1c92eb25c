"""Data sets that lie in memory as whole arrays: a batch is one gather for each array, no Python step a sample."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from rankwise.data.augment import Normalise
from rankwise.errors import UsageError
from rankwise.structure import is_container, members, rebuilt


class InMemory(Protocol):
    """A data set that gives whole batches; it can be read sample by sample, too."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...

    def gather(self, indices: torch.Tensor, device: torch.device) -> Any:
        """The batch of these samples, int64 [m], as it lies in memory, on `device`."""
        ...

    def finish(self, batch: Any) -> Any:
        """What is left to do on the device."""
        ...


class Arrays:
    """Images with labels, kept as bytes and normalised on the device.

    `images` uint8 [n, c, h, w], `labels` integers [n]: tensors or numpy arrays. A batch is (float32 [m, c, h, w],
    int64 [m]). `mean` and `std` have one number a channel, for pixel values between 0 and 1. Raises UsageError for
    arrays of another kind.
    """

    def __init__(self, images: Any, labels: Any, *, mean: Sequence[float], std: Sequence[float]) -> None:
        self.images, self.labels = as_tensor(images), as_tensor(labels).to(torch.int64)
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.labels.shape != self.images.shape[:1]:
            raise UsageError(f"Arrays was given images {self.images.dtype} {list(self.images.shape)} and labels "
                             f"{list(self.labels.shape)}.", "It holds uint8 images [n, c, h, w] and n labels.",
                             "Give TensorDataset(images, labels) to the loader for data of other kinds.")
        self.mean, self.std = tuple(mean), tuple(std)
        self._normalise = Normalise(self.mean, self.std)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """One normalised image, float32 [c, h, w], and its label."""
        return self._normalise(self.images[index, None])[0], int(self.labels[index])

    def gather(self, indices: torch.Tensor, device: torch.device) -> Any:
        return take(self.images, indices, device), take(self.labels, indices, device)

    def finish(self, batch: Any) -> Any:
        images, labels = batch
        return self._normalise(images), labels


class Columns:
    """A tensor, or a tuple or mapping of tensors, with one row a sample; batches have the same form."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns
        self._length = _common_length(columns)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return _mapped(lambda column: column[index], self._columns)

    def gather(self, indices: torch.Tensor, device: torch.device) -> Any:
        return _mapped(lambda column: take(column, indices, device), self._columns)

    def finish(self, batch: Any) -> Any:
        return batch


class Chosen:
    """Some samples of a data set in memory, such as one side of a random split."""

    def __init__(self, whole: InMemory, indices: Sequence[int]) -> None:
        self._whole, self._indices = whole, torch.as_tensor(indices, dtype=torch.int64)
        self.finish = whole.finish

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._whole[int(self._indices[index])]

    def gather(self, indices: torch.Tensor, device: torch.device) -> Any:
        return self._whole.gather(self._indices[indices], device)


def in_memory(dataset: Any) -> InMemory | None:
    """The data set as arrays where it is such: a tensor or numpy array; a tuple or mapping of them; `Arrays`; torch's
    TensorDataset; a Subset of any of these. None where it has to be read sample by sample.

    A list is a list of samples, whatever they are.
    """
    if type(dataset) is Subset:
        whole = in_memory(dataset.dataset)
        return None if whole is None else Chosen(whole, dataset.indices)
    if type(dataset) is TensorDataset:   # a subclass may read in its own way
        return Columns(dataset.tensors)
    if isinstance(dataset, Arrays):
        return dataset
    if isinstance(dataset, (torch.Tensor, np.ndarray)):
        return Columns(as_tensor(dataset))
    if isinstance(dataset, (tuple, Mapping)) and dataset and all(
            isinstance(column, (torch.Tensor, np.ndarray)) for column in members(dataset)):
        return Columns(rebuilt(as_tensor, dataset))
    return None


def as_tensor(array: Any) -> torch.Tensor:
    """The array as a tensor over the same memory; raises UsageError for a dtype that torch does not have."""
    if isinstance(array, torch.Tensor):
        return array
    array = np.asarray(array)
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")   # we only read
            return torch.from_numpy(array)
    except TypeError:
        raise UsageError(f"The data set has an array of dtype {array.dtype}.", "torch has no such tensors.",
                         "Convert it to numbers in the machine's byte order, or give a Dataset with a collate_fn."
                         ) from None


def take(column: torch.Tensor, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Rows of a tensor, [m, ...], on `device`; the copy to an accelerator is not waited for."""
    if column.device.type == "cpu" and device.type == "cuda":
        rows = torch.empty((len(indices), *column.shape[1:]), dtype=column.dtype, pin_memory=True)
        return torch.index_select(column, 0, indices, out=rows).to(device, non_blocking=True)
    rows = column.index_select(0, indices.to(column.device))
    return rows if rows.device == device else rows.to(device)


def _mapped(function: Any, columns: Any) -> Any:
    return rebuilt(function, columns) if is_container(columns) else function(columns)


def _common_length(columns: Any) -> int:
    lengths = [len(column) if column.ndim else 0
               for column in (members(columns) if is_container(columns) else [columns])]
    if len(set(lengths)) != 1:
        raise UsageError(f"The data set's arrays have {', '.join(map(str, lengths))} rows.",
                         "Each sample is one row of each of them.", "Give arrays of one length.")
    return lengths[0]

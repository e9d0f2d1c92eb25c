"""The ranks of a run, and what they say to each other.

One rank is a group of one: every method answers at once and no process group exists. With more, a small key-value store
beside the process group carries what must not wait in a collective: where each rank stands, and work that rank 0 does
alone.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rankwise import environment
from rankwise.errors import PeerError, RankwiseError
from rankwise.ledger import PHASES, Ledger
from rankwise.pulse import PULSE
from rankwise.world import World

T = TypeVar("T")

_POLL_SECONDS = 0.02
_SETTLE_SECONDS = 0.1


class Pending:
    """A reduction under way; `wait` gives its tensor, which is on the group's device."""

    def __init__(self, tensor: torch.Tensor, ledger: Ledger, work: dist.Work | None = None) -> None:
        self._tensor, self._ledger, self._work = tensor, ledger, work

    def wait(self) -> torch.Tensor:
        if self._work is not None:
            with self._ledger.communicating():
                self._work.wait()
            self._work = None
        return self._tensor


class Group:
    """All ranks of a run.

    Reductions work in place on contiguous tensors that lie on `device`. Where a rank is lost or late they raise
    PeerError within the time limit.
    """

    def __init__(self, world: World, device: torch.device, *, process_group: dist.ProcessGroup | None = None,
                 store: dist.Store | None = None, timeout_seconds: float = 600.0) -> None:
        self.world, self.device, self.timeout_seconds = world, device, timeout_seconds
        self.rank, self.size, self.is_main = world.rank, world.size, world.is_main
        self.process_group, self._store = process_group, store
        self.ledger = ledger = Ledger.of(device)
        PULSE.phase = lambda: PHASES[ledger.phase]
        self._alone_blocks = 0

    @classmethod
    def open(cls, world: World, device: torch.device, *, timeout_seconds: float = 600.0,
             store: dist.Store | None = None) -> Group:
        """Meet the other ranks: through `store`, or where the launcher's environment says."""
        if world.size == 1:
            return cls(world, device, timeout_seconds=timeout_seconds)
        # Imported after a process group exists, this module pins the group for good (a default argument holds it):
        # gloo's threads then outlive the interpreter's end and abort it.
        importlib.import_module("torch.distributed.nn.functional")
        timeout = timedelta(seconds=timeout_seconds)
        try:
            if store is None:
                store, _, _ = next(dist.rendezvous("env://", world.rank, world.size, timeout=timeout))
            store = of_attempt(store, environment.attempt())
            dist.init_process_group(backend_of(device), store=store, rank=world.rank, world_size=world.size,
                                    timeout=timeout, device_id=None if device.type == "cpu" else device)
        except (RuntimeError, ValueError) as error:
            raise PeerError(f"Rank {world.rank} of {world.size} could not meet the others "
                            f"within {timeout_seconds:.0f} s.", transport_words(error),
                            "See that every rank was started, that the machines reach each other, "
                            "and the log files of the other ranks.") from error
        return cls(world, device, process_group=dist.group.WORLD, store=store, timeout_seconds=timeout_seconds)

    # Reductions

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place; returns `tensor`."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        """Largest over all ranks, element by element, in place; returns `tensor`."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def sum_later(self, tensor: torch.Tensor) -> Pending:
        """Begin a sum over all ranks and go on; every rank must begin it at the same place."""
        if self.process_group is None:
            return Pending(tensor, self.ledger)
        self.ledger.sent(self.all_reduce_bytes(tensor.nbytes))
        return Pending(tensor, self.ledger, dist.all_reduce(tensor, group=self.process_group, async_op=True))

    def all_reduce_bytes(self, payload_bytes: float) -> float:
        """What a rank sends in an all-reduce of `payload_bytes`, as a ring does it: 2 (ranks - 1) / ranks of them.

        No algorithm sends less (Patarasuk and Yuan 2009, section 2).
        """
        return 2 * (self.size - 1) / self.size * payload_bytes

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, of one shape: [ranks, ...]."""
        if self.process_group is None:
            return tensor[None]
        everyone = tensor.new_empty((self.size, *tensor.shape))
        self.ledger.sent((self.size - 1) * tensor.nbytes)
        with self.explained("a gathering"):
            # torch 2.13 has a new name for it, and warns of the old one.
            gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            gather(everyone.view(-1), tensor.reshape(-1), group=self.process_group)
        return everyone

    def swap(self, tensor: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Give each rank a part of this 1-dim tensor, `lengths` long in order of rank; returns [ranks, own length]."""
        if self.process_group is None:
            return tensor[None]
        received = tensor.new_empty((self.size, lengths[self.rank]))
        self.ledger.sent((sum(lengths) - lengths[self.rank]) * tensor.element_size())
        with self.explained("an exchange"):
            dist.all_to_all_single(received.view(-1), tensor, [lengths[self.rank]] * self.size, list(lengths),
                                   group=self.process_group)
        return received

    def agree(self, flag: bool) -> bool:
        """Whether any rank says yes: what ranks ask before they branch."""
        if self.process_group is None:
            return flag
        return bool(self.max(torch.tensor([flag], dtype=torch.int32, device=self.device)).item())

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """The tensor of rank `source`, in place; returns `tensor`."""
        if self.process_group is not None:
            self.ledger.sent((self.size - 1) / self.size * tensor.nbytes)   # the mean over ranks: a pipe or a tree
            with self.explained("a broadcast"):
                dist.broadcast(tensor, source, group=self.process_group)
        return tensor

    def gather_objects(self, value: T) -> list[T]:
        """Every rank's value, in order of rank. Pickled: not for the step."""
        if self.process_group is None:
            return [value]
        values: list[Any] = [None] * self.size
        with self.explained("a gathering"):
            dist.all_gather_object(values, value, group=self.process_group)
        return values

    def broadcast_object(self, value: T, source: int = 0) -> T:
        """The value of rank `source`. Pickled: not for the step."""
        if self.process_group is None:
            return value
        box = [value]
        with self.explained("a broadcast"):
            dist.broadcast_object_list(box, source, group=self.process_group)
        return box[0]

    def barrier(self, place: str = "a barrier") -> None:
        """Wait until every rank is here."""
        if self.process_group is not None:
            self._reduce(torch.zeros(1, device=self.device), dist.ReduceOp.SUM, place)

    def _reduce(self, tensor: torch.Tensor, operation: Any, place: str = "a reduction") -> torch.Tensor:
        if self.process_group is not None:
            self.ledger.sent(self.all_reduce_bytes(tensor.nbytes))
            with self.explained(place):
                dist.all_reduce(tensor, operation, group=self.process_group)
        return tensor

    # Work that rank 0 does alone

    @contextlib.contextmanager
    def alone(self, place: str = "a block of its own", limit_seconds: float = 24 * 3600.0) -> Iterator[bool]:
        """True on rank 0, which works while the others wait at the end of the block, outside any collective.

            with group.alone("the upload") as mine:
                if mine:
                    upload()
        """
        self._alone_blocks += 1
        key = f"alone/{self._alone_blocks}"
        if self._store is None:
            with PULSE.working_alone(place):
                yield True
        elif self.is_main:
            outcome = "failed"
            try:
                with PULSE.working_alone(place):
                    yield True
                outcome = "done"
            finally:
                self._store.set(key, outcome)
        else:
            yield False
            self._wait_for_main(key, place, limit_seconds)

    def _wait_for_main(self, key: str, place: str, limit_seconds: float) -> None:
        assert self._store is not None
        deadline = time.monotonic() + limit_seconds
        while not self._store.check([key]):
            end = self._end_of_main()
            if end or time.monotonic() > deadline:
                raise PeerError(f"Rank {self.rank} waited for rank 0 in {place}.",
                                f"Rank 0 {end or f'was not through after {limit_seconds:.0f} s'}.",
                                "See rank 0's log file.")
            time.sleep(_POLL_SECONDS)
        if self._store.get(key) != b"done":
            raise PeerError(f"Rank {self.rank} waited for rank 0 in {place}.", "Rank 0 failed there.",
                            "See rank 0's message.")

    # Where this rank stands

    def at_step(self, step: int) -> None:
        """Note how often this rank has updated the weights."""
        PULSE.at_step(step)

    def ended(self, how: str) -> None:
        """Tell the others how this rank ends, so that none of them waits for it in `alone`."""
        if self._store is not None:
            with contextlib.suppress(RuntimeError):   # the store may be gone with its machine
                self._store.set(f"ended/{self.rank}", how)

    def _end_of_main(self) -> str:
        """How rank 0 ended; empty while it runs."""
        assert self._store is not None
        return self._store.get("ended/0").decode() if self._store.check(["ended/0"]) else ""

    # Losing another rank

    @contextlib.contextmanager
    def explained(self, place: str) -> Iterator[None]:
        """The context of a wait for other ranks: a transport's message is turned into one that names them."""
        try:
            with self.ledger.communicating() if self.size > 1 else contextlib.nullcontext():
                yield
        except RuntimeError as error:
            self.explain(error, place)
            raise
        PULSE.beat()

    def explain(self, error: RuntimeError, place: str) -> None:
        """Raise PeerError where `error` came from the transport between ranks."""
        if not isinstance(error, RankwiseError) and is_transport_error(error):
            raise self.peer_error(place, error) from error

    def peer_error(self, place: str, error: BaseException) -> PeerError:
        """What this rank knows of the rank that it lost: where it waited for it."""
        return PeerError(f"Rank {self.rank} waited in {place}, in step {PULSE.steps}, and another rank did not come.",
                         f"{transport_words(error)}.",
                         "Look at the rank that failed or returned early: its log file tells why. "
                         "Every rank must run the loop body equally often.")

    def close(self) -> None:
        """Leave the group; the threads of its transport end here."""
        PULSE.phase = str
        if self.process_group is not None:
            # A thread of gloo may still be letting go of its last tensor, for which it needs Python's lock; torch 2.7
            # holds that lock while it waits for the thread to end.
            time.sleep(_SETTLE_SECONDS)
            self.process_group = None
            dist.destroy_process_group()
        self._store = None


def backend_of(device: torch.device) -> str:
    """The transport for tensors on this kind of device."""
    return "nccl" if device.type == "cuda" else "gloo"


def of_attempt(store: dist.Store, attempt: int) -> dist.Store:
    """The part of a launcher's store that its ranks use in this attempt.

    gloo leaves addresses in a store, which the ranks of a later attempt would take for each other's.
    """
    return dist.PrefixStore(f"rankwise/attempt/{attempt}", store)


def is_transport_error(error: BaseException) -> bool:
    """Whether this RuntimeError came from the transport between ranks."""
    text = str(error)
    return isinstance(error, dist.DistError) or any(
        sign in text for sign in ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting",
                                  "NCCL"))


def transport_words(error: BaseException) -> str:
    """The first line of a message, without the source file and the advice that gloo puts around it."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[/[^\]]*\] |\. This is typically caused by .*", "", line)[:300]

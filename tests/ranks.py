"""Real ranks for tests: processes from a warm forkserver, joined by gloo, each with a deadline."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.nn.functional", "numpy", "rankwise"])


class RankFailure(AssertionError):
    """A rank raised or did not answer; the text has its traceback."""


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, deadline_seconds: float = 60.0,
              store: Path | None = None, **settings: Any) -> list[Any]:
    """`function(run, *args)` on real ranks, each with an open Run; the results in order of rank."""
    return _start(_with_run, function, world_size, args, settings, deadline_seconds)


def run_groups(function: Callable[..., Any], world_size: int, *args: Any, deadline_seconds: float = 60.0,
               timeout_seconds: float = 30.0) -> list[Any]:
    """`function(group, *args)` on real ranks, each with a Group; the results in order of rank."""
    return _start(_with_group, function, world_size, args, {"timeout": timeout_seconds}, deadline_seconds)


def outcomes(function: Callable[..., Any], world_size: int, *args: Any, deadline_seconds: float = 60.0,
             **settings: Any) -> list[Any]:
    """Like run_ranks, but each rank's exception (as text) stands in its place."""
    return _start(_with_run, function, world_size, args, settings, deadline_seconds, keep_errors=True)


def run_plain(function: Callable[..., Any], world_size: int, *args: Any, deadline_seconds: float = 60.0) -> list[Any]:
    """`function(world, *args)` on real ranks that have a launcher's store and nothing else; an exception (as text), or
    that a rank died, stands in its place.
    """
    return _start(_with_world, function, world_size, args, {}, deadline_seconds, keep_errors=True)


def _start(entry: Callable[..., Any], function: Callable[..., Any], world_size: int, args: tuple[Any, ...],
           settings: dict[str, Any], deadline_seconds: float, keep_errors: bool = False) -> list[Any]:
    with tempfile.TemporaryDirectory(prefix="rankwise-test-") as scratch, _store() as address:
        pipes, processes = [], []
        for rank in range(world_size):
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(target=_rank, args=(entry, theirs, rank, world_size, scratch, address, function,
                                                           args, settings), daemon=False)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return _collect(pipes, deadline_seconds, keep_errors)
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join(5)


@contextlib.contextmanager
def _store() -> Iterator[dict[str, str]]:
    """A store such as a launcher keeps, by the variables that name it: for threads beside the training."""
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}


def _collect(pipes: list[Connection], deadline_seconds: float, keep_errors: bool) -> list[Any]:
    results: dict[int, Any] = {}
    failures: list[str] = []
    deadline = time.monotonic() + deadline_seconds
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            late = [rank for rank in range(len(pipes)) if rank not in results]
            raise RankFailure("\n".join([f"ranks {late} did not end within {deadline_seconds} s", *failures]))
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                fine, value = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                fine, value = False, "the process died without a word"
            results[rank] = value
            if not fine:
                failures.append(f"rank {rank}: {value}")
    if failures and not keep_errors:
        raise RankFailure("\n".join(failures))
    return [results[rank] for rank in range(len(pipes))]


def _rank(entry: Callable[..., Any], pipe: Connection, rank: int, world_size: int, scratch: str,
          address: dict[str, str], function: Callable[..., Any], args: tuple[Any, ...],
          settings: dict[str, Any]) -> None:
    os.environ.update(address)
    try:
        answer = (True, entry(rank, world_size, Path(scratch), function, args, settings))
    except BaseException as error:
        answer = (False, "".join(traceback.format_exception(error)))
    pipe.send_bytes(pickle.dumps(answer))
    pipe.close()


def _open_group(rank: int, world_size: int, scratch: Path, timeout_seconds: float) -> Any:
    import torch
    import torch.distributed as dist

    from rankwise.group import Group
    from rankwise.world import World
    torch.set_num_threads(1)
    store = dist.FileStore(str(scratch / "store"), world_size) if world_size > 1 else None
    world = World(rank=rank, size=world_size, local_rank=rank, local_size=world_size)
    return Group.open(world, torch.device("cpu"), timeout_seconds=timeout_seconds, store=store)


def _with_world(rank: int, world_size: int, scratch: Path, function: Callable[..., Any], args: tuple[Any, ...],
                settings: dict[str, Any]) -> Any:
    import torch

    from rankwise.world import World
    torch.set_num_threads(1)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"   # as a launcher says that it keeps the store
    return function(World(rank=rank, size=world_size, local_rank=rank, local_size=world_size), *args)


def _with_group(rank: int, world_size: int, scratch: Path, function: Callable[..., Any], args: tuple[Any, ...],
                settings: dict[str, Any]) -> Any:
    group = _open_group(rank, world_size, scratch, settings["timeout"])
    try:
        return function(group, *args)
    finally:
        group.close()


def _with_run(rank: int, world_size: int, scratch: Path, function: Callable[..., Any], args: tuple[Any, ...],
              settings: dict[str, Any]) -> Any:
    from rankwise.launcher.session import open_run
    from rankwise.settings import Settings
    chosen = Settings(**{"mode": "ddp" if world_size > 1 else "single", "timeout": 30.0, "runs": str(scratch),
                         "name": "test", **settings})
    group = _open_group(rank, world_size, scratch, chosen.timeout)
    with open_run(chosen, group, folder=scratch / "test") as run:
        return function(run, *args)

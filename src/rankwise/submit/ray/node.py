"""What a node of the Ray cluster does for a job: it says whether it can run it, and runs its part."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise import environment
from rankwise.errors import EXIT_PREEMPTED

_LOOK_SECONDS = 2.0
_RUN = ("import sys; from rankwise.lifetime import end_with_parent; end_with_parent(int(sys.argv.pop(1))); "
        "from rankwise.cli import main; main()")


@dataclass(frozen=True, kw_only=True)
class Part:
    """What every node runs: rankwise with `words`, in `folder`, on `threads` cores for each rank.

    `NODE` and `ENDPOINT` among the words stand for the node's number and for where the nodes meet. Each node writes its
    output into a file of its own in `output`.
    """

    words: tuple[str, ...]
    folder: str
    output: str
    threads: int


NODE, ENDPOINT = "{node}", "{endpoint}"


def output_file(output: Path, node: int) -> Path:
    return output / f"node{node}.log"


def problem_here(folder: str, token: str, script: str | None, version: str) -> str:
    """Why this node cannot run the job; nothing where it can. `token` is a file that the submitting machine made."""
    from rankwise import __version__
    if version != __version__:
        return f"it has rankwise {__version__}, and this machine {version}"
    if not Path(token).is_file():
        return f"it does not see {folder} as this machine does: no disk that both share"
    if script is not None and not Path(script).is_file():
        return f"it does not see {script}"
    return ""


def run_part(part: Part) -> int:
    """The node's part, from start to end, in a process of its own that ends with this one; returns its exit code.

    A worker whose node is about to be taken away does not return when the ranks have saved: to Ray Train it was taken
    with its node, so that all parts start again, on other nodes.
    """
    import ray.train
    import ray.train.collective
    import ray.util
    node = ray.train.get_context().get_world_rank()
    endpoint = f"{ray.util.get_node_ip_address()}:{_free_port()}"
    endpoint = ray.train.collective.broadcast_from_rank_zero(endpoint)
    words = _filled(part.words, node, endpoint)
    with (output_file(Path(part.output), node).open("ab") as output,
          environment.changed({"OMP_NUM_THREADS": str(part.threads)})):   # Ray sets it to all cores of the node
        process = subprocess.Popen([sys.executable, "-c", _RUN, str(os.getpid()), *words], cwd=part.folder,
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    taken = _looked_after(process)
    code = process.wait()
    if node in taken and code == EXIT_PREEMPTED:
        os._exit(code)
    return code


def _looked_after(process: subprocess.Popen[bytes]) -> list[int]:
    """Wait until node 0's process has ended; returns the nodes that Ray says meanwhile will be taken away.

    The notice is passed on. Every node looks equally often: Ray's calls wait for all of them.
    """
    import ray.train
    import ray.train.collective
    taken: list[int] = []
    is_over = False
    while not is_over:
        notice = ray.train.get_preemption_info()
        if notice is not None and not taken:
            taken = notice.preempted_ranks
            process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_SECONDS)
        is_over = ray.train.collective.broadcast_from_rank_zero(process.poll() is not None)
    return taken


def _filled(words: Sequence[str], node: int, endpoint: str) -> list[str]:
    places = {NODE: str(node), ENDPOINT: endpoint}
    return [places.get(word, word) for word in words]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port

"""What a node of the Ray cluster does for a job: it says whether it can run it, and runs its part."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise import environment

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
    """The node's part, from start to end, in a process of its own that ends with this one; returns its exit code."""
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
        return process.wait()


def _filled(words: Sequence[str], node: int, endpoint: str) -> list[str]:
    places = {NODE: str(node), ENDPOINT: endpoint}
    return [places.get(word, word) for word in words]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port

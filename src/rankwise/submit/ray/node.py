"""What a node of the Ray cluster does for a job: it says whether it can run it, and runs its part."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwise import environment
from rankwise.errors import EXIT_FAILED, EXIT_PREEMPTED

_LOOK_SECONDS = 2.0
_LONGEST_NOTICE_SECONDS = 3600.0
_RUN = """import signal, sys
from rankwise.cli import main
from rankwise.lifetime import end_with_parent
end_with_parent(int(sys.argv.pop(1)))
try:
    main()
finally:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)   # a notice that comes too late changes nothing
"""


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

    Where a node will be taken away and the ranks have saved for it, no worker returns: Ray Train would take the job for
    done. It ends the workers when the notice has run out, and starts all parts again, on other nodes.
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
    has_notice = _looked_after(process)
    code = process.wait()
    if has_notice and code == EXIT_PREEMPTED:
        time.sleep(_LONGEST_NOTICE_SECONDS)
    return code if code >= 0 else EXIT_FAILED


def _looked_after(process: subprocess.Popen[bytes]) -> bool:
    """Wait until node 0's process has ended; returns whether Ray gives notice meanwhile that a node will be taken away.

    The notice is passed on. Every node looks equally often: Ray's calls wait for all of them.
    """
    import ray.train
    import ray.train.collective
    has_notice = is_over = False
    while not is_over:
        if ray.train.get_preemption_info() is not None and not has_notice:
            has_notice = True
            process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_SECONDS)
        is_over = ray.train.collective.broadcast_from_rank_zero(process.poll() is not None)
    return has_notice


def _filled(words: Sequence[str], node: int, endpoint: str) -> list[str]:
    places = {NODE: str(node), ENDPOINT: endpoint}
    return [places.get(word, word) for word in words]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port

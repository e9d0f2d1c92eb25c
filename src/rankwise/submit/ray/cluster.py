"""A running Ray cluster: reaching it, whether it can take a job, and the job from start to end."""

from __future__ import annotations

import signal
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise import __version__
from rankwise.errors import EXIT_FAILED, RankwiseError, UsageError
from rankwise.submit.ray.node import Part, problem_here, run_part

_CHECK_SECONDS = 90.0
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a job takes: so many nodes, and of each so many devices with their cores."""

    nodes: int
    devices: int
    cores: int
    uses_gpus: bool

    @property
    def of_a_node(self) -> dict[str, float]:
        """Its resources in Ray's words."""
        return {"CPU": self.devices * self.cores, **({"GPU": self.devices} if self.uses_gpus else {})}


def require_address(address: str) -> None:
    """Raise UsageError for a text that can be no address of a cluster's head."""
    if address.startswith("ray://"):
        raise UsageError(f"--address is {address}.", "That is Ray's client, of a machine outside the cluster.",
                         "Submit from a machine of the cluster.")
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(f"--address is {address}.", "It is HOST:PORT of the cluster's head, or auto.",
                         "Give --address 10.0.0.1:6379, for example.")


def reached(address: str) -> Any:
    """Ray, connected to the cluster at this address. Raises UsageError where it is not installed or does not answer."""
    if address != "auto":
        _require_listening(address)
    try:
        import ray
    except ModuleNotFoundError:
        raise UsageError("Ray is not installed here.", "The job is handed to its cluster with it.",
                         "pip install 'rankwise[ray]', in the version that the cluster has.") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:   # ConnectionError, RuntimeError (another version), and whatever gRPC has to say
        raise UsageError(f"No Ray cluster answers at {address}.", f"Ray says: {str(error).strip().splitlines()[0]}",
                         "Start one with `ray start --head`, or give --address HOST:6379 of its head.") from None
    return ray


def _require_listening(address: str) -> None:
    """Raise UsageError where nothing listens at HOST:PORT: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise UsageError(f"--address is {address}.", f"No Ray cluster listens there: {error}.",
                         "Give --address HOST:6379 of its head; `ray status` tells of it on a node.") from None


def require_room(nodes: Sequence[dict[str, Any]], share: Share) -> None:
    """Raise UsageError where the cluster has too few nodes with so many devices; `nodes` as `ray.nodes()` has them."""
    alive = [node for node in nodes if node["Alive"]]
    fitting = [node for node in alive if all(node["Resources"].get(name, 0) >= amount
                                             for name, amount in share.of_a_node.items())]
    if len(fitting) >= share.nodes:
        return
    wanted = " and ".join(f"{amount:.0f} {name}" for name, amount in share.of_a_node.items())
    has = "; ".join(f"{node['NodeManagerAddress']}: " + ", ".join(
        f"{node['Resources'].get(name, 0):.0f} {name}" for name in share.of_a_node) for node in alive)
    raise UsageError(f"The job takes {share.nodes} node{'s' * (share.nodes > 1)}, each with {wanted}.",
                     f"The cluster has {len(fitting)} such ({has}).",
                     "Take fewer --nodes, --devices or --cores-per-device, or start more nodes.")


def require_sight(ray: Any, folder: Path, script: Path | None) -> None:
    """Raise UsageError where a node of the cluster does not see this folder and script, or has another rankwise."""
    token = folder / f".rankwise-{uuid.uuid4().hex}"
    token.touch()
    try:
        check = ray.remote(num_cpus=0, max_retries=0)(problem_here)
        asked = {node["NodeManagerAddress"]: check.options(label_selector={"ray.io/node-id": node["NodeID"]}).remote(
            str(folder), str(token), None if script is None else str(script), __version__)
            for node in ray.nodes() if node["Alive"]}
        problems = {address: _answer(ray, answer) for address, answer in asked.items()}
    finally:
        token.unlink()
    bad = {address: problem for address, problem in problems.items() if problem}
    if bad:
        raise UsageError("The job cannot run on every node of the cluster.",
                         "\n  ".join(f"Node {address}: {problem}." for address, problem in bad.items()),
                         "Put the script and the working folder on a disk that all nodes share, and install the same "
                         "rankwise on each.")


def _answer(ray: Any, answer: Any) -> str:
    try:
        problem: str = ray.get(answer, timeout=_CHECK_SECONDS)
        return problem
    except Exception as error:   # whatever its interpreter raised, or Ray itself
        return f"it says {str(error).strip().splitlines()[-1]}"


def run(ray: Any, part: Part, share: Share, *, restarts: int, storage: Path) -> int:
    """The part on every node, by Ray Train; returns the exit code.

    Where a node is lost, all parts start again, as often as `restarts` says. Raises KeyboardInterrupt when interrupted,
    and RankwiseError where Ray could not run it; the parts have ended then.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        code = _trainer(part, share, restarts, storage).fit().return_value
    except SystemExit:   # Ray Train's own handler of Ctrl-C has ended the parts, and would now end this process with 0
        raise KeyboardInterrupt from None
    except Exception as error:   # whatever a node, Ray or its network has to say
        raise RankwiseError("Ray could not run the job to its end.", str(error).strip(),
                            "See the output of the nodes; --max-restarts starts all again where one is lost.") from None
    finally:
        signal.signal(signal.SIGINT, before)
        ray.shutdown()
    return EXIT_FAILED if code is None else int(code)


def _trainer(part: Part, share: Share, restarts: int, storage: Path) -> Any:
    """Ray Train's trainer without a process group of its own: the ranks of a node are rankwise's."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    return DataParallelTrainer(
        run_part, train_loop_config=part,
        scaling_config=ScalingConfig(num_workers=share.nodes, use_gpu=share.uses_gpus,
                                     resources_per_worker=share.of_a_node,
                                     placement_strategy="STRICT_SPREAD" if share.nodes > 1 else "PACK"),
        run_config=RunConfig(name=f"train-{time.strftime('%Y%m%d-%H%M%S')}", storage_path=str(storage),
                             failure_config=FailureConfig(max_failures=restarts)))

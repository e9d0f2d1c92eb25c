"""A training handed to a running Ray cluster: what can be known to be wrong is said before, and the job is followed."""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import UsageError
from rankwise.launcher.streams import Followed
from rankwise.launcher.target import resolve
from rankwise.submit.ray import cluster
from rankwise.submit.ray.cluster import Share
from rankwise.submit.ray.node import ENDPOINT, NODE, Part, output_file
from rankwise.submit.work import Work

_LOOK_SECONDS = 0.2
_OUTPUT = "nodes"   # in the run's folder


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """What each node of the cluster at `address` runs, and what it takes for it.

    `script` is the file that every node has to see, if there is one. Where a node is lost, all nodes start again, as
    often as `restarts` says.
    """

    name: str
    address: str
    part: Part
    share: Share
    script: Path | None
    restarts: int

    @property
    def output(self) -> Path:
        return Path(self.part.output)

    def described(self) -> str:
        """The job in lines that a person reads: what --dry-run prints."""
        wanted = ", ".join(f"{amount:.0f} {name}" for name, amount in self.share.of_a_node.items())
        return (f"# A job of Ray Train: {self.share.nodes} worker{'s' * (self.share.nodes > 1)}, each on a node of its "
                f"own with {wanted}; started again {self.restarts} times where a node is lost.\n"
                f"# {NODE} is the worker's number, {ENDPOINT} an address of worker 0's node.\n"
                f"# Output: {output_file(self.output, 0)} and the same of the others.\n"
                f"cd {shlex.quote(self.part.folder)}\nOMP_NUM_THREADS={self.part.threads} "
                f"{shlex.join(['rankwise', *self.part.words])}")


def job_of(work: Work, *, address: str, cores: int) -> RayJob:
    """The job that does this work on the cluster at this address, with so many cores for each device.

    Raises UsageError for a target that is not there, for what is no address, and for devices that Ray does not know.
    """
    cluster.require_address(address)
    if work.settings.accelerator == "mps":
        raise UsageError("--accelerator is mps.", "Ray knows GPUs of NVIDIA and cores.", "Give --accelerator cpu.")
    found = None if work.is_doctor else resolve(work.target, as_module=work.is_module)
    folder = Path.cwd()
    share = Share(nodes=work.nodes, devices=work.devices, cores=cores, uses_gpus=work.settings.accelerator != "cpu")
    part = Part(words=work.words(node_rank=NODE, endpoint=ENDPOINT), folder=str(folder), threads=cores,
                output=str(folder / work.settings.runs / work.name / _OUTPUT))
    return RayJob(name=work.name, address=address, part=part, share=share, restarts=work.settings.max_restarts,
                  script=None if found is None or found.module else found.path)


def submit(job: RayJob, tell: Callable[[str], None]) -> int:
    """Run the job on its cluster, and show what node 0 says; returns its exit code.

    Raises UsageError before anything runs, RankwiseError where Ray could not run it, and KeyboardInterrupt when
    interrupted; nothing of it runs then.
    """
    ray = cluster.reached(job.address)
    try:
        cluster.require_room(ray.nodes(), job.share)
        cluster.require_sight(ray, Path(job.part.folder), job.script)
        job.output.mkdir(parents=True, exist_ok=True)
    except BaseException:
        ray.shutdown()
        raise
    tell(f"the job {job.name} is handed to Ray; it waits until {job.share.nodes} "
         f"node{'s have' if job.share.nodes > 1 else ' has'} room for it.")
    try:
        with _shown(output_file(job.output, 0)):
            code = cluster.run(ray, job.part, job.share, restarts=job.restarts, storage=job.output)
    except KeyboardInterrupt:
        tell(f"interrupted; nothing of the job {job.name} runs any more.")
        raise
    if code:
        tell(f"what each node has said: {job.output}")
    return code


@contextlib.contextmanager
def _shown(path: Path) -> Iterator[None]:
    """Within this block what is new in a file is printed, line by line."""
    over, followed = threading.Event(), Followed(path)

    def show() -> None:
        while not over.wait(_LOOK_SECONDS):
            followed.show()

    thread = threading.Thread(target=show, name="rankwise-ray-output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        followed.show()

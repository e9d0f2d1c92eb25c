"""What a Kubernetes job asks of its cluster, as plain values, and which values it cannot have."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from rankwise.errors import UsageError
from rankwise.runfolder import STATUS

KINDS = ("job", "jobset", "trainjob")
PORT = 29500
GPU = "nvidia.com/gpu"
SCRIPTS = "/script"   # where the ConfigMap is mounted
USER = 10001          # that of the images
LARGEST_SCRIPT_BYTES = 1_000_000   # a ConfigMap takes 1 MiB, its metadata included
_LONGEST_LABEL = 63                # of a DNS name: a pod's host name is one
_LAST_WORD_SECONDS = 30.0          # beyond --grace-seconds: what a rank may still write when it has been asked to end
_STARTUP_PERIOD_SECONDS = 10
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[KMGTPE]i?)?")
_IMAGE = re.compile(r"[a-z0-9][\w.:/-]*(@sha256:[0-9a-f]{64})?")
_DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A PersistentVolumeClaim, and the folder of the pods where it is mounted."""

    name: str
    folder: str = "/workspace"

    @classmethod
    def of(cls, text: str) -> Claim:
        """That of `PVC` or `PVC:FOLDER`; raises UsageError for anything else."""
        name, colon, folder = text.partition(":")
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name) or (colon and not re.fullmatch(r"/[^:]+", folder)):
            raise UsageError(f"--claim is {text!r}.", "It is the name of a PersistentVolumeClaim, or NAME:/FOLDER.",
                             "Give --claim training-data, or --claim training-data:/workspace.")
        return cls(name=name, folder=folder) if folder else cls(name=name)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script that goes along in a ConfigMap."""

    name: str
    text: str

    @classmethod
    def of(cls, path: Path) -> Script:
        """The script of this path. Raises UsageError for one that a ConfigMap cannot hold."""
        if path.name.startswith(".."):
            raise UsageError(f"The script is {path}.", "Kubernetes mounts no file whose name begins with two dots.",
                             "Rename it, or put it into the image and give --in-image.")
        content = path.read_bytes()
        if len(content) > LARGEST_SCRIPT_BYTES:
            raise UsageError(f"The script {path} has {len(content):,} bytes.",
                             f"A ConfigMap, in which it would go along, takes {LARGEST_SCRIPT_BYTES:,}.",
                             "Put it into the image or on the claim, and give its path there with --in-image.")
        try:
            return cls(name=path.name, text=content.decode("utf-8"))
        except UnicodeDecodeError:
            raise UsageError(f"The script {path} is not UTF-8.", "A ConfigMap holds UTF-8 text.",
                             "Save it as UTF-8, or put it into the image and give --in-image.") from None

    @property
    def path(self) -> str:
        """Where the pods find it."""
        return f"{SCRIPTS}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class KubernetesJob:
    """`nodes` pods of `devices` devices each that run `command`.

    `name` is that of the objects in the cluster, `run` that of the run (None: the command is no training, and writes no
    status files). `cpu` and `memory` are quantities as Kubernetes writes them, of one pod. In `command`,
    `$(JOB_COMPLETION_INDEX)` is the pod's number, and every other word is `verbatim`.
    """

    name: str
    kind: str
    namespace: str | None
    image: str
    nodes: int
    devices: int
    command: tuple[str, ...]
    uses_gpus: bool
    cpu: str | None
    memory: str | None
    shared_memory: str
    claim: Claim | None
    script: Script | None
    run: str | None
    runs: str
    restarts: int
    grace_seconds: float
    timeout_seconds: float

    def __post_init__(self) -> None:
        _require_name(self)
        if not _IMAGE.fullmatch(self.image):
            raise UsageError(f"--image is {self.image!r}.", "It is the image's name as its registry knows it.",
                             "Give --image registry.example.org/team/rankwise-train:cu126, for example.")
        for option, value, example in (("--cpu", self.cpu, "8"), ("--memory", self.memory, "64Gi"),
                                       ("--shared-memory", self.shared_memory, "8Gi")):
            if value is not None and not _QUANTITY.fullmatch(value):
                raise UsageError(f"{option} is {value!r}.", "It is a quantity in Kubernetes' way: 8, 500m, 64Gi.",
                                 f"Give {option} {example}, for example.")

    @property
    def first_host(self) -> str:
        return first_host(self.name, self.kind)

    @property
    def folder(self) -> str:
        """Where the command runs, and so where the run's folder lies."""
        return self.claim.folder if self.claim else "/workspace"

    @property
    def resources(self) -> dict[str, str]:
        """What one pod asks for and may have: the same, so that it is not put out for another one's sake."""
        asked = {"cpu": self.cpu, "memory": self.memory, GPU: str(self.devices) if self.uses_gpus else None}
        return {name: quantity for name, quantity in asked.items() if quantity is not None}

    @property
    def threads(self) -> int | None:
        """CPU threads of a rank: a pod sees every core of its machine, whatever --cpu allows it."""
        return None if self.cpu is None else max(1, int(_cores(self.cpu)) // self.devices)

    @property
    def backoff_limit(self) -> int:
        """Pods that may fail: all of them, once for each restart. A JobSet counts its restarts itself."""
        return self.nodes * self.restarts if self.kind == "job" else 0

    @property
    def termination_seconds(self) -> int:
        return math.ceil(self.grace_seconds + _LAST_WORD_SECONDS)

    @property
    def startup_periods(self) -> int:
        """Looks of the startup probe before it gives up: the pods may wait so long for each other."""
        return math.ceil((self.timeout_seconds + 300) / _STARTUP_PERIOD_SECONDS)

    @property
    def liveness_check(self) -> str | None:
        """A shell command that fails where no rank of this pod has written its status file for 5 minutes."""
        if self.run is None:
            return None
        status = verbatim(shlex.quote(f"{self.runs}/{self.run}/{STATUS}"))
        return (f"find {status} -name 'rank*.json' -mmin -5 -exec grep -q '\"'$(uname -n)'\"' {{}} ';' -print -quit "
                "| grep -q .")


def verbatim(text: str) -> str:
    """A text for a command or a variable of a pod, where Kubernetes reads `$(NAME)` as a variable and `$$` as `$`."""
    return text.replace("$", "$$")


def first_host(name: str, kind: str) -> str:
    """The host name of pod 0, as the other pods know it."""
    return f"{_pod(name, kind)}0.{name}"


def dns_name(run: str) -> str:
    """A run's name as Kubernetes can use it: small letters, digits and `-`, from a letter on."""
    name = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    return name if name[:1].isalpha() else f"run-{name}".rstrip("-")


def _pod(name: str, kind: str) -> str:
    return f"{name}-" if kind == "job" else f"{name}-node-0-"


def _cores(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(re.sub(r"[A-Za-z]+", "", quantity))


def _require_name(job: KubernetesJob) -> None:
    longest = _LONGEST_LABEL - len(_pod("", job.kind)) - len(str(job.nodes - 1))
    if len(job.name) > longest:
        raise UsageError(f"The job's name is {job.name}, of {len(job.name)} characters.",
                         f"Its pods' host names would be longer than {_LONGEST_LABEL} characters.",
                         f"Give --name a name of at most {longest} characters.")
    if not _DNS_LABEL.fullmatch(job.name):
        raise UsageError(f"The job's name is {job.name}.", "Kubernetes takes small letters, digits and -.",
                         "Give --name another name.")
    if job.namespace is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", job.namespace):
        raise UsageError(f"--namespace is {job.namespace!r}.", "Kubernetes takes small letters, digits and -.",
                         "Give --namespace default, for example.")

"""A training handed to a Kubernetes cluster: what can be known to be wrong is said before, and the job is followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankwise.errors import UsageError
from rankwise.launcher.target import resolve
from rankwise.runfolder import AUTO
from rankwise.submit.k8s.cluster import Cluster
from rankwise.submit.k8s.follow import follow
from rankwise.submit.k8s.job import KINDS, PORT, KubernetesJob, Script, dns_name, first_host, verbatim
from rankwise.submit.k8s.manifest import labels, manifest
from rankwise.submit.work import Work

_NUMBER = "$(JOB_COMPLETION_INDEX)"   # Kubernetes puts the pod's number in its place


def job_of(work: Work, *, kind: str, is_in_image: bool, **asked: Any) -> KubernetesJob:
    """The job that does this work; `asked` are fields of KubernetesJob. A script of this machine goes along with it.

    Raises UsageError for what Kubernetes would refuse, and for a target that is not there.
    """
    if kind not in KINDS:
        raise UsageError(f"--kind is {kind}.", f"It can be {', '.join(KINDS)}.", "Choose one of these.")
    if work.settings.accelerator == "mps":
        raise UsageError("--accelerator is mps.", "Pods have GPUs of NVIDIA, or none.",
                         "Give --accelerator cpu, or leave it out.")
    work.require_name(resume=AUTO)   # which runs there are is known in the cluster alone
    name = dns_name(work.name)
    script = None if is_in_image or work.is_module or work.is_doctor else _script(work.target)
    words = work.words(target=script.path if script else None, node_rank=_NUMBER,
                       endpoint=f"{first_host(name, kind)}:{PORT}")
    settings = work.settings
    return KubernetesJob(
        name=name, kind=kind, nodes=work.nodes, devices=work.devices, script=script,
        command=("rankwise", *(word if word == _NUMBER else verbatim(word) for word in words)),
        uses_gpus=settings.accelerator != "cpu", run=None if work.is_doctor else work.name, runs=settings.runs,
        restarts=settings.max_restarts, grace_seconds=settings.grace_seconds, timeout_seconds=settings.timeout, **asked)


def submit(job: KubernetesJob, tell: Callable[[str], None], *, follows: bool) -> int:
    """Hand the job to the cluster and, with `follows`, follow it to its end; returns its exit code.

    Raises UsageError where the cluster does not take it, and nothing is left of it there then; and KeyboardInterrupt
    when interrupted: the job is removed.
    """
    cluster, text = Cluster.reached(job.namespace), manifest(job)
    require_possible(cluster, job)
    cluster.create(text)
    tell(f"the job {job.name} is in the cluster: {job.nodes} pod{'s' * (job.nodes > 1)} of {job.devices} "
         f"device{'s' * (job.devices > 1)}.{_fate(job)}")
    if not follows:
        tell(f"its log: kubectl logs --follow --selector={_selector(job)}; {_removal(job)}")
        return 0
    try:
        code = follow(cluster, job.kind, job.name, tell)
    except KeyboardInterrupt:
        cluster.delete(text)
        tell(f"interrupted; the job {job.name} is removed. Its pods save and end within {job.grace_seconds:.0f} s.")
        raise
    tell(f"the job {job.name} stays in the cluster, with its logs; {_removal(job)}")
    return code


def require_possible(cluster: Cluster, job: KubernetesJob) -> None:
    """Raise UsageError where this cluster cannot take the job: a name that is taken, a claim or machines it lacks."""
    if job.name in cluster.names(job.kind, job.name):
        raise UsageError(f"The cluster has a job {job.name} already.", "It runs, or its log is still there.",
                         f"Give --name another name, or remove it: {_removal(job)}")
    claims = cluster.claims()
    if job.claim is not None and claims is not None and job.claim.name not in claims:
        raise UsageError(f"--claim is {job.claim.name}.",
                         f"The namespace has {', '.join(claims) if claims else 'no PersistentVolumeClaim'}.",
                         "Give --claim one of the namespace's claims, or make it first.")
    most = cluster.most_gpus() if job.uses_gpus else None
    if most is not None and job.devices > most:
        raise UsageError(f"--devices is {job.devices}.", f"The largest machine of the cluster has {most} GPUs now.",
                         "Take fewer; where larger machines are added on demand, hand over what --dry-run prints with "
                         "`kubectl create --filename=-`; --accelerator cpu asks for no GPU.")


def _script(target: str) -> Script | None:
    found = resolve(target)
    return None if found.module else Script.of(found.path)   # a recipe comes with rankwise


def _fate(job: KubernetesJob) -> str:
    return "" if job.claim or job.run is None else " Without --claim the run's folder is gone with its pod."


def _removal(job: KubernetesJob) -> str:
    kinds = {"job": "job,service,configmap", "jobset": "jobset,configmap",
             "trainjob": "trainjob,trainingruntime,configmap"}[job.kind]
    return f"kubectl delete {kinds} --selector={_selector(job)}"


def _selector(job: KubernetesJob) -> str:
    return ",".join(f"{name}={value}" for name, value in labels(job.name).items())

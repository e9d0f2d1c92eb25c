"""A Kubernetes cluster, told and asked by the command `kubectl`; every question has a time limit."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankwise.errors import RankwiseError, UsageError
from rankwise.submit.asking import asked
from rankwise.submit.k8s.job import GPU

_ANSWER_SECONDS = 60.0
_RESOURCES = {"job": "jobs.batch", "jobset": "jobsets.jobset.x-k8s.io", "trainjob": "trainjobs.trainer.kubeflow.org"}
_UNKNOWN_KIND = "doesn't have a resource type"   # kubectl's words where a kind is not installed
_GONE = "(NotFound)"


class NoAnswerError(RankwiseError):
    """The cluster did not answer, or not as expected; it may the next time."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod of a job. `number` is that among the job's pods; `waits_for` is why it does not run yet, if it says so.

    `began` is when it was made, as a text that sorts by time; `exit_code` is None until its container has ended.
    """

    name: str
    number: int
    phase: str
    began: str
    waits_for: str
    exit_code: int | None

    @property
    def has_log(self) -> bool:
        return self.phase in ("Running", "Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster of kubectl's current context, and one namespace in it (None: the context's own)."""

    kubectl: str
    namespace: str | None

    @classmethod
    def reached(cls, namespace: str | None) -> Cluster:
        """Raises UsageError where kubectl is not there, or no cluster answers it."""
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise UsageError("There is no command `kubectl` here.", "The job is handed to the cluster with it.",
                             "Install kubectl, or write the manifest with --dry-run and hand it over elsewhere.")
        cluster = cls(kubectl=kubectl, namespace=namespace)
        answer = cluster._asked("version", "--output=json")
        if answer.returncode:
            raise UsageError("No Kubernetes cluster answers.", f"kubectl says: {_last_line(answer.stderr)}",
                             "See `kubectl config current-context`; --dry-run needs no cluster.")
        return cluster

    def names(self, resource: str, *words: str) -> list[str]:
        """The names of these objects. Raises UsageError where the cluster does not know their kind."""
        resource = _RESOURCES.get(resource, resource)
        answer = self._asked("get", resource, *words, "--ignore-not-found", "--output=name")
        if answer.returncode and _UNKNOWN_KIND in answer.stderr:
            raise UsageError(f"The cluster has no {resource}.", "What knows of it is not installed there.",
                             "Give --kind job, which every cluster has, or have it installed.")
        return [name.rpartition("/")[2] for name in self._answered(answer).split()]

    def claims(self) -> list[str] | None:
        """The PersistentVolumeClaims of the namespace; None where that is not told."""
        answer = self._asked("get", "persistentvolumeclaims", "--output=name")
        return None if answer.returncode else [name.rpartition("/")[2] for name in answer.stdout.split()]

    def most_gpus(self) -> int | None:
        """GPUs of the largest machine that the cluster has now; None where that is not told."""
        answer = self._asked("get", "nodes", "--output=json")
        if answer.returncode:
            return None   # who may run pods need not be allowed to see machines
        machines = json.loads(answer.stdout)["items"]
        return max((int(machine["status"].get("allocatable", {}).get(GPU, 0)) for machine in machines), default=0)

    def create(self, manifest: str) -> None:
        """Make the objects of the manifest. Raises UsageError where the cluster refuses one; none is left then."""
        answer = self._asked("create", "--filename=-", given=manifest)
        if answer.returncode:
            self.delete(manifest)
            raise UsageError("The cluster refused the job.", f"kubectl says: {answer.stderr.strip()}",
                             "Change what it names; --dry-run shows the manifest.")

    def delete(self, manifest: str) -> None:
        """Remove the objects of the manifest, and so end the pods; those that are not there are passed over."""
        self._asked("delete", "--filename=-", "--ignore-not-found", "--wait=false", given=manifest)

    def conditions(self, kind: str, name: str) -> dict[str, str]:
        """What is true of the job, each with its message. Raises RankwiseError where it is gone."""
        answer = self._asked("get", _RESOURCES[kind], name, "--output=json")
        if answer.returncode and _GONE in answer.stderr:
            raise RankwiseError(f"The job {name} is gone.", "Somebody has removed it, or the cluster has.",
                                "What it has saved is on its claim, if it had one.")
        found = json.loads(self._answered(answer))
        return {each["type"]: each.get("message", "") for each in found.get("status", {}).get("conditions", [])
                if each["status"] == "True"}

    def pods(self, labels: Mapping[str, str]) -> list[Pod]:
        """The pods with these labels, oldest first."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found = json.loads(self._answered(self._asked("get", "pods", f"--selector={selector}", "--output=json")))
        return sorted(map(_pod, found["items"]), key=lambda pod: pod.began)

    def log_of(self, pod: str, *, since: str | None = None) -> Sequence[str]:
        """The command that shows a pod's log until the pod ends, from this time on (RFC 3339)."""
        return self._command("logs", "--follow", *([f"--since-time={since}"] if since else []), pod)

    def _answered(self, answer: subprocess.CompletedProcess[str]) -> str:
        if answer.returncode:
            raise NoAnswerError("The cluster did not answer as expected.", f"kubectl says: {_last_line(answer.stderr)}",
                                "The job may run all the same: see `kubectl get pods`.")
        return answer.stdout

    def _asked(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = self._command(*words, f"--request-timeout={_ANSWER_SECONDS / 2:.0f}s")
        return asked(command, limit_seconds=_ANSWER_SECONDS, given=given)

    def _command(self, *words: str) -> list[str]:
        return [self.kubectl, *([f"--namespace={self.namespace}"] if self.namespace else []), *words]


def _pod(found: Mapping[str, Any]) -> Pod:
    metadata, status = found["metadata"], found.get("status", {})
    containers = status.get("containerStatuses", [])
    states = [container.get("state", {}) for container in containers]
    ends = [state["terminated"]["exitCode"] for state in states if "terminated" in state]
    reasons = [state["waiting"].get("reason", "") for state in states if "waiting" in state]
    unmet = [condition.get("message", "") for condition in status.get("conditions", [])
             if condition["type"] == "PodScheduled" and condition["status"] == "False"]
    number = metadata.get("annotations", {}).get("batch.kubernetes.io/job-completion-index", "0")
    return Pod(name=metadata["name"], number=int(number), phase=status.get("phase", "Pending"),
               began=metadata["creationTimestamp"], waits_for=next(filter(None, [*unmet, *reasons]), ""),
               exit_code=ends[0] if ends else None)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing"])[-1]

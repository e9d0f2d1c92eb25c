"""Follows a Kubernetes job to its end: why its pods wait, the log of pod 0, and the exit code."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timezone

from rankwise.errors import EXIT_FAILED, EXIT_USAGE
from rankwise.submit.k8s.cluster import Cluster, NoAnswerError, Pod
from rankwise.submit.k8s.manifest import labels

_SUCCESS = {"Complete", "Completed"}   # a Job and a TrainJob, a JobSet
_FAILURE = "Failed"
_TRIES = 10   # a cluster that is renewed does not answer for a while


def follow(cluster: Cluster, kind: str, name: str, tell: Callable[[str], None], *, look_seconds: float = 2.0) -> int:
    """Show the log of pod 0, and of the pods that take its place, until the job ends; returns its exit code.

    `tell` is called with what there is to say besides. Raises RankwiseError where the job is gone, or the cluster has
    not answered several times.
    """
    said, shown_of, shown_until = "", "", None
    while True:
        conditions, pods = _seen(cluster, kind, name, look_seconds)
        first = next((pod for pod in reversed(pods) if pod.number == 0 and pod.has_log), None)
        if first is not None and (first.name != shown_of or first.phase == "Running"):
            since = shown_until if first.name == shown_of else None
            subprocess.run(cluster.log_of(first.name, since=since), check=False)   # ends with the pod
            shown_of, shown_until = first.name, datetime.now(timezone.utc).isoformat()
        elif conditions.keys() & (_SUCCESS | {_FAILURE}):
            return _exit_code(conditions, pods, tell)
        elif (waiting := _waiting(pods)) not in ("", said):
            tell(waiting)
            said = waiting
        time.sleep(look_seconds)


def _seen(cluster: Cluster, kind: str, name: str, look_seconds: float) -> tuple[dict[str, str], list[Pod]]:
    """What is true of the job, and then its pods: so the log of a pod is complete once the job has ended."""
    for _ in range(_TRIES):
        try:
            return cluster.conditions(kind, name), cluster.pods(labels(name))
        except NoAnswerError as error:
            problem = error
            time.sleep(look_seconds)
    raise problem


def _exit_code(conditions: dict[str, str], pods: list[Pod], tell: Callable[[str], None]) -> int:
    """2 where a pod ended so: its options cannot be used; 1 for any other failure."""
    if _FAILURE not in conditions:
        return 0
    codes = {pod.exit_code for pod in pods if pod.exit_code}
    if conditions[_FAILURE]:
        tell(f"The job has failed: {conditions[_FAILURE]}")
    return EXIT_USAGE if EXIT_USAGE in codes else EXIT_FAILED


def _waiting(pods: list[Pod]) -> str:
    """Why the newest pods do not run."""
    newest = {pod.number: pod for pod in pods}
    waiting = [f"{pod.name}: {pod.waits_for}" for pod in newest.values() if pod.phase == "Pending" and pod.waits_for]
    return "\n".join(waiting) if pods else "The cluster has not made the pods yet."

"""A Kubernetes job for tests, and its manifest as a parser reads it."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.submit.k8s.job import Claim, KubernetesJob, Script, first_host

yaml = pytest.importorskip("yaml")


def job(**changes: Any) -> KubernetesJob:
    """Three pods of two GPUs each, everything given."""
    kind = changes.get("kind", "job")
    values = {
        "name": "big-run", "kind": kind, "namespace": "team", "image": "registry.example.org/team/train:cu126",
        "nodes": 3, "devices": 2, "uses_gpus": True, "cpu": "9", "memory": "64Gi", "shared_memory": "8Gi",
        "command": ("rankwise", "run", "/script/train.py", "--node-rank", "$(JOB_COMPLETION_INDEX)",
                    "--endpoint", f"{first_host('big-run', kind)}:29500", "--", "--lr", "0.1"),
        "claim": Claim(name="training-data", folder="/data"), "script": Script(name="train.py", text="print(1)\n"),
        "run": "big.run", "runs": "runs", "restarts": 4, "grace_seconds": 45.5, "timeout_seconds": 600.0}
    return KubernetesJob(**{**values, **changes})


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def of_kind(text: str, kind: str) -> Any:
    found, = [document for document in documents(text) if document["kind"] == kind]
    return found


def pod_of(text: str, kind: str) -> Any:
    """The pod template of a job of this kind."""
    spec = of_kind(text, {"job": "Job", "jobset": "JobSet", "trainjob": "TrainingRuntime"}[kind])["spec"]
    spec = spec["template"]["spec"] if kind == "trainjob" else spec
    spec = spec["replicatedJobs"][0]["template"]["spec"] if kind != "job" else spec
    return spec["template"]["spec"]

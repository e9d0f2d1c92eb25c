"""The manifest of a Kubernetes job, as a person would write it."""

from __future__ import annotations

from importlib import resources
from typing import Any

import jinja2

from rankwise.submit.k8s import yamltext
from rankwise.submit.k8s.job import PORT, SCRIPTS, USER, KubernetesJob, verbatim


def manifest(job: KubernetesJob) -> str:
    """The objects of the job, as YAML documents."""
    environment = jinja2.Environment(  # noqa: S701 - YAML, whose values pass through yamltext
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_template))
    environment.filters |= {"scalar": yamltext.scalar, "mapping": yamltext.mapping, "block": yamltext.block,
                            "verbatim": verbatim}
    environment.globals |= {"job": job, "metadata": lambda name: _metadata(job, name), "port": PORT, "user": USER,
                            "labels": yamltext.mapping(labels(job.name)), "script_folder": SCRIPTS}
    return environment.get_template("manifest.yaml.j2").render()


def labels(name: str) -> dict[str, str]:
    """By these labels the objects of the job of this name, and its pods, are found."""
    return {"app.kubernetes.io/name": "rankwise", "app.kubernetes.io/instance": name}


def _metadata(job: KubernetesJob, name: str) -> str:
    namespace = f", namespace: {yamltext.scalar(job.namespace)}" if job.namespace else ""
    return f"{{name: {yamltext.scalar(name)}{namespace}, labels: {yamltext.mapping(labels(job.name))}}}"


def _template(name: str) -> Any:
    return resources.files("rankwise.submit.k8s").joinpath("templates").joinpath(name).read_text("utf-8")

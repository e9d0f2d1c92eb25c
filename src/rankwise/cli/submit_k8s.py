"""`rankwise submit k8s`: a training as a Kubernetes job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rankwise.cli.settings import with_settings_of_a_job
from rankwise.errors import UsageError

_EXAMPLES = """\b
Examples:
  rankwise submit k8s train.py --image REGISTRY/train:cu126 --nodes 2 --devices 8 --dry-run
  rankwise submit k8s train.py --image REGISTRY/train:cu126 --claim training-data --max-restarts 3
  rankwise submit k8s /workspace/train.py --in-image --image REGISTRY/mine:1 --claim training-data -- --epochs 20
  rankwise submit k8s doctor --image REGISTRY/train:cu126 --nodes 4 --devices 8

Exit code: that of the training; 0 submitted (with --no-follow), 2 it could not be submitted as given, 130 interrupted:
the job is removed then.
"""


def add_to(group: typer.Typer) -> None:
    """Make it a command of `group`."""
    group.command("k8s", short_help="Run a training, or the doctor, as a Kubernetes job.",
                  epilog=_EXAMPLES)(with_settings_of_a_job(_k8s))


def _k8s(
    target: Annotated[str, typer.Argument(metavar="TARGET", show_default=False, help="A script of this machine, which "
                                          "goes along; the name of a recipe (fashion), or with -m a module; or "
                                          "`doctor`, which has --devices, --accelerator and --timeout.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", show_default=False,
                                                          help="Options of the target itself.")] = None, *,
    module: Annotated[bool, typer.Option("-m", help="TARGET is a module of the image, as for `python -m`.")] = False,
    image: Annotated[str, typer.Option(show_default=False, help="image of the pods, as their registry names it; "
                                       "`rankwise image build` makes one")],
    in_image: Annotated[bool, typer.Option("--in-image", help="TARGET is a path in the pods: of the image, or of the "
                                           "claim")] = False,
    kind: Annotated[str, typer.Option(help="kind of job: job, jobset, or Kubeflow's trainjob")] = "job",
    namespace: Annotated[str | None, typer.Option(show_default=False, help="namespace of the job (default: that of "
                                                  "kubectl's context)")] = None,
    cpu: Annotated[str | None, typer.Option(show_default=False, help="cores of a pod: 8, 500m")] = None,
    memory: Annotated[str | None, typer.Option(show_default=False, help="memory of a pod, shared memory "
                                               "included: 64Gi")] = None,
    shared_memory: Annotated[str, typer.Option(help="size of /dev/shm, for data workers")] = "8Gi",
    claim: Annotated[str | None, typer.Option(show_default=False, help="PersistentVolumeClaim for runs and data, NAME "
                                              "or NAME:/FOLDER (default folder: /workspace)")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the manifest, and submit nothing")] = False,
    output: Annotated[Path | None, typer.Option(show_default=False, help="write the manifest to this file, and submit "
                                                "nothing")] = None,
    follow: Annotated[bool, typer.Option(help="follow the log of pod 0 and return the job's exit code")] = True,
    **settings: Any,
) -> int:
    """Run a training on pods of a Kubernetes cluster, which kubectl reaches.

    Each of --nodes pods has --devices GPUs (none with --accelerator cpu) and runs `rankwise run`. A pod that is
    preempted is replaced, and the run goes on from its newest checkpoint, if --claim keeps it.
    """
    from rankwise.submit.k8s.job import Claim
    from rankwise.submit.k8s.manifest import manifest
    from rankwise.submit.k8s.submission import job_of, submit
    from rankwise.submit.work import Work
    work = Work.of(target, arguments, settings, is_module=module)
    job = job_of(work, kind=kind, is_in_image=in_image, image=image, namespace=namespace, cpu=cpu, memory=memory,
                 shared_memory=shared_memory, claim=None if claim is None else Claim.of(claim))
    if output is not None:
        _write(output, manifest(job))
    elif dry_run:
        print(manifest(job), end="")
    else:
        return submit(job, lambda text: print(f"rankwise: {text}", file=sys.stderr, flush=True), follows=follow)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output is {path}.", f"It cannot be written: {error.strerror}.",
                         "Give --output another file.") from None

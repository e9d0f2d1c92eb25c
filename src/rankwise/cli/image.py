"""`rankwise image`: container images, to list, to write, to build, to check and to enter."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankwise.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from rankwise.images.variants import Variant

_EXAMPLES = """\b
Examples:
  rankwise image list                               which images there can be
  rankwise image build train                        without CUDA: to try it, and for machines without a GPU
  rankwise image build dev --cuda 13.0              to work in, on a driver of CUDA 13
  rankwise image build dev --mirror tsinghua        packages from a mirror in China
  rankwise image check train                        does it keep what it promises?
  rankwise image run train --cuda 13.0 -- rankwise run train.py --devices 2
  rankwise image shell dev --cuda 13.0              a shell in it, in this folder
  rankwise image run dev --publish 8888             JupyterLab on http://127.0.0.1:8888, with its token

"""
_EXIT_CODES = ("Exit codes: 0 success, 1 the build or a check failed, 2 usage, 130 interrupted; of `run` and `shell` "
               "the command's own.")
_BUILD_SECONDS = 7200.0


def _tag(text: str | None) -> str | None:
    from rankwise.images.engine import checked_tag
    return None if text is None else checked_tag(text)


def _base(text: str | None) -> str | None:
    from rankwise.images.engine import checked_reference
    return None if text is None else checked_reference(text)


Kind = Annotated[str, typer.Argument(metavar="KIND", show_default=False, help="train: small, for clusters; "
                                     "dev: to work in.")]
Cuda = Annotated[str, typer.Option(help="cpu, or the CUDA of torch's wheel: 11.8, 12.6, 12.8, 12.9, 13.0, 13.2")]
Torch = Annotated[str | None, typer.Option(show_default=False, help="release of torch (default: the newest that has a "
                                           "recorded lock, else the newest)")]
Tag = Annotated[str | None, typer.Option(show_default=False, help="name of the image (default: "
                                         "rankwise:KIND-BUILD-torchVERSION)", callback=_tag)]
EngineName = Annotated[str | None, typer.Option("--engine", show_default=False, help="docker, podman or buildah "
                                                "(default: the first that answers)")]
MirrorName = Annotated[str, typer.Option("--mirror", help="where packages come from: none, aliyun, tsinghua, or the "
                                         "address of a mirror (torch's wheels for other CUDA then from torch's own "
                                         "index)")]
BaseImage = Annotated[str | None, typer.Option("--base", show_default=False, help="image to begin from (default: "
                                               "debian:bookworm-slim, pinned by its digest)", callback=_base)]
Lock = Annotated[Path | None, typer.Option(show_default=False, help="lock of your own, with a hash for each package, "
                                           "in place of the recorded one")]


def add_to(app: typer.Typer) -> None:
    """Make it a group of commands of `app`."""
    group = typer.Typer(help="Container images: list, write, build, check and enter them.",
                        epilog=f"{_EXAMPLES}\n{_EXIT_CODES}", rich_markup_mode=None)
    group.callback(invoke_without_command=True)(_image)
    for command, meaning in ((_list, "List the images that there can be."), (_write, "Write what one is built from."),
                             (_build, "Build one."), (_check, "Prove that one keeps what it promises."),
                             (_run, "Run a command in one, in this folder."), (_shell, "Enter one, in this folder.")):
        group.command(command.__name__.strip("_"), short_help=meaning, epilog=_EXIT_CODES)(command)
    app.add_typer(group, name="image")


def _image(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _list(as_json: Annotated[bool, typer.Option("--json", help="print them as JSON")] = False) -> None:
    """List the images that there can be: one for each CUDA, and with --json every one."""
    from rankwise.images import listing
    if as_json:
        print(json.dumps(listing.as_values(), indent=2))
        return
    from rich.console import Console
    listing.show(Console(soft_wrap=True))


def _write(kind: Kind, *, cuda: Cuda = "cpu", torch: Torch = None, mirror: MirrorName = "none",
           base: BaseImage = None, lock: Lock = None,
           output: Annotated[Path | None, typer.Option(show_default=False, help="folder for the files (default: "
                                                       "image-KIND-BUILD)")] = None) -> None:
    """Write what an image is built from: its Containerfile, its locks, and a wheel of this rankwise."""
    from rankwise.cli.outputs import writable
    from rankwise.images import context
    variant = _chosen(kind, cuda, torch)
    folder = writable(output or Path(f"image-{kind}-{variant.build}"))
    if any(folder.iterdir()):
        raise UsageError(f"The folder {folder} is not empty.", "What is written would mix with what is there.",
                         "Give another folder with --output, or empty it.")
    for file in _context(folder, variant, mirror, base, lock):
        print(file)
    if not (folder / "requirements.lock").exists():
        print(f"\nNo lock was recorded for {variant.requirement}. Resolve one there:\n"
              f"  cd {folder} && {context.how_to_lock(variant)}\n"
              f"and write again, into another folder, with --lock {folder / 'my.lock'} --output FOLDER")


def _build(kind: Kind,
           options: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", show_default=False,
                                                               help="Options of the engine's own build.")] = None, *,
           cuda: Cuda = "cpu", torch: Torch = None, mirror: MirrorName = "none", base: BaseImage = None,
           lock: Lock = None, engine: EngineName = None, tag: Tag = None,
           pip_conf: Annotated[Path | None, typer.Option(show_default=False, help="pip's settings for the build alone, "
                                                         "a secret: an index of one's own, a proxy")] = None,
           ca: Annotated[Path | None, typer.Option("--ca", show_default=False, help="certificates that pip trusts in "
                                                   "the build alone, where --pip-conf says "
                                                   "cert = /run/secrets/ca.crt")] = None,
           find_links: Annotated[Path | None, typer.Option(show_default=False, help="folder of wheels, taken before "
                                                           "the network is asked")] = None) -> int:
    """Build an image. It takes minutes, and the engine tells how far it is."""
    from rankwise.images import context
    from rankwise.images.engine import find
    variant = _chosen(kind, cuda, torch)
    if lock is None and variant.lock is None:
        raise UsageError(
            f"{variant.requirement} has no recorded lock.",
            "Its packages were not resolved when rankwise was released, so their hashes are not known.",
            f"Resolve them: rankwise image write {kind} --cuda {cuda} --torch {variant.release.version}; in that "
            f"folder {context.how_to_lock(variant)}; then give --lock my.lock.")
    for name, file in (("--pip-conf", pip_conf), ("--ca", ca)):
        if file is not None and not file.is_file():
            raise UsageError(f"{name} is {file}.", "There is no such file.", "Give a file that is there.")
    chosen = find(engine, to_run=False)
    with tempfile.TemporaryDirectory(prefix="rankwise-image-") as folder:
        _context(Path(folder), variant, mirror, base, lock, find_links)
        command = chosen.build(Path(folder), tag or variant.tag, pip_conf=pip_conf, ca=ca, options=options or [])
        try:
            code = subprocess.run(command, check=False, timeout=_BUILD_SECONDS).returncode
        except subprocess.TimeoutExpired:
            print(f"The build did not end within {_BUILD_SECONDS / 3600:.0f} h, and was ended.")
            return EXIT_FAILED
    if code != 0:
        print(f"{chosen.name} could not build {tag or variant.tag}: exit code {code}; its own words are above.")
        return EXIT_FAILED
    print(f"Built {tag or variant.tag}. Check it: rankwise image check {kind} --cuda {cuda}"
          + (f" --torch {torch}" if torch else "") + (f" --tag {tag}" if tag else ""))
    return 0


def _check(kind: Kind, *, cuda: Cuda = "cpu", torch: Torch = None, tag: Tag = None, engine: EngineName = None,
           lock: Lock = None,
           as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False) -> int:
    """Prove an image: start it without network, run doctor in it, import everything, compile, train on two ranks.

    Versions are compared with the lock, and the user and the health check are looked at.
    """
    from rankwise.images import listing, locks
    from rankwise.images.engine import find
    from rankwise.images.proof import STEPS, prove
    from rankwise.jobprogress import Progress
    variant = _chosen(kind, cuda, torch)
    text = _text(lock, variant)
    whole = None if text is None else text + (locks.of_dev() if kind == "dev" else "")
    with Progress(1, STEPS) as progress:
        proof = prove(find(engine, to_run=True), tag or variant.tag, whole, lambda what: progress.tell(what, 0))
    if as_json:
        print(json.dumps(proof.as_values(), indent=2))
    else:
        from rich.console import Console
        listing.show_proof(Console(soft_wrap=True), proof)
    return 0 if proof.is_kept else EXIT_FAILED


Gpus = Annotated[str | None, typer.Option(show_default=False, help="all, none, or numbers such as 0,1 (default: all "
                                          "with CUDA, none with cpu)")]
Memory = Annotated[str, typer.Option("--shm-size", help="shared memory, for data workers and NCCL")]
Publish = Annotated[str | None, typer.Option(show_default=False, metavar="[ADDRESS:]PORT", help="port that this "
                                             "machine's loopback (or ADDRESS) gets from the container; `run dev` "
                                             "without a COMMAND starts JupyterLab there")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the engine's command, and do nothing")]


def _run(kind: Kind,
         arguments: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", show_default=False, help="What "
                                                               "to run (default: the image's shell).")] = None, *,
         cuda: Cuda = "cpu", torch: Torch = None, tag: Tag = None, engine: EngineName = None, gpus: Gpus = None,
         shm_size: Memory = "8g", publish: Publish = None, dry_run: DryRun = False) -> int:
    """Run a command in a container, in this folder and as the user that you are. It is gone when the command ends."""
    if publish and not arguments:
        from rankwise.images.containers import jupyter
        if kind != "dev":
            raise UsageError(f"--publish is {publish}, without a command.",
                             f"JupyterLab, which would start there, is in dev and not in {kind}.",
                             "Take dev, or give the command behind --.")
        arguments = jupyter(publish)
    return _start(_chosen(kind, cuda, torch), arguments or [], tag, engine, gpus, shm_size, publish, dry_run=dry_run)


def _shell(kind: Kind, *, cuda: Cuda = "cpu", torch: Torch = None, tag: Tag = None, engine: EngineName = None,
           gpus: Gpus = None, shm_size: Memory = "8g", publish: Publish = None, dry_run: DryRun = False) -> int:
    """Enter a container: bash in train, zsh in dev, in this folder and as the user that you are."""
    from rankwise.images.containerfile import SHELLS
    variant = _chosen(kind, cuda, torch)
    return _start(variant, [SHELLS[variant.kind]], tag, engine, gpus, shm_size, publish, dry_run=dry_run)


def _start(variant: Variant, command: list[str], tag: str | None, engine: str | None, gpus: str | None,
           shm_size: str, publish: str | None, *, dry_run: bool) -> int:
    import shlex
    import sys

    from rankwise.images import containers
    from rankwise.images.engine import find, unasked
    from rankwise.images.proof import inspected
    from rankwise.images.variants import CPU
    asked = gpus or ("none" if variant.cuda == CPU else "all")
    container = containers.Container(
        tag=tag or variant.tag, command=tuple(command), folder=Path.cwd(), gpus=None if asked == "none" else asked,
        shared_memory=shm_size, publish=publish, has_terminal=sys.stdin.isatty())
    chosen = unasked(engine) if dry_run else find(engine, to_run=True)
    name, user = containers.new_name(), containers.caller()
    arguments = containers.command(chosen, container, name, user=user, is_rootless=user[0] != 0)
    print(shlex.join(arguments), file=sys.stdout if dry_run else sys.stderr)
    if dry_run:
        return 0
    inspected(chosen, container.tag)
    return containers.run(arguments, chosen, name, has_terminal=container.has_terminal)


def _chosen(kind: str, cuda: str, torch: str | None) -> Variant:
    from rankwise.images.variants import choose
    return choose(kind, cuda, torch)


def _context(folder: Path, variant: Variant, mirror: str, base: str | None, lock: Path | None,
             links: Path | None = None) -> list[Path]:
    from rankwise.images import context, sources
    return context.write(folder, variant, base=base or sources.base().image, mirror=sources.mirror(mirror),
                         lock=_text(lock, variant), links=links)


def _text(lock: Path | None, variant: Variant) -> str | None:
    """The lock of one's own, else the recorded one, if any."""
    from rankwise.images.locks import check_torch, read
    if lock is None:
        return variant.lock
    if not lock.is_file():
        raise UsageError(f"--lock is {lock}.", "It is a folder." if lock.is_dir() else "There is no such file.",
                         "Give a file that is there.")
    try:
        text = lock.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"--lock is {lock}.", "It is no text.", "Give a lock as `uv pip compile` writes it.") from None
    check_torch(read(text), variant.requirement)
    return text

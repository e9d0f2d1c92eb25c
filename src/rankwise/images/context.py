"""The folder that an image is built from: its Containerfile, its locks, and the settings and wheels that go in."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

from rankwise.errors import UsageError
from rankwise.images import containerfile, locks, sources, wheel
from rankwise.images.sources import Mirror
from rankwise.images.variants import Variant

_DEBIAN = """\
Types: deb
URIs: {debian}
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: {debian_security}
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def write(folder: Path, variant: Variant, *, base: str, mirror: Mirror, lock: str | None,
          links: Path | None = None) -> list[Path]:
    """Write the context into `folder`, which is empty; returns its files.

    `lock` is the text of requirements.lock; without one there is requirements.in instead, which is what to resolve.
    `links` is a folder of wheels: those of packages in a lock go along, so that pip need not fetch them.
    Raises UsageError where a lock cannot be read.
    """
    has_debian_mirror = mirror.debian is not None
    texts = {
        "Containerfile": containerfile.render(variant, base=base, debian_mirror=mirror.debian, lock=lock),
        "pip.conf": pip_conf(mirror, variant),
        ".dockerignore": "Containerfile\n",
    }
    if lock is None:
        texts["requirements.in"] = requirements(variant)
    else:
        texts["requirements.lock"] = lock
    if has_debian_mirror:
        texts["debian.sources"] = _DEBIAN.format(debian=mirror.debian, debian_security=mirror.debian_security)
    if variant.kind == "dev":
        texts["requirements-dev.lock"] = locks.of_dev()
        texts["zshrc"] = (files("rankwise.images") / "files" / "zshrc").read_text(encoding="utf-8")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    wheels = folder / "wheels"
    wheels.mkdir()
    wheel.write(wheels)
    if links is not None:
        _copy(links, wheels, locks.read(texts.get("requirements.lock", "") + texts.get("requirements-dev.lock", "")))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def pip_conf(mirror: Mirror, variant: Variant) -> str:
    """pip's settings in the image: where packages come from, and torch where the Python Package Index lacks it."""
    lines = ["[global]", "disable-pip-version-check = true"]
    if mirror.packages:
        lines.append(f"index-url = {mirror.packages}")
    if not variant.comes_from_default_index:
        if mirror.torch_links:
            lines.append(f"find-links = {mirror.torch_links.format(build=variant.build)}")
        elif mirror.torch_index:
            lines.append(f"extra-index-url = {mirror.torch_index.format(build=variant.build)}")
    return "\n".join(lines) + "\n"


def requirements(variant: Variant) -> str:
    """What a lock of this variant is resolved from."""
    return "\n".join([variant.requirement, *wheel.requirements()]) + "\n"


def how_to_lock(variant: Variant) -> str:
    """The command that resolves a lock of this variant, where requirements.in lies."""
    index = sources.mirror("none").torch_index or ""
    extra = "" if variant.comes_from_default_index else f" --extra-index-url {index.format(build=variant.build)}"
    return (f"uv pip compile requirements.in --python-version {sources.base().python} "
            f"--python-platform x86_64-manylinux_2_28 --only-binary :all: --generate-hashes{extra} -o my.lock")


def _copy(links: Path, wheels: Path, versions: dict[str, str]) -> None:
    if not links.is_dir():
        raise UsageError(f"--find-links is {links}.", "There is no such folder.", "Give a folder that has wheels.")
    for file in sorted(links.glob("*.whl")):
        name, found, *_ = file.name.split("-")
        if versions.get(locks.normal(name)) == found:
            shutil.copyfile(file, wheels / file.name)

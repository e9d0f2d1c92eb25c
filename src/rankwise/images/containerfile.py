"""The Containerfile of a variant, from the one template that all of them have."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import jinja2

from rankwise.images import sources
from rankwise.images.variants import CPU, KINDS, Variant
from rankwise.images.wheel import name_of_wheel, version

UID = 10001        # of the user in the image: no user of the host has it
SHELLS = {"train": "bash", "dev": "zsh"}


def render(variant: Variant, *, base: str, debian_mirror: str | None, lock: str | None) -> str:
    """The Containerfile as text; `lock` is the text of requirements.lock, None where there is none yet."""
    template = jinja2.Environment(  # noqa: S701 - no HTML: a Containerfile, of values that rankwise itself has checked
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    ).from_string((files("rankwise.images") / "files" / "Containerfile.j2").read_text(encoding="utf-8"))
    return template.render(
        kind=variant.kind, purpose=KINDS[variant.kind], torch=variant.release.version, cuda=variant.cuda,
        is_cpu=variant.cuda == CPU, is_dev=variant.kind == "dev", shell=SHELLS[variant.kind], version=version(),
        base=base, has_debian_mirror=debian_mirror is not None, uid=UID,
        has_https_mirror=(debian_mirror or "").startswith("https:"), wheel=name_of_wheel(), tag=variant.tag,
        python=sources.base().python_series, labels=_labels(variant, base, lock)).replace("\n\n\n", "\n\n")


def _labels(variant: Variant, base: str, lock: str | None) -> dict[str, str]:
    """Those that the Open Containers Initiative has words for, and what the image was made of."""
    name, _, digest = base.partition("@")
    return {
        "org.opencontainers.image.title": f"rankwise {variant.kind}",
        "org.opencontainers.image.description": f"The same PyTorch training, on more devices: {KINDS[variant.kind]}",
        "org.opencontainers.image.version": version(),
        "org.opencontainers.image.base.name": sources.base().name if base == sources.base().image else name,
        **({"org.opencontainers.image.base.digest": digest} if digest else {}),
        "rankwise.kind": variant.kind,
        "rankwise.torch": variant.release.version,
        "rankwise.cuda": variant.cuda,
        **({"rankwise.lock": hashlib.sha256(lock.encode()).hexdigest()} if lock else {}),
    }

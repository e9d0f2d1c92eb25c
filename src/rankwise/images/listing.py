"""The images that there can be, and the proof of one, as tables for people and as plain values for machines."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from rankwise import quantities, releases
from rankwise.images import sources
from rankwise.images.proof import Proof
from rankwise.images.variants import CPU, KINDS, Variant, choose, possible


def as_values() -> list[dict[str, Any]]:
    """Every CUDA with every torch that has it, newest torch first: what is in it, and whether its lock is recorded."""
    return [_values(Variant(kind="train", cuda=cuda, release=release)) for cuda, release in reversed(possible())]


def show(console: Console) -> None:
    """The kinds, and for each CUDA the torch that is taken by default with what else has it."""
    for kind, purpose in KINDS.items():
        console.print(f"{kind:<6} {purpose}", highlight=False)
    table = Table("--cuda", "torch", "lock", "oldest driver", "other torch")
    for cuda in dict.fromkeys(cuda for cuda, _ in possible()):
        variant = choose("train", cuda)
        others = [release.version for each, release in possible() if each == cuda and release != variant.release]
        table.add_row(cuda, variant.release.version, "with hashes" if variant.lock else "not resolved here",
                      "none" if cuda == CPU else releases.least_driver(cuda) or "unknown", ", ".join(others))
    console.print(table)
    console.print(f"Base: {sources.base().name}, Python {sources.base().python}; locks are for {sources.platform()}. "
                  "Images with CUDA were never run on a GPU by whoever made this release.", highlight=False)


def show_proof(console: Console, proof: Proof) -> None:
    """A line for each item, then size, layers and the verdict."""
    for item in proof.items:
        console.print(f"{'ok   ' if item.is_kept else 'FAULT'}  {item.name:<20} {item.evidence}",
                      style=None if item.is_kept else "red", highlight=False, markup=False)
    console.print(f"       {'size':<20} {quantities.byte_count(proof.size_bytes)} in {proof.layers} layers, unpacked",
                  highlight=False)
    broken = sum(not item.is_kept for item in proof.items)
    console.print(f"{proof.tag}: " + (
        "it keeps what it promises." if proof.is_kept else f"it breaks {broken} of {len(proof.items)} promises."),
        highlight=False, markup=False)


def _values(variant: Variant) -> dict[str, Any]:
    release, is_cpu = variant.release, variant.cuda == CPU
    is_default = variant.comes_from_default_index
    return {"cuda": variant.cuda, "torch": release.version, "requirement": variant.requirement,
            "cudnn": release.cudnn if is_default else None, "nccl": release.nccl if is_default else None,
            "least_driver": None if is_cpu else releases.least_driver(variant.cuda),
            "lock": "with hashes" if variant.lock else "not resolved here", "kinds": list(KINDS)}

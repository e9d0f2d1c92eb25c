"""Which images there can be: a kind, a CUDA and a torch that go together, and the nearest where they do not."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from rankwise import releases
from rankwise.errors import UsageError
from rankwise.images import locks, sources
from rankwise.releases import Release, numbers

KINDS = {
    "train": "torch, with its CUDA libraries unless it is built without, rankwise and a C++ compiler: for clusters",
    "dev": "train, and pandas, matplotlib, JupyterLab, git, bash and zsh with completion: to work in",
}
CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One image: what it is for, the CUDA of its torch (`cpu`, `12.6`), and the release of torch."""

    kind: str
    cuda: str
    release: Release

    @property
    def build(self) -> str:
        """The word of torch's own indices: cpu, cu126."""
        return CPU if self.cuda == CPU else "cu" + self.cuda.replace(".", "")

    @property
    def comes_from_default_index(self) -> bool:
        """Whether the Python Package Index has this wheel: it has one CUDA of each release."""
        return self.cuda == self.release.cuda

    @property
    def requirement(self) -> str:
        """torch, as a requirement that no other build meets."""
        version = self.release.version
        return f"torch=={version}" if self.comes_from_default_index else f"torch=={version}+{self.build}"

    @property
    def tag(self) -> str:
        """The name that its image gets, unless another one is given."""
        return f"rankwise:{self.kind}-{self.build}-torch{self.release.version}"

    @property
    def lock(self) -> str | None:
        """The recorded lock of torch and all that it needs; None where it was not resolved."""
        return locks.recorded(self.build, self.release.version)


def possible() -> list[tuple[str, Release]]:
    """Each CUDA (or cpu) with each torch that has a wheel for it, and for the base's Python; newest torch last."""
    fitting = [each for each in releases.releases() if numbers(each.python) <= numbers(sources.base().python)]
    cudas = sorted({cuda for release in fitting for cuda in release.builds}, key=numbers)
    return [(cuda, release) for cuda in (CPU, *cudas) for release in fitting if cuda in (CPU, *release.builds)]


def choose(kind: str, cuda: str, torch: str | None = None) -> Variant:
    """The variant that is asked for. Without `torch`: the newest that has a recorded lock, else the newest.

    Raises UsageError for what does not exist, with the nearest that does.
    """
    if kind not in KINDS:
        close = difflib.get_close_matches(kind, KINDS, n=1)
        raise UsageError(f"There is no kind of image `{kind}`.", f"Kinds are {' and '.join(KINDS)}.",
                         f"Did you mean {close[0]}?" if close else "Choose one of these.")
    cudas = list(dict.fromkeys(each for each, _ in possible()))
    cuda = next((each for each in cudas if cuda in _spellings(each)), cuda)
    if cuda not in cudas:
        raise _no_such_cuda(cuda, [each for each in cudas if each != CPU])
    having = [release for each, release in possible() if each == cuda]
    if torch is None:
        with_lock = [release for release in having if locks.recorded(
            Variant(kind=kind, cuda=cuda, release=release).build, release.version)]
        return Variant(kind=kind, cuda=cuda, release=(with_lock or having)[-1])
    release = _release(torch)
    if release not in having:
        raise _not_together(cuda, release, having)
    return Variant(kind=kind, cuda=cuda, release=release)


def _spellings(cuda: str) -> tuple[str, ...]:
    """12.6 is also cu126, the word of torch's indices; 13.0 is also 13."""
    return (cuda, "cu" + cuda.replace(".", ""), cuda.removesuffix(".0"))


def _release(torch: str) -> Release:
    """The release that --torch names: 2.13 or 2.13.0."""
    known = list(dict.fromkeys(release for _, release in possible()))
    found = releases.release_of(torch) if numbers(torch)[:2] == numbers(torch) or torch in {
        each.version for each in known} else None
    if found in known:
        return found
    nearest = min(known, key=lambda each: _distance(each.version, torch))
    raise UsageError(f"--torch is {torch}.", f"Images are made of torch {', '.join(each.version for each in known)}.",
                     f"The nearest is --torch {nearest.version}.")


def _no_such_cuda(cuda: str, cudas: list[str]) -> UsageError:
    given = f"--cuda is {cuda}."
    same_major = [each for each in cudas if numbers(each)[:1] == numbers(cuda)[:1]]
    if not numbers(cuda) or not same_major:
        return UsageError(given, f"From torch {releases.releases()[0].version} on there are wheels for "
                          f"{CPU} and CUDA {', '.join(cudas)}.", "Choose one of these.")
    nearest = min(same_major, key=lambda each: _distance(each, cuda))
    driver = releases.least_driver(nearest)
    return UsageError(
        given, f"No torch from {releases.releases()[0].version} on has a wheel for it, and none is needed: a wheel "
        f"brings its own CUDA, and one for {nearest} runs on every driver from {driver} on, that of CUDA {cuda} too "
        "(NVIDIA's minor version compatibility).", f"The nearest is --cuda {nearest}.")


def _not_together(cuda: str, release: Release, having: list[Release]) -> UsageError:
    """`having` are the releases that do have this CUDA."""
    what = "CPU" if cuda == CPU else f"CUDA {cuda}"
    nearest = min(having, key=lambda each: _distance(each.version, release.version))
    other = min(release.builds, key=lambda each: _distance(each, cuda))
    return UsageError(
        f"--torch is {release.version} and --cuda is {cuda}.",
        f"torch {release.version} has wheels for {CPU} and CUDA {', '.join(release.builds)}; {what} is in torch "
        f"{', '.join(each.version for each in having)}.",
        f"The nearest are --cuda {cuda} --torch {nearest.version} and --cuda {other} --torch {release.version}.")


def _distance(one: str, other: str) -> int:
    """How far two versions are apart: a major number counts more than any minor one, and that than any patch."""
    return abs(_place(one) - _place(other))


def _place(version: str) -> int:
    major, minor, patch = (*numbers(version), 0, 0, 0)[:3]
    return (major * 1000 + minor) * 1000 + patch

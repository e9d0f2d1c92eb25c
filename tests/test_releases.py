"""The table of torch releases: what it says of known combinations, and that it holds together."""

from __future__ import annotations

import pytest

from rankwise import releases


@pytest.mark.parametrize(("version", "expected"), [
    ("2.13.0+cpu", (2, 13, 0)), ("2.7.1", (2, 7, 1)), ("580.65.06", (580, 65, 6)), ("2.16.0a0+git1", (2, 16, 0)),
    ("12", (12,)), ("unknown", ()),
])
def test_numbers_of_a_version(version: str, expected: tuple[int, ...]) -> None:
    """Versions are compared by their numbers, up to the first that is none."""
    assert releases.numbers(version) == expected


def test_what_is_known_of_releases() -> None:
    """The last release with CUDA 11.8 is 2.7.1, and the last with 12.8 is 2.11; a younger one than ours is unknown."""
    def last_with(cuda: str) -> str:
        return [each.version for each in releases.releases() if cuda in each.builds][-1]

    assert (last_with("11.8"), last_with("12.8"), last_with("12.6")) == ("2.7.1", "2.11.0", "2.14.1")
    found = releases.release_of("2.13.1+cu130")
    assert found is not None
    assert found.version == "2.13.0"
    assert releases.release_of("2.99.0") is None


def test_drivers() -> None:
    """A CUDA 12.6 build runs on the driver of 12.0, a 13.0 build does not; each CUDA of the table has its least."""
    assert [releases.least_driver(cuda) for cuda in ("12.6", "13.0", "10.2")] == ["525.60.13", "580.65.06", None]
    assert [releases.full_driver(cuda) for cuda in ("12.6.77", "13.2")] == ["560.28.03", None]
    for release in releases.releases():
        assert all(releases.least_driver(cuda) for cuda in release.builds)
        assert release.builds == tuple(sorted(release.builds, key=lambda cuda: float(cuda)))

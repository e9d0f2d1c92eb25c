"""`rankwise image`: mirrors, names of images and locks that are given, and what of them is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.errors import UsageError
from rankwise.images import context, locks, sources
from rankwise.images.engine import checked_reference, checked_tag
from rankwise.images.variants import choose


@pytest.mark.parametrize("word", ["https://", "https://h/?q=1", "https://h/#x", "https://user:secret@h/path"])
def test_an_address_that_is_no_mirror(word: str) -> None:
    """A password would stay in the image, and is not repeated; an address has a host and ends with its path."""
    with pytest.raises(UsageError) as refusal:
        sources.mirror(word)
    assert "secret" not in str(refusal.value)


def test_certificates_come_first_from_a_mirror_by_https(tmp_path: Path) -> None:
    """The base has none, so the first update asks for none; later ones do."""
    variant = choose("train", "cpu")
    context.write(tmp_path, variant, base="base:1", mirror=sources.mirror("https://host"), lock=variant.lock)
    text = (tmp_path / "Containerfile").read_text()
    first, second = text.split("apt-get", 1)[1].split("apt-get update", 1)
    assert "Verify-Peer=false update" in first
    assert "Verify-Peer" not in second


def test_names_of_images() -> None:
    """What is no name of an image reaches neither the engine nor a Containerfile."""
    digest = "@sha256:" + "0" * 64
    for right in ("a", "rankwise:train-cu126-torch2.7.1", "localhost:5000/a/b_c:X"):
        assert checked_tag(right) == checked_reference(right) == right
    assert checked_reference("debian:bookworm-slim" + digest)
    for wrong in ("", "--privileged", "A", "a b", "a\nRUN id", "$(id)", 'a"', "a:", "a@sha256:1", "a\n"):
        with pytest.raises(UsageError):
            checked_tag(wrong)
        with pytest.raises(UsageError):
            checked_reference(wrong)


def test_a_lock_of_another_torch_is_refused() -> None:
    """Both are named; an empty lock has none."""
    locks.check_torch({"torch": "2.7.1+cu118"}, "torch==2.7.1+cu118")
    with pytest.raises(UsageError, match=r"(?s)2\.13\.0\+cpu.*2\.7\.1\+cu118"):
        locks.check_torch({"torch": "2.13.0+cpu"}, "torch==2.7.1+cu118")
    with pytest.raises(UsageError, match="no torch"):
        locks.check_torch({}, "torch==2.7.1")


def test_a_cuda_by_its_other_names() -> None:
    """The word of torch's indices, and a major version for its first minor one."""
    assert [choose("train", word).cuda for word in ("cu126", "12.6", "13", "cu130", "cpu")] == [
        "12.6", "12.6", "13.0", "13.0", "cpu"]

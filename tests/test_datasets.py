"""The data sets: what comes with the package, the official layouts, and downloads."""

from __future__ import annotations

import gzip
import hashlib
import io
import multiprocessing as mp
import os
import pickle
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwise import datasets
from rankwise.data.arrays import Arrays
from rankwise.datasets import download
from rankwise.datasets.download import Source, Sources, fetch, locked, sources
from rankwise.errors import DataError

ROOT = Path(__file__).parent.parent
Parts = dict[str, tuple[np.ndarray, np.ndarray]]   # images and labels of each file
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


# What comes with the package


@pytest.mark.parametrize(("name", "sizes", "shape"), [
    ("fashion-mini", (5000, 1000), (1, 14, 14)), ("digits", (1437, 360), (1, 8, 8))])
def test_embedded_sets(name: str, sizes: tuple[int, int], shape: tuple[int, ...]) -> None:
    """They load without a network, whole, normalised, with ten classes in both parts."""
    train, test = datasets.load(name)
    assert (len(train), len(test)) == sizes
    assert train.images.shape == (sizes[0], *shape)
    assert (train.images.min(), train.images.max()) == (0, 255)
    assert set(train.labels.tolist()) == set(test.labels.tolist()) == set(range(10))
    image, label = train[7]
    assert image.shape == shape
    assert image.dtype == torch.float32
    assert isinstance(label, int)
    pixels = torch.stack([train[index][0] for index in range(len(train))])
    assert abs(pixels.mean().item()) < 2e-3
    assert abs(pixels.std().item() - 1) < 2e-3


def test_embedded_sets_are_what_their_notices_say() -> None:
    """fashion-mini is balanced, digits are all different, and each has its licence beside it."""
    files = Path(datasets.__file__).parent / "files"
    assert torch.equal(datasets.load("fashion-mini")[0].labels.bincount(), torch.full((10,), 500))
    whole = torch.cat([part.images for part in datasets.load("digits")]).flatten(1)
    assert len(whole.unique(dim=0)) == len(whole) == 1797
    assert "Copyright (c) 2017 Zalando SE" in (files / "fashion-mini.txt").read_text()
    assert "Attribution 4.0" in (files / "digits.txt").read_text()


def test_fashion_mini_can_be_made_again(tmp_path: Path) -> None:
    """The script gives the file that ships, from Debian's package; a class's first images come in order."""
    source = Path("/usr/share/datasets/fashion-mnist")
    if not source.is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import make_datasets
    finally:
        sys.path.pop(0)
    made = make_datasets.fashion_mini(source)
    with np.load(Path(datasets.__file__).parent / "files" / "fashion-mini.npz") as shipped:
        for name, array in made.items():
            np.testing.assert_array_equal(shipped[name], array)


def test_unknown_names_get_a_guess() -> None:
    """The nearest name is offered."""
    with pytest.raises(DataError, match="Did you mean fashion-mini"):
        datasets.load("fashion_mini")
    with pytest.raises(DataError, match="no data set and no folder"):
        datasets.load("/no/such/folder")


def test_a_folder_of_something_else_is_said(tmp_path: Path) -> None:
    """What is read is listed."""
    with pytest.raises(DataError, match="cifar-10-batches-py"):
        datasets.load(tmp_path)


# CIFAR-10's layouts


def distinct_images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, 3, 32, 32]: each plane and each row of pixels is another, so that no mix-up goes unseen."""
    images = np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32)).astype(np.uint8)
    images[:, 0, 0], images[:, 1, 0], images[:, 2, 0] = 10, 120, 230
    return images, (np.arange(count) + seed) % 10


def python_2_pickle(images: np.ndarray, labels: np.ndarray) -> bytes:
    """The opcodes that Python 2's cPickle, protocol 2, wrote: keys and pixels are 8-bit strings."""
    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value
    pixels = images.tobytes()
    array = (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01"
             + b"J" + len(images).to_bytes(4, "little") + b"M\x00\x0c\x86cnumpy\ndtype\n" + text(b"u1")
             + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
             + len(pixels).to_bytes(4, "little") + pixels + b"tb")
    numbers = b"](" + b"".join(b"K" + bytes([int(label)]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"labels") + numbers + text(b"data") + array + b"u."


def write_python(folder: Path, per_batch: int = 4) -> Parts:
    folder.mkdir(parents=True)
    parts = {name: distinct_images(per_batch, seed) for seed, name in enumerate(BATCHES)}
    for name, part in parts.items():
        (folder / name).write_bytes(python_2_pickle(*part))
    return parts


def write_binary(folder: Path, per_batch: int = 4) -> Parts:
    folder.mkdir(parents=True)
    parts = {name: distinct_images(per_batch, seed) for seed, name in enumerate(BATCHES)}
    for name, (images, labels) in parts.items():
        rows = b"".join(bytes([int(label)]) + image.tobytes() for image, label in zip(images, labels, strict=True))
        (folder / f"{name}.bin").write_bytes(rows)
    return parts


def check_cifar(loaded: tuple[Arrays, Arrays], parts: Parts) -> None:
    train, test = loaded
    np.testing.assert_array_equal(train.images, np.concatenate([parts[name][0] for name in BATCHES[:5]]))
    np.testing.assert_array_equal(train.labels, np.concatenate([parts[name][1] for name in BATCHES[:5]]))
    np.testing.assert_array_equal(test.images, parts["test_batch"][0])
    np.testing.assert_array_equal(test.labels, parts["test_batch"][1])
    red, green, blue = (train.images[0, channel, 0, 0].item() for channel in range(3))
    assert (red, green, blue) == (10, 120, 230)
    expected = (np.array([10, 120, 230]) / 255 - [0.4914, 0.4822, 0.4465]) / [0.2470, 0.2435, 0.2616]
    np.testing.assert_allclose(train[0][0][:, 0, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("write", [write_python, write_binary])
@pytest.mark.parametrize("inside", [True, False])
def test_both_layouts(tmp_path: Path, write: Callable[[Path], Parts], inside: bool) -> None:
    """Both official layouts are read, from their folder or the one that holds it: every pixel and label in place."""
    folder = tmp_path / ("cifar-10-batches-py" if write is write_python else "cifar-10-batches-bin")
    parts = write(folder)
    check_cifar(datasets.load(folder if inside else tmp_path), parts)


def test_a_pickle_of_python_3(tmp_path: Path) -> None:
    """Batches that somebody wrote anew, with keys of text, are read too."""
    parts = write_python(tmp_path / "cifar-10-batches-py")
    for name, (images, labels) in parts.items():
        content = {"data": images.reshape(len(images), -1), "labels": labels.tolist()}
        (tmp_path / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(content))
    check_cifar(datasets.load(tmp_path), parts)


class _Attack:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch attacked",)


def test_a_pickle_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that asks for anything but arrays is refused, and nothing of it runs."""
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path / "data")
    (tmp_path / "data" / "data_batch_3").write_bytes(pickle.dumps({"data": _Attack(), "labels": [1]}))
    with pytest.raises(DataError, match=r"data_batch_3 is damaged.\n.*asks for .*system"):
        datasets.load(tmp_path / "data")
    assert not (tmp_path / "attacked").exists()


def damaged_python(folder: Path, content: bytes) -> Path:
    write_python(folder)
    (folder / "test_batch").write_bytes(content)
    return folder


@pytest.mark.parametrize(("content", "words"), [
    (b"", "is damaged"),
    (b"not a pickle", "is damaged"),
    (python_2_pickle(*distinct_images(4, 0))[:-2000], "is damaged"),
    (pickle.dumps([1, 2]), "is damaged"),
    (pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}), "labels"),
    (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}), "2 images and 1 labels"),
    (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 10]}), "Labels go from 1 to 10"),
    (pickle.dumps({"data": np.zeros((2, 99), np.uint8), "labels": [1, 2]}), r"uint8 \(2, 99\)"),
    (pickle.dumps({"data": np.zeros((2, 3072)), "labels": [1, 2]}), "float64"),
])
def test_a_damaged_pickle_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    """Truncated, foreign or inconsistent: one clear error with the file's name."""
    with pytest.raises(DataError, match=words) as caught:
        datasets.load(damaged_python(tmp_path / "data", content))
    assert "test_batch" in str(caught.value)


def test_a_damaged_or_missing_batch_is_named(tmp_path: Path) -> None:
    """A row cut short, a label too large, and a batch that is not there."""
    write_binary(tmp_path / "b")
    file = tmp_path / "b" / "data_batch_2.bin"
    whole = file.read_bytes()
    for content, words in ((whole[:-1], "12,291 bytes"), (b"\x0b" + whole[1:], "there are 10 classes"),
                           (b"", "0 bytes")):
        file.write_bytes(content)
        with pytest.raises(DataError, match=words):
            datasets.load(tmp_path / "b")
    file.unlink()
    with pytest.raises(DataError, match=r"lacks data_batch_2\.bin"):
        datasets.load(tmp_path / "b")


# idx files


def write_idx(folder: Path, compressed: bool) -> Parts:
    folder.mkdir(exist_ok=True)
    parts = {}
    for prefix, count in (("train", 7), ("t10k", 3)):
        images = np.random.default_rng(count).integers(0, 256, (count, 5, 6)).astype(np.uint8)
        labels = np.arange(count, dtype=np.uint8)
        parts[prefix] = images, labels
        for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            content = header + array.tobytes()
            if compressed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return parts


@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files(tmp_path: Path, compressed: bool) -> None:
    """Four idx files, compressed or not, are read with every pixel in place."""
    parts = write_idx(tmp_path, compressed)
    for loaded, prefix in zip(datasets.load(tmp_path), ("train", "t10k"), strict=True):
        np.testing.assert_array_equal(loaded.images[:, 0], parts[prefix][0])
        np.testing.assert_array_equal(loaded.labels, parts[prefix][1])


def test_damaged_idx_files_are_named(tmp_path: Path) -> None:
    """Another magic number, a length that does not fit, and a broken gzip."""
    write_idx(tmp_path, False)
    file = tmp_path / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for content, words in ((b"\x00\x00\x0d\x03" + whole[4:], "begins with 00 00 0d 03"), (whole[:-1], "209 bytes"),
                           (b"\x00", "begins with 00")):
        file.write_bytes(content)
        with pytest.raises(DataError, match=words):
            datasets.load(tmp_path)
    file.unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(whole)[:-10])
    with pytest.raises(DataError, match="cannot be read"):
        datasets.load(tmp_path)


# Real pixels


@pytest.fixture(scope="session")
def real_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real CIFAR-10 images on disk: from $RANKWISE_DATA, or unpacked from a shared folder beside the checkout."""
    kept = os.environ.get("RANKWISE_DATA")
    if kept and all((Path(kept) / f"cifar-10-batches-{layout}").is_dir() for layout in ("py", "bin")):
        return Path(kept)
    script = ROOT.parent / "shared" / "data" / "unpack_cifar10.py"
    if not script.is_file():
        pytest.skip("no CIFAR-10 in $RANKWISE_DATA, and no shared/data beside the checkout")
    folder = tmp_path_factory.mktemp("cifar10")
    subprocess.run([sys.executable, script, folder, "--train", "2000", "--test", "500"], check=True, timeout=60,
                   stdout=subprocess.DEVNULL)
    return folder


def test_real_cifar10(real_cifar10: Path) -> None:
    """Both layouts give the same images, whose channels have the means that are known of CIFAR-10."""
    train, test = datasets.load(real_cifar10 / "cifar-10-batches-py")
    other, _ = datasets.load(real_cifar10 / "cifar-10-batches-bin")
    assert torch.equal(train.images, other.images)
    assert torch.equal(train.labels, other.labels)
    assert len(test) * 4 <= len(train)
    means = train.images.double().mean((0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=0.01)


# Downloads, from a server of our own


@dataclass
class Served:
    """One file on a local server, and what was asked of it."""

    content: bytes
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)   # for each answer in turn: bytes after which it breaks off
    status: int = 200
    asked: list[str | None] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """A loopback server for one file, with or without Range."""
    servers = []

    def start(content: bytes, **options: object) -> Served:
        served = Served(content, **options)   # type: ignore[arg-type]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append(self.headers.get("Range"))
                start = 0
                if served.status != 200:
                    self.send_error(served.status)
                    return
                asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
                if asked and served.ranges:
                    start = int(asked[1])
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                else:
                    self.send_response(200)
                body = served.content[start:]
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: served.cut_after.pop(0)] if served.cut_after else body)

            def log_message(self, *args: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        served.address = f"http://127.0.0.1:{server.server_address[1]}/file.bin"
        return served

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


CONTENT = np.random.default_rng(0).bytes(900_000)


def source_of(served: Served, content: bytes = CONTENT) -> Source:
    return Source(name="file.bin", address=served.address, size_bytes=len(content),
                  sha256=hashlib.sha256(content).hexdigest())


def test_a_file_is_downloaded_once(tmp_path: Path, serve: Callable[..., Served]) -> None:
    """The second time it is there."""
    served = serve(CONTENT)
    for _ in range(2):
        assert fetch(source_of(served), tmp_path, "it").read_bytes() == CONTENT
    assert served.asked == [None]
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_a_broken_connection_is_taken_up(tmp_path: Path, serve: Callable[..., Served]) -> None:
    """What has arrived is kept, and the rest is asked for, as often as something arrives."""
    served = serve(CONTENT, cut_after=[300_000, 100_000])
    assert fetch(source_of(served), tmp_path, "it").read_bytes() == CONTENT
    assert served.asked == [None, "bytes=300000-", "bytes=400000-"]


def test_an_interrupted_download_is_resumed_by_the_next_run(tmp_path: Path, serve: Callable[..., Served]) -> None:
    """A .part file of an earlier process is gone on with."""
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:123_456])
    served = serve(CONTENT)
    assert fetch(source_of(served), tmp_path, "it").read_bytes() == CONTENT
    assert served.asked == ["bytes=123456-"]


def test_a_server_without_ranges_starts_anew(tmp_path: Path, serve: Callable[..., Served]) -> None:
    """An answer with the whole file replaces what had arrived."""
    (tmp_path / "file.bin.part").write_bytes(b"x" * 123_456)
    served = serve(CONTENT, ranges=False)
    assert fetch(source_of(served), tmp_path, "it").read_bytes() == CONTENT


@pytest.mark.parametrize("cuts", [[0] * 9, [1000] * 9])
def test_a_server_that_brings_nothing_more_is_given_up(tmp_path: Path, serve: Callable[..., Served],
                                                       cuts: list[int]) -> None:
    """An attempt that comes no further than the one before is the last; what arrived is kept and said."""
    served = serve(CONTENT, cut_after=cuts, ranges=False)
    with pytest.raises(DataError, match="ended early") as caught:
        fetch(source_of(served), tmp_path, "it")
    assert len(served.asked) == (1 if cuts[0] == 0 else 2)
    assert ("1,000 of 900,000 bytes are here" in str(caught.value)) == (cuts[0] == 1000)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_wrong_checksum_is_refused(tmp_path: Path, serve: Callable[..., Served], resumed: bool) -> None:
    """A file that was changed on the way is removed; the next run starts anew."""
    if resumed:
        (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    served = serve(CONTENT if resumed else b"x" + CONTENT[1:])
    with pytest.raises(DataError, match="not the file that it should be"):
        fetch(source_of(served), tmp_path, "it")
    assert list(tmp_path.iterdir()) == []


def test_a_file_longer_than_it_should_be_is_refused(tmp_path: Path, serve: Callable[..., Served]) -> None:
    """An answer without end is not followed."""
    served = serve(CONTENT + b"x" * 3_000_000)
    with pytest.raises(DataError, match="not the file that it should be") as caught:
        fetch(source_of(served), tmp_path, "it")
    arrived = int(re.search(r"Its ([\d,]+) bytes", str(caught.value))[1].replace(",", ""))   # type: ignore[index]
    assert arrived < 2_000_000


def test_a_wrong_file_of_the_user_is_left_alone(tmp_path: Path, serve: Callable[..., Served]) -> None:
    """It is named, and stays."""
    (tmp_path / "file.bin").write_bytes(b"other")
    served = serve(CONTENT)
    with pytest.raises(DataError, match="Remove it"):
        fetch(source_of(served), tmp_path, "it")
    assert (tmp_path / "file.bin").read_bytes() == b"other"
    assert served.asked == []


@pytest.mark.parametrize("status", [404, 503])
def test_a_server_that_refuses(tmp_path: Path, serve: Callable[..., Served], status: int) -> None:
    """Its answer is in the message."""
    with pytest.raises(DataError, match=f"the server answered {status}"):
        fetch(source_of(serve(CONTENT, status=status)), tmp_path, "it")


def test_offline_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that does not resolve: the address, the folder to put the file into, and other ways."""
    monkeypatch.setenv("RANKWISE_DATA", str(tmp_path))
    offline = Source(name="cifar-10-python.tar.gz", address="http://nowhere.invalid/cifar-10-python.tar.gz",
                     size_bytes=10, sha256="0")
    monkeypatch.setattr(datasets, "sources", lambda name: Sources(files=(offline,)))
    with pytest.raises(DataError) as caught:
        datasets.load("cifar10")
    for word in ("cifar10 is not on this machine", offline.address, str(tmp_path / "cifar10"), "--data FOLDER",
                 "fashion-mini"):
        assert word in str(caught.value)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out is named."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RANKWISE_DATA", str(tmp_path / "file"))
    monkeypatch.setattr(datasets, "sources", lambda name: Sources(files=()))
    with pytest.raises(DataError, match="Set RANKWISE_DATA"):
        datasets.load("cifar10")


def archive(folder: Path, names: list[str] = BATCHES) -> tuple[bytes, Parts]:
    """A small cifar-10-python.tar.gz, with a member that wants out of its folder."""
    parts = write_python(folder / "cifar-10-batches-py")
    (folder / "cifar-10-batches-py" / "batches.meta").write_bytes(b"meta")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as members:
        members.add(folder / "cifar-10-batches-py", "cifar-10-batches-py",
                    filter=lambda member: member if member.isdir() or Path(member.name).name in names else None)
        outside = tarfile.TarInfo("../../outside")
        outside.size = 3
        members.addfile(outside, io.BytesIO(b"bad"))
    return content.getvalue(), parts


@pytest.fixture
def small_cifar(tmp_path: Path, serve: Callable[..., Served],
                monkeypatch: pytest.MonkeyPatch) -> tuple[Served, Parts]:
    """A small archive behind the address of CIFAR-10, and an empty data folder."""
    content, parts = archive(tmp_path / "made")
    served = serve(content)
    source = Source(name="cifar-10-python.tar.gz", address=served.address, size_bytes=len(content),
                    sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(datasets, "sources", lambda name: Sources(files=(source,)))
    monkeypatch.setenv("RANKWISE_DATA", str(tmp_path / "kept"))
    return served, parts


def test_cifar10_is_downloaded_and_unpacked(tmp_path: Path, small_cifar: tuple[Served, Parts]) -> None:
    """By name: downloaded, unpacked and read; then read from disk. Nothing leaves the folder."""
    served, parts = small_cifar
    for _ in range(2):
        check_cifar(datasets.load("cifar10"), parts)
    assert len(served.asked) == 1
    assert not list(tmp_path.rglob("outside"))
    assert sorted(path.name for path in (tmp_path / "kept" / "cifar10").iterdir() if path.name != ".lock") == [
        "cifar-10-batches-py", "cifar-10-python.tar.gz"]


def test_an_archive_in_a_folder_is_unpacked(tmp_path: Path, small_cifar: tuple[Served, Parts]) -> None:
    """Somebody without a network puts the archive into a folder and gives the folder."""
    served, parts = small_cifar
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "cifar-10-python.tar.gz").write_bytes(served.content)
    check_cifar(datasets.load(folder), parts)
    assert served.asked == []


def test_a_damaged_archive_leaves_nothing(tmp_path: Path) -> None:
    """Half an archive is refused as a whole."""
    from rankwise.datasets import cifar
    content, _ = archive(tmp_path / "made")
    (tmp_path / "a.tar.gz").write_bytes(content[: len(content) // 2])
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(DataError, match="cannot be unpacked"):
        cifar.unpack(tmp_path / "a.tar.gz", out)
    assert list(out.iterdir()) == []


def _load_in_process(folder: str, source: Source, go: mp.synchronize.Barrier, answers: mp.SimpleQueue) -> None:
    datasets.sources = lambda name: Sources(files=(source,))   # type: ignore[attr-defined]
    os.environ["RANKWISE_DATA"] = folder
    go.wait(30)
    train, test = datasets.load("cifar10")
    answers.put((len(train), len(test)))


def test_processes_of_a_node_download_once(tmp_path: Path, small_cifar: tuple[Served, Parts]) -> None:
    """Three at the same moment: one downloads, the others wait, all have the data."""
    served, _ = small_cifar
    source = datasets.sources("cifar10").files[0]
    context = mp.get_context("forkserver")
    go, answers = context.Barrier(3), context.SimpleQueue()
    processes = [context.Process(target=_load_in_process, args=(str(tmp_path / "kept"), source, go, answers))
                 for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert [answers.get() for _ in processes] == [(20, 4)] * 3
    answers.close()
    assert len(served.asked) == 1


def test_who_waits_for_a_process_that_stands_still_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held and nothing grows: an error, not a wait for ever."""
    monkeypatch.setattr(download, "_STILL_SECONDS", 0.5)
    with locked(tmp_path, Sources(files=())), pytest.raises(DataError, match="held by another process"), \
            locked(tmp_path, Sources(files=())):
        pass


def test_the_sources_are_what_the_publishers_say() -> None:
    """Sizes and checksums as torchvision's and TensorFlow's users know them."""
    archive_of_cifar = sources("cifar10").files[0]
    assert archive_of_cifar.size_bytes == 170_498_071
    assert archive_of_cifar.sha256.startswith("6d958be074577803d12ecdefd02955f3")
    assert [source.size_bytes for source in sources("fashion-mnist").files] == [26_421_880, 29_515, 4_422_102, 5_148]
    for name in ("cifar10", "fashion-mnist"):
        for source in sources(name).files:
            assert source.address.endswith(f"/{source.name}")
            assert re.fullmatch(r"[0-9a-f]{64}", source.sha256)

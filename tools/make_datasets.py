"""Make the data sets that ship with rankwise, from Debian's Fashion-MNIST and scikit-learn's copy of UCI digits.

    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb debian
    pip download --no-deps scikit-learn && unzip scikit_learn-*.whl 'sklearn/datasets/data/digits.csv.gz'
    python tools/make_datasets.py --fashion debian/usr/share/datasets/fashion-mnist \
        --digits sklearn/datasets/data/digits.csv.gz

The same sources give the same bytes. The notices beside the files say whose data they are.
"""

from __future__ import annotations

import argparse
import gzip
import io
import zipfile
from pathlib import Path

import numpy as np

FILES = Path(__file__).parent.parent / "src" / "rankwise" / "datasets" / "files"


def fashion_mini(folder: Path) -> dict[str, np.ndarray]:
    """The first 500 training and 100 test images of each class, 14x14 by means of 2x2 pixels, in 16 grey levels."""
    arrays = {}
    for split, prefix, per_class in (("train", "train", 500), ("test", "t10k", 100)):
        images = _idx(folder / f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
        labels = _idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 8)
        chosen = np.sort(np.concatenate([np.flatnonzero(labels == label)[:per_class] for label in range(10)]))
        means = images[chosen].reshape(-1, 14, 2, 14, 2).astype(np.float32).mean((2, 4))
        levels = np.clip(np.round(means / 17), 0, 15).astype(np.uint8)
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = levels, labels[chosen]
    return arrays


def digits(file: Path) -> dict[str, np.ndarray]:
    """All 1,797 images of 8x8 in 17 grey levels, in a fixed random order; the last 360 are the test set."""
    with gzip.open(file, "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images, labels = rows[:, :64].reshape(-1, 8, 8), rows[:, 64]
    return {"train_images": images[:-360], "train_labels": labels[:-360],
            "test_images": images[-360:], "test_labels": labels[-360:]}


def _idx(file: Path, header_bytes: int) -> np.ndarray:
    with gzip.open(file) as stream:
        return np.frombuffer(stream.read()[header_bytes:], np.uint8)


def write(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """An .npz file that numpy reads, without the time of day that numpy writes into one."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content.getvalue(), compresslevel=9)
    print(f"{file.name}: {file.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", type=Path, required=True, help="folder of the four idx files")
    parser.add_argument("--digits", type=Path, required=True, help="scikit-learn's digits.csv.gz")
    parser.add_argument("--out", type=Path, default=FILES, help="folder to write to")
    options = parser.parse_args()
    write(options.out / "fashion-mini.npz", fashion_mini(options.fashion))
    write(options.out / "digits.npz", digits(options.digits))


if __name__ == "__main__":
    main()

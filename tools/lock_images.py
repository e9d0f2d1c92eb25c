"""Resolve the locks of `rankwise image`: run it on Linux x86_64 with the Python of the images' base, 3.11.

    python tools/lock_images.py cpu 2.13.0 --find-links FOLDER    FOLDER has the wheel of torch without CUDA
    python tools/lock_images.py 12.6 2.7.1                        a wheel of the Python Package Index
    python tools/lock_images.py 12.8 2.11.0                       one of download.pytorch.org

Versions are those of constraints.txt where it has them. What the dev image has beyond is resolved beside, and must be
the same with every torch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from rankwise.images import locks, sources
from rankwise.images.variants import Variant, choose

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "src" / "rankwise" / "images" / "locks"
OF_DEV = ("pandas", "matplotlib", "jupyterlab")   # numpy and TensorBoard are rankwise's own needs
TIMEOUT_SECONDS = 1800


def main() -> None:
    """Write the lock of one build, and that of dev."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cuda")
    parser.add_argument("torch")
    parser.add_argument("--find-links", type=Path)
    options = parser.parse_args()
    if f"{sys.version_info.major}.{sys.version_info.minor}" != sources.base().python_series:
        parser.error(f"pip reads conditions for the Python that it runs on; run it with {sources.base().python_series}")
    variant = choose("train", options.cuda, options.torch)
    train = resolved(variant, options.find_links)
    both = resolved(variant, options.find_links, *OF_DEV)
    if {name: both.get(name) for name in train} != train:
        sys.exit("With the packages of dev, train's would have other versions.")
    dev = {name: line for name, line in both.items() if name not in train}
    write(f"{variant.build}-torch{variant.release.version}", train, f"{variant.requirement}, {variant.build}")
    write("dev", dev, "what the dev image has beyond the train image, with any torch")


def resolved(variant: Variant, links: Path | None, *more: str) -> dict[str, str]:
    """The line of the lock for each package, by its normal name; pip resolves, and downloads hardly more than names."""
    needs = [each for each in requires("rankwise") or () if "extra ==" not in each and not each.startswith("torch>")]
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("torch==")]
    index = [] if variant.comes_from_default_index or links else [
        "--extra-index-url", str(sources.mirror("none").torch_index).format(build=variant.build)]
    with tempfile.TemporaryDirectory() as folder:
        report, constraints = Path(folder, "report.json"), Path(folder, "constraints.txt")
        constraints.write_text("\n".join(pinned))
        subprocess.run([sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
                        "--only-binary", ":all:", "--python-version", sources.base().python, "--target", folder,
                        "--report", str(report), "--constraint", str(constraints), *index,
                        *(["--find-links", str(links)] if links else []), variant.requirement, *needs, *more],
                       check=True, timeout=TIMEOUT_SECONDS)
        installed = json.loads(report.read_text())["install"]
        return {locks.normal(each["metadata"]["name"]): line(each) for each in installed}


def line(installed: dict[str, Any]) -> str:
    """What the lock says of one package: the hash is that of the one wheel that pip chose."""
    metadata, archive = installed["metadata"], installed["download_info"]["archive_info"]
    return f"{metadata['name']}=={metadata['version']} \\\n    --hash=sha256:{archive['hashes']['sha256']}\n"


def write(name: str, lines: dict[str, str], what: str) -> None:
    """Keep a lock among the package's files."""
    head = (f"# {what}: Python {sources.base().python} on {sources.platform()}. "
            f"Made by tools/lock_images.py; {len(lines)} packages.\n")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.txt").write_text(head + "".join(lines[each] for each in sorted(lines)))
    print(f"{name}: {len(lines)} packages")


if __name__ == "__main__":
    main()

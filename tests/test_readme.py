"""What README.md states is what the files say and what the commands print."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
READMES = ["README.md", "README.zh-CN.md"]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("name", READMES)
def test_the_diff_is_that_of_the_examples(name: str) -> None:
    """The diff on the first screen is the one between examples/plain.py and examples/train.py."""
    plain, ours = ((ROOT / "examples" / file).read_text().splitlines() for file in ("plain.py", "train.py"))
    lines = difflib.unified_diff(plain, ours, lineterm="", n=1)
    assert blocks(name, "diff")[0].splitlines() == [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.parametrize("name", READMES)
def test_links_lead_somewhere(name: str) -> None:
    """Each relative link names a file that is there."""
    for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / name).read_text()):
        assert (ROOT / target).exists(), target


@pytest.mark.slow
def test_the_loss_columns_are_those_that_the_example_prints(tmp_path: Path) -> None:
    """With 1 process and with 4 the example prints the loss column that the README shows."""
    text = (ROOT / "README.md").read_text()
    shown = re.findall(r"^epoch\s+\d+.*?loss ([0-9.]+).*?loss ([0-9.]+)", text, re.MULTILINE)
    assert len(shown) == 5
    for column, devices in enumerate(("1", "4")):
        answer = subprocess.run([sys.executable, ROOT / "examples" / "train.py", "--devices", devices], cwd=tmp_path,
                                capture_output=True, text=True, timeout=110, check=True)
        printed = re.findall(r"loss ([0-9.]+)", answer.stdout)
        assert printed[-len(shown):] == [row[column] for row in shown]

"""Write the file map of docs/architecture.md from the first sentence of each file: python tools/write_file_map.py"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "rankwise"
PAGE = ROOT / "docs" / "architecture.md"
HEADING = "## File map\n"


def remark(path: Path) -> str:
    """What a file is for: the first line of its docstring, which is a sentence."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.split("\n\n")[0].replace("\n", " ").rstrip(".")


def file_map() -> str:
    """The table, one row a file."""
    files = sorted(SOURCE.rglob("*.py"), key=lambda path: (len(path.relative_to(SOURCE).parts) > 1, path))
    rows = [f"| `{path.relative_to(SOURCE)}` | {remark(path)} |" for path in files]
    return "\n".join(["| file in `src/rankwise/` | what it is for |", "| --- | --- |", *rows, ""])


if __name__ == "__main__":
    before = PAGE.read_text().split(HEADING)[0]
    PAGE.write_text(f"{before}{HEADING}\n{file_map()}")

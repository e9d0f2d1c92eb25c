"""The layer picture of docs/architecture.md, held against the code."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "rankwise"
ROOT = SOURCE.parent.parent

# A module may import what stands on a lower line, and its own folder. Nothing on one line imports another room of it.
LAYERS = [
    ["errors"],
    ["world", "settings", "keys", "microbatch", "structure", "places", "pulse", "lifetime", "listoptions",
     "quantities", "stepparts", "processor", "rankstatus", "releases", "srun"],
    ["environment", "runfolder", "history", "page", "jobprogress", "ledger"],
    ["device", "group", "collectives", "sidechannel", "stopwatch"],
    ["orderfree", "stepagreement", "watchdog"],
    ["modes", "data", "step", "checkpoint", "monitor", "prepared", "inhand", "totals", "witness"],
    ["datasets", "saving"],
    ["run"],
    ["trial"],
    ["launcher", "images"],
    ["trials"],
    ["verify", "compare", "plan", "report", "watch", "doctor", "submit"],
    ["cli", "recipes"],
    ["__main__"],
]
FRONT_DOOR = "__init__"   # the table of public names, which recipes use as any script does
LINES_OF_A_FILE = 350
LINES_OF_A_FUNCTION = 60
TORCH_FREE = ["errors", "world", "settings", "environment", "runfolder", "keys", "microbatch", "cli", "launcher.target",
              "launcher.options", "modes", "watchdog.watch", "page"]


def layer_of(room: str) -> int:
    return next(number for number, rooms in enumerate(LAYERS) if room in rooms)


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rankwise modules that a file imports, imports inside functions included, those for types only left out."""
    tree = ast.parse(path.read_text())
    for_types = {id(node) for block in ast.walk(tree) if isinstance(block, ast.If) and "TYPE_CHECKING" in
                 ast.dump(block.test) for node in ast.walk(block)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module} if node.module != "rankwise" else {f"rankwise.{a.name}" for a in node.names}
    return {name for name in found if name.split(".")[0] == "rankwise"}


def test_every_file_has_its_place() -> None:
    """Each file and folder of the package stands on one line of the layer picture."""
    rooms = {room_of(path) for path in files()} - {FRONT_DOOR}
    assert rooms == {room for layer in LAYERS for room in layer}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_arrows_go_down(path: Path) -> None:
    """A file imports lower layers and its own folder only."""
    room = room_of(path)
    if room == FRONT_DOOR:
        return
    rooms = {each for layer in LAYERS for each in layer}
    targets = {name.split(".")[1] for name in imported(path) if "." in name} & rooms
    allowed = {other for other in targets if other == room or layer_of(other) < layer_of(room)}
    if room == "recipes":
        assert imported(path) <= {"rankwise"}, "a recipe uses public names only, as a user's script does"
        return
    assert targets == allowed


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    """A file has one purpose, said first; no function is longer than a screen."""
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "the first sentence says what the file is for"
    assert len(text.splitlines()) <= LINES_OF_A_FILE
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in ast.walk(tree)
               if isinstance(node, ast.FunctionDef)}
    assert not {name: length for name, length in lengths.items() if length > LINES_OF_A_FUNCTION}


def test_the_environment_is_touched_in_one_file() -> None:
    """`os.environ` stands in environment.py alone."""
    users = [path.name for path in files() if "os.environ" in path.read_text() or "getenv" in path.read_text()]
    assert users == ["environment.py"]


def test_modules_that_need_no_torch_do_not_load_it() -> None:
    """`import rankwise`, the commands' help and the plain values come without torch."""
    names = ["rankwise", *(f"rankwise.{name}" for name in TORCH_FREE)]
    code = f"import sys, importlib\nfor name in {names!r}: importlib.import_module(name)\nprint('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == "False"


def test_public_names_resolve() -> None:
    """Each name of `__all__` is there, and each public name is listed."""
    package = importlib.import_module("rankwise")
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError):
        _ = package.no_such_name


def test_the_file_map_is_complete() -> None:
    """docs/architecture.md has each file with its first sentence, as tools/write_file_map.py writes it."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        written = importlib.import_module("write_file_map").file_map()
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs" / "architecture.md").read_text().split("## File map\n\n", 1)[1] == written


def test_the_layer_picture_is_this_one() -> None:
    """The picture in docs/architecture.md shows the layers that this test holds."""
    picture = (ROOT / "docs" / "architecture.md").read_text().split("```", 2)[1]
    shown: dict[str, int] = {}
    number = len(LAYERS)
    for line in picture.splitlines()[1:]:
        number = int(line[:3]) if line[1].isdigit() else number
        shown |= {word: number for word in line[4:50].split() if not word.startswith("(")}
    real = {room: number for number, layer in enumerate(LAYERS) for room in layer if room != "__main__"}
    assert shown == real


def test_the_modes_that_can_be_asked_for_are_those_of_the_table() -> None:
    """`--mode` takes `auto` and each mode of the table, which stands in a higher layer than the settings."""
    from rankwise import modes, settings
    assert ("auto", *modes.MODES) == settings.MODES

"""What `rankwise run TARGET` names: a script, a module or a recipe, found and looked at without running it."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from rankwise.errors import UsageError

RECIPES = Path(__file__).parent.parent / "recipes"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A program to run on every rank: `python path`, or with `module` set, `python -m module`."""

    name: str            # the word for it in the run's name: `train` of train.py
    path: Path           # its source
    module: str | None = None
    uses_rankwise: bool = False

    @property
    def command(self) -> str:
        """How Python would be told to run it."""
        return f"-m {self.module}" if self.module else str(self.path)


def resolve(text: str, *, as_module: bool = False) -> Target:
    """The target that `text` names: the path of a script, else the name of a recipe; or a module.

    Raises UsageError where there is none, where it is not Python, and where a script mentions rankwise and never
    launches its training function.
    """
    if as_module:
        return _module(text)
    path = Path(text)
    if path.is_file():
        return _checked(Target(name=path.stem, path=path.resolve()))
    if text in recipes():
        return _checked(Target(name=text, path=RECIPES / f"{text}.py", module=f"rankwise.recipes.{text}"))
    if path.is_dir():
        raise UsageError(f"The target {text} is a folder.", "A target is a script, a module or a recipe.",
                         f"Give a script in it, or run it as a module: rankwise run -m {path.resolve().name}")
    raise UsageError(f"There is no script and no recipe `{text}`.", f"Recipes are {', '.join(recipes())}; "
                     "scripts are looked for from this folder.", _guess(text))


def recipes() -> dict[str, str]:
    """The recipes that come with the package: name -> what it trains, the first line of its file."""
    found = {path.stem: path for path in sorted(RECIPES.glob("*.py")) if path.stem != "__init__"}
    return {name: _first_line(path) for name, path in found.items()}


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]


def _guess(text: str) -> str:
    folder = Path(text).parent
    scripts = [str(path) for path in folder.glob("*.py")] if folder.is_dir() else []
    close = difflib.get_close_matches(text, [*recipes(), *scripts], n=1)
    if not close and f"{text}.py" in scripts:
        close = [f"{text}.py"]
    return f"Did you mean {close[0]}?" if close else "`rankwise recipes list` shows the recipes."


def _module(name: str) -> Target:
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec_of(f"{name}.__main__")
    if spec is None or not spec.has_location or spec.origin is None:
        raise UsageError(f"There is no module `{name}` to run.",
                         "It is looked for from this folder and among the installed packages; "
                         "a package needs a __main__.py.",
                         "Check the name, or give the script's path without -m.")
    return _checked(Target(name=name.rpartition(".")[2], path=Path(spec.origin), module=name))


def _spec_of(name: str) -> ModuleSpec | None:
    """Where a module is, without importing the packages that hold it."""
    places: list[str] | None = ["", *sys.path]
    spec = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        if places is None:
            return None
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if spec is None:
            return None
        places = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    return spec


def _checked(target: Target) -> Target:
    try:
        tree = ast.parse(target.path.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = f" line {error.lineno}:" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UsageError(f"The target {target.path} is not a Python program.",
                         f"Python says:{line} {getattr(error, 'msg', error)}.",
                         "Correct that line, or give the path of the script itself.") from None
    except OSError as error:
        raise UsageError(f"The target {target.path} cannot be read.", f"The system says: {error.strerror}.",
                         "Check the file's permissions.") from None
    uses = _imports_rankwise(tree)
    if uses and not {"launch", "init_process_group"} & set(_names_called(tree)):
        raise UsageError(f"The script {target.path} imports rankwise and never calls rankwise.launch.",
                         "Its training function would not run.",
                         "End it with\n    if __name__ == \"__main__\":\n        rankwise.launch(train)")
    return Target(name=target.name, path=target.path, module=target.module, uses_rankwise=uses)


def _imports_rankwise(tree: ast.Module) -> bool:
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    return any(name.split(".")[0] == "rankwise" for name in names)


def _names_called(tree: ast.Module) -> Iterator[str]:
    """The last part of each name that is called; a function imported under another name counts as itself."""
    original = {alias.asname: alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                for alias in node.names if alias.asname}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                yield function.attr
            elif isinstance(function, ast.Name):
                yield original.get(function.id, function.id)

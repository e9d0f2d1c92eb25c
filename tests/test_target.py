"""What a target names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.errors import UsageError
from rankwise.launcher.target import recipes, resolve

LAUNCHES = "import rankwise as rw\ndef train(run): ...\nif __name__ == '__main__':\n    rw.launch(train)\n"
PLAIN = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script(here: Path) -> None:
    """A path names a script; whether it uses rankwise is seen without running it."""
    (here / "train.py").write_text(LAUNCHES + "raise SystemExit('it was run')")
    target = resolve("train.py")
    assert (target.name, target.path, target.module, target.uses_rankwise) == ("train", here / "train.py", None, True)
    assert target.command == str(here / "train.py")


@pytest.mark.parametrize(("text", "uses"), [
    (LAUNCHES, True),
    ("from rankwise import launch\nlaunch(print)", True),
    ("from rankwise import launch as go\ngo(print)", True),
    ("import rankwise.run\nrankwise.launch(print)", True),
    ("import rankwise\nimport torch.distributed as dist\ndist.init_process_group('gloo')", True),
    (PLAIN, False),
    ("print('rankwise')", False),
])
def test_plain_scripts_are_welcome(here: Path, text: str, uses: bool) -> None:
    """A script that knows nothing of rankwise is a target too."""
    (here / "it.py").write_text(text)
    assert resolve("it.py").uses_rankwise is uses


def test_a_script_that_forgets_to_launch_is_refused(here: Path) -> None:
    """It would end at once, having trained nothing."""
    (here / "it.py").write_text("import rankwise as rw\ndef train(run: rw.Run): ...\n")
    with pytest.raises(UsageError, match=r"never calls rankwise\.launch"):
        resolve("it.py")


def test_recipes_have_names() -> None:
    """A recipe is run as a module of the package, and each says in one line what it is."""
    for name, meaning in recipes().items():
        target = resolve(name)
        assert target.module == f"rankwise.recipes.{name}"
        assert target.uses_rankwise
        assert meaning.endswith(".")
        assert len(meaning) <= 100


def test_a_file_goes_before_a_recipe(here: Path) -> None:
    """What lies in this folder under the very name is meant."""
    (here / "toy").write_text(PLAIN)
    assert resolve("toy").module is None


def test_modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """-m finds modules from this folder, and a package by its __main__, without importing anything."""
    package = here / "things" / "inner"
    package.mkdir(parents=True)
    for file in (here / "things" / "__init__.py", package / "__init__.py"):
        file.write_text("raise RuntimeError('imported')")
    (package / "fit.py").write_text(LAUNCHES)
    (package / "__main__.py").write_text(PLAIN)
    target = resolve("things.inner.fit", as_module=True)
    assert (target.name, target.path, target.module) == ("fit", package / "fit.py", "things.inner.fit")
    assert target.command == "-m things.inner.fit"
    assert resolve("things.inner", as_module=True).path == package / "__main__.py"
    for wrong in ("things", "things.outer", "nothing.at.all", "things.inner.fit.deeper", "", "sys"):
        with pytest.raises(UsageError, match="no module"):
            resolve(wrong, as_module=True)


@pytest.mark.parametrize(("text", "words"), [
    ("fashoin", "Did you mean fashion?"),
    ("trian.py", "Did you mean train.py?"),
    ("train", "Did you mean train.py?"),
    ("things/trian.py", "Did you mean things/train.py?"),
    ("zzz", "rankwise recipes list"),
    ("no/such/folder/x.py", "rankwise recipes list"),
    ("things", "is a folder"),
])
def test_an_unknown_target_gets_a_guess(here: Path, text: str, words: str) -> None:
    """The nearest recipe or script is named."""
    (here / "things").mkdir()
    for file in (here / "train.py", here / "things" / "train.py"):
        file.write_text(LAUNCHES)
    with pytest.raises(UsageError) as caught:
        resolve(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"def train(:\n", b"\x00\x01", b"\xff\xfe\xff"])
def test_what_is_not_python_is_said(here: Path, content: bytes) -> None:
    """A broken script fails before any rank starts."""
    (here / "it.py").write_bytes(content)
    with pytest.raises(UsageError, match="not a Python program"):
        resolve("it.py")

"""The command line: its help, its errors, and what it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwise import cli
from rankwise.errors import UsageError
from rankwise.launcher import agent
from rankwise.launcher.target import RECIPES, Target, recipes
from rankwise.settings import Settings


def call(*words: str) -> int:
    """The exit code of `rankwise words`, in this process."""
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Target, list[str], Settings]]:
    """What `rankwise run` hands to the launcher, which is not started."""
    calls: list[tuple[Target, list[str], Settings]] = []

    def run_target(target: Target, arguments: list[str], settings: Settings) -> int:
        calls.append((target, arguments, settings))
        return 0

    monkeypatch.setattr(agent, "run_target", run_target)
    return calls


@pytest.mark.parametrize("words", [["--help"], ["-h"], [], ["run", "--help"], ["recipes", "--help"], ["recipes"],
                                   ["recipes", "copy", "--help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each command says what it is for, on the output, with exit code 0."""
    assert call(*words) == 0
    shown = capsys.readouterr()
    assert "Usage: rankwise" in shown.out
    assert shown.err == ""


def test_help_of_run_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """All settings are options, with their meaning, and there are examples to start from."""
    call("run", "--help")
    shown = " ".join(capsys.readouterr().out.split())
    for name in Settings.names():
        assert f"--{name.replace('_', '-')} " in shown
    assert "machines that take part" in shown
    assert "rankwise run train.py --mode ddp --devices 4 -- --epochs 20" in shown


def test_help_needs_no_torch() -> None:
    """Nothing that the help shows loads torch, numpy or rich."""
    code = ("import sys\nfrom rankwise.cli import main\n"
            "try: main(['run', '--help'])\nexcept SystemExit: pass\n"
            "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints it."""
    import rankwise
    assert call("--version") == 0
    assert capsys.readouterr().out == f"rankwise {rankwise.__version__}\n"


def test_run_hands_on_what_it_was_given(handed: list[Any]) -> None:
    """Settings are typed, and what stands after `--` reaches the target as it is."""
    assert call("run", "toy", "--mode", "ddp", "--devices", "3", "--timeout", "5.5", "--micro-batch", "16",
                "--", "--epochs", "2", "--devices", "x", "--", "y") == 0
    [(target, arguments, settings)] = handed
    assert target.module == "rankwise.recipes.toy"
    assert arguments == ["--epochs", "2", "--devices", "x", "--", "y"]
    assert settings == Settings(mode="ddp", devices=3, timeout=5.5, micro_batch=16)


def test_run_without_options(handed: list[Any]) -> None:
    """The defaults are those of Settings."""
    assert call("run", "toy") == 0
    assert handed[0][1:] == ([], Settings())


def test_run_a_module(handed: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """-m names a module, as for Python."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fit.py").write_text("print()")
    assert call("run", "-m", "fit", "--seed", "3") == 0
    target, _, settings = handed[0]
    assert (target.module, settings.seed) == ("fit", 3)


def test_the_launchers_exit_code_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """What run_target returns is what the shell sees."""
    monkeypatch.setattr(agent, "run_target", lambda *given: 7)
    assert call("run", "toy") == 7


@pytest.mark.parametrize(("error", "code"), [(UsageError("given", "truth", "remedy"), 2), (KeyboardInterrupt(), 130)])
def test_errors_become_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                  error: BaseException, code: int) -> None:
    """An error of ours is its three-part message, without a traceback; Ctrl-C is 130."""
    def fail(*given: object) -> int:
        raise error

    monkeypatch.setattr(agent, "run_target", fail)
    assert call("run", "toy") == code
    assert capsys.readouterr().err == ("given\n  truth\n  remedy\n" if code == 2 else "")


@pytest.mark.parametrize(("words", "expected"), [
    (["run", "tyo"], "Did you mean toy?"),
    (["run", "toy", "--mode", "dpd"], "Did you mean --mode dp?"),
    (["run", "toy", "--devices", "0"], "--devices is 0"),
    (["run", "toy", "--devices", "two"], "--devices"),
    (["run", "toy", "--node-rank", "1"], "--node-rank is 1"),
    (["run", "toy", "--epochs", "3"], "come after `--`"),
    (["run", "toy", "--epochs", "3"], "--epochs"),
    (["run"], "TARGET"),
    (["run", "-m", "no.such"], "no module `no.such`"),
    (["rnu", "toy"], "rnu"),
    (["recipes", "copy", "fashoin"], "Did you mean fashion?"),
    (["recipes", "copy", "toy", "/no/such/folder/x.py"], "cannot be copied"),
])
def test_wrong_usage_is_explained(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, one message on the error output, no traceback."""
    assert call(*words) == 2
    shown = capsys.readouterr()
    assert expected in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One line each: the name and what it trains."""
    assert call("recipes", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(recipes()) == ["cifar10", "fashion", "resnet", "toy"]
    assert all(len(line) <= 120 for line in lines)


def test_a_recipe_is_copied_and_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To a folder or under a name; what is there already stays."""
    assert call("recipes", "copy", "toy", str(tmp_path)) == 0
    assert f"python {tmp_path / 'toy.py'}" in capsys.readouterr().out
    assert call("recipes", "copy", "toy", str(tmp_path / "mine.py")) == 0
    for copy in ("toy.py", "mine.py"):
        assert (tmp_path / copy).read_text() == (RECIPES / "toy.py").read_text()
    (tmp_path / "toy.py").write_text("changed")
    assert call("recipes", "copy", "toy", str(tmp_path)) == 2
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "toy.py").read_text() == "changed"


def test_a_copied_recipe_runs_by_itself(tmp_path: Path) -> None:
    """`python toy.py --epochs 1` on one device, with rankwise's options and its own."""
    call("recipes", "copy", "toy", str(tmp_path))
    done = subprocess.run([sys.executable, "toy.py", "--epochs", "1", "--name", "it"], cwd=tmp_path, timeout=110,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1/1" in done.stdout
    assert (tmp_path / "runs" / "it" / "metrics.jsonl").exists()


def test_both_ways_to_call_it(tmp_path: Path) -> None:
    """`rankwise` and `python -m rankwise` are one; `-- --help` is the target's own, before a run begins."""
    script = subprocess.run([Path(sys.executable).parent / "rankwise", "--version"], capture_output=True, text=True,
                            timeout=60, check=True)
    assert script.stdout.startswith("rankwise ")
    done = subprocess.run([sys.executable, "-m", "rankwise", "run", "toy", "--devices", "2", "--", "--help"],
                          capture_output=True, text=True, timeout=110, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--batch-size INT" in done.stdout
    assert done.stdout.count("usage:") == 1
    assert list(tmp_path.iterdir()) == []

"""A training function's parameters as options."""

from __future__ import annotations

import sys
import types
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Optional

import pytest

from rankwise.errors import UsageError
from rankwise.launcher.options import parse
from rankwise.settings import Settings

if TYPE_CHECKING:
    import rankwise as rw


class Norm(Enum):
    batch = 1
    layer = 2


def train(run: rw.Run, data: str = "cifar10", epochs: int = 10, lr: float = 1e-3, flip: bool = True,
          out: Path = Path("weights.pth"), schedule: Literal["cosine", "line"] = "cosine", norm: Norm = Norm.batch,
          widths: list[int] = [32, 64], warm_up: Optional[int] = None, plain=3, hook: Any = None) -> None:  # noqa: B006, UP045
    """Train on 100 % of the data.

    data: name of a data set, or a folder
        that holds one
    :param epochs: passes over the data
    `lr` (float): step size
    """


def given(*argv: str, function: Any = train, with_settings: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    return parse(function, argv, with_settings)


@pytest.mark.parametrize(("argv", "expected"), [
    ([], {}),
    (["--data", "x y"], {"data": "x y"}),
    (["--epochs=3"], {"epochs": 3}),
    (["--lr", "1e-2"], {"lr": 0.01}),
    (["--lr=-1e-2"], {"lr": -0.01}),
    (["--flip"], {"flip": True}),
    (["--no-flip"], {"flip": False}),
    (["--out", "a/b"], {"out": Path("a/b")}),
    (["--schedule", "line"], {"schedule": "line"}),
    (["--norm", "layer"], {"norm": Norm.layer}),
    (["--widths", "8", "16", "--epochs", "2"], {"widths": [8, 16], "epochs": 2}),
    (["--widths"], {"widths": []}),
    (["--warm-up", "5"], {"warm_up": 5}),
    (["--plain", "4"], {"plain": 4}),
])
def test_values_are_typed(argv: list[str], expected: dict[str, Any]) -> None:
    """Each kind of parameter is read as its type; what is not given is left to the function's default."""
    arguments, settings = given(*argv)
    assert arguments == expected
    assert settings == {}
    assert {name: type(value) for name, value in arguments.items()} == {
        name: type(value) for name, value in expected.items()}


def test_settings_stand_among_them_for_a_bare_script() -> None:
    """`python train.py` takes rankwise's options too, typed, apart from the function's own."""
    assert given("--devices", "2", "--mode", "ddp", "--epochs", "1", "--timeout", "5", with_settings=True) == (
        {"epochs": 1}, {"devices": 2, "mode": "ddp", "timeout": 5.0})


@pytest.mark.parametrize(("argv", "words"), [
    (["--epohcs", "3"], ["--epohcs", "Did you mean --epochs?"]),
    (["--epoch", "3"], ["--epoch is not", "Did you mean --epochs?"]),
    (["--epochs", "many"], ["--epochs is 'many'", "a whole number"]),
    (["--lr", "fast"], ["--lr is 'fast'", "a number"]),
    (["--schedule", "cosin"], ["--schedule is 'cosin'", "one of cosine, line"]),
    (["--norm", "group"], ["one of batch, layer"]),
    (["--widths", "8", "x"], ["--widths is 'x'", "a whole number"]),
    (["--epochs"], ["--epochs", "expected one argument"]),
    (["3"], ["3 is not an option"]),
    (["--hook", "x"], ["--hook is not an option"]),
    (["--devices", "2"], ["It is an option of rankwise", "before `--`"]),
    (["--flip=3"], ["--flip", "ignored explicit argument"]),
])
def test_a_wrong_option_is_named(argv: list[str], words: list[str]) -> None:
    """What cannot be read is refused with what was given, what is true and what to do."""
    with pytest.raises(UsageError) as caught:
        given(*argv)
    for word in words:
        assert word in str(caught.value)


def test_nothing_is_read_as_an_abbreviation() -> None:
    """`--dev` is not taken for --devices behind the user's back."""
    with pytest.raises(UsageError, match="Did you mean --devices"):
        given("--device", "2", with_settings=True)


def test_a_parameter_without_default_must_be_given() -> None:
    """A missing required option is named."""
    def needs(run: rw.Run, folder: Path) -> None: ...
    with pytest.raises(UsageError, match=r"--folder must be given"):
        given(function=needs)
    assert given("--folder", "x", function=needs)[0] == {"folder": Path("x")}


@pytest.mark.parametrize("name", [*Settings.names(), "help"])
def test_names_of_rankwise_are_reserved(name: str) -> None:
    """A parameter with the name of one of rankwise's settings is refused, with the list of them."""
    namespace: dict[str, Any] = {}
    exec(f"def train(run, {name}=None): ...", namespace)   # noqa: S102 (one function for each name)
    with pytest.raises(UsageError) as caught:
        given(function=namespace["train"])
    assert f"`{name}`" in str(caught.value)
    assert all(other in str(caught.value) for other in Settings.names())


def test_functions_that_cannot_be_options_are_refused() -> None:
    """No Run, `*args`, or a type that no option can have: each is said."""
    def no_run() -> None: ...
    def many(run: rw.Run, *rest: int) -> None: ...
    def keywords(run: rw.Run, **rest: int) -> None: ...
    def odd(run: rw.Run, table: dict[str, int]) -> None: ...
    for function, word in ((no_run, "takes no parameter"), (many, r"\*rest"), (keywords, r"\*\*rest"),
                           (odd, r"`table` of odd is a dict\[str, int\]")):
        with pytest.raises(UsageError, match=word):
            given(function=function)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """--help shows each option with its meaning and default, and what to run next; it exits with 0."""
    with pytest.raises(SystemExit) as caught:
        given("--help", with_settings=True)
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("Train on 100 % of the data.",
                  "--data TEXT name of a data set, or a folder that holds one (default: cifar10)",
                  "--epochs INT passes over the data (default: 10)", "--lr FLOAT step size (default: 0.001)",
                  "--flip, --no-flip (default: --flip)", "--schedule {cosine,line}",
                  "--norm {batch,layer} (default: batch)", "(default: 32 64)",
                  "--devices INT devices of one node", "rankwise run"):
        assert words in shown, words


def test_help_names_the_script_as_it_was_typed(capsys: pytest.CaptureFixture[str],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that the help ends with can be typed: a path, or -m and the module."""
    monkeypatch.setattr(sys, "argv", ["folder/train.py"])
    for spec, script in ((None, "folder/train.py"), (types.SimpleNamespace(name="package.job"), "-m package.job")):
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
        with pytest.raises(SystemExit):
            given("--help", with_settings=True)
        assert f"  python {script} --devices 4\n  rankwise run {script} --devices 4" in capsys.readouterr().out


def test_help_is_printed_by_rank_0_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank exits with 0; one prints."""
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        with pytest.raises(SystemExit):
            given("--help")
        assert ("usage:" in capsys.readouterr().out) == (rank == 0)

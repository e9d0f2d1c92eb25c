"""A training function's parameters as the options of its script: typed values, help, and the nearest right name."""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NoReturn, Union

from rankwise import environment
from rankwise.errors import UsageError
from rankwise.settings import Settings, option

_RESERVED = (*Settings.names(), "help")
_MISSING = inspect.Parameter.empty


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a value is written on a command line."""

    read: Callable[[str], Any]   # raises ValueError
    metavar: str
    meaning: str
    many: bool = False
    flag: bool = False


@dataclass(frozen=True, kw_only=True)
class Option:
    """One parameter or setting, as an option."""

    name: str
    kind: Kind
    default: Any
    help: str


def parse(function: Callable[..., Any], argv: Sequence[str], with_settings: bool) -> tuple[dict[str, Any],
                                                                                           dict[str, Any]]:
    """Arguments of `function` after its first (the Run), and changes of settings, both only those that were given.

    `with_settings` says whether rankwise's own options stand among them, as for a bare `python train.py`.
    `--help` prints on rank 0 and exits with 0. Raises UsageError for everything that does not fit.
    """
    mine = parameters(function)
    settings = settings_options() if with_settings else []
    parser = _Parser(prog=Path(sys.argv[0]).name or "train.py", add_help=False, allow_abbrev=False,
                     usage="%(prog)s [options]", description=_description(function), epilog=_epilog(with_settings),
                     formatter_class=_Formatter)
    parser.add_argument("-h", "--help", action="store_true", default=False, help=argparse.SUPPRESS)
    _add(parser, "this training" if mine else "this training has no options", mine)
    if settings:
        _add(parser, "how it is run, by rankwise (of these, only --seed and --amp change what it computes)", settings)
    found, rest = parser.parse_known_args(list(argv))
    values = vars(found)
    if values.pop("help"):
        _print_help(parser)
    if rest:
        _refuse_unknown(rest, [*mine, *settings], with_settings)
    arguments = {each.name: values[each.name] for each in mine if each.name in values}
    _require_given(mine, arguments)
    return arguments, {each.name: values[each.name] for each in settings if each.name in values}


def parameters(function: Callable[..., Any]) -> list[Option]:
    """The options that a training function's parameters are, the first parameter (the Run) left out.

    A parameter with a default whose type no option can have is left out: it can be given by `rw.launch` alone.
    Raises UsageError for names that are rankwise's own and for types that no option can have.
    """
    name_of_function = getattr(function, "__name__", "train")
    declared = list(inspect.signature(function).parameters.values())
    if not declared:
        raise UsageError(f"The training function {name_of_function} takes no parameter.",
                         "rankwise hands it the Run as its first argument.",
                         f"Write def {name_of_function}(run: rankwise.Run, ...).")
    helps = _helps(inspect.getdoc(function) or "")
    found = []
    for parameter in declared[1:]:
        _require_usable(parameter, name_of_function)
        kind = kind_of(_annotation(function, parameter), parameter.default)
        if kind is not None:
            found.append(Option(name=parameter.name, kind=kind, default=parameter.default,
                                help=helps.get(parameter.name, "")))
        elif parameter.default is _MISSING:
            raise UsageError(f"The parameter `{parameter.name}` of {name_of_function} is a {parameter.annotation}.",
                             "An option is an int, float, str, bool, Path, Literal, Enum, or a list of these.",
                             "Give the parameter one of these types, or a default.")
    return found


def settings_options() -> list[Option]:
    """rankwise's own settings as options."""
    hints = typing.get_type_hints(Settings)
    found = []
    for field in fields(Settings):
        kind = kind_of(hints[field.name], field.default)
        assert kind is not None
        found.append(Option(name=field.name, kind=kind, default=field.default, help=field.metadata["help"]))
    return found


def kind_of(annotation: Any, default: Any = _MISSING) -> Kind | None:
    """How values of this type are written; None where they cannot be."""
    if annotation is _MISSING:
        annotation = str if default is _MISSING or default is None else type(default)
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind_of(inner[0], default)
    if origin in (Union, types.UnionType):
        alternatives = [each for each in inner if each is not type(None)]
        return kind_of(alternatives[0], default) if len(alternatives) == 1 else None
    if origin is Literal:
        return _choice({str(each): each for each in inner})
    if origin is list and inner:
        each = kind_of(inner[0])
        return None if each is None or each.flag or each.many else Kind(
            read=each.read, metavar=each.metavar, meaning=f"{each.meaning}, any number of times", many=True)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _choice(dict(annotation.__members__))
    return _PLAIN.get(annotation)


_PLAIN: dict[Any, Kind] = {
    int: Kind(read=int, metavar="INT", meaning="a whole number"),
    float: Kind(read=float, metavar="FLOAT", meaning="a number"),
    str: Kind(read=str, metavar="TEXT", meaning="a text"),
    Path: Kind(read=Path, metavar="PATH", meaning="a path"),
    bool: Kind(read=bool, metavar="", meaning="a flag", flag=True),
}


def _choice(values: dict[str, Any]) -> Kind:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError(text)
        return values[text]
    return Kind(read=read, metavar="{" + ",".join(values) + "}", meaning=f"one of {', '.join(values)}")


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The type of a parameter, each looked up by itself: the Run's may be known to type checkers alone."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        names = getattr(inspect.unwrap(function), "__globals__", {})
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["it"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None


def _require_usable(parameter: inspect.Parameter, function: str) -> None:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise UsageError(f"The training function {function} has the parameter `{parameter}`.",
                         "Each of its parameters is an option with a name.", "Name its parameters one by one.")
    if parameter.name in _RESERVED:
        raise UsageError(f"The training function {function} has a parameter `{parameter.name}`.",
                         f"rankwise uses these names for its own options: {', '.join(_RESERVED)}.",
                         f"Rename it; rankwise's own value is in run.settings.{parameter.name}."
                         if parameter.name != "help" else "Rename it.")


def _helps(docstring: str) -> dict[str, str]:
    """The meaning of each parameter: lines such as `epochs: passes over the data` in the function's docstring."""
    found: dict[str, str] = {}
    name = ""
    for line in docstring.splitlines():
        start = re.match(r"\s*(?::param\s+|-\s+)?`{0,2}([A-Za-z_]\w*)`{0,2}\s*(?:\([^)]*\))?\s*:\s+(\S.*)", line)
        if start:
            name, found[start[1]] = start[1], start[2].strip()
        elif name and line.startswith(" ") and line.strip():
            found[name] += " " + line.strip()
        else:
            name = ""
    return found


def _description(function: Callable[..., Any]) -> str:
    own = (inspect.getdoc(function) or "").split("\n\n")[0]
    module = sys.modules.get(getattr(function, "__module__", ""))
    return own or (getattr(module, "__doc__", None) or "").strip().split("\n\n")[0]


def _epilog(with_settings: bool) -> str:
    if with_settings:
        script = _as_typed()
        return (f"The same training on more devices:\n  python {script} --devices 4\n"
                f"  rankwise run {script} --devices 4 -- [options of this training]\n"
                f"  torchrun --nproc-per-node 4 {script} [options of this training]")
    return ("Options of rankwise (--mode, --devices, ...) stand before `--`:\n"
            "  rankwise run TARGET --devices 4 -- [options of this training]")


def _as_typed() -> str:
    """The script as Python was told to run it: a path, or -m and a module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return f"-m {spec.name.removesuffix('.__main__')}" if spec is not None else sys.argv[0] or "train.py"


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """One column for the options, wide enough for most, and the texts as they were written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        named = re.fullmatch(r"argument (\S+): (.*)", message)
        raise UsageError(f"The option {named[1]} cannot be read: {named[2]}." if named else f"{message}.",
                         "Each option stands with its value, as in --epochs 20.", "--help lists the options.") from None


def _add(parser: argparse.ArgumentParser, title: str, options: list[Option]) -> None:
    group = parser.add_argument_group(title)
    for each in options:
        text = f"{each.help} {_default_note(each)}".strip().replace("%", "%%")
        if each.kind.flag:
            group.add_argument(option(each.name), dest=each.name, help=text, default=argparse.SUPPRESS,
                               action=argparse.BooleanOptionalAction)
        else:
            group.add_argument(option(each.name), dest=each.name, help=text, default=argparse.SUPPRESS,
                               metavar=each.kind.metavar, type=_reader(each), nargs="*" if each.kind.many else None)


def _default_note(each: Option) -> str:
    if each.default is _MISSING:
        return "(required)"
    if each.default is None or each.default == "":
        return ""
    if each.kind.flag:
        return f"(default: {option(each.name if each.default else f'no_{each.name}')})"
    shown = each.default.name if isinstance(each.default, Enum) else each.default
    return f"(default: {' '.join(map(str, shown)) if each.kind.many else shown})"


def _reader(each: Option) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return each.kind.read(text)
        except ValueError:
            raise UsageError(f"{option(each.name)} is {text!r}.", f"It takes {each.kind.meaning}.",
                             f"Give {option(each.name)} {each.kind.metavar}.") from None
    return read


def _print_help(parser: argparse.ArgumentParser) -> NoReturn:
    world = environment.world()
    if world is None or world.is_main:
        parser.print_help()
    raise SystemExit(0)


def _refuse_unknown(rest: list[str], known: list[Option], with_settings: bool) -> NoReturn:
    unknown = next((text for text in rest if text.startswith("-")), rest[0]).partition("=")[0]
    names = [option(each.name) for each in known]
    own = [option(name) for name in Settings.names()]
    if not with_settings and unknown in own:
        raise UsageError(f"{unknown} stands among the options of the training.", "It is an option of rankwise.",
                         f"Put it before `--`: rankwise run TARGET {unknown} ... -- ...")
    close = difflib.get_close_matches(unknown, names, n=1)
    raise UsageError(f"{unknown} is not an option of this training.", f"Its options are {', '.join(names) or 'none'}.",
                     f"Did you mean {close[0]}?" if close else "--help says what each one means.")


def _require_given(options: list[Option], arguments: dict[str, Any]) -> None:
    missing = [option(each.name) for each in options if each.default is _MISSING and each.name not in arguments]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be given.", "The training function has no default for it.",
                         f"Add {missing[0]} and a value, or give the parameter a default.")

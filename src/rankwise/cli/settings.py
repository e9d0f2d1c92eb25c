"""rankwise's settings as options of a command, from the dataclass that declares them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any

import typer

from rankwise.settings import Settings, option


def with_settings(command: Callable[..., Any], *, but: tuple[str, ...] = (),
                  meaning: Mapping[str, str] | None = None) -> Callable[..., Any]:
    """Give `command`, which takes `**settings`, an option for each field of Settings `but` these.

    `meaning` is the help of those that mean less to this command than to `rankwise run`.
    """
    own = inspect.signature(command)
    hints = typing.get_type_hints(command, include_extras=True)
    declared = [parameter.replace(annotation=hints[name]) for name, parameter in own.parameters.items()
                if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    kinds = typing.get_type_hints(Settings)
    for field in fields(Settings):
        if field.name in but:
            continue
        given = typer.Option(option(field.name), help=(meaning or {}).get(field.name, field.metadata["help"]))
        declared.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                                          annotation=Annotated[kinds[field.name], given]))
    command.__signature__ = own.replace(parameters=declared)   # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in declared}
    return command


def with_settings_of_a_job(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a command that hands a job to a cluster, which chooses the machines and where they meet."""
    return with_settings(command, but=("node_rank", "endpoint"), meaning={
        "nodes": "machines of the job", "devices": "devices of each machine (default: 1)"})


def given_in(context: typer.Context) -> set[str]:
    """The parameters of a command that its command line has; the others have their defaults."""
    return {name for name in context.params
            if (source := context.get_parameter_source(name)) is not None and source.name != "DEFAULT"}

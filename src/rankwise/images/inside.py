"""What an image has, seen from inside: sent into a container as a program, so it imports nothing of rankwise.

Prints one line of JSON: the installed version of each package, what could not be imported and why, and why torch does
not compile, where it does not.
"""

import contextlib
import importlib
import importlib.metadata
import io
import json
import re
import sys


def installed() -> dict[str, str]:
    """The version of each package by its normal name."""
    return {re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower(): each.version
            for each in importlib.metadata.distributions()}


def failed_imports() -> dict[str, str]:
    """Each module that stands at the top of some package and cannot be imported, with the reason."""
    failed = {}
    names = sorted(importlib.metadata.packages_distributions(), key=lambda name: (name != "setuptools", name))
    for name in names:   # setuptools first: it puts itself in the place of distutils, which others load
        if not name.isidentifier() or name.startswith("_"):
            continue
        try:
            importlib.import_module(name)
        except BaseException as error:  # a module may also exit
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    return failed


def compile_failure() -> str:
    """Why torch.compile does not work here, in its own words; empty where it does."""
    import torch
    try:
        compiled = torch.compile(lambda x: (x.sin() + x.cos()).sum(), fullgraph=True)
        x = torch.arange(7.0)
        return "" if torch.allclose(compiled(x), (x.sin() + x.cos()).sum()) else "it computes something else"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip()}"[:200]


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()):
        # The versions first: once it is imported, setuptools adds packages that it carries.
        found: dict[str, object] = {"installed": installed()}
        found |= {"compile_failure": compile_failure(), "failed_imports": failed_imports()}
    sys.stdout.write(json.dumps(found) + "\n")

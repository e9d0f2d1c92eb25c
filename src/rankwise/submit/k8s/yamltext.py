"""Texts as YAML that every parser reads back unchanged, quoted only where they have to be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_PLAIN = re.compile(r"(--?)?[A-Za-z/][A-Za-z0-9_./-]*")
_OTHER_THAN_TEXT = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}   # what YAML 1.1 reads otherwise
_BREAKS_LINES_OR_HIDES = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")
_FITS_A_BLOCK = re.compile("[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")


def scalar(text: str) -> str:
    """The text as it stands, where it can be read as nothing else; else in double quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHER_THAN_TEXT:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _BREAKS_LINES_OR_HIDES.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def mapping(values: Mapping[str, str]) -> str:
    """`{cpu: "4", nvidia.com/gpu: "2"}`."""
    return "{" + ", ".join(f"{scalar(name)}: {scalar(value)}" for name, value in values.items()) + "}"


def block(text: str, indent: int) -> str:
    """The lines of a text as they are, each indented by so many columns; what no YAML block can hold is quoted."""
    if not text.strip("\n") or not _FITS_A_BLOCK.fullmatch(text):
        return scalar(text)
    ending = "+" if text.endswith("\n") else "-"
    lines = text.removesuffix("\n").split("\n")
    return "\n".join([f"|2{ending}", *(f"{' ' * indent}{line}" if line else "" for line in lines)])

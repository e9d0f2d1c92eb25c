"""What a failed connection says, without the places in a library's source that it names."""

from __future__ import annotations

import re

from rankwise.errors import RankwiseError
from rankwise.group import transport_words

_PLACES = re.compile(r"\[enforce fail at [^\]]*\] [^.]*\. | ?\[/[^\]]*\] | \[none\]")


def words_of(error: Exception) -> str:
    """The cause, for a reader of the findings; of an error of ours, what it says is true."""
    words = error.truth if isinstance(error, RankwiseError) else transport_words(error)
    return _PLACES.sub("", words).strip()

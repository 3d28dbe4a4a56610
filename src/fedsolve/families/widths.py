"""One grammar for networks that are called by name: NAME, or NAME:W,W,... with the widths of their layers.

It stands below the families and needs no torch. Errors point at the place in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NoReturn

from fedsolve.errors import DataError, ParameterError

_WHOLE = re.compile("[0-9]{1,7}")  # seven digits: a longer number fits no memory


def read(text: str, examples: Sequence[str]) -> tuple[str, tuple[int, ...]] | None:
    """The name and the widths in a text; None where no example has its name.

    A name may have widths where one of its examples has, and may be without where one of its examples is.

    >>> read("mlp:128,64", ["lr", "mlp:64"])
    ('mlp', (128, 64))
    >>> read("cnn", ["cnn", "cnn:16,32"])
    ('cnn', ())
    >>> read("mlp:128,x", ["mlp:64"])
    Traceback (most recent call last):
    fedsolve.errors.ParameterError: 'x' at character 9 of network 'mlp:128,x': \
'mlp' takes widths from 1 to 9999999, as in mlp:64
    """
    name, colon, argument = text.strip().partition(":")
    forms = [example for example in examples if example.partition(":")[0] == name]
    if not forms:
        return None
    if not colon and name in forms:
        return name, ()
    start = text.index(":") + 1 if colon else len(text)
    example = next((form for form in forms if form != name), None)
    if example is None:
        refuse(text, start, argument, f"{name!r} takes no argument")
    widths = []
    for offset, word in words(argument):
        if not whole(word):
            refuse(text, start + offset, word, f"{name!r} takes widths from 1 to 9999999, as in {example}")
        widths.append(int(word))
    return name, tuple(widths)


def words(text: str) -> Iterator[tuple[int, str]]:
    """What stands between the commas of a text, without spaces, and where each starts.

    >>> list(words("relu, dense"))
    [(0, 'relu'), (6, 'dense')]
    """
    start = 0
    for word in text.split(","):
        yield start + len(word) - len(word.lstrip()), word.strip()
        start += len(word) + 1


def whole(word: str) -> bool:
    """Whether a word is a whole number from 1 to 9999999."""
    return _WHOLE.fullmatch(word) is not None and int(word) > 0


def refuse(
    text: str, start: int, word: str, reason: str, kind: type[ParameterError | DataError] = ParameterError
) -> NoReturn:
    """Raise an error that points at a word of the description of a network; `start` counts characters from 0."""
    place = f"{word!r} at character {start + 1}" if word else f"character {start + 1}"
    raise kind(f"{place} of network {text!r}: {reason}")

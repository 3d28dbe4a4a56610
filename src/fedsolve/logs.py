"""Logs of a node and of a SuperLink without what is no news, as lines of text or of JSON.

Flower writes a line for every request, and refuses a node whose key it does not know with an error each time. Here that
is said once. Warnings and errors of any other kind pass. This module stands alone, since a process with it runs beside
every node.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, TextIO

from fedsolve.errors import ParameterError, plain

FORMS = ("text", "json", "all")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"(?:\d{4}-\S+Z )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*(?:\[[\w.]+\]|:)?\s*(.*)")
_REFUSED = re.compile(r"Exit Code: 305\b|\[code: 2004\]")  # a node that is not let in
_ASKS = re.compile(r"ApiError:2004\].*?public key: b'(.*?)'")
_AWAY = re.compile(r"Connection attempt failed, retrying|Giving up reconnection")
_EXPERIMENTAL = "EXPERIMENTAL:"
_BLOCK = (  # what follows the exit code of a refused node
    "Failed to initialize the connection",
    "[code: 2004]",
    "The SuperNode could not establish",
    "For more information, visit",
)
_AGAIN = re.compile(r"the node of \S+ ended; next try")
_NEWS: tuple[tuple[re.Pattern[str], str], ...] = (  # of the lines at INFO, those that are news, and how they are said
    (re.compile(r"SuperNode ID: (\d+)"), "connected to the server, as node {}"),
    (re.compile(r"\[Fleet\.ActivateNode\] Activated node_id=(\d+)"), "node {} is connected"),
    (re.compile(r"\[Fleet\.DeactivateNode\] Deactivated node_id=(\d+)"), "node {} is disconnected"),
    (re.compile(r"\[ControlServicer\.RegisterNode\] Created node_id=(\d+)"), "a key is let in, as node {}"),
    (re.compile(r"Created run (\d+)"), "run {} begins"),
    (re.compile(r"Starting the SuperLink Fleet HTTP API on (\S+?)\.?$"), "listening on {}"),
)
_CONNECTED = ("connected to the server",)


class Event(NamedTuple):
    """One line that is worth reading."""

    level: str
    message: str


class Sieve:
    """Tells news from noise, line by line.

    >>> sieve = Sieve()
    >>> sieve.take("INFO :      SuperNode ID: 42")
    [Event(level='INFO', message='connected to the server, as node 42')]
    >>> sieve.take("INFO:     Application startup complete.")
    []
    """

    def __init__(self) -> None:
        self._refused = False  # whether the node was not let in last, which was said
        self._away = False  # whether nobody could be reached last, which was said
        self._inside = False  # the lines of a refusal
        self._askers: set[str] = set()  # keys that asked to be let in, which was said

    def take(self, line: str) -> list[Event]:
        """What a line says, if it is news."""
        text = _COLOUR.sub("", line).rstrip()
        match = _LEVEL.fullmatch(text)
        level, words = (match[1], match[2]) if match else ("", text)
        if self._inside and not match and (not words or words.startswith(_BLOCK)):
            return []
        self._inside = False
        if level in ("ERROR", "WARNING", "CRITICAL"):
            return self._trouble(level, words)
        if level:
            return self._info(words)
        if not words or (_AGAIN.match(words) and self._refused):
            return []
        return [Event("ERROR" if words.startswith("Traceback") else "INFO", plain(words, 2000))]

    def _trouble(self, level: str, words: str) -> list[Event]:
        if words.startswith(_EXPERIMENTAL):
            return []
        if _AWAY.match(words):
            before, self._away = self._away, True
            return [] if before else [Event("INFO", "nobody can be reached yet; Flower tries again")]
        if asks := _ASKS.search(words):
            return self._asks(asks[1])
        if not _REFUSED.search(words):
            return [Event(level, plain(words, 2000))]
        self._inside = True
        if self._refused:
            return []
        self._refused = True
        reason = "its key is not added there yet, or it was cut off a moment ago"
        return [Event("INFO", f"the server does not let this site in: {reason}; it tries again every few seconds")]

    def _asks(self, key: str) -> list[Event]:
        pem = key.replace("\\n", "\n")
        digest = hashlib.sha256(pem.encode()).hexdigest()[:16]
        if digest in self._askers or len(self._askers) > 10_000:  # whoever makes keys all day is not remembered
            return []
        self._askers.add(digest)
        advice = "`fedsolve deploy add` with its card lets it in"
        return [Event("INFO", f"a node with the key {digest} asks to be let in, and is not known: {advice}")]

    def _info(self, words: str) -> list[Event]:
        for pattern, said in _NEWS:
            if found := pattern.search(words):
                if said.startswith(_CONNECTED):
                    self._refused = self._away = False
                return [Event("INFO", said.format(found[1]))]
        return []


def pass_on(who: str, form: str, lines: Iterable[str], out: TextIO) -> None:
    """Write what is news in lines as they come: as text, or as one JSON object each; `all` is every line as it is."""
    if form not in FORMS:
        raise ParameterError(f"LOG must be {', '.join(FORMS[:-1])} or {FORMS[-1]}; got {form!r}")
    sieve = Sieve()
    shown: Callable[[Event], str] = _as_json(who) if form == "json" else _as_text(who)
    with suppress(KeyboardInterrupt, BrokenPipeError):
        for line in lines:
            for text in [line.rstrip("\n")] if form == "all" else map(shown, sieve.take(line)):
                out.write(f"{text}\n")
                out.flush()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _as_text(who: str) -> Callable[[Event], str]:
    return lambda event: f"{_now()} {who}: {'' if event.level == 'INFO' else f'{event.level}: '}{event.message}"


def _as_json(who: str) -> Callable[[Event], str]:
    return lambda event: json.dumps({"time": _now(), "who": who, "level": event.level, "message": event.message})

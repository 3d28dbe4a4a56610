"""What clients of one process that are sent the same compute once for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from fedsolve.arrays import Arrays

_Made = TypeVar("_Made")


class Derived:
    """What follows from one message alone, computed when the first client asks for it, and the same for all of them.

    It lives as long as the message is the last one that was sent, and belongs to the transport: no method keeps it. The
    key is a function, with the method's settings where it is bound to a method, and never a client.
    """

    def __init__(self, message: Arrays) -> None:
        self._message, self._lock, self._made = message, threading.Lock(), dict[object, Any]()

    def __call__(self, function: Callable[[Arrays], _Made], message: Arrays, /) -> _Made:
        """What the function makes of the message; of another message than this one, each time anew."""
        if message is not self._message:
            return function(message)
        with self._lock:  # others wait: they could do nothing without it
            if function not in self._made:
                self._made[function] = function(message)
            made: _Made = self._made[function]
            return made

"""The package's grid in one process, with replies that tests spoil, and with times that end as at a SuperLink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Message
from flwr.app.error import Error
from flwr.clientapp import ClientApp

from fedsolve.runtime.flower.inline import InlineGrid, travelled
from fedsolve.runtime.flower.inline import engine as engine


class InProcessGrid(InlineGrid):
    """`spoil` may change or drop a reply, or raise. Answers are made when a message is pushed, and wait."""

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, Mapping[str, Any]],
        spoil: Callable[[int, Message, Message], Message | None] | None = None,
    ) -> None:
        super().__init__(app, nodes)
        self.most, self.pushed = 0, 0  # replies that waited at once, and messages in all
        self._spoil = spoil
        self._replies: dict[str, Message | None] = {}
        self._ends: dict[str, float] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            self.pushed += 1
            (identity,) = super().push_messages([message])
            self._replies[identity] = self.answer(self._waiting.pop(identity))
            self._ends[identity] = time.time() + message.metadata.ttl
            self.most = max(self.most, len(self._replies))
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        now = time.time()  # a SuperLink forgets replies whose time is over
        asked = [identity for identity in message_ids if now < self._ends[identity]]
        replies = [reply for identity in asked if (reply := self._replies.get(identity)) is not None]
        for reply in replies:
            del self._replies[reply.metadata.reply_to_message_id]
        return replies

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if self._spoil is None or reply is None or reply.has_error():
            return reply
        try:
            spoilt = self._spoil(message.metadata.dst_node_id, message, reply)
        except Exception as error:  # noqa: BLE001  (as Flower does)
            return travelled(Message(Error(2, str(error)), reply_to=message))
        return spoilt

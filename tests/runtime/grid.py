"""A light grid: the two apps in one process, each message through Flower's own deflation, a new context a message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity

RUN = 7


class InProcessGrid(Grid):
    """Calls the client app when a message is pushed. `spoil` may change or drop a reply, or raise."""

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, Mapping[str, Any]],
        spoil: Callable[[int, Message, Message], Message | None] | None = None,
    ) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
        self.nodes, self.keys = dict(nodes), dict.fromkeys(nodes, b"")
        self.most, self.pushed = 0, 0  # replies that waited at once, and messages in all
        self._app, self._spoil = app, spoil
        self._replies: dict[str, Message | None] = {}
        self._ends: dict[str, float] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            self.pushed += 1
            identity, node = f"message-{self.pushed}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = identity
            context = Context(RUN, node, dict(self.nodes[node]), RecordDict(), {})
            try:
                reply: Message | None = self._app(message, context)
                if self._spoil and reply is not None:
                    reply = self._spoil(node, message, reply)
            except Exception as error:  # noqa: BLE001  (as Flower does)
                reply = Message(Error(2, str(error)), reply_to=message)
            self._replies[identity] = reply
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

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError


def engine(server: ServerApp, client: ClientApp, nodes: int) -> None:
    """Runs two apps with so many simulated nodes."""
    grid = InProcessGrid(client, {100 + i: {"partition-id": i, "num-partitions": nodes} for i in range(nodes)})
    server(grid, Context(RUN, 0, {}, RecordDict(), {}))

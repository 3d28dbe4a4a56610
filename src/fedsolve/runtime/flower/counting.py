"""A grid that counts: how many bytes went to which node and came from it, and who has not answered yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedsolve.runtime.flower.messages import size
from fedsolve.runtime.live import Traffic


class Counted(Grid):
    """Another grid, with an account of each node's messages; `changed` is told whenever one was sent or has come."""

    def __init__(self, grid: Grid, changed: Callable[[], None] = lambda: None) -> None:
        self.traffic: dict[int, Traffic] = {}
        self.keys: dict[int, str] = {}  # of the nodes that were seen
        self._grid, self._changed = grid, changed
        self._asked: dict[str, int] = {}  # messages without an answer, and whom they were sent to

    def get_node_ids(self) -> Iterable[int]:
        """As the other has them."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """As the other has them, with their keys."""
        found = list(self._grid.get_nodes())
        self.keys |= {node.node_id: node.public_key.decode(errors="replace").strip() for node in found}
        return found

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send, and count what was taken."""
        sent = list(messages)
        identities = list(self._grid.push_messages(sent))
        for message, identity in zip(sent, identities, strict=False):  # what cannot be sent has no identity
            node = message.metadata.dst_node_id
            self._asked[identity] = node
            self.traffic[node] = self.traffic.get(node, Traffic()).asked(size(message.content))
        self._changed()
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Receive, and count what came."""
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            node = self._asked.pop(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            count = 0 if reply.has_error() else size(reply.content)  # an error is Flower's own word
            self.traffic[node] = self.traffic.get(node, Traffic()).answered(count)
        if replies:
            self._changed()
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Not counted, so not offered: messages are pushed and pulled."""
        raise NotImplementedError

    def create_message(self, *args: Any, **words: Any) -> Message:
        """As the other does it."""
        return self._grid.create_message(*args, **words)

    def set_run(self, run: Any) -> None:
        """As the other does it."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The other's."""
        return self._grid.run

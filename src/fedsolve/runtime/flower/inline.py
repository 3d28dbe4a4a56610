"""Both apps in this process, one client after the other: an engine for runs that are over before Ray has started.

Messages are Flower's and pass through Flower's own bytes, each answer has a context of its own, and an app that raises
is told to the server as by Flower's engine. So what would not travel fails here as well; what differs is that nothing
is started, and that clients take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, cast
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedsolve.runtime.inprocess import FEW_CLIENTS
from fedsolve.threads import ONE_THREAD

RUN = 7  # the number of the run; there is one
RAISED = 2  # Flower's code of an app that raised


def travelled(message: Message) -> Message:
    """The message as it arrives: taken apart into bytes and put together again, as Flower does at both ends."""
    contents = {identity: part.deflate() for identity, part in get_all_nested_objects(message).items()}
    arrived = cast(Message, inflate_object_from_contents(message.object_id, contents))
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id  # which Flower tells beside the bytes
    return arrived


class InlineGrid(Grid):
    """A grid whose nodes are in this process. A message waits until its answer is asked for, so that few wait."""

    def __init__(self, app: ClientApp, nodes: Mapping[int, Mapping[str, Any]]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1  # who sends, for Flower
        self.nodes, self.keys = dict(nodes), dict.fromkeys(nodes, b"")
        self._app = app
        self._waiting: dict[str, Message] = {}  # by identity

    def get_node_ids(self) -> Iterable[int]:
        """All nodes, which are always there."""
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The same, with their keys."""
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Put messages aside for their nodes."""
        identities = []
        for message in messages:
            identity = str(uuid4())
            message.metadata.__dict__["_message_id"] = identity
            self._waiting[identity] = travelled(message)
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers of nodes to these messages, made now."""
        waiting = [message for identity in message_ids if (message := self._waiting.pop(identity, None)) is not None]
        return [reply for message in waiting if (reply := self.answer(message)) is not None]

    def answer(self, message: Message) -> Message | None:
        """What the node makes of a message; the error that Flower's engine would report where its app raises."""
        node = message.metadata.dst_node_id
        context = Context(RUN, node, dict(self.nodes[node]), RecordDict(), {})
        try:
            return travelled(self._app(message, context))
        except Exception as error:  # noqa: BLE001  (as Flower does)
            return travelled(Message(Error(RAISED, f"{type(error)}:<'{error}'>"), reply_to=message))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push and pull; nobody is waited for."""
        return self.pull_messages(self.push_messages(messages))

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Nothing: Flower calls it deprecated."""
        raise NotImplementedError("messages are made by Message(...)")

    def set_run(self, run: Any) -> None:
        """Nothing: there is one run, and it is over when its server app is."""

    @property
    def run(self) -> Any:
        """Nothing: Flower keeps no record of a run that it does not know of."""
        raise NotImplementedError("a run in one process has no record at a SuperLink")


def engine(server: ServerApp, client: ClientApp, nodes: int) -> None:
    """Run two apps with so many nodes."""
    grid = InlineGrid(client, {100 + i: {"partition-id": i, "num-partitions": nodes} for i in range(nodes)})
    # As many BLAS threads as clients have without Flower, for the same bits.
    with ONE_THREAD if nodes >= FEW_CLIENTS else nullcontext():
        server(grid, Context(RUN, 0, {}, RecordDict(), {}))

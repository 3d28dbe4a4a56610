"""What a SuperLink knows of its nodes, and which keys it lets in: by its control paths, on the server's machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import httpx
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedsolve.errors import DataError

GONE = "unregistered"  # the status of a node whose key is let in no longer


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the SuperLink knows it."""

    id: int
    key: str  # the public one, as PEM
    status: str  # "registered" (not seen yet), "online", "offline", or GONE
    since: str  # when it came to that, UTC; empty where it is not known


class Control:
    """A connection to the control paths of a SuperLink; one request each, and no tries beside."""

    def __init__(self, address: str, authority: Path) -> None:
        self._address = address
        try:
            certificates = authority.read_bytes()
            self._client = ControlHttpClient.from_server_address(
                server_address=address,
                insecure=False,
                root_certificates=certificates,
                interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            )
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise DataError(f"{authority} cannot be used: {error}") from error

    def __enter__(self) -> Control:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def nodes(self) -> list[Node]:
        """All nodes whose keys were ever registered since the SuperLink was started."""
        try:
            found = self._client.ListNodes(ListNodesRequest()).nodes_info
        except (httpx.HTTPError, ValueError) as error:
            raise self._refusal(error) from error
        return [
            Node(node.node_id, node.public_key.decode(errors="replace"), node.status, _since(node)) for node in found
        ]

    def register(self, key: str) -> None:
        """Let the node with this public key in, whose PEM it is."""
        try:
            self._client.RegisterNode(RegisterNodeRequest(public_key=key.encode()))
        except (httpx.HTTPError, ValueError) as error:
            raise self._refusal(error) from error

    def unregister(self, node: int) -> None:
        """Let a node in no longer."""
        try:
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))
        except (httpx.HTTPError, ValueError) as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> DataError:
        answer = error.response.text if isinstance(error, httpx.HTTPStatusError) else str(error) or type(error).__name__
        return DataError(
            f"the SuperLink at {self._address} does not answer as it should: {' '.join(answer.split())[:300]}"
        )


def _since(node: NodeInfo) -> str:
    if node.status == "offline":  # told by the node itself, or by its silence
        end = node.last_deactivated_at
        return end or datetime.fromtimestamp(node.online_until, UTC).isoformat()
    return {"online": node.last_activated_at, GONE: node.unregistered_at}.get(node.status, node.registered_at)

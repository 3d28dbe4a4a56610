"""A site's half of a Flower node: messages are answered by the app installed here, never by one that a server ships.

Flower's own node unpacks the bundle that comes with a run, and runs what is in it. With `--isolation process` it leaves
that to others, and here they are: `serve` waits at the node for messages and has each answered in a process of its own,
by `answer`. A bundle is looked at, and not unpacked: one with other code is refused, and the site's audit says so.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedsolve.errors import FedsolveError
from fedsolve.runtime.flower.client import log_of, make_client_app, refusal
from fedsolve.runtime.flower.messages import size

POLL = 0.2  # seconds between two looks for a message
AWAY = 1.0  # seconds to the next try where the node does not answer
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


def serve(address: str, secret: bytes, command: Sequence[str]) -> None:
    """Wait at a node for messages, for ever, and have each answered by a command that is told a token on its input."""
    shown = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({_ACQUIRE}))
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    client, at_work = _client(address, "SuperExec", shown, tries=1), list[subprocess.Popen[bytes]]()
    try:
        while True:
            at_work = [each for each in at_work if each.poll() is None]
            try:
                found = client.AcquireTask(wanted)
            except httpx.HTTPError:  # the node has not started yet, or starts again
                time.sleep(AWAY)
                continue
            if not (found.HasField("task") and found.token):
                time.sleep(POLL)
                continue
            worker = subprocess.Popen(command, stdin=subprocess.PIPE)
            if worker.stdin:
                with worker.stdin as file:
                    file.write(found.token.encode())  # arguments of commands are seen by everybody on the machine
            at_work.append(worker)
    finally:
        for worker in at_work:
            worker.terminate()
        client.close()


def answer(address: str, token: str, foreign: Callable[[bytes], str]) -> None:
    """Answer one message by the app that is installed here; or refuse it, for what is `foreign` in its run's bundle."""
    client = _client(address, "flwr-clientapp", RuntimeTokenHttpInterceptor(token))
    alive = HeartbeatSender(make_task_heartbeat_fn_http(client))
    context, status, details = None, SubStatus.FAILED, "the site's runner failed"
    try:
        alive.start()
        message, context, run, bundle = pull_task_input(client)
        odd = foreign(bundle.content)
        if odd:
            words = f"it runs its own code only, and the server ships another bundle: {odd}"
            content, line = (
                refusal(context, words),
                {"run": str(run.run_id), "what": "bundle", "digest": bundle.hash_str},
            )
            if log := log_of(context):
                log.write({**line, "refused": words, "bytes": size(content)})
            reply = Message(content, reply_to=message)
        else:
            reply = make_client_app()(message, context)
        push_message(client, reply, context)
        status, details = SubStatus.COMPLETED, ""
    except Exception as error:
        details = str(error) if isinstance(error, FedsolveError) else type(error).__name__
        raise
    finally:
        push_task_output(client=client, context=context, sub_status=status, details=details)
        if alive.is_running:
            alive.stop()
        client.close()


def _client(address: str, component: str, shown: Any, tries: int | None = None) -> RuntimeHttpClient:
    retries = make_simple_http_retry_invoker()
    retries.max_tries = tries or retries.max_tries
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # on this machine, and with a secret
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), shown],
        retry_invoker=retries,
    )

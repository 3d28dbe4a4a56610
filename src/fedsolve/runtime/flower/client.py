"""The client app: a site says hello, and answers requests."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsolve import codec
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError
from fedsolve.features import maps
from fedsolve.runtime.flower.messages import HELLO, REQUEST, packed, unpacked
from fedsolve.runtime.sites import (
    VERSION,
    FileSite,
    Host,
    Job,
    assumption,
    forget,
    from_text,
    opening,
    respond,
    shared_text,
    to_text,
)


def make_client_app(site_of: Callable[[Context], Host] | None = None) -> ClientApp:
    """The client app. `site_of` finds the site of a node; by default its configuration says where the data are.

    A Flower app names it in a module of its own, and holds nothing else:

    >>> from fedsolve.runtime.flower import make_client_app
    >>> app = make_client_app()
    """
    app = ClientApp()
    find: Callable[[Context], Host] = site_of or (lambda context: FileSite.of(context.node_config))

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        return _reply(message, context, lambda: _describe(find(context), message, _run(context)))

    @app.query(REQUEST)
    def request(message: Message, context: Context) -> Message:
        return _reply(message, context, lambda: _respond(find(context), message, context))

    return app


def _describe(site: Host, message: Message, run: str) -> RecordDict:
    """What the site tells about its data, and the answer to a first request where the hello carries one."""
    head = message.content.config_records["head"]
    version = str(head.get("version"))
    if version != VERSION:  # the rest of the message may be of another shape
        raise DataError(f"it has fedsolve {VERSION}, the server {version}; install the same everywhere")
    forget(site)
    job = from_text(Job, str(head["job"]))
    description = site.describe(job)
    texts = {"description": to_text(description)}
    task = description.task
    space = maps.in_words(str(head.get("features", "")), task.inputs)
    if "body" not in message.content or task.described != space:  # with other features it says no more than that
        return RecordDict({"head": ConfigRecord(dict(texts))})
    request = opening(job, task.described, codec.decode(unpacked(message.content)))
    texts["assumed"] = assumption(shared_text(task, job), request)
    try:
        answer = respond(site, job, task, request, run)
    except (FedsolveError, OSError) as error:
        return RecordDict({"head": ConfigRecord({**texts, "failed": str(error)})})
    return RecordDict({"head": ConfigRecord(dict(texts)), "body": packed(answer)})


def _respond(site: Host, message: Message, context: Context) -> RecordDict:
    head = message.content.config_records["head"]
    job, task = from_text(Job, str(head["job"])), Task.from_text(str(head["task"]))
    return RecordDict({"body": packed(respond(site, job, task, unpacked(message.content), _run(context)))})


def _reply(message: Message, context: Context, work: Callable[[], RecordDict]) -> Message:
    """A reply; what a user can mend comes back as a sentence, not as a traceback."""
    try:
        content = work()
    except (FedsolveError, OSError) as error:
        client = str(context.node_config.get("client", ""))
        content = RecordDict({"failure": ConfigRecord({"reason": str(error), "client": client, "version": VERSION})})
    return Message(content, reply_to=message)


def _run(context: Context) -> str:
    return f"{context.run_id:x}"

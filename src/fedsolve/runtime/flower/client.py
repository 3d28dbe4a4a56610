"""The client app: a site says hello, and answers requests. What it sends or refuses stands in its audit file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsolve import codec
from fedsolve.codec import Bytes
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError
from fedsolve.features import maps
from fedsolve.privacy.policy import Refusal
from fedsolve.runtime import audit
from fedsolve.runtime.client import Request
from fedsolve.runtime.deadline import limit
from fedsolve.runtime.flower.messages import HELLO, REQUEST, packed, unpacked
from fedsolve.runtime.job import VERSION, Job, from_text, shared_text, to_text
from fedsolve.runtime.sites import FileSite, Host, assumption, forget, opening, respond, terms

AUDIT = "audit.jsonl"  # in the folder of a site with a policy of its own
LONGEST = 200  # characters of a feature map in it: fitted numbers take many more


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
        return _reply(message, context, find, _describe)

    @app.query(REQUEST)
    def request(message: Message, context: Context) -> Message:
        return _reply(message, context, find, _respond)

    return app


class _Record:
    """The lines that a site writes of one message: what is known so far of who asked for what, and what came of it."""

    def __init__(self, site: Host, what: str, run: str) -> None:
        self.log = audit.Log(site.state / AUDIT) if site.policy else None
        self._site = site
        self._asked: dict[str, object] = {"run": run, "what": what}

    def asked(self, **words: object) -> None:
        """What the message asks for."""
        self._asked |= {name: value if isinstance(value, int | float) else str(value) for name, value in words.items()}

    def sends(self, answer: Bytes) -> None:
        """An answer is about to leave."""
        self.write({"sent": audit.layout(codec.decode(answer)), "bytes": len(answer), **self._site.account()})

    def refuses(self, error: BaseException) -> str:
        """An error keeps an answer back; what the server is told of it.

        Errors of the library say what somebody can mend. Any other may quote whatever it stumbled over.
        """
        whole = f"{error} ({details})" if (details := getattr(error, "details", "")) else str(error)
        if not isinstance(error, FedsolveError | OSError):
            whole = f"{type(error).__name__}: {error}"
        with suppress(DataError):  # nothing leaves, so that it cannot be written is no reason to keep silent
            self.write({"refused": whole, **self._site.account()})
        if isinstance(error, FedsolveError | OSError):
            return str(error)
        return f"it raised {type(error).__name__}; its {AUDIT} says more"

    def keeps_back(self, error: BaseException) -> bool:
        """Whether an error is told as a refusal. A site with a policy says no more of any error than it must."""
        return self.log is not None or isinstance(error, FedsolveError | OSError)

    def write(self, outcome: Mapping[str, object]) -> None:
        """One line, where the site keeps any."""
        if self.log:
            self.log.write({**self._asked, **outcome})


def _describe(site: Host, message: Message, run: str, record: _Record) -> RecordDict:
    """What the site tells about its data, and the answer to a first request where the hello carries one."""
    head = message.content.config_records["head"]
    version = str(head.get("version"))
    if version != VERSION:  # the rest of the message may be of another shape
        raise DataError(f"it has fedsolve {VERSION}, the server {version[:40]}; install the same everywhere")
    forget(site)
    job = from_text(Job, str(head["job"]))
    record.asked(method=job.method, set=dict(job.set), features=job.features[:LONGEST], seed=job.seed)
    description = site.describe(job)
    texts = {"description": to_text(description)}
    record.write({"sent": "a description", "bytes": len(texts["description"])})
    task = description.task
    space = maps.in_words(str(head.get("features", "")), task.inputs)
    if "body" not in message.content or task.described != space:  # with other features it says no more than that
        return RecordDict({"head": ConfigRecord(dict(texts))})
    record.asked(what="update", round=1)
    try:
        request = opening(job, task.described, codec.decode(unpacked(message.content)))
        texts["assumed"] = assumption(shared_text(task, job), request)
        answer = respond(site, job, task, request, run)
        record.sends(answer)
    except Exception as error:
        if not record.keeps_back(error):
            raise
        return RecordDict({"head": ConfigRecord({**texts, "failed": record.refuses(error)})})
    return RecordDict({"head": ConfigRecord(dict(texts)), "body": packed(answer)})


def _respond(site: Host, message: Message, run: str, record: _Record) -> RecordDict:
    head = message.content.config_records["head"]
    job, task = from_text(Job, str(head["job"])), Task.from_text(str(head["task"]))
    record.asked(method=job.method, set=dict(job.set), features=job.features[:LONGEST])
    data = unpacked(message.content)
    request = Request.read(data)
    record.asked(what=request.kind, round=request.round, seed=request.seed)
    answer = respond(site, job, task, data, run, terms(str(head["job"]), str(head["task"])))
    record.sends(answer)
    return RecordDict({"body": packed(answer)})


Act = Callable[[Host, Message, str, _Record], RecordDict]


def _reply(message: Message, context: Context, find: Callable[[Context], Host], act: Act) -> Message:
    """A reply; what a user can mend comes back as a sentence, not as a traceback."""
    record: _Record | None = None
    try:
        site = find(context)
        record = _Record(site, message.metadata.message_type, str(context.run_id))
        patience = limit(site.policy.deadline, _too_late(record)) if site.policy else nullcontext()
        with patience:
            content = act(site, message, f"{context.run_id:x}", record)
    except Exception as error:
        if not (record.keeps_back(error) if record else isinstance(error, FedsolveError | OSError)):
            raise
        reason = record.refuses(error) if record else str(error)
        return failure(message, context, reason, final=isinstance(error, Refusal))
    return Message(content, reply_to=message)


def failure(message: Message, context: Context, reason: str, *, final: bool = True) -> Message:
    """The reply of a site that gives none, with its reason; `final` where it would say the same if asked again."""
    client = str(context.node_config.get("client", ""))
    words: dict[str, str | bool] = {"reason": reason, "client": client, "version": VERSION, "final": final}
    return Message(RecordDict({"failure": ConfigRecord(dict(words))}), reply_to=message)


def _too_late(record: _Record) -> Callable[[str], None]:
    return lambda words: record.write({"refused": words})

"""The client app: a site says hello, and answers requests. What it sends or refuses stands in its audit file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsolve import codec
from fedsolve.data.task import Task
from fedsolve.errors import DataError, FedsolveError
from fedsolve.features import maps
from fedsolve.privacy.policy import Refusal
from fedsolve.runtime import audit
from fedsolve.runtime.client import Request
from fedsolve.runtime.deadline import limit
from fedsolve.runtime.flower.messages import HELLO, REQUEST, packed, size, unpacked
from fedsolve.runtime.job import VERSION, Job, from_text, shared_text, to_text
from fedsolve.runtime.sites import FileSite, Host, assumption, forget, opening, respond, terms

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
    """The lines that a site writes of one message: what is known so far of who asked for what, and what came of it.

    Each line counts the bytes of the reply that no line before it counted, so that their sum is all that leaves.
    """

    def __init__(self, log: audit.Log | None, what: str, run: str, account: Callable[[], Mapping[str, object]]) -> None:
        self.log = log
        self._account, self._counted = account, 0
        self._asked: dict[str, object] = {"run": run, "what": what}

    @classmethod
    def of(cls, site: Host, what: str, run: str) -> _Record:
        """The record of a site with a policy of its own; one that is part of an experiment keeps none."""
        return cls(audit.Log(site.state / audit.FILE) if site.policy else None, what, run, site.account)

    def asked(self, **words: object) -> None:
        """What the message asks for."""
        self._asked |= {name: value if isinstance(value, int | float) else str(value) for name, value in words.items()}

    def of_job(self, job: Job) -> None:
        """Which job it is for, and under which protection its answer leaves."""
        epsilon = f", epsilon {job.noise.get('epsilon')}" if job.noise else ""
        privacy = (f"secure, quorum {job.quorum}" if job.quorum else "plain") + epsilon
        self.asked(method=job.method, set=dict(job.set), features=job.features[:LONGEST], privacy=privacy)

    def sends(self, content: RecordDict, **what: object) -> RecordDict:
        """A reply, or the part of one that is known, is about to leave."""
        self._count({**what}, content)
        return content

    def refuses(self, error: BaseException, reply: Callable[[str], RecordDict]) -> RecordDict:
        """An error keeps an answer back; the reply that is sent in its place, from what the server is told of it.

        Errors of the library say what somebody can mend. Any other may quote whatever it stumbled over.
        """
        whole = f"{error} ({details})" if (details := getattr(error, "details", "")) else str(error)
        told = str(error)
        if not isinstance(error, FedsolveError | OSError):
            whole = f"{type(error).__name__}: {error}"
            told = f"it raised {type(error).__name__}; its {audit.FILE} says more"
        content = reply(told)
        with suppress(DataError):  # no answer leaves, so that it cannot be written is no reason to keep silent
            self._count({"refused": whole}, content)
        return content

    def keeps_back(self, error: BaseException) -> bool:
        """Whether an error is told as a refusal. A site with a policy says no more of any error than it must."""
        return self.log is not None or isinstance(error, FedsolveError | OSError)

    def write(self, outcome: Mapping[str, object]) -> None:
        """One line, where the site keeps any."""
        if self.log:
            self.log.write({**self._asked, **outcome})

    def _count(self, outcome: Mapping[str, object], content: RecordDict) -> None:
        """One line with the bytes that it adds; below zero, where a refusal takes the place of what was to leave."""
        whole = size(content)
        self.write({**outcome, "bytes": whole - self._counted, **self._account()})
        self._counted = whole


def _describe(site: Host, message: Message, run: str, record: _Record) -> RecordDict:
    """What the site tells about its data, and the answer to a first request where the hello carries one."""
    head = message.content.config_records["head"]
    version = str(head.get("version"))
    if version != VERSION:  # the rest of the message may be of another shape
        raise DataError(f"it has fedsolve {VERSION}, the server {version[:40]}; install the same everywhere")
    forget(site)
    job = from_text(Job, str(head["job"]))
    record.of_job(job)
    record.asked(seed=job.seed)
    description = site.describe(job)
    texts = {"description": to_text(description)}
    told = record.sends(_head(texts), sent="a description", rows=description.samples)
    task = description.task
    space = maps.in_words(str(head.get("features", "")), task.inputs)
    if "body" not in message.content or task.described != space:  # with other features it says no more than that
        return told
    record.asked(what="update", round=1)
    try:
        request = opening(job, task.described, codec.decode(unpacked(message.content)))
        texts["assumed"] = assumption(shared_text(task, job), request)
        answer = respond(site, job, task, request, run)
        content = RecordDict({"head": ConfigRecord(dict(texts)), "body": packed(answer)})
        return record.sends(content, sent=audit.layout(codec.decode(answer)))
    except Exception as error:
        if not record.keeps_back(error):
            raise
        return record.refuses(error, lambda reason: _head({**texts, "failed": reason}))


def _head(texts: Mapping[str, str]) -> RecordDict:
    return RecordDict({"head": ConfigRecord(dict(texts))})


def _respond(site: Host, message: Message, run: str, record: _Record) -> RecordDict:
    head = message.content.config_records["head"]
    job, task = from_text(Job, str(head["job"])), Task.from_text(str(head["task"]))
    record.of_job(job)
    data = unpacked(message.content)
    request = Request.read(data)
    record.asked(what=request.kind, round=request.round, seed=request.seed)
    answer = respond(site, job, task, data, run, terms(str(head["job"]), str(head["task"])))
    return record.sends(RecordDict({"body": packed(answer)}), sent=audit.layout(codec.decode(answer)))


Act = Callable[[Host, Message, str, _Record], RecordDict]


def _reply(message: Message, context: Context, find: Callable[[Context], Host], act: Act) -> Message:
    """A reply; what a user can mend comes back as a sentence, not as a traceback."""
    what, run = message.metadata.message_type, str(context.run_id)
    record = _Record(None, what, run, dict)
    try:
        try:
            site = find(context)
        except FedsolveError:  # its settings are wrong; where it keeps its record may still be known
            record = _Record(log_of(context), what, run, dict)
            raise
        record = _Record.of(site, what, run)
        patience = limit(site.policy.deadline, _too_late(record)) if site.policy else nullcontext()
        with patience:
            content = act(site, message, f"{context.run_id:x}", record)
    except Exception as error:
        if not record.keeps_back(error):
            raise
        content = record.refuses(error, partial(refusal, context, final=isinstance(error, Refusal)))
    return Message(content, reply_to=message)


def log_of(context: Context) -> audit.Log | None:
    """The record of a site, by the configuration of its node; none, where that does not say where it lies."""
    state = context.node_config.get("state")
    return audit.Log(Path(state) / audit.FILE) if isinstance(state, str) and state else None


def refusal(context: Context, reason: str, *, final: bool = True) -> RecordDict:
    """What a site sends that gives no answer: its reason; `final` where it would say the same if asked again."""
    client = str(context.node_config.get("client", ""))
    words: dict[str, str | bool] = {"reason": reason, "client": client, "version": VERSION, "final": final}
    return RecordDict({"failure": ConfigRecord(dict(words))})


def _too_late(record: _Record) -> Callable[[str], None]:
    return lambda words: record.write({"refused": words, "bytes": 0})

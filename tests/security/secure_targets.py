"""Readers of secure sums: what a site does with a server's requests, and a server with a site's answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import fedsolve as fs
from fedsolve.codec import Bytes, read
from fedsolve.privacy.journal import Journal
from fedsolve.runtime.client import Memory, Request, handle
from fedsolve.runtime.gather import Secure
from fedsolve.runtime.inbox import Inbox
from fedsolve.runtime.inprocess import InProcess, _with_keys


def readers(federation: fs.Federation) -> dict[str, tuple[str, tuple[bytes, ...], Any, bool]]:
    """By name: the kind of bytes, valid ones, the reader, and whether it must not raise."""
    from fedsolve.privacy.protocol import Session
    from fedsolve.runtime import masking, phases

    method, me = fs.AFL(ridge=0.0, intercept=False), sorted(federation.clients)[0]
    secure, members = _with_keys(Secure(), sorted(federation.clients))
    before: dict[str, Memory | None] = {}
    requests: dict[str, bytes] = {}
    answers: dict[str, bytes] = {}

    class Post(InProcess):
        def ask(self, requested: Iterable[tuple[str, Bytes]], inbox: Inbox, tick: Any) -> None:
            for name, data in requested:
                request = Request.read(bytes(data))
                if name == me:
                    before[request.kind], requests[request.kind] = self.memory.get(me), bytes(data)
                answer = bytes(self._handle(name, request))
                if name == me:
                    answers[request.kind] = answer
                alone = inbox.empty()
                alone.put(name, answer)
                inbox.merge(alone)

    from fedsolve.runtime.drive import drive

    drive(method, federation.task, Post(method, federation, members=members), gathering=secure, evaluate=False)
    session = Session.from_text(Request.read(requests["open"]).words["session"].tobytes())

    def site(data: bytes) -> None:
        request = Request.read(data)
        memory = before.get(request.kind)
        handle(method, federation.task, federation.clients[me], memory, request, member=members[me])

    def put(inbox: Any, data: bytes) -> bool:
        alone = inbox.empty()
        alone.put(me, data)
        inbox.merge(alone)
        return me in inbox.failed

    def opened(data: bytes) -> bool:
        inbox = phases._Answers(lambda name, said: masking.read_opening(session, name, read(said)[0]), True)
        return put(inbox, data)

    def told(data: bytes) -> bool:
        inbox = phases._Answers(lambda name, said: masking.read_shares(session, name, read(said)[0]), True)
        return put(inbox, data)

    def part(data: bytes) -> bool:
        inbox = phases._Parts(session, True)
        refused = put(inbox, data)
        inbox.most()
        return refused

    journal = Journal().noted("data", federation.clients).to_text().encode()
    return {
        "secure-site": ("safetensors", tuple(requests.values()), site, False),
        "secure-opening": ("safetensors", (answers["open"],), opened, True),
        "secure-part": ("safetensors", (answers["mask"],), part, True),
        "secure-shares": ("safetensors", (answers["unmask"],), told, True),
        "session": ("json", (session.to_text().encode(),), Session.from_text, False),
        "journal": ("json", (journal,), Journal.from_text, False),
        **_of_a_server(),
    }


def _of_a_server() -> dict[str, tuple[str, tuple[bytes, ...], Any, bool]]:
    """What an operator and a new site read."""
    from fedsolve.deploy.certificates import authority, certificate_text
    from fedsolve.deploy.invite import Invitation
    from fedsolve.deploy.records import Record
    from fedsolve.privacy.keys import Identity

    peers = {"ward-a": Identity.make().public}
    invitation = Invitation("fed.example.org:443", certificate_text(authority()[1]), "1", peers).to_text()
    told = {"sites": {"ward-a": {"up": 5, "told": {"samples": 3}, "left_out": "it died"}}, "up": 5}
    record = Record("20261118T154804-7", "2026-11-18", "afl", "plain", "out", ("ward-a",), told=told)

    def read_record(data: bytes) -> None:
        Record.from_text(data, "a record").told_of("ward-a").get("left_out")

    return {
        "invitation": ("json", (invitation.encode(),), lambda data: Invitation.from_text(data, "an invitation"), False),
        "record": ("json", (record.to_text().encode(),), read_record, False),
    }

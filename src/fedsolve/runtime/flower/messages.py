"""What travels in a Flower message: bytes as one array, and failures as sentences."""

from __future__ import annotations

import re

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedsolve.codec import Bytes
from fedsolve.errors import DataError

HELLO, REQUEST = "hello", "request"


def packed(data: Bytes) -> ArrayRecord:
    """Bytes as an array, since Flower cuts arrays into pieces, and nothing else; not through NumPy's format.

    >>> packed(b"abc")["bytes"].data
    b'abc'
    """
    whole = bytes(data)
    return ArrayRecord({"bytes": Array("uint8", (len(whole),), "safetensors", whole)})


def unpacked(content: RecordDict) -> bytes:
    """The bytes in the body of a message.

    >>> unpacked(RecordDict({"body": packed(b"abc")}))
    b'abc'
    """
    try:
        return content.array_records["body"]["bytes"].data
    except KeyError:
        raise DataError("its answer has no content") from None


def size(content: RecordDict) -> int:
    """Bytes of all that an app put into a message: names and values of its texts, and its arrays.

    Sites and server count by this, so that a site's own record can be held against what arrived. Flower's frame around
    it, some hundred bytes a message, has nothing of a site's.

    >>> from flwr.app import ConfigRecord
    >>> size(RecordDict({"head": ConfigRecord({"name": "ward-a"}), "body": packed(b"abc")}))
    13
    """
    texts = [(name, value) for record in content.config_records.values() for name, value in record.items()]
    arrays = [array for record in content.array_records.values() for array in record.values()]
    told = sum(len(name.encode()) + len(_bytes(value)) for name, value in texts)
    return told + sum(len(array.data) for array in arrays)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def failure(reply: Message, timeout: float) -> str:
    """Why a reply holds no answer, in words; an empty text where it holds one."""
    if not reply.has_error():
        record = reply.content.config_records.get("failure")
        return str(record.get("reason", "it failed")) if record else ""
    code, text = reply.error.code, " ".join((reply.error.reason or "").split())
    text = re.sub(r".*ClientAppException occurred\. Message: (.*?)(?:'>)?$", r"an error: \1", text)  # over Ray
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>:<'(.*)'>", r"\1: \2", text)  # as Flower writes an exception
    sentences = {
        1: f"its app cannot be loaded: {text}",
        2: f"it raised {text}",
        3: f"no answer within {timeout:g} s, or it was lost on the way",
        4: f"no answer within {timeout:g} s, or it was lost on the way",
        5: "its node went away",
        8: "its process died",
    }
    return sentences.get(code, f"Flower reports error {code}: {text}")

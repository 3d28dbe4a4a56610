"""Which code a site runs for a server: its own. What a run ships is compared with what this version would ship."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
import zlib

from fedsolve.deploy.files import APP, template
from fedsolve.errors import plain

LARGEST = 2**20  # bytes of a bundle, and of a file in it
DESCRIBED = ("pyproject.toml", ".info/CONTENT")  # which Flower writes anew, and which nobody runs


def foreign(bundle: bytes) -> str:
    """What a bundle holds that this version of fedsolve would not ship, in words; nothing where it is its own.

    >>> foreign(b"")
    'it is no bundle of Flower'
    """
    own = {name: hashlib.sha256(template(f"app/{name}").encode()).digest() for name in APP if name not in DESCRIBED}
    if len(bundle) > LARGEST:
        return f"it has more than {LARGEST} bytes"
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as file:
            found = file.infolist()
            large = any(each.file_size > LARGEST for each in found)
            if any(each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for each in found):
                return "it is packed as Flower packs none"
            if large or len({each.filename for each in found}) != len(found):
                return f"it holds more than {LARGEST} bytes, or a file twice"
            told = {each.filename: file.read(each) for each in found if each.filename not in DESCRIBED}
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, RuntimeError, EOFError):  # whatever damage makes of it
        return "it is no bundle of Flower"
    odd = sorted(name for name, content in told.items() if hashlib.sha256(content).digest() != own.get(name))
    lacking = sorted(set(own) - set(told))
    if odd:
        return f"its {plain(odd[0], 80)} is not that of the installed fedsolve"
    return f"it lacks {lacking[0]}" if lacking else ""


def serve(address: str, secret: bytes) -> None:
    """Answer the messages that a site's node has, for ever, each in a process of its own."""
    from fedsolve.runtime.flower import runner

    runner.serve(address, secret, [sys.executable, "-m", __name__, address])


def main(address: str, token: str) -> None:
    """Answer one message."""
    from fedsolve.runtime.flower import runner

    runner.answer(address, token, foreign)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read())

"""Signatures of contributions: nobody but the holder of a client's key can speak in its name.

Keys are Ed25519 or ECDSA in OpenSSH's format: those of a deployment's nodes, or `ssh-keygen -t ed25519 -N "" -f key`.
Imported only where a key is used.
"""

from __future__ import annotations

from pathlib import Path

from fedsolve.errors import DataError

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
except ImportError as error:
    raise DataError("signatures need the package cryptography: pip install 'fedsolve[flower]'") from error


def sign(words: bytes, path: Path) -> str:
    """The signature of words by the private key in a file, in hexadecimal digits."""
    try:
        key = s.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
        raise DataError(f"{path} is not a private key in OpenSSH format without a password ({error})") from error
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(words).hex()
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(words, ec.ECDSA(hashes.SHA384())).hex()
    raise DataError(f"{path} must be an Ed25519 or ECDSA key: ssh-keygen -t ed25519")


def read_public(path: Path) -> str:
    """The public key in a file, as OpenSSH writes it and without the comment."""
    try:
        text = path.read_text().strip()
        _public(text)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} is not a public key, Ed25519 or ECDSA, in OpenSSH format ({error})") from error
    return " ".join(text.split()[:2])


def is_signed(words: bytes, signature: str, public: str) -> bool:
    """Whether a signature of words is by the private half of a public key."""
    try:
        key, data = _public(public), bytes.fromhex(signature)
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(data, words)
        else:
            key.verify(data, words, ec.ECDSA(hashes.SHA384()))
    except (ValueError, InvalidSignature):
        return False
    return True


def _public(text: str) -> ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey:
    key = s.load_ssh_public_key(text.encode())
    if not isinstance(key, ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey):
        raise ValueError(f"it is a {type(key).__name__}")
    return key

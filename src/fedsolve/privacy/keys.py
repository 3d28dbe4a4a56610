"""Keys of sites, and what is done with them: to sign, to seal for one reader, to agree on a mask.

The only module of the package that imports `cryptography`. An identity is two keys that last: Ed25519 to sign, X25519
to seal. A mask key is X25519 and lasts for one sum. Masks are AES-256 in counter mode, each with a key of its own.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from fedsolve.errors import DataError
from fedsolve.privacy import fixed
from fedsolve.privacy.fixed import Words

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise DataError('secure sums need the package cryptography: pip install "fedsolve[secure]"') from error

MaskKey: TypeAlias = X25519PrivateKey
KEY = 32  # bytes of a key, and of a secret
SIGNATURE = 64
_NONCE, _TAG = 12, 16
OVERHEAD = _NONCE + _TAG  # bytes that a seal adds
_BLOCK = 1 << 14  # numbers of a mask at a time: part of the protocol, since words lie block by block in the stream
_ZEROS = bytes(16 * _BLOCK)
_PURPOSE = b"fedsolve secure sum 1"


@dataclass(frozen=True, slots=True)
class Peer:
    """The public half of a site's identity, which all others know before anything begins."""

    sign: bytes
    seal: bytes

    def __post_init__(self) -> None:
        if len(self.sign) != KEY or len(self.seal) != KEY:
            raise DataError(f"the public keys of a site must have {KEY} bytes each")

    @property
    def fingerprint(self) -> str:
        """A short text to compare by telephone.

        >>> Peer(bytes(32), bytes(32)).fingerprint
        'f5a5 fd42 d16a 2030 2798 ef6e d309 979b'
        """
        digits = hashlib.sha256(self.sign + self.seal).hexdigest()[:32]
        return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


@dataclass(frozen=True, slots=True)
class Identity:
    """A site's own lasting keys. No representation shows them."""

    sign: Ed25519PrivateKey = field(repr=False)
    seal: X25519PrivateKey = field(repr=False)

    @classmethod
    def make(cls) -> Identity:
        """New keys.

        >>> Identity.make()
        Identity()
        """
        return cls(Ed25519PrivateKey.generate(), X25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, data: bytes) -> Identity:
        """The inverse of `to_bytes`."""
        if len(data) != 2 * KEY:
            raise DataError(f"the keys of a site must have {2 * KEY} bytes; got {len(data)}")
        return cls(Ed25519PrivateKey.from_private_bytes(data[:KEY]), X25519PrivateKey.from_private_bytes(data[KEY:]))

    def to_bytes(self) -> bytes:
        """Both private keys, for a file that nobody else can read."""
        return self.sign.private_bytes_raw() + self.seal.private_bytes_raw()

    @property
    def public(self) -> Peer:
        """What others may know."""
        return Peer(self.sign.public_key().public_bytes_raw(), self.seal.public_key().public_bytes_raw())


def signed(identity: Identity, *words: bytes) -> bytes:
    """A site's signature of words."""
    return identity.sign.sign(_joined(*words))


def is_signed(peer: Peer, signature: bytes, *words: bytes) -> bool:
    """Whether a signature of words is that of a peer."""
    try:
        Ed25519PublicKey.from_public_bytes(peer.sign).verify(signature, _joined(*words))
    except (InvalidSignature, ValueError):
        return False
    return True


def seal(identity: Identity, peer: Peer, content: bytes, *about: bytes) -> bytes:
    """Content that only a peer can read, and only as being `about` the same; `OVERHEAD` bytes longer."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + _box(identity, peer, *about).encrypt(nonce, content, None)


def unseal(identity: Identity, peer: Peer, sealed: bytes, *about: bytes) -> bytes | None:
    """What a peer sealed for this site; None where it is not what the peer sealed, or is about something else."""
    try:
        return _box(identity, peer, *about).decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
    except (InvalidTag, ValueError):
        return None


def new_secret() -> bytes:
    """Random bytes, which are also a private mask key."""
    return secrets.token_bytes(KEY)


def mask_key(secret: bytes) -> MaskKey:
    """The mask key that a secret is."""
    return MaskKey.from_private_bytes(secret)


def public_half(key: MaskKey) -> bytes:
    """The public half of a mask key."""
    return key.public_key().public_bytes_raw()


def agreed(key: MaskKey, public: bytes, *about: bytes) -> bytes:
    """The seed that the holders of two mask keys have in common, about one thing."""
    return derived(_exchange(key, public), b"pair", *about)


def derived(secret: bytes, *about: bytes) -> bytes:
    """A key that follows from a secret, for one use."""
    return HKDF(hashes.SHA256(), KEY, None, _joined(_PURPOSE, *about)).derive(secret)


def digest(*words: bytes) -> bytes:
    """A digest of words, each told apart from the next."""
    return hashlib.sha256(_joined(_PURPOSE, *words)).digest()


def apply_masks(total: Words, added: Iterable[bytes] = (), taken: Iterable[bytes] = ()) -> None:
    """`total` and the masks of some seeds, less those of others, into `total`.

    Block by block, and in each block mask by mask, so that the sum stays in the cache.
    """
    streams = [
        (Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor(), apply)
        for seeds, apply in ((added, fixed.add), (taken, fixed.subtract))
        for seed in seeds
    ]
    buffer, zeros = bytearray(16 * _BLOCK + 15), memoryview(_ZEROS)
    for start in range(0, total.shape[1], _BLOCK):
        block = total[:, start : start + _BLOCK]
        count = block.shape[1]
        mask = np.frombuffer(buffer, "<u8", 2 * count).reshape(2, count)
        for stream, apply in streams:
            stream.update_into(zeros[: 16 * count], buffer)
            apply(block, mask)


def _box(identity: Identity, peer: Peer, *about: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(derived(_exchange(identity.seal, peer.seal), b"seal", *about))


def _exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a point of small order, which anybody could agree with
        raise DataError("a public key of another site is none") from error


def _joined(*words: bytes) -> bytes:
    """Words one after the other, each behind its length, so that no other words give the same."""
    return b"".join(len(word).to_bytes(8, "little") + word for word in words)

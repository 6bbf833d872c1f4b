"""Encryption of key values in progress documents: a dump of a table with a masked key stores where it resumes.

Deterministic authenticated encryption (AES-SIV, RFC 5297): no nonce has to be stored, and a value that was modified, or
encrypted with another key, is detected.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_PURPOSE = b"dblake: keys of dumps under way"
"""HKDF's ``info``: binds the derived key to this use of the mask's key."""
_AES_SIV_KEY_BYTES = 64


class KeyCipher:
    """Encrypts text with a key derived from the mask's key.

    AES-SIV takes keys of 32, 48 or 64 bytes, and ``mask.key`` may have any length from 16 bytes on. HKDF (RFC 5869)
    with SHA-256, no salt and ``_PURPOSE`` as ``info`` derives 64 bytes from it: AES-256 in both halves of SIV.
    """

    def __init__(self, mask_key: bytes) -> None:
        derivation = HKDF(algorithm=SHA256(), length=_AES_SIV_KEY_BYTES, salt=None, info=_PURPOSE)
        self._cipher = AESSIV(derivation.derive(mask_key))

    def encrypt(self, text: str) -> str:
        """Return the encrypted text in hexadecimal digits."""
        return self._cipher.encrypt(text.encode(), None).hex()

    def decrypt(self, encrypted: str) -> str:
        """Return the text of ``encrypt``. Raises ValueError for anything else, and for another key."""
        try:
            return self._cipher.decrypt(bytes.fromhex(encrypted), None).decode()
        except InvalidTag:
            raise ValueError("not encrypted with this key") from None

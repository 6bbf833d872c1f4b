"""Masks: key values in progress documents are encrypted, with a key derived from the mask's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dblake.base.core.errors import Unsupported
from dblake.base.core.mask_rules import Rule
from dblake.ingest.mask.key_cipher import KeyCipher
from dblake.ingest.mask.masks import Masks

KEY = ("", "one", "🙂" * 50)


def masks(key: bytes) -> Masks:
    return Masks({"public.t": {"id": Rule("hash")}}, key, text="text")


def test_encrypted_key_is_decrypted_with_its_own_key_only() -> None:
    own, other = masks(b"k" * 16), masks(b"l" * 16)
    encrypted = own.encrypt_key(KEY)
    assert own.decrypt_key("public.t", encrypted) == KEY
    assert len({*encrypted, *other.encrypt_key(KEY)}) == 6
    for wrong in (other.encrypt_key(KEY), KEY, ("00",), (encrypted[1][:-1] + "0", )):
        with pytest.raises(Unsupported, match=r"was encrypted with another `mask\.key`"):
            own.decrypt_key("public.t", wrong)


def test_encryption_is_deterministic_per_key() -> None:
    """A dump finds where it resumes by comparing stored keys."""
    assert masks(b"k" * 16).encrypt_key(KEY) == masks(b"k" * 16).encrypt_key(KEY)


@pytest.mark.parametrize("length", [16, 17, 32, 48, 64, 100])
def test_mask_key_of_any_length_encrypts(length: int) -> None:
    cipher = KeyCipher(b"k" * length)
    assert cipher.decrypt(cipher.encrypt("one")) == "one"


def test_encryption_is_aes_siv_with_hkdf_key() -> None:
    """A fixed value, computed with HKDF-SHA256 (RFC 5869) and AES-SIV (RFC 5297): stored keys outlive versions."""
    assert KeyCipher(b"0123456789abcdef").encrypt("one") == "e92c0503054f0c67a5e86a493ae238f42e0f65"


def test_cipher_serves_several_chunk_readers() -> None:
    cipher, texts = KeyCipher(b"k" * 16), [str(number) * 100 for number in range(2000)]
    with ThreadPoolExecutor(4) as readers:
        assert list(readers.map(lambda text: cipher.decrypt(cipher.encrypt(text)), texts)) == texts

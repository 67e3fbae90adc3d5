"""The half of all measured samples that constants may be fitted to; the other half scores them."""

from __future__ import annotations

import hashlib
import zlib


def in_fit_half(text: str) -> bool:
    """Whether constants may see what a text names: the parity of its SHA-256, the same wherever it was measured."""
    return hashlib.sha256(text.encode()).digest()[-1] % 2 == 0


def module_in_fit_half(name: str) -> bool:
    """The same of a whole module: the parity of the CRC-32 of its name."""
    return zlib.crc32(name.encode()) % 2 == 0

"""Secrets out of text, whatever text it is: the last thing done to a log line before it is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHORTEST = 4  # masking shorter ones would blank out ordinary words, and protect nothing


class Mask:
    """Replaces every known secret by stars, also where quotes and backslashes in it were escaped."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.secrets: frozenset[str] = frozenset()
        self._forms: tuple[str, ...] = ()
        self.know(secrets)

    def know(self, secrets: Iterable[str]) -> None:
        """Take the secrets of new settings. Old ones stay masked: requests that began under them are still running."""
        self.secrets |= {secret for secret in secrets if len(secret) >= _SHORTEST}
        forms = {form for secret in self.secrets for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])}
        # Longest first, so that a secret that contains another one leaves nothing behind.
        self._forms = tuple(sorted(forms, key=len, reverse=True))

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, "***")
        return text

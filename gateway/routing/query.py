"""What routing is told: the request to place, and the weights of the formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gateway.settings.models import Weights as WeightSettings


class Weights(NamedTuple):
    """Weights of the four terms in the order of the formula; each at least 0, not all 0."""

    gpu: float
    kv: float
    prefix: float
    queue: float

    @classmethod
    def of(cls, settings: WeightSettings) -> Weights:
        """Take the numbers out of the settings."""
        return cls(settings.gpu, settings.kv, settings.prefix, settings.queue)


class Query:
    """One request as routing sees it.

    `chain` are the block hashes of its canonical prompt, `tokens` the estimated length and `size` the length in bytes (0: take
    it from the chain). `session` is a hash of the client's session key. `exclude` names the replicas already tried; it is
    replaced, together with nothing else, before the request is planned again. `pin` is the only replica allowed.
    """

    __slots__ = ("chain", "exclude", "max_tokens", "model", "pin", "session", "size", "tokens")

    def __init__(
        self,
        model: str,
        chain: Sequence[int] = (),
        tokens: int = 0,
        *,
        size: int = 0,
        session: int | None = None,
        exclude: tuple[str, ...] = (),
        pin: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.model = model
        self.chain: tuple[int, ...] = tuple(chain)
        self.tokens = tokens
        self.size = size
        self.session = session
        self.exclude = exclude
        self.pin = pin
        self.max_tokens = max_tokens

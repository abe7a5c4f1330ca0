"""Which replica made a stored response: `/v1/responses/{id}` and `previous_response_id` must go back to it."""

from __future__ import annotations

import re

_ID = re.compile(rb'"id"\s*:\s*"(resp_[\w.:-]{1,200})"')


class ResponsePins:
    """Response id -> replica id, oldest forgotten first."""

    __slots__ = ("_pins", "capacity")

    def __init__(self, capacity: int = 100_000) -> None:
        self.capacity = capacity
        self._pins: dict[str, str] = {}

    def learn(self, data: bytes, replica: str) -> bool:
        """Read the response id from the first bytes of an answer (JSON or event stream); True when one was there."""
        found = _ID.search(data)
        if found is None:
            return False
        pins = self._pins
        if len(pins) >= self.capacity:
            del pins[next(iter(pins))]
        pins[found[1].decode()] = replica
        return True

    def replica(self, response_id: str) -> str | None:
        """The replica that made this response, as far as is remembered."""
        return self._pins.get(response_id)

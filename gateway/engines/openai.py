"""Any server that speaks the OpenAI API and tells nothing about itself: no metrics, health by its model list."""

from __future__ import annotations

from gateway.engines.base import Engine, Health
from gateway.fleet import Traits


def _health(status: int, _body: bytes) -> Health:
    """Whoever answers at all is alive; there may be no model list, or not for us."""
    if status == 503:
        return "starting"
    return "down" if status >= 500 else "up"


OPENAI = Engine(
    name="openai",
    recognises=lambda _: True,
    traits=Traits(has_metrics=False),
    health_path="/v1/models",
    health=_health,
)

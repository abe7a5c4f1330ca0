"""OpenAI's client for Node through the gateway."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients.fleet import KEY, soon
from tests.real.programs import NODE_CLIENT, need

if TYPE_CHECKING:
    from tests.clients.fleet import Fleet

pytestmark = [pytest.mark.real, need("node", "node", NODE_CLIENT / "node_modules" / "openai")]


def tell(story: str, fleet: Fleet) -> None:
    """Run one story to its good end."""
    env = {**os.environ, "GATEWAY_URL": f"{fleet.gateway.url}/v1", "GATEWAY_KEY": KEY}
    told = subprocess.run(("node", NODE_CLIENT / "stories.mjs", story), env=env, capture_output=True, text=True, timeout=30, check=False)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("story", ["whole", "streamed", "tools", "responses", "resources", "errors"])
def test_it_works_as_with_the_service_it_was_made_for(story: str, fleet: Fleet) -> None:
    """Answers, streams, tools, other resources, and typed errors."""
    tell(story, fleet)


@pytest.mark.parametrize("story", ["leaves_a_stream", "aborts_a_stream", "aborts_a_whole_answer", "times_out"])
def test_giving_up_frees_the_replica(story: str, fleet: Fleet) -> None:
    """Within a second."""
    tell(story, fleet)
    soon(lambda: not fleet.replicas["slow"].state["inflight"])
    soon(lambda: not fleet.gateway.total("kvgate_requests_running"))


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        ("waits_and_tries_again", {"kind": "503", "count": 1, "retry_after": 0.3}),
        ("hears_of_a_broken_stream", {"kind": "reset", "after": 3}),
    ],
)
def test_failures_are_understood(story: str, fault: dict[str, Any], fleet: Fleet) -> None:
    """Those that pass are waited for, those that do not are raised."""
    fleet.replicas["solo"].break_with(**fault)
    tell(story, fleet)

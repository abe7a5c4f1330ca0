"""Prometheus's own tool on the metrics pages."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import openai
import pytest

from tests.clients.fleet import HTTP, KEY
from tests.real.programs import PROMTOOL, need

if TYPE_CHECKING:
    from tests.clients.fleet import Fleet

pytestmark = [pytest.mark.real, need("", "promtool", PROMTOOL)]


def promtool(page: str) -> subprocess.CompletedProcess[str]:
    """`promtool check metrics`: 0 is clean, 1 cannot be read, 3 breaks a naming rule."""
    return subprocess.run((PROMTOOL, "check", "metrics"), input=page, capture_output=True, text=True, check=False)


def test_the_gateways_metrics_are_clean(fleet: Fleet) -> None:
    """After answers, failures and a cancelled stream nothing is left to complain about."""
    with openai.OpenAI(base_url=f"{fleet.gateway.url}/v1", api_key=KEY, max_retries=0) as client:
        for model in ("m", "solo", "nobody", "dead", "locked"):
            try:
                client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
            except openai.APIStatusError:
                continue
        with client.chat.completions.create(model="slow", messages=[{"role": "user", "content": "hi"}], stream=True) as stream:
            next(iter(stream))
    page = HTTP.get(f"{fleet.gateway.admin}/metrics").text
    assert 'code="200"' in page and 'code="404"' in page
    checked = promtool(page)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_simulated_replicas_metrics_can_be_read(fleet: Fleet) -> None:
    """vLLM's names break some of Prometheus's rules, and ours are vLLM's; the page itself is well formed."""
    checked = promtool(HTTP.get(f"{fleet.replicas['a'].url}/metrics").text)
    assert checked.returncode in (0, 3), checked.stderr

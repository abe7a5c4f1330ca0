"""Settings as others may see them: every secret replaced by a row of stars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from gateway.settings.kinds import loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.settings.models import ReplicaSettings, Settings


def public(settings: Settings) -> dict[str, Any]:
    """The effective settings as plain JSON data, secrets masked."""
    data: dict[str, Any] = _tidy(settings.model_dump(mode="json"))
    if not settings.discover:
        del data["discover"]
    return data


def show(settings: Settings) -> str:
    """The effective settings as YAML, secrets masked."""
    return yaml.safe_dump(public(settings), sort_keys=False, allow_unicode=True, width=120)


def _tidy(data: Any) -> Any:
    """Whole numbers without `.0`, as people write them."""
    if isinstance(data, dict):
        return {key: _tidy(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_tidy(value) for value in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data


def secrets(settings: Settings) -> frozenset[str]:
    """Every secret value in use, for masking."""
    found = {key.key.get_secret_value() for key in settings.server.api_keys}
    if settings.server.admin.token is not None:
        found.add(settings.server.admin.token.get_secret_value())
    for replica in replicas(settings):
        if replica.api_key is not None:
            found.add(replica.api_key.get_secret_value())
        found.update(replica.headers.values())
    return frozenset(found - {""})


def replicas(settings: Settings) -> Iterator[ReplicaSettings]:
    """All replicas, of all models and of the command line."""
    for model in settings.models:
        yield from model.replicas
    yield from settings.discover


def warnings_for(settings: Settings) -> list[str]:
    """What is allowed but probably not meant, one sentence each, for the log at start."""
    server = settings.server
    open_host = not server.api_keys and not loopback(server.host)
    checks = (
        (
            open_host,
            f"server.api_keys is empty and server.host is {server.host}: anyone who can reach port {server.port} can use the replicas",
        ),
        (
            server.max_inflight_bytes < server.max_body_bytes,
            "server.max_inflight_bytes is below server.max_body_bytes: bodies between the two always get 503",
        ),
        (
            settings.scrape.stale_after_s <= settings.scrape.interval_s,
            "scrape.stale_after_s is not above scrape.interval_s: signals count as unknown between two scrapes",
        ),
        (
            any(network.prefixlen == 0 for network in server.trusted_proxies),
            "server.trusted_proxies trusts every address: any client can choose the address it is logged under",
        ),
        (next(replicas(settings), None) is None, "no replicas are configured: requests are refused until one is added over the admin port"),
        *(
            (not model.replicas and bool(settings.models), f"model {model.name} has no replicas: requests for it get 503")
            for model in settings.models
        ),
    )
    return [message for applies, message in checks if applies]

"""Fixtures for tests against real programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.clients.fleet import Fleet, every_kind_of_replica

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def lasting_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Simulated replicas behind a gateway, started once."""
    with every_kind_of_replica(tmp_path_factory.mktemp("gateway")) as fleet:
        yield fleet


@pytest.fixture
def fleet(lasting_fleet: Fleet) -> Iterator[Fleet]:
    """The fleet, all well."""
    yield lasting_fleet
    for replica in lasting_fleet.replicas.values():
        replica.mend()

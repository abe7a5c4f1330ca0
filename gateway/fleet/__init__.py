"""State of the fleet: what is known of every replica, and the load this gateway itself puts on it. Pure."""

from gateway.fleet import facts
from gateway.fleet.breaker import Breaker
from gateway.fleet.facts import ModelInfo, Outcome, Signals, Traits
from gateway.fleet.roster import FleetError
from gateway.fleet.slot import Slot
from gateway.fleet.snapshot import STATES, Reading, ReplicaRow
from gateway.fleet.state import ReplicaState, ServerState
from gateway.fleet.table import Table

__all__ = [
    "STATES", "Breaker", "FleetError", "ModelInfo", "Outcome", "Reading", "ReplicaRow", "ReplicaState", "ServerState", "Signals", "Slot",
    "Table", "Traits", "facts",
]  # fmt: skip

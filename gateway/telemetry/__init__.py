"""What the gateway tells about itself: records, metrics and logs."""

from gateway.telemetry.events import set_up_events
from gateway.telemetry.lag import LoopLag
from gateway.telemetry.log import RequestLog
from gateway.telemetry.masking import Mask
from gateway.telemetry.metrics import Collector, Gauge
from gateway.telemetry.records import EndedBy, ExchangeRecord, Phase, Reading, ReplicaRow
from gateway.telemetry.stats import Stats

__all__ = [
    "Collector",
    "EndedBy",
    "ExchangeRecord",
    "Gauge",
    "LoopLag",
    "Mask",
    "Phase",
    "Reading",
    "ReplicaRow",
    "RequestLog",
    "Stats",
    "set_up_events",
]

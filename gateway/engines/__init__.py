"""Kinds of engines: what they are called, what they measure, how they say that they are well."""

from gateway.engines.base import Engine, Evidence, missing_model, read_models
from gateway.engines.detect import ENGINES, detect, engine_named
from gateway.engines.prom import parse

__all__ = ["ENGINES", "Engine", "Evidence", "detect", "engine_named", "missing_model", "parse", "read_models"]

"""Choosing a replica: prefix index, filters, scores, policies and the record of each decision. Pure and synchronous."""

from gateway.routing.hashing import chain, chain_slices
from gateway.routing.index import PrefixIndex
from gateway.routing.policies import POLICIES
from gateway.routing.query import Query, Weights
from gateway.routing.record import Decision, DecisionLog
from gateway.routing.router import Router

__all__ = ["POLICIES", "Decision", "DecisionLog", "PrefixIndex", "Query", "Router", "Weights", "chain", "chain_slices"]

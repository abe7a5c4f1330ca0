"""kvgate: a KV-cache-aware gateway for self-hosted LLM replicas."""

__version__ = "0.1.0"

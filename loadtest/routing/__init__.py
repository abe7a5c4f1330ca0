"""Policies compared through the real gateway, on simulated replicas and prompts that share prefixes by Zipf's law."""

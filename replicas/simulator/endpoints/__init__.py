"""The HTTP routes of a replica."""

"""Runs: the registry of active runs, in memory or over instances, and run statuses."""

"""Runs: the registry of active runs, and the table of run statuses."""

"""Incidents of lanes, and the one request that finds the cause of each."""

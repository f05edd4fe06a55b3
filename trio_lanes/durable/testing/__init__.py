"""Tests for authors of stores and users: the conformance suite, faulty clusters, random lives."""

from ._cluster import NO_FAULTS, Cluster, ClusterStore, Faults, open_cluster
from ._life import Life, shrink, simulate
from ._suite import durable_store_suite
from ._twins import compare_stores

__all__ = [
    "NO_FAULTS",
    "Cluster",
    "ClusterStore",
    "Faults",
    "Life",
    "compare_stores",
    "durable_store_suite",
    "open_cluster",
    "shrink",
    "simulate",
]

for _name in __all__:
    if _name != "NO_FAULTS":  # a value, which has no module
        globals()[_name].__module__ = __name__  # where users find them
del _name

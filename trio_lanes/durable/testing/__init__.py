"""For tests of handlers: faulty clusters on virtual time, and random lives."""

from ._cluster import NO_FAULTS, Cluster, ClusterStore, Faults, open_cluster
from ._life import Life, shrink, simulate

__all__ = [
    "NO_FAULTS",
    "Cluster",
    "ClusterStore",
    "Faults",
    "Life",
    "open_cluster",
    "shrink",
    "simulate",
]

for _name in __all__:
    if _name != "NO_FAULTS":  # a value, which has no module
        globals()[_name].__module__ = __name__  # where users find them
del _name

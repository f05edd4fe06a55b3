"""Lanes in asyncio applications: `trio_lanes` with Trio as a guest of the application's loop."""

from ._durable import OpenedDurableLanes as OpenedDurableLanes
from ._durable import current_durable_job as current_durable_job
from ._durable import open_durable_lanes as open_durable_lanes
from ._lanes import Job as Job
from ._lanes import Lane as Lane
from ._lanes import Lanes as Lanes
from ._lanes import MapResults as MapResults
from ._lanes import SessionLane as SessionLane
from ._lanes import open_lanes as open_lanes
from ._page import monitor as monitor
from ._threads import to_thread as to_thread

for _value in list(globals().values()):
    if getattr(_value, "__module__", "").startswith(f"{__name__}._"):
        _value.__module__ = __name__
del _value

"""Lanes in asyncio applications: `trio_lanes` with Trio as a guest of the application's loop."""

from ._lanes import Job as Job
from ._lanes import Lane as Lane
from ._lanes import Lanes as Lanes
from ._lanes import SessionLane as SessionLane
from ._lanes import open_lanes as open_lanes
from ._page import monitor as monitor

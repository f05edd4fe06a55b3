"""A live page over the lanes of an application: what waits, for what, since when, what would help.

It needs ``trio-lanes[monitor]``. In a Starlette application on Trio::

    app = Starlette(routes=[Mount("/lanes", monitor(lanes, authorize=who))])

Or as a server of its own, in the nursery of the lanes::

    nursery.start_soon(serve_monitor, lanes)

Theory of operation
-------------------
The page pulls. A *frame* holds the numbers of all lanes and a window of the jobs that run or start
next. It is made when a viewer asks for the next frame, at most four times a second, encoded once,
and sent to all viewers as a server-sent event. A viewer that is slow asks late, and gets the latest
frame only. While no viewer looks, no frame is made and no hook of a job is called.

Hooks note only what numbers cannot show (`_notes`): pauses, refusals, deadlocks, changed limits.
While a viewer looks, ended jobs leave a record in a ring (`_records`), up to a bound for each
frame. Actions are plain POSTs (`_actions`).
"""

from .._config.extras import needs_extra

with needs_extra(__name__, "monitor"):
    from ._app import monitor as monitor
    from ._guard import Authorize as Authorize
    from ._guard import Role as Role
    from ._serve import serve_monitor as serve_monitor
del needs_extra

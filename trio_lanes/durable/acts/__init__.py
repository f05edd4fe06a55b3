"""What a store is asked: a record for each act and each question, with its rule.

`Store.do` does an act, `Store.look` answers a question. A record carries its fields and no more, so
it can be printed, sent to another process, kept, and done again. A new verb of stores is a record
here, a function in Lua, and a method of `DurableLanes` or `DurableRun`.
"""

from collections.abc import Mapping
from typing import Any, Final

from . import inspection as inspection
from . import jobs as jobs
from . import locks as locks
from . import logs as logs
from . import orders as orders
from . import runs as runs
from . import schedules as schedules

VERBS: Final[Mapping[str, type[Any]]] = {
    name: kind
    for module in (inspection, jobs, locks, logs, orders, runs, schedules)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and kind.__module__ == module.__name__
}
"""Every act and every question, by the name of its record: a wire carries these and no others."""

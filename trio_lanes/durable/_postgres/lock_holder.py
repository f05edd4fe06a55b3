"""`LockHolder`: ends the session that holds the lock of a namespace and whose client stands still.

All commits of a namespace wait for one lock. A process that is stopped, or whose network is cut,
between the two trips of a batch under the lock, holds it until the server ends its transaction, and
the server's own timers do not: a pipeline that waits for its next message counts as active, and a
Flush stops the timer of an idle transaction. So an instance that has waited for the lock looks for
the holder. It is ended only if

* it is a session of this library, by its ``application_name``;
* the server waits for its client, and has done so for a while. A session that waits for a standby
  or a disk has begun its commit: ended there, it would be committed here and on no standby.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

import psycopg

from .link import APPLICATION

logger: Final = logging.getLogger("trio_lanes.durable")

_OF_CLIENT: Final = "wait_event IN ('ClientRead', 'ClientWrite')"
_FIND_HOLDER: Final = (
    "SELECT a.pid, a.usename, a.application_name, a.wait_event, a.state_change,"
    " a.application_name IN (%s, nullif(current_setting('application_name'), '')),"
    f" coalesce({_OF_CLIENT}, false),"
    " extract(epoch FROM clock_timestamp() - a.state_change)::double precision"
    " FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
    " WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.classid = (hashtext(%s) & 2147483647)::oid AND l.objid = 2 AND l.objsubid = 2"
)
# its state is compared, so that a session which has gone on since is left alone
_END: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    f" WHERE pid = %s AND state_change = %s AND {_OF_CLIENT}"
)


@final
class LockHolder:
    """Whoever holds the lock of a namespace.

    Args:
      name: describes the store, for the log.
      named: puts the schema into a statement; see `schema.naming`.
      channel: the name of the channel of the namespace.
      still_for: seconds for which the client must have said nothing.
    """

    def __init__(
        self, name: str, named: Callable[[str], bytes], channel: str, still_for: float
    ) -> None:
        self._name: Final = name
        self._named: Final = named
        self._channel: Final = channel
        self._still_for: Final = still_for
        self._told = 0  # the pid of which the log has a line

    def end_if_still(self, connection: psycopg.Connection) -> bool:
        """End the session that holds the lock if it may be ended; return whether it was.

        Runs in the thread of the connection, which is in no transaction.
        """
        found = connection.execute(
            self._named(_FIND_HOLDER), (APPLICATION, self._channel)
        ).fetchone()
        if found is None:
            return False  # it has gone on, or it is no session
        pid, user, application, waits_for, since, ours, of_client, still_for = found
        if ours and of_client:
            if still_for < self._still_for:
                return False
            try:
                ended = connection.execute(_END.encode(), (pid, since)).fetchone() is not None
            except psycopg.errors.InsufficientPrivilege:
                self._tell(pid, user, application, "this role needs the right pg_signal_backend")
                return False
            if ended:
                logger.warning(
                    "%s: the session %d was ended, which held all others up for %.1f s: its process"
                    " stood still, or its network was cut",
                    self._name,
                    pid,
                    still_for,
                )
            return ended
        if not ours:
            why = "it is no session of this library"
        elif since is None:
            why = "this role needs the rights pg_signal_backend and pg_read_all_stats"
        else:
            why = f"it waits for {waits_for or 'nothing'}, not for its client"
        self._tell(pid, user, application, why)
        return False

    def _tell(self, pid: int, user: str, application: str, why: str) -> None:
        """Write one line of each session that is not ended."""
        if pid != self._told:
            self._told = pid
            logger.warning(
                "%s: the session %d (user %s, application %r) holds all others up, and is not"
                " ended: %s",
                self._name,
                pid,
                user,
                application,
                why,
            )

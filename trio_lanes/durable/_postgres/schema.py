"""The schema of a PostgreSQL store, and the examination of a server before the first write to it.

* A namespace is a schema of the database. So a role gets its rights on it in one statement, and
  ``DROP SCHEMA`` forgets the whole store.
* The batches are a chain, whose newest one has the head of the store: the last number, the store's
  time. Each batch adds a row to `deltas`, and none rewrites one: beside an old snapshot, a row that
  each batch rewrites costs each of them more than the one before. See `batch`.
* Each index costs time with every change of a job, so there are few indexes.
* The store's time never runs backwards, and does not jump with the server's clock: `deltas.clock`
  is its last value, and `deltas.ahead` takes what was set: see `PostgresTables._time`.
* A name may be longer than the entry of an index, which therefore has its hash.
* The function `submit` writes a job into `submissions`, in the transaction of its caller, and
  notifies. The next batch of an instance that has heard of it takes the job in, under the lock: see
  `PostgresTables.begin`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from .._contract.errors import StoreError, StoreVersionError, older_schema, other_schema
from .._options.names import LONGEST_NAME
from .._sql.schema import KEYED, TABLES
from .._sql.statements import hashed, of_postgres
from .._wire.codec import decode
from .batch import FUNCTIONS, TABLE_LOCK

logger: Final = logging.getLogger("trio_lanes.durable")

PROGRAM: Final = "trio_lanes"
SCHEMA_VERSION: Final = 5
OLDEST_SERVER: Final = 130_000

SUBMIT: Final = """
CREATE FUNCTION submit(
    name text,
    payload json DEFAULT 'null',
    session text DEFAULT NULL,
    lane text DEFAULT 'main',
    priority integer DEFAULT 0,
    key text DEFAULT NULL,
    delay double precision DEFAULT 0,
    timeout double precision DEFAULT 'Infinity',
    retry json DEFAULT NULL,
    cost json DEFAULT '1'
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
DECLARE
    field text;
    given text;
BEGIN
    IF submit.name IS NULL OR submit.payload IS NULL THEN
        RAISE EXCEPTION 'the name and the payload of a job must not be NULL';
    END IF;
    IF submit.priority IS NULL OR submit.priority NOT IN (-1, 0, 1) THEN
        RAISE EXCEPTION 'priority must be -1, 0 or 1, not %', submit.priority;
    END IF;
    IF submit.delay IS NULL OR NOT (submit.delay >= 0 AND submit.delay < 'Infinity') THEN
        RAISE EXCEPTION 'delay must be a finite number of seconds, at least 0, not %', submit.delay;
    END IF;
    IF submit.timeout IS NULL OR NOT (submit.timeout > 0 AND submit.timeout <= 'Infinity') THEN
        RAISE EXCEPTION 'timeout must be a positive number of seconds, not %', submit.timeout;
    END IF;
    IF json_typeof(submit.cost) = 'number' THEN
        submit.cost := json_build_object('requests', submit.cost);
    END IF;
    IF json_typeof(submit.cost) IS DISTINCT FROM 'object' OR EXISTS (
        SELECT FROM json_each(submit.cost) WHERE value::text !~ '^[0-9]{{1,12}}$'
    ) THEN
        RAISE EXCEPTION
            'cost must be a whole number from 0 up, or an object of such numbers by unit, not %',
            submit.cost;
    END IF;
    FOR field, given IN
        VALUES ('name', submit.name), ('session', submit.session), ('lane', submit.lane),
            ('key', submit.key)
        UNION ALL SELECT 'a unit of cost', unit FROM json_object_keys(submit.cost) AS unit
    LOOP
        IF char_length(given) NOT BETWEEN 1 AND {longest} THEN
            RAISE EXCEPTION '% must have from 1 to {longest} characters, got %: %',
                field, char_length(given), quote_literal(left(given, 60));
        END IF;
    END LOOP;
    IF octet_length(submit.payload::text) > {max_payload} THEN
        RAISE EXCEPTION 'the payload has % bytes of JSON, more than {max_payload}',
            octet_length(submit.payload::text);
    END IF;
    -- numbers that a double cannot hold, such as 1e999, are looked for where there may be one
    IF submit.payload::text ~ '[0-9][eE][+]?[0-9]{{3}}|[0-9]{{200}}' THEN
        PERFORM number[1]::double precision
            FROM regexp_matches(
                regexp_replace(submit.payload::text, '"([^"\\\\]|\\\\.)*"', '""', 'g'),
                '[0-9]+(?:[.][0-9]+)?(?:[eE][+]?[0-9]+)?',
                'g'
            ) AS number
            WHERE number[1] ~ '[.eE]';
    END IF;
    IF NOT EXISTS (
        SELECT FROM settings WHERE kind = 'lane' AND NOT submit.lane LIKE '%*' AND (
            settings.name = submit.lane OR (
                settings.name LIKE '%*' AND starts_with(submit.lane, left(settings.name, -1))
            )
        )
    ) THEN
        RAISE EXCEPTION 'there is no lane %', quote_literal(submit.lane)
            USING HINT = 'a worker that has the lane writes it into the store at its start';
    END IF;
    INSERT INTO submissions
        (name, lane, session, priority, payload, key, timeout, retry, cost, due, delay)
    VALUES (
        submit.name, submit.lane, submit.session, submit.priority, submit.payload::text,
        submit.key, submit.timeout, submit.retry::text,
        submit.cost::text, store_time() + submit.delay, submit.delay
    );
    PERFORM pg_notify({channel}, 'look');
END $$;
"""

TIME: Final = """
CREATE FUNCTION server_time() RETURNS double precision LANGUAGE sql VOLATILE AS
    $$ SELECT extract(epoch FROM clock_timestamp())::double precision $$;
"""

STORE_TIME: Final = """
CREATE FUNCTION store_time() RETURNS double precision LANGUAGE sql VOLATILE AS
    $$ SELECT greatest(clock, {schema}.server_time() + ahead) FROM {schema}.deltas
        ORDER BY batch DESC LIMIT 1 $$;
"""

DELTAS: Final = """
CREATE TABLE deltas (               -- the last batches; the newest one has the head of the store
    batch bigint PRIMARY KEY,
    id text NOT NULL,               -- as no other batch has it
    sequence bigint NOT NULL,       -- the last number that was given out; see `PostgresTables`
    clock double precision NOT NULL,-- the store's time
    ahead double precision NOT NULL,-- the store's time less the server's
    notices bigint NOT NULL,        -- how many batches until here other instances should see
    data text                       -- what it has changed, as JSON; see `Delta`; NULL: more
);
CREATE TABLE steps (                -- the last steps of instances
    instance text NOT NULL,
    number bigint NOT NULL,
    data text NOT NULL,             -- JSON; see `LastStep`
    PRIMARY KEY (instance, number)
);
"""

DIFFERENCES: Final = """
CREATE TABLE counts (               -- by how much a batch has changed numbers of jobs; see `batch`
    batch bigint NOT NULL,
    lane text NOT NULL,
    state text NOT NULL,
    name text NOT NULL,
    n bigint NOT NULL
);
CREATE INDEX counts_batch ON counts (batch);
ALTER TABLE counts REPLICA IDENTITY FULL;
"""

SCHEMA: Final = (
    """
CREATE TABLE meta (
    id integer PRIMARY KEY CHECK (id = 1),
    program text NOT NULL,
    schema_version integer NOT NULL,
    store text NOT NULL,            -- the identity of the store, which a copy of it shares
    version bigint NOT NULL         -- the batch with which the chain began
);
INSERT INTO meta VALUES
    (1, '{program}', {version}, replace(gen_random_uuid()::text, '-', ''), 0);

"""
    + hashed(TABLES.format(id="bigint"))
    + "".join(
        f"CREATE TABLE {name} ({columns});\n"
        f"CREATE UNIQUE INDEX {name}_key ON {name} ({hashed(key)});\n"
        # where all tables are published for logical replication, one without a primary key needs it
        f"ALTER TABLE {name} REPLICA IDENTITY FULL;\n"
        for name, (columns, key) in KEYED.items()
        if name != "counts"
    )
    + DIFFERENCES
    + """
ALTER TABLE jobs SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE settings SET (fillfactor = 50);
CREATE INDEX jobs_key ON jobs USING hash (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_queue ON jobs (md5(session), place) WHERE place IS NOT NULL;
CREATE INDEX jobs_delayed ON jobs (md5(session)) WHERE state = 'parked' AND place IS NULL;
CREATE INDEX jobs_ready ON jobs (md5(lane), priority, md5(name), md5(ring), ready)
    WHERE ready IS NOT NULL AND shelf = 0;
CREATE INDEX jobs_party ON jobs (md5(lane), priority, md5(party), shelf, md5(name), ready)
    WHERE party IS NOT NULL;
CREATE INDEX jobs_parked ON jobs (due, id) WHERE state = 'parked';
CREATE INDEX jobs_expires ON jobs (expires) WHERE expires IS NOT NULL;
CREATE INDEX jobs_coalesce ON jobs (md5(coalesce)) WHERE coalesce IS NOT NULL;
CREATE INDEX jobs_ended ON jobs (due)
    WHERE state IN ('succeeded', 'failed', 'cancelled', 'expired');
CREATE INDEX jobs_running ON jobs (id) WHERE state = 'running';
CREATE INDEX jobs_suspected ON jobs (lane) WHERE state = 'waiting' AND crashed_with > 0;
CREATE INDEX jobs_name ON jobs (md5(name), id);
CREATE INDEX jobs_letters ON jobs (id) WHERE error IS NOT NULL;
CREATE INDEX jobs_error ON jobs (md5(error), id) WHERE error IS NOT NULL;
CREATE FUNCTION forget_lists() RETURNS trigger LANGUAGE plpgsql
    SET search_path = {schema}, pg_temp AS $$
BEGIN
    DELETE FROM lists WHERE md5(list) IN (md5('events ' || OLD.id), md5('messages ' || OLD.id));
    RETURN NULL;
END $$;
CREATE TRIGGER forget_lists AFTER DELETE ON jobs FOR EACH ROW WHEN (OLD.emitted > 0 OR OLD.sent > 0)
    EXECUTE FUNCTION forget_lists();
CREATE TABLE answers (              -- of acts that may be asked for again
    ticket text PRIMARY KEY,
    until double precision NOT NULL,
    data text NOT NULL              -- JSON
);
CREATE TABLE listeners (id text PRIMARY KEY, until double precision NOT NULL);
CREATE TABLE submissions (          -- committed by their submitters, and not taken in yet
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    lane text NOT NULL,
    session text,
    priority integer NOT NULL,
    payload text NOT NULL,
    key text,
    timeout double precision NOT NULL,
    retry text,
    cost text,
    due double precision NOT NULL,
    delay double precision NOT NULL -- it is due after no more seconds than these
);
"""
    + DELTAS
    + """
INSERT INTO deltas VALUES (0, replace(gen_random_uuid()::text, '-', ''), 0, 0, 0, 0, NULL);
"""
)

_TO_5: Final = (
    """
DROP FUNCTION store_time();
"""
    + DELTAS
    + """
INSERT INTO deltas SELECT version + 1, replace(gen_random_uuid()::text, '-', ''),
    sequence, clock, ahead, notices, NULL FROM meta;
DELETE FROM settings WHERE kind = 'step';
ALTER TABLE counts RENAME TO former_counts;
"""
    + DIFFERENCES
    + """
INSERT INTO counts SELECT version + 1, lane, state, former_counts.name, n
    FROM former_counts, meta WHERE n <> 0;
DROP TABLE former_counts;
UPDATE meta SET version = version + 1;
ALTER TABLE meta DROP notices, DROP sequence, DROP clock, DROP ahead;
"""
    + STORE_TIME
    + FUNCTIONS
)

MIGRATIONS: Final[dict[int, LiteralString]] = {3: "", 4: "DROP TABLE IF EXISTS deltas;" + _TO_5}
"""By schema version, the script that makes the next version."""


def naming(namespace: str) -> Callable[[str], bytes]:
    """Return a function that makes a statement of the common dialect one of this schema.

    No statement relies on a setting of the session: a pooler may give the next transaction to a
    session with another setting, of another namespace.
    """
    return lru_cache(1024)(partial(of_postgres, schema=namespace))


def channel_of(namespace: str) -> str:
    """Return the name of the channel on which the instances of a store notify each other."""
    return f"trio_lanes_{namespace}"


def check_server(connection: psycopg.Connection, name: str) -> bool:
    """Refuse a server that cannot keep a store; warn of a server that may lose accepted jobs.

    Return whether a pooler is between this process and the server.

    Raises:
      StoreError: if the server is too old, cannot be written to, or has another encoding.
    """
    version = connection.info.server_version
    if version < OLDEST_SERVER:
        raise StoreError(
            f"{name} is PostgreSQL {version // 10_000}; the store needs PostgreSQL "
            f"{OLDEST_SERVER // 10_000} or newer: upgrade the server"
        )
    row = connection.execute(
        "SELECT pg_is_in_recovery(), current_setting('transaction_read_only'),"
        " current_setting('server_encoding'), current_setting('synchronous_commit'),"
        " current_setting('fsync'), pg_backend_pid()"
    ).fetchone()
    assert row is not None
    standby, read_only, encoding, synchronous, fsync, pid = row
    if standby:
        raise StoreError(
            f"{name} is a standby, which cannot be written to: connect to the primary server; "
            "target_session_attrs=read-write in the connection string finds it among several hosts"
        )
    if read_only == "on":
        raise StoreError(
            f"{name} is read-only: set default_transaction_read_only=off for this role and database"
        )
    if encoding != "UTF8":
        raise StoreError(
            f"{name} has the encoding {encoding}, which cannot keep every text: make a database "
            "with the encoding UTF8"
        )
    for setting, value in (("synchronous_commit", synchronous), ("fsync", fsync)):
        if value == "off":
            logger.warning(
                "%s has %s=off: a crash of the server may lose the jobs that were accepted in the "
                "last moments; set it on",
                name,
                setting,
            )
    return bool(pid != connection.info.backend_pid)  # a pooler gives its clients numbers of its own


def prepare(
    connection: psycopg.Connection,
    namespace: str,
    name: str,
    max_payload: int,
    *,
    works: bool = True,
    make: bool = True,
) -> None:
    """Make the tables of a namespace, or let a worker bring them to the version of this library.

    Raises:
      StoreError: if they do not exist, and ``make`` is False.
      StoreUnavailableError: if they have an older version, of which a worker has a lease.
      StoreVersionError: if the schema has another version, or belongs to another program; or if it
        has an older version that a worker migrates, and this is no worker.
    """
    if not make and not _version(connection, namespace, name):
        raise StoreError(
            f"{name} has no store in the schema {namespace!r}: a worker makes it at its start"
        )
    with connection.transaction():
        # several processes may make one store; the lock ends with the transaction
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (channel_of(namespace),))
        version = _version(connection, namespace, name)
        if version == SCHEMA_VERSION:
            return
        if not version and not _exists(connection, namespace):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(namespace)))
        connection.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(namespace)))
        names = {
            "program": sql.SQL(PROGRAM),
            "version": sql.Literal(SCHEMA_VERSION),
            "schema": sql.Identifier(namespace),
            "channel": sql.Literal(channel_of(namespace)),
            "max_payload": sql.Literal(max_payload),
            "longest": sql.Literal(LONGEST_NAME),
        }
        if version:
            # no instance commits: one of schema 3 or 4 locks the row, a later one takes the lock
            connection.execute("SELECT FROM meta FOR UPDATE")
            channel = channel_of(namespace)
            connection.execute(f"SELECT pg_advisory_xact_lock{TABLE_LOCK}", (channel,))
            living = _living(connection)
            if living or not works:
                what = f"{name}: the store in the schema {namespace!r}"
                raise older_schema(what, version, SCHEMA_VERSION, living, works=works)
            for older in range(version, SCHEMA_VERSION):
                connection.execute(sql.SQL(MIGRATIONS[older]).format(**names))
            connection.execute("UPDATE meta SET schema_version = %s", (SCHEMA_VERSION,))
            return
        connection.execute(sql.SQL(SCHEMA + TIME + STORE_TIME + SUBMIT + FUNCTIONS).format(**names))


def _living(connection: psycopg.Connection) -> str:
    """Return the processes that have a lease."""
    found = connection.execute(
        "SELECT data FROM settings WHERE kind = 'instance'"
        " AND (data::json -> 'v' ->> 4)::double precision > store_time() ORDER BY data"
    )
    instances = [decode(data) for (data,) in found]
    return ", ".join(f"process {info.pid} on {info.host}" for info in instances)


def _exists(connection: psycopg.Connection, namespace: str) -> bool:
    found = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (namespace,))
    return found.fetchone() is not None


def _version(connection: psycopg.Connection, namespace: str, name: str) -> int:
    """Return the version of the tables in a schema; 0: there are none."""
    columns = connection.execute(
        "SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'meta' AND a.attnum > 0",
        (namespace,),
    ).fetchall()
    if not {("program",), ("schema_version",)} <= set(columns):
        others = connection.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s ORDER BY 1 LIMIT 3",
            (namespace,),
        ).fetchall()
        if others:
            raise StoreVersionError(
                f"the schema {namespace!r} of {name} belongs to another program: it has "
                f"{', '.join(row[0] for row in others)}; choose another namespace"
            )
        return 0
    row = connection.execute(
        sql.SQL("SELECT program, schema_version FROM {}.meta").format(sql.Identifier(namespace))
    ).fetchone()
    if row is None or row[0] != PROGRAM:
        raise StoreVersionError(
            f"the schema {namespace!r} of {name} belongs to another program; "
            "choose another namespace"
        )
    if row[1] != SCHEMA_VERSION and row[1] not in MIGRATIONS:
        what = f"{name}: the store in the schema {namespace!r}"
        raise other_schema(what, row[1], SCHEMA_VERSION)
    return int(row[1])

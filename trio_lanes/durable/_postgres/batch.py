"""The function of a schema that commits a batch: compare, write, append, in one statement.

Theory of operation

The batches of a namespace are a chain: each has a number and an id that no other has. Whoever
commits names the batch on which it builds. If that is still the newest one, `put_batch` writes what
the batch changes and appends its delta; else it writes nothing, and returns what was missed. So the
rules may run without any lock, in several processes at once, and of two that build on one batch one
commits.

* The function takes the lock of the namespace, for its transaction, before it compares: in READ
  COMMITTED each statement of a VOLATILE function sees what the holders before have committed.
* It is one statement, which begins when it has arrived whole. So a process that is stopped, or
  whose network is cut, leaves no open transaction behind.
* What its caller has not looked up, it may have guessed: that no job has a key, that no job is in a
  session's queue, that a ticket is new. These guesses are compared, too.
* A commit whose answer was lost stands in the chain, or its place is taken by the next commit, and
  its late copy writes nothing.

The server may take a table for empty that has grown since, and would read all of it. So each row
is looked up by itself, by an index: by LATERAL with a LIMIT, by an array, or in a loop.

No row is rewritten by each batch. What the newest batch has to say (`deltas`) is read from the end
of an index. The numbers of jobs are differences (`counts`), which are summed up in each
`SUMMED_EVERY`th batch: those of that batch and later count.
"""

from __future__ import annotations

from typing import Final

from .._sql.rows import COLUMNS
from .._sql.schema import JOB_TYPES

DELTAS_KEPT: Final = 1_000
"""How many batches stay in the table of deltas."""
REMOVED_AT_ONCE: Final = 100
"""How many deltas are removed together."""
MAX_BEHIND: Final = 200
"""How many batches a cache is brought up to date by at most."""
SUMMED_EVERY: Final = 500
"""In each such batch the numbers of jobs are summed up."""
STEPS_KEPT: Final = 100
"""How many steps of an instance are removed together."""

WRONG: Final = "TL001"
"""The SQLSTATE by which a transaction that has the lock, and may have written, ends for a guess."""

TABLE_LOCK: Final = "(hashtext(%s) & 2147483647, 2)"
"""The lock of a namespace: the two numbers of an advisory lock, from the name of its channel."""


def _typed(column: str) -> str:
    text = f"(r ->> '{column}')"
    return text if JOB_TYPES[column] == "text" else f"{text}::{JOB_TYPES[column]}"


_CHANGED: Final = ",\n        ".join(
    f"{column} = CASE WHEN r ? '{column}' THEN {_typed(column)} ELSE jobs.{column} END"
    for column in COLUMNS[1:]
)
_ANSWER: Final = """
    what text,                  -- put; late: the batches from `known` on; wrong: the guess
    batch bigint,
    id text,
    sequence bigint,
    clock double precision,
    ahead double precision,
    notices bigint,
    data text,
    now double precision,       -- of the server
    others bigint,              -- how many others listen
    forgotten bigint
"""
_ITEMS: Final = "FROM jsonb_array_elements(made -> '{}') AS r"

FUNCTIONS: Final = f"""
CREATE FUNCTION put(made jsonb, at bigint) RETURNS void LANGUAGE plpgsql
    SET search_path = {{schema}}, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r jsonb;
BEGIN
    IF made ? 'changed' THEN
        UPDATE jobs SET {_CHANGED}
        FROM (
            SELECT r, found.ctid AS at FROM jsonb_array_elements(made -> 'changed') AS r
            CROSS JOIN LATERAL (SELECT ctid FROM jobs WHERE id = (r ->> 'id')::bigint LIMIT 1)
                AS found
        ) AS changed WHERE jobs.ctid = changed.at;
    END IF;
    IF made ? 'new' THEN
        INSERT INTO jobs ({", ".join(COLUMNS)})
        SELECT {", ".join(COLUMNS)} FROM jsonb_populate_recordset(NULL::jobs, made -> 'new');
    END IF;
    IF made ? 'steps' THEN
        INSERT INTO steps SELECT r ->> 0, (r ->> 1)::bigint, r ->> 2 {_ITEMS.format("steps")};
        FOR r IN SELECT value FROM jsonb_array_elements(made -> 'steps')
                WHERE (value ->> 1)::bigint % {STEPS_KEPT} = 0 LOOP
            DELETE FROM steps WHERE instance = r ->> 0 AND number < (r ->> 1)::bigint
                AND number >= (r ->> 1)::bigint - {2 * STEPS_KEPT};
        END LOOP;
    END IF;
    IF made ? 'counts' THEN
        INSERT INTO counts SELECT at, r ->> 0, r ->> 1, r ->> 2, (r ->> 3)::bigint
            {_ITEMS.format("counts")};
    END IF;
    IF made ? 'answers' THEN
        INSERT INTO answers SELECT r ->> 0, (r ->> 1)::double precision, r ->> 2
            {_ITEMS.format("answers")}
            ON CONFLICT (ticket) DO UPDATE SET until = excluded.until, data = excluded.data;
    END IF;
    IF made ? 'dropped' THEN
        FOR r IN SELECT jsonb_array_elements(made -> 'dropped') LOOP
            DELETE FROM settings WHERE kind = r ->> 0 AND md5(name) = md5(r ->> 1)
                AND name = r ->> 1;
        END LOOP;
    END IF;
    IF made ? 'settings' THEN
        INSERT INTO settings SELECT r ->> 0, r ->> 1, r ->> 2 {_ITEMS.format("settings")}
            ON CONFLICT (kind, md5(name)) DO UPDATE SET data = excluded.data;
    END IF;
    IF made ? 'drop_items' THEN
        FOR r IN SELECT jsonb_array_elements(made -> 'drop_items') LOOP
            DELETE FROM lists WHERE md5(list) = md5(r ->> 0) AND list = r ->> 0
                AND taken <= (r ->> 1)::int;
        END LOOP;
    END IF;
    IF made ? 'items' THEN
        INSERT INTO lists
            SELECT r ->> 0, (r ->> 1)::bigint, r ->> 2, (r ->> 3)::int, r ->> 4
            {_ITEMS.format("items")}
            ON CONFLICT (md5(list), number) DO UPDATE SET taken = excluded.taken;
    END IF;
    IF made ? 'cut_items' THEN
        FOR r IN SELECT jsonb_array_elements(made -> 'cut_items') LOOP
            DELETE FROM lists WHERE md5(list) = md5(r ->> 0) AND list = r ->> 0
                AND number <= (r ->> 1)::bigint;
        END LOOP;
    END IF;
    IF made ? 'requests' THEN
        INSERT INTO requests (id, line, instance, data, served, job, since)
            SELECT (r ->> 0)::bigint, r ->> 1, r ->> 2, r ->> 3, (r ->> 4)::double precision,
                (r ->> 5)::bigint, (r ->> 6)::double precision
            {_ITEMS.format("requests")}
            ON CONFLICT (id) DO UPDATE SET served = excluded.served, since = excluded.since;
    END IF;
    IF made ? 'cut_requests' THEN
        DELETE FROM requests WHERE id = ANY (ARRAY(
            SELECT jsonb_array_elements_text(made -> 'cut_requests')::bigint
        ));
    END IF;
    IF made ? 'cut_schedules' THEN
        DELETE FROM schedules WHERE id = ANY (ARRAY(
            SELECT (jsonb_array_elements(made -> 'cut_schedules') ->> 0)::bigint
        ));
    END IF;
    IF made ? 'schedules' THEN
        INSERT INTO schedules (id, name, next, data)
            SELECT (r ->> 0)::bigint, r ->> 1, (r ->> 2)::double precision, r ->> 3
            {_ITEMS.format("schedules")}
            ON CONFLICT (id) DO UPDATE SET next = excluded.next, data = excluded.data;
    END IF;
    IF made ? 'marks' THEN
        INSERT INTO marks
            SELECT r ->> 0, (r ->> 1)::bigint, (r ->> 2)::double precision, (r ->> 3)::bigint,
                (r ->> 4)::double precision
            {_ITEMS.format("marks")};
    END IF;
    IF made ? 'cut_marks' THEN
        FOR r IN SELECT jsonb_array_elements(made -> 'cut_marks') LOOP
            DELETE FROM marks WHERE md5(meter) = md5(r ->> 0) AND meter = r ->> 0
                AND number <= (r ->> 1)::bigint;
        END LOOP;
    END IF;
END $$;
CREATE FUNCTION missed(
    known bigint,               -- the batch that is cached; NULL: none
    me text,                    -- this instance among the listeners
    lock_of integer             -- the lock to take before; NULL: none
) RETURNS TABLE (
{_ANSWER}) LANGUAGE plpgsql SET search_path = {{schema}}, pg_temp AS $$
#variable_conflict use_column
DECLARE
    newest bigint;
BEGIN
    IF lock_of IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(lock_of, 2);
    END IF;
    newest := (SELECT d.batch FROM deltas AS d ORDER BY d.batch DESC LIMIT 1);
    RETURN QUERY SELECT 'late', d.batch, d.id, d.sequence, d.clock, d.ahead, d.notices,
        CASE WHEN d.batch > known THEN d.data END, server_time(),
        (SELECT count(*) FROM listeners WHERE id <> me AND until > server_time()), 0::bigint
        FROM (SELECT generate_series(known, least(known + {MAX_BEHIND}, newest - 1))
            UNION ALL SELECT newest) AS missing (number)
        CROSS JOIN LATERAL (SELECT * FROM deltas WHERE deltas.batch = number LIMIT 1) AS d
        ORDER BY d.batch;
END $$;
CREATE FUNCTION put_batch(
    known bigint,               -- the batch on which this one builds
    known_id text,
    new_id text,
    new_sequence bigint,
    new_clock double precision,
    new_ahead double precision,
    noticed integer,            -- 1: other instances should see it
    delta text,
    made jsonb,                 -- what it writes; see `PostgresTables`
    guessed jsonb,              -- what was not looked up
    forget jsonb,               -- ended jobs: above which time, until which, how many
    me text,                    -- this instance among the listeners
    lock_of integer,            -- the first number of the lock; see `TABLE_LOCK`
    held boolean                -- whether a transaction that has written holds the lock
) RETURNS TABLE (
{_ANSWER}) LANGUAGE plpgsql SET search_path = {{schema}}, pg_temp AS $$
#variable_conflict use_column
DECLARE
    newest deltas;
    gone bigint := 0;
    listening bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(lock_of, 2);
    SELECT * INTO newest FROM deltas ORDER BY batch DESC LIMIT 1;
    listening := (SELECT count(*) FROM listeners WHERE id <> me AND until > server_time());
    IF newest.batch <> known OR newest.id <> known_id THEN
        IF held THEN
            RAISE EXCEPTION 'another session has written without the lock';
        END IF;
        RETURN QUERY SELECT * FROM missed(known, me, NULL);
        RETURN;
    END IF;
    IF guessed IS NOT NULL AND (
        EXISTS (SELECT FROM jsonb_array_elements_text(guessed -> 'tickets') AS g
            CROSS JOIN LATERAL (SELECT FROM answers WHERE ticket = g LIMIT 1) AS found)
        OR EXISTS (SELECT FROM jsonb_array_elements_text(guessed -> 'keys') AS g
            CROSS JOIN LATERAL (SELECT FROM jobs WHERE key = g LIMIT 1) AS found)
        OR EXISTS (SELECT FROM jsonb_array_elements_text(guessed -> 'sessions') AS g
            CROSS JOIN LATERAL (SELECT FROM jobs WHERE md5(session) = md5(g) AND session = g
                AND place IS NOT NULL LIMIT 1) AS found)
    ) THEN
        IF held THEN
            RAISE EXCEPTION 'a guess was wrong' USING ERRCODE = '{WRONG}';
        END IF;
        RETURN QUERY SELECT 'wrong', newest.batch, newest.id, newest.sequence, newest.clock,
            newest.ahead, newest.notices, NULL, server_time(), listening, gone;
        RETURN;
    END IF;
    IF forget IS NOT NULL THEN
        DELETE FROM jobs WHERE id = ANY (ARRAY(
            SELECT id FROM jobs WHERE state IN ('succeeded', 'failed', 'cancelled', 'expired')
            AND due > coalesce((forget ->> 0)::double precision, '-Infinity')
            AND due <= (forget ->> 1)::double precision
            ORDER BY due LIMIT (forget ->> 2)::bigint
        ));
        GET DIAGNOSTICS gone = ROW_COUNT;
    END IF;
    PERFORM put(made, known + 1);
    IF (known + 1) % {SUMMED_EVERY} = 0 THEN
        INSERT INTO counts SELECT known + 1, lane, state, name, sum(n) FROM counts
            WHERE batch >= known + 1 - {SUMMED_EVERY} AND batch <= known
            GROUP BY lane, state, name HAVING sum(n) <> 0;
        DELETE FROM counts WHERE batch >= known + 1 - {SUMMED_EVERY} AND batch <= known;
    END IF;
    IF (known + 1) % {REMOVED_AT_ONCE} = 0 THEN
        DELETE FROM deltas WHERE batch <= known + 1 - {DELTAS_KEPT}
            AND batch > known + 1 - {DELTAS_KEPT + REMOVED_AT_ONCE};
    END IF;
    INSERT INTO deltas VALUES (known + 1, new_id, new_sequence, new_clock, new_ahead,
        newest.notices + noticed, delta);
    RETURN QUERY SELECT 'put', known + 1, new_id, new_sequence, new_clock, new_ahead,
        newest.notices + noticed, NULL, server_time(), listening, gone;
END $$;
"""
"""What a schema needs besides its tables: `missed` returns what others have committed, `put` writes
the rows of a batch, `put_batch` commits it.

`put` names each column of `jobs`, so a migration that adds one makes it anew. All of them run with
the rights of their caller: who may only call `submit` cannot commit.
"""

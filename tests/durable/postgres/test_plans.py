"""What the server reads for a batch whose plans are of a time when the tables were small."""

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from trio_lanes.durable import PostgresStore, Submission, open_durable_lanes
from trio_lanes.durable._postgres.link import connect

from .server import Server

pytestmark = pytest.mark.real_processes

_READ = (
    "SELECT sum(pg_stat_get_xact_tuples_returned(c.oid))::int FROM pg_class c"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s"
)
_GROWN = """
INSERT INTO {0}.answers SELECT 'other' || n, 0, '' FROM generate_series(1, 500) AS n;
INSERT INTO {0}.steps SELECT 'other', n, '' FROM generate_series(1, 500) AS n;
INSERT INTO {0}.settings SELECT 'pause', 'other' || n, '1' FROM generate_series(1, 500) AS n;
INSERT INTO {0}.lists SELECT 'other', n, '', 0, '' FROM generate_series(1, 500) AS n;
INSERT INTO {0}.requests SELECT n + 2, 'lock k', 'me', 'false', NULL, NULL, 0
    FROM generate_series(1, 500) AS n;
INSERT INTO {0}.schedules SELECT n + 2, 's' || n, NULL, '' FROM generate_series(1, 500) AS n;
INSERT INTO {0}.marks SELECT 'other', n, 1, 1, 1 FROM generate_series(1, 500) AS n;
"""


async def test_a_batch_reads_by_an_index_what_was_empty_when_it_was_planned(
    server: Server, namespace: str
) -> None:
    made: dict[str, list[Any]] = {
        "changed": [{"id": 1, "place": 1}],
        "steps": [["me", 100, ""]],
        "dropped": [["pause", "s"]],
        "drop_items": [["list", 1]],
        "cut_items": [["list", 100]],
        "cut_requests": [1, 2],
        "cut_schedules": [[1], [2]],
        "cut_marks": [["meter", 100]],
    }
    guessed = {"tickets": ["ticket"], "keys": ["key"], "sessions": ["session"]}

    def put() -> None:
        newest = f"SELECT batch, id FROM {namespace}.deltas ORDER BY batch DESC LIMIT 1"
        known = connection.execute(newest.encode()).fetchone()
        assert known is not None
        made["steps"][0][1] += 100
        put = connection.execute(
            f"SELECT what FROM {namespace}.put_batch(%s, %s, 'id', 1, 1, 0, 0, NULL, %s, %s,"
            " %s, 'me', 1, false)".encode(),
            (*known, Jsonb(made), Jsonb(guessed), Jsonb([1, 2, 100])),
        )
        assert put.fetchall() == [("put",)]

    with connect(server.dsn(), 60, made=lambda _: None) as connection:
        async with open_durable_lanes(
            PostgresStore(server.dsn(), namespace=namespace), {}, worker=False
        ) as lanes:
            server.run("ANALYZE")
            for _ in range(6):  # from then on the server keeps its plans
                put()
            await lanes.submit_many(
                [Submission(name="a", session=f"s{n}", key=f"k{n}") for n in range(500)]
            )
        connection.execute(_GROWN.format(namespace).encode())
        with connection.transaction():
            put()
            (read,) = connection.execute(_READ, (namespace,)).fetchone() or (None,)
    assert read is not None
    assert read < 100

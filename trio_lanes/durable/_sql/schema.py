"""The tables that stores in SQL databases have in common.

The names of types are PostgreSQL's; SQLite takes from them whether a column has whole numbers,
floats or texts. Each index costs time with every change of a job, so there are few; those of jobs
are the databases' own.
"""

from __future__ import annotations

from typing import Final

import attrs

from .._rules.job_record import JobRecord

_TYPES: Final = {
    "int": "bigint",
    "float": "double precision",
    "str": "text",
    "DurableState": "text",
}
_SMALL: Final = {
    "priority",
    "shelf",
    "attempts",
    "crashes",
    "crashes_alone",
    "crashed_with",
    "lent",
}
"""The columns of whole numbers that are small."""


def _type_of(column: str, annotation: str) -> str:
    return "int" if column in _SMALL else _TYPES[annotation]


JOB_TYPES: Final = {
    field.name: _type_of(field.name, str(field.type).removesuffix(" | None"))
    for field in attrs.fields(JobRecord)
}
"""The type of each column of `jobs`, whose columns are the fields of a `JobRecord`."""

_JOB_COLUMNS: Final = ",\n    ".join(
    f"{field.name} {JOB_TYPES[field.name]}"
    + ("" if str(field.type).endswith(" | None") else " NOT NULL")
    for field in attrs.fields(JobRecord)[1:]
)

TABLES: Final = f"""
CREATE TABLE jobs (
    id {{id}} PRIMARY KEY,
    {_JOB_COLUMNS}
);
CREATE TABLE requests (             -- for locks and quotas
    id {{id}} PRIMARY KEY,
    line text NOT NULL,
    instance text NOT NULL,
    data text NOT NULL,             -- JSON; see `Request`
    served double precision,        -- NULL: it waits
    job bigint,                     -- NULL: a task outside of a run made it
    since double precision NOT NULL -- when it was made or served
);
CREATE INDEX requests_line ON requests ([line], served, id);
CREATE INDEX requests_instance ON requests (instance);
CREATE TABLE schedules (
    id {{id}} PRIMARY KEY,
    name text NOT NULL,
    next double precision,          -- Unix time; NULL: it is paused
    data text NOT NULL              -- JSON; see `DurableSchedule`
);
CREATE INDEX schedules_name ON schedules ([name]);
CREATE INDEX schedules_next ON schedules (next);
"""
"""The tables whose key is a number, of the type ``id``."""

KEYED: Final = {
    "lists": (  # events and messages of a job, and logs; see `ListItem`
        "list text NOT NULL, number bigint NOT NULL, tag text, taken int NOT NULL,"
        " data text NOT NULL",
        "[list], number",
    ),
    "counts": (  # of jobs that have not ended; of ends: +state, no name, the lane or its template
        "lane text NOT NULL, state text NOT NULL, name text NOT NULL, n bigint NOT NULL",
        "[lane], state, [name]",
    ),
    "settings": (  # see `Settings`; the data are JSON
        "kind text NOT NULL, name text NOT NULL, data text NOT NULL",
        "kind, [name]",
    ),
    "marks": (  # past starts, for rate limits: sums of what they have cost; see `Meter`
        "meter text NOT NULL, number bigint NOT NULL, time double precision NOT NULL,"
        " starts bigint NOT NULL, until double precision NOT NULL",
        "[meter], number",
    ),
}
"""The other tables: their columns, and their keys."""

"""The tables, for SQLAlchemy Core. A change here needs another `database.SCHEMA`.

`body` is the complete value as JSON (`codec`); the other columns repeat fields that queries use.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    bindparam,
    func,
    select,
    text,
)

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("array", Integer),
    Column("submitted_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),  # null unless the job has ended
    Column("attempt", Integer, nullable=False),
    Column("gpus", Text, nullable=False),  # ids, separated by commas
    Column("gpu_seconds", Float, nullable=False),
    Column("energy_j", Float, nullable=False),
    Column("body", Text, nullable=False),
    Column("environment", Text),  # null: it is in the body, if there is one
    Column("bytes", Integer, nullable=False, server_default="0"),  # approximate size of its rows
    Column("script", Text),  # null: it runs none that was copied
    # Of an array that it stands for: they have this id and the next ones (`core.jobs.tasks`).
    Column("tasks", Integer, nullable=False, server_default="1"),
    Column("words", Text, nullable=False, server_default=""),  # that a search looks into
    Column("uid", Integer, nullable=False, server_default="-1"),  # with `user`, whose it is
    Index(None, "state"),
    Index(None, "user", "id"),
    Index(None, "user", "ended_at", "bytes"),
    Index(None, "array"),
    Index(None, "environment"),
    Index(None, "script"),
    Index(None, "ended_at"),
    # A search reads this alone. Jobs come into it when they end: changes before cost nothing.
    Index(
        "ix_jobs_search",
        *("user", "ended_at", "state", "words"),
        *("name", "submitted_at", "started_at", "gpu_seconds", "uid"),
        sqlite_where=text("ended_at IS NOT NULL"),
    ),
    # Ids are never reused, not even after a purge.
    sqlite_autoincrement=True,
)

ENVIRONMENTS = Table(
    "environments",
    METADATA,
    Column("id", Text, primary_key=True),  # a digest of user and content
    Column("user", Text, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "user"),
)

SCRIPTS = Table(
    "scripts",
    METADATA,
    Column("id", Text, primary_key=True),  # a digest of user and content
    Column("user", Text, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "user"),
)

TRANSITIONS = Table(
    "transitions",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("job", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("before", Text),  # null: the job is new
    Column("after", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Index(None, "job"),
)

DECISIONS = Table(
    "decisions",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("job", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("policy", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "job"),
)

DRAINS = Table(
    "drains",
    METADATA,
    Column("gpu", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", Float, nullable=False),
)

# What each user has used of the GPUs.
ACCOUNTS = Table(
    "accounts",
    METADATA,
    Column("user", Text, nullable=False),
    Column("uid", Integer, nullable=False),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("user", "uid"),
)

# Limits as they were set, in order: a subject's last one counts, and an empty one clears it.
LIMITS = Table(
    "limits",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("subject", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "subject"),
)

# What owners of jobs are yet to be told (`--notify`). No addresses: those are in their own files.
NOTICES = Table(
    "notices",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("job", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("uid", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("what", Text, nullable=False),  # one of `options.TOLD_OF`
    Column("words", Text, nullable=False),
    Index(None, "uid"),
    Index(None, "job"),
)

# What running jobs reported of themselves, as a curve of each name.
METRICS = Table(
    "metrics",
    METADATA,
    Column("job", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("value", Float, nullable=False),
    PrimaryKeyConstraint("job", "name", "at"),
    sqlite_with_rowid=False,
)

RESERVATIONS = Table(
    "reservations",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("body", Text, nullable=False),
)

# One row: the clock that the times in the other tables refer to.
CLOCK = Table(
    "clock",
    METADATA,
    Column("boot_id", Text, primary_key=True),
    Column("ahead_s", Float, nullable=False),  # Unix seconds minus seconds since that boot
)

# Processes that used a GPU outside of the queue. Times are Unix seconds; of the process itself only
# `started_at`, the others are when it was seen on this GPU.
EXTERNALS = Table(
    "externals",
    METADATA,
    Column("gpu", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("user", Text, nullable=False),
    Column("command", Text, nullable=False),
    Column("seen_from", Float, nullable=False),
    Column("seen_to", Float, nullable=False),
    Column("peak_mib", Integer),  # null: not known
    PrimaryKeyConstraint("gpu", "pid", "started_at"),
    Index(None, "user", "seen_to"),
    sqlite_with_rowid=False,
)

# Ids travel as one JSON list, the parameter `ids`: an IN has a limit.
GIVEN_IDS = select(func.json_each(bindparam("ids")).table_valued("value").c.value)

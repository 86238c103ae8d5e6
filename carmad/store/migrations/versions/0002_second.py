"""What the second release stores otherwise: attempts are values within a job; environments and
scripts have tables of their own, each content of a user once, and a job counts what it takes of
the disk; a row may stand for several tasks of an array; and there are tables for the clock, what
users have used and may, reservations, crontabs, external processes, notices, metrics and
timelines. The log of events, which nothing read, is gone, and timelines replace the samples.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import sqlalchemy as sa
from alembic import op
from pydantic_core import from_json, to_json

from carmad.store.former import Body, Move, Placed, current_form

revision = "0002"
down_revision = "0001"

AT_ONCE = 16  # rows, of which each may have an environment and a command of 1 MiB
TELLING = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

JOBS = sa.table("jobs", *map(sa.column, ("id", "user", "environment", "bytes", "body")))
TRANSITIONS = sa.table(
    "transitions", *map(sa.column, ("id", "at", "job", "before", "after", "attempt"))
)
DECISIONS = sa.table("decisions", *map(sa.column, ("id", "at", "job", "body")))


def upgrade() -> None:
    environments = _contents("environments")
    _contents("scripts")
    for column in (
        sa.Column("environment", sa.Text()),
        sa.Column("bytes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("script", sa.Text()),
        sa.Column("tasks", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("words", sa.Text(), nullable=False, server_default=""),
    ):
        op.add_column("jobs", column)
    if sqlite3.sqlite_version_info >= (3, 35):  # an older one cannot; nobody reads or writes it
        op.drop_column("jobs", "cause")
    op.execute("UPDATE jobs SET words = lower(id || ' ' || name)")
    op.create_index(
        "ix_jobs_search",
        "jobs",
        [
            *("user", "ended_at", "state", "words"),
            *("name", "submitted_at", "started_at", "gpu_seconds"),
        ],
        sqlite_where=sa.text("ended_at IS NOT NULL"),
    )
    op.create_index("ix_jobs_environment", "jobs", ["environment"])
    op.create_index("ix_jobs_user_ended_at_bytes", "jobs", ["user", "ended_at", "bytes"])
    op.create_index("ix_jobs_script", "jobs", ["script"])
    _convert_jobs(op.get_bind(), environments)
    op.create_table(
        "clock",
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("ahead_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("boot_id", name="pk_clock"),
    )
    op.create_table(
        "externals",
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("seen_from", sa.Float(), nullable=False),
        sa.Column("seen_to", sa.Float(), nullable=False),
        sa.Column("peak_mib", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("gpu", "pid", "started_at", name="pk_externals"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_externals_user_seen_to", "externals", ["user", "seen_to"])
    op.create_table(
        "accounts",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("user", name="pk_accounts"),
    )
    op.create_table(
        "limits",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_limits"),
    )
    op.create_index("ix_limits_subject", "limits", ["subject"])
    op.create_table(
        "reservations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reservations"),
    )
    op.create_table(
        "crontabs",
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_crontabs"),
    )
    op.create_table(
        "notices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("uid", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_notices_job", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_notices"),
    )
    op.create_index("ix_notices_uid", "notices", ["uid"])
    op.create_index("ix_notices_job", "notices", ["job"])
    op.create_table(
        "metrics",
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_metrics_job", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "name", "at", name="pk_metrics"),
        sqlite_with_rowid=False,
    )
    op.drop_table("samples")
    op.drop_index("ix_events_at", "events")
    op.drop_table("events")


def _contents(name: str) -> sa.Table:
    table = op.create_table(
        name,
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
    )
    op.create_index(f"ix_{name}_user", name, ["user"])
    return table


def _convert_jobs(connection: sa.Connection, environments: sa.Table) -> None:
    """What is no job is left for whoever reads it to report."""
    insert = sa.insert(environments).prefix_with("OR IGNORE")
    connection.execute(sa.update(JOBS).values(bytes=sa.func.length(JOBS.c.body)))
    for rows in _jobs(connection):
        ids = [row.id for row in rows]
        moves, placed = _moves(connection, ids), _placements(connection, ids)
        for row in rows:
            new = {}
            try:
                job, environment = _without_environment(from_json(row.body), row.user)
                if environment:
                    connection.execute(insert, environment)
                    new = {"environment": environment["id"], "body": to_json(job).decode()}
                new["body"] = to_json(current_form(job, moves[row.id], placed[row.id])).decode()
            except (ValueError, LookupError, TypeError):
                pass
            if new:
                new["bytes"] = len(new["body"])
                connection.execute(sa.update(JOBS).where(JOBS.c.id == row.id).values(new))


def _jobs(connection: sa.Connection) -> Iterator[Sequence[sa.Row[Any, Any, Any]]]:
    last: int | None = -1
    while last is not None:
        some = sa.select(JOBS.c.id, JOBS.c.user, JOBS.c.body).where(JOBS.c.id > last)
        rows = connection.execute(some.order_by(JOBS.c.id).limit(AT_ONCE)).all()
        yield rows
        last = rows[-1].id if rows else None


def _without_environment(job: Body, user: str) -> tuple[Body, Body | None]:
    """Also the row of its environment; None if it has none."""
    try:
        spec = job["spec"]
        env, uid = spec["env"], spec["uid"]
        telling = [[name, value] for name, value in env if name in TELLING]
        content = to_json(env)
        id = blake2b(b"%d " % uid + content, digest_size=20).hexdigest()
        str.encode(user)
    except (ValueError, LookupError, TypeError):
        return job, None
    if not env:
        return job, None
    spec["env"], spec["environment"] = telling, {"id": id, "bytes": len(content)}
    return job, {"id": id, "user": user, "bytes": len(content), "body": content.decode()}


def _moves(connection: sa.Connection, ids: Sequence[int]) -> dict[int, list[Move]]:
    found = defaultdict(list)
    its = TRANSITIONS.c
    columns = sa.select(its.job, its.at, its.before, its.after, its.attempt)
    for job, *move in connection.execute(columns.where(its.job.in_(ids)).order_by(its.id)):
        found[job].append(tuple(move))
    return found


def _placements(connection: sa.Connection, ids: Sequence[int]) -> dict[int, list[Placed]]:
    """Most decisions are to wait: one at a time, as a job may have thousands."""
    found = defaultdict(list)
    its = DECISIONS.c
    rows = sa.select(its.job, its.at, its.body).where(its.job.in_(ids)).order_by(its.id)
    for job, at, body in connection.execute(rows):
        try:
            gpus = from_json(body)["placement"]["gpus"]
        except (ValueError, LookupError, TypeError):
            continue
        if gpus:
            found[job].append((at, gpus))
    return found

"""Environments of jobs have a table of their own, each content of a user once; and each job counts
what it takes of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import sqlalchemy as sa
from alembic import op
from pydantic_core import from_json, to_json

revision = "0002"
down_revision = "0001"

AT_ONCE = 16  # rows, of which each may have an environment of 1 MiB
TELLING = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

JOBS = sa.table(
    "jobs",
    *map(sa.column, ("id", "user", "environment", "bytes", "body")),
)


def upgrade() -> None:
    environments = op.create_table(
        "environments",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_environments"),
    )
    op.create_index("ix_environments_user", "environments", ["user"])
    op.add_column("jobs", sa.Column("environment", sa.Text()))
    op.add_column("jobs", sa.Column("bytes", sa.Integer(), server_default="0", nullable=False))
    op.create_index("ix_jobs_environment", "jobs", ["environment"])
    op.create_index("ix_jobs_user_ended_at_bytes", "jobs", ["user", "ended_at", "bytes"])
    connection = op.get_bind()
    insert = sa.insert(environments).prefix_with("OR IGNORE")
    connection.execute(sa.update(JOBS).values(bytes=sa.func.length(JOBS.c.body)))
    for row in _rows(connection):
        if parted := _parted(row):
            job, environment = parted
            connection.execute(insert, environment)
            new = {"body": job, "bytes": len(job), "environment": environment["id"]}
            connection.execute(sa.update(JOBS).where(JOBS.c.id == row.id).values(new))


def _rows(connection: sa.Connection) -> Iterator[sa.Row[Any, Any, Any]]:
    last: int | None = -1
    while last is not None:
        some = sa.select(JOBS.c.id, JOBS.c.user, JOBS.c.body).where(JOBS.c.id > last)
        rows = connection.execute(some.order_by(JOBS.c.id).limit(AT_ONCE)).all()
        yield from rows
        last = rows[-1].id if rows else None


def _parted(row: sa.Row[Any, Any, Any]) -> tuple[str, dict[str, Any]] | None:
    """A job without its environment, and that; None where it has none, and for what is no job,
    which is left for who reads it to say."""
    try:
        job = from_json(row.body)
        spec = job["spec"]
        env, uid = spec["env"], spec["uid"]
        telling = [[name, value] for name, value in env if name in TELLING]
        content = to_json(env)
        id = blake2b(b"%d " % uid + content, digest_size=20).hexdigest()
        str.encode(row.user)
    except (ValueError, LookupError, TypeError):
        return None
    if not env:
        return None
    spec["env"], spec["environment"] = telling, {"id": id, "bytes": len(content)}
    environment = {"id": id, "user": row.user, "bytes": len(content), "body": content.decode()}
    return to_json(job).decode(), environment

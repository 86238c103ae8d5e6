"""Every table of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("array", sa.Integer()),
        sa.Column("submitted_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float()),
        sa.Column("ended_at", sa.Float()),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text()),
        sa.Column("gpu_seconds", sa.Float(), nullable=False),
        sa.Column("energy_j", sa.Float(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_user_id", "jobs", ["user", "id"])
    op.create_index("ix_jobs_array", "jobs", ["array"])
    op.create_index("ix_jobs_ended_at", "jobs", ["ended_at"])
    op.create_table(
        "transitions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("before", sa.Text()),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name="fk_transitions_job", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_transitions"),
    )
    op.create_index("ix_transitions_job", "transitions", ["job"])
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_at", "events", ["at"])
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_decisions_job", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
    )
    op.create_index("ix_decisions_job", "decisions", ["job"])
    op.create_table(
        "drains",
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("gpu", name="pk_drains"),
    )
    op.create_table(
        "samples",
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("memory_used_mib", sa.Integer()),
        sa.Column("memory_free_mib", sa.Integer()),
        sa.Column("sm_active", sa.Float()),
        sa.Column("sm_occupancy", sa.Float()),
        sa.Column("dram_active", sa.Float()),
        sa.Column("utilization", sa.Float()),
        sa.Column("power_w", sa.Float()),
        sa.Column("energy_mj", sa.Integer()),
        sa.Column("temperature_c", sa.Integer()),
        sa.PrimaryKeyConstraint("at", "gpu", name="pk_samples"),
        sqlite_with_rowid=False,
    )

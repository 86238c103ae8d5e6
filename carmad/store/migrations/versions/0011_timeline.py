"""What timelines show is kept over a restart, in place of half-minute averages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "timeline",
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("gpu", "start", name="pk_timeline"),
    )
    op.drop_table("samples")

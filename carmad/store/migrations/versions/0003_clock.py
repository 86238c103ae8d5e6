"""What the daemon's clock was read off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "clock",
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("ahead_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("boot_id", name="pk_clock"),
    )

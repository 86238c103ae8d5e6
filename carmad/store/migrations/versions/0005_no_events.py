"""Without the log of events, which nothing read: the journal has them all."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.drop_index("ix_events_at", "events")
    op.drop_table("events")

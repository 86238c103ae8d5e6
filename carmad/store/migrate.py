"""Creates a database's tables, upgrades those of an older release, refuses those of a newer one."""

from __future__ import annotations

from functools import cache

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import coerce_resource_to_filename
from sqlalchemy import Connection

from carmad.errors import Hopeless
from carmad.store.tables import METADATA

SCRIPTS = "carmad.store:migrations"


def revision(connection: Connection) -> str | None:
    """The revision of the tables; None for a database without tables."""
    return MigrationContext.configure(connection).get_current_revision()


def pending(current: str | None) -> bool:
    """Whether tables at revision `current` have to be upgraded."""
    scripts = _scripts(SCRIPTS)
    if current not in {None, *(script.revision for script in scripts.walk_revisions())}:
        raise Hopeless(
            f"the database was made by a newer release of CARMA (schema {current})",
            "Install that release again, or restore a backup made by this one.",
        )
    return current != scripts.get_current_head()


def create(connection: Connection) -> None:
    """Create the tables of this release, the same that all migrations together make."""
    METADATA.create_all(connection, checkfirst=False)
    MigrationContext.configure(connection).stamp(_scripts(SCRIPTS), "head")


def upgrade(connection: Connection) -> None:
    """Runs in the caller's transaction: a failed migration leaves no trace."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@cache
def _scripts(location: str) -> ScriptDirectory:
    """Once per process, as it imports every migration."""
    return ScriptDirectory(coerce_resource_to_filename(location))


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    return config

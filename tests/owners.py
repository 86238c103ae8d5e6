"""Users of tests, as the core knows them."""

from __future__ import annotations

from carma_testing import a_spec
from carmad.core.jobs.spec import Owner

UID = a_spec().uid


def who(user: str) -> Owner:
    """Whose jobs those of `a_spec(user=…)` are."""
    return Owner(UID, user)

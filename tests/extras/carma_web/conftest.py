"""What the tests of `carma web` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon import Carmad
from tests.extras.carma_web.web import Web, serving


@pytest.fixture(scope="module")
def web(carmad: Carmad) -> Iterator[Web]:
    with serving(carmad) as web:
        yield web

"""The API conforms to its OpenAPI schema, whatever is sent to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from carmad.http.connections import Credentials
from tests.api_server import AsUser, Daemon

NOBODY = 65534
EXCLUDED = [
    checks.positive_data_acceptance,  # a well-formed id need not be that of a job
    checks.ignored_auth,  # there is none in the message
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("api"))
    daemon.start()
    daemon.call("POST", "/v1/jobs", {"argv": ["true"], "cwd": "/"})
    yield daemon
    daemon.stop()


@pytest.mark.parametrize("mode", GenerationMode)
def test_every_answer_is_as_documented(daemon: Daemon, mode: GenerationMode) -> None:
    """To an administrator and to another user, who are sent the same: making it up takes longer
    than answering it."""
    app = AsUser(daemon.app, os.geteuid())
    api = schemathesis.openapi.from_asgi("/v1/openapi.json", app)
    api = api.exclude(path="/v1/doctor")  # it takes a second
    api = api.exclude(path="/v1/events")  # it never ends
    if mode is GenerationMode.NEGATIVE:
        api = api.exclude(path="/v1/jobs/{label}/wait")  # wrong in part, it may still wait
    tried = 0
    for found in api.get_all_operations():
        operation = found.ok()
        tried += 1

        @settings(
            max_examples=3,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def keeps_its_promises(case: schemathesis.Case) -> None:
            if mode is GenerationMode.POSITIVE:  # lead it to what there is
                there = {
                    "label": "1",
                    "ref": "0",
                    "name": "packing",
                    "id": "1",
                    "subject": "default",
                }
                case.path_parameters = {name: there[name] for name in case.path_parameters or {}}
                if case.path.endswith("/wait"):
                    case.query = {"timeout_s": 0}
                if isinstance(case.body, dict) and "select" in case.body:
                    case.body["select"] = "1-3,last"
            for uid in (os.geteuid(), NOBODY):
                app.credentials = Credentials(uid, uid)
                case.call_and_validate(excluded_checks=EXCLUDED)

        try:
            keeps_its_promises()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # it takes nothing that could be wrong
    assert tried >= 16

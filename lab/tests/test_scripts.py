"""Training scripts that need packages which may be missing: traced, or refused by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from carma_testing import a_spec
from carmad.plugin import Refusal
from estimators.look import look
from estimators.tracer.report import Report
from lab.memory.scripts import PATIENT, SCRIPTS, Here
from tests.warm_tracer import Tracers


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    with closing(Tracers()) as tracers:
        yield Here(tracers)


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "package"),
    [
        ("peft_lora.py", "peft"),
        ("bnb_adam8bit.py", "bitsandbytes"),
        ("bnb_4bit.py", "bitsandbytes"),
        ("deepspeed_zero2.py", "deepspeed"),
    ],
)
def test_packages_that_may_be_missing(
    script: str, package: str, here: Here, tmp_path: Path
) -> None:
    rank = (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"))
    env = (*rank, ("MASTER_PORT", "29500")) if package == "deepspeed" else ()
    spec = a_spec(argv=(sys.executable, str(SCRIPTS / script)), cwd=str(tmp_path), env=env)
    answer = look(spec, PATIENT, here)
    assert not any(tmp_path.iterdir()), "it left something behind"
    if find_spec(package) is None:
        assert isinstance(answer, Refusal), answer
        assert f"No module named '{package}'" in answer.why
    else:
        assert isinstance(answer, Report), answer
        assert answer.steps == 2

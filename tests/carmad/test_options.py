"""The table of options: one entry is all that an option needs, and entries are complete."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from carmad.api.job import ANSWERED
from carmad.api.requests import SubmitIn
from carmad.core.jobs.spec import JobSpec
from carmad.options import OPTIONS
from cli import parse, render
from tests import fake_daemon as fake
from tests.cli.test_cli_render import plain

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made_up() -> dict[str, Any]:
    """The effects of the option that `one_more_option` adds."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.one_more_option"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_one_entry_makes_an_option_of_the_command_line(made_up: dict[str, Any]) -> None:
    assert "--warm-up TIME" in made_up["help"] and "a made-up option" in made_up["help"]
    assert " --warm-up " in made_up["completion"]


def test_it_is_stored_from_the_command_line_and_from_a_script(made_up: dict[str, Any]) -> None:
    assert made_up["stored"] == [300.0, 90.0, 420.0, None]


def test_its_limits_hold_in_a_request(made_up: dict[str, Any]) -> None:
    status, answer = made_up["out of limits"]
    assert (status, answer["code"]) == (422, "bad_request")
    assert answer["error"] == "--warm-up should be greater than 0"


def test_it_is_answered_and_shown(made_up: dict[str, Any]) -> None:
    assert made_up["answer"] == 300.0
    given, not_given = made_up["show"]
    assert [line.split() for line in given.splitlines() if "warm" in line] == [["warm-up", "5:00"]]
    assert "warm" not in not_given


def test_it_is_in_the_reference(made_up: dict[str, Any]) -> None:
    pages = made_up["pages"]
    assert "| `--warm-up TIME` | a made-up option |" in pages["reference/commands.md"]
    assert pages["reference/http-api.md"].count("`warm_up_s`") == 3, (
        "in two requests, and in an answer"
    )


def test_jobs_that_differ_in_it_share_an_estimate(made_up: dict[str, Any]) -> None:
    assert made_up["one estimate"]


def test_no_two_options_share_a_word() -> None:
    flags = Counter(flag for option in OPTIONS.values() for flag in option.flags)
    assert set(flags.values()) == {1}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_entry_is_whole(name: str) -> None:
    option = OPTIONS[name]
    assert option.flags and option.help and option.name == name
    if not isinstance(option.default, bool):
        assert option.metavar and callable(getattr(parse, option.read))
    assert name in SubmitIn.model_fields
    assert name in {field.name for field in fields(JobSpec)} | {"held", "unless_running"}


@pytest.mark.parametrize("name", (*ANSWERED, "warn"))
def test_what_was_asked_for_is_shown(name: str) -> None:
    default = OPTIONS[name].default
    value = {
        "deadline_at": "2026-11-20T12:00:00.000Z",
        "begin_at": "2026-11-20T12:00:00.000Z",
        "conda_env": "ml",
        "warn": {"signum": 12, "before_s": 60.0},
    }.get(name, not default if isinstance(default, bool) else 4242)
    assert plain(render.show(fake.waiting(**{name: value}))) != plain(
        render.show(fake.waiting(**{name: default}))
    )

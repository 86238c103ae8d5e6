"""Options of a job as fields of a form, and the command line that they stand for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from carma_web import forms
from carma_web.forms import carma
from carma_web.page import shares, templates
from carmad.errors import CarmaError
from carmad.options import OPTIONS
from cli.problems import Refused
from cli.submission import read
from tests.api_server import Daemon
from tests.api_server import running as serving

GIVEN = {
    "gpus": "2",
    "memory_mib": "4000M",
    "time_limit_s": "1:00:00",
    "name": "--strange name",
    "exclusive": "yes",
    "requeue": "no",
    "nice": "-5",
    "notify": "end,oom",
    "warn": "USR2@120",
    "stage_times": "load=10ms forward=37ms backward=76ms",
}
COMMAND = "python3 -c 'print(1)' --gpus 7"


def test_fields_are_the_words_of_carma_submit() -> None:
    _, body = read(forms.to_submit({**GIVEN, "command": COMMAND, "export": "A=1,2\nB=3"}))
    assert body["argv"] == ["python3", "-c", "print(1)", "--gpus", "7"]
    assert (body["gpus"], body["memory_mib"], body["time_limit_s"]) == (2, 4000, 3600)
    assert (body["name"], body["nice"], body["requeue"]) == ("--strange name", -5, False)
    assert body["exclusive"] and not body["urgent"] and len(body["stage_times"]) == 1
    assert body["export"] == {"A": "1,2", "B": "3"}


def test_every_option_has_a_field_once() -> None:
    shown = [field.name for field in forms.first()]
    shown += [field.name for _, its in forms.sections() for field in its]
    assert sorted(shown) == sorted([*OPTIONS, *forms.BESIDE])


def test_a_job_is_submitted_again_as_it_was(tmp_path: Path) -> None:
    words = forms.to_submit({**GIVEN, "command": COMMAND})
    words.remove("--notify=end,oom")
    _, body = read(words)
    with serving(tmp_path) as daemon:
        status, out = daemon.call("POST", "/v1/jobs", {**body, "cwd": "/", "gpus": 1})
        assert status == 201, out
        job = daemon.call("GET", f"/v1/jobs/{out['id']}")[1]
    again = read(forms.to_submit(forms.of_job(job)))[1]  # type: ignore[arg-type]
    same = [
        name
        for name in OPTIONS
        if name not in ("gpus", "stdout", "stderr", "notify", "stage_times")
    ]
    for one, its in zip(again.pop("stage_times"), body["stage_times"], strict=True):
        assert one.items() >= its.items()  # and what is not said otherwise
    assert {name: again[name] for name in same} == {name: body[name] for name in same}
    assert again["argv"] == body["argv"]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--time=soon", "--", "true"], "time_limit_s"),
        (["--gpu-mem=1x", "--", "true"], "memory_mib"),
        (["--no-such", "--", "true"], ""),
        (["--"], "command"),
    ],
)
def test_an_error_of_carma_is_told_at_its_field(words: list[str], field: str) -> None:
    with pytest.raises(CarmaError) as caught:
        carma(["submit", "--json", "--dry-run", *words], Path("/"))
    assert isinstance(caught.value, Refused) and forms.at_fault(str(caught.value)) == field


def test_messages_speak_of_fields() -> None:
    said = "argument -t/--time: 'x' is not a time; see --gpu-mem, --no-requeue and --chdir"
    assert forms.in_fields(said) == (
        "“Time limit”: 'x' is not a time; see “Memory per GPU”, “Requeue: no” and"
        " “Directory to run in”"
    )
    for other in ("python -c pass", "carma submit --parsable", "a--time", "x --time-lost"):
        assert forms.in_fields(other) == other
    for field in [*forms.first(), *(field for _, its in forms.sections() for field in its)]:
        assert not re.search(r"--[a-z]", forms.in_fields(field.help)), field


def test_what_can_be_done_follows_the_state(tmp_path: Path) -> None:
    def able(daemon: Daemon, id: int) -> Any:
        job = daemon.call("GET", f"/v1/jobs/{id}")[1]
        return set(job["actions"]), set(job["changeable"])

    with serving(tmp_path) as daemon:
        body = {"argv": ["true"], "cwd": "/", "memory_mib": 4000}
        one = daemon.call("POST", "/v1/jobs", body)[1]["id"]
        assert able(daemon, one) == (
            {"cancel"},
            {"time_limit_s", "requeue", "retry_on", "requeue_ok", "comment", "idle_ok"},
        )
        held = daemon.call("POST", "/v1/jobs", {**body, "held": True})[1]["id"]
        actions, changes = able(daemon, held)
        assert actions == {"cancel", "release"} and "memory_mib" in changes
        daemon.call("POST", "/v1/cancel", {"select": str(held)})
        assert able(daemon, held) == ({"requeue"}, set())


def test_an_estimate_is_drawn_by_its_parts() -> None:
    found = shares({"parameters": 300, "<b>": 100, "cached": 0})
    assert [(one.begin, one.width) for one in found] == [(0.0, 75.0), (75.0, 25.0)]
    html = str(templates().get_template("words.html.j2").module.made_of(found))
    assert 'x="75.0" width="25.0"' in html and "&lt;b&gt;" in html and "300M" in html

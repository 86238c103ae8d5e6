"""An agent's tools: what they may change, whom they ask, and how short their answers are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mcp.client import Client
from mcp_types import ElicitRequestParams, ElicitResult

from carma_agents.asking import about_jobs, about_request
from carma_agents.changing import NATURE
from carma_agents.limits import Limits, as_jobs
from carma_agents.reading import MOST_OF_STATUS, READ
from carma_agents.server import server
from carmad.errors import CarmaError
from cli.main import run
from tests.aio import run_async
from tests.fake_daemon import STATUS, FakeDaemon, ended, gpu, job, private, waiting

MODES = ("legacy", "2026-07-28")  # of the protocol: they ask in different ways
NO = ElicitResult(action="decline")
YES = ElicitResult(action="accept", content={"yes": True})


def call(tool: str, *, mode: str = "legacy", answer: Any = None, **options: Any) -> Any:
    """The result of a call. `answer`: the person's; without one the program cannot ask.
    `meanwhile`: what happens while they think."""
    arguments = options.pop("arguments")
    asked: list[str] = options.pop("asked_for", [])
    meanwhile: Callable[[], object] = options.pop("meanwhile", lambda: None)

    async def ask(context: object, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        meanwhile()
        return answer

    async def talk() -> Any:
        made = server(**options)
        async with Client(made, mode=mode, elicitation_callback=answer and ask) as client:
            return await client.call_tool(tool, arguments)

    return run_async(talk())


def text_of(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


# -- which tools there are


def test_a_program_is_told_what_may_do_harm() -> None:
    async def look() -> Any:
        async with Client(server(tuple(NATURE))) as client:
            return (await client.list_tools()).tools, client.server_info

    tools, about = run_async(look())
    hints = {tool.name: tool.annotations for tool in tools}
    assert about.version
    assert all(hints[read.__name__].read_only_hint for read in READ)
    assert {name for name, its in hints.items() if its.destructive_hint} == {
        *("submit", "cancel", "release", "requeue")
    }
    assert {name for name, its in hints.items() if its.open_world_hint} == {
        *("submit", "release", "requeue")
    }
    assert not any(hints[verb].read_only_hint for verb in NATURE)
    assert not (hints["submit"].idempotent_hint or hints["requeue"].idempotent_hint)
    for tool in tools:
        Draft202012Validator.check_schema(tool.output_schema)
        assert tool.output_schema["type"] == "object"


# -- short answers


def test_the_status_of_a_full_server_is_short(fake: FakeDaemon) -> None:
    residents = gpu()["jobs"] * 4
    gpus = [gpu(index, jobs=residents, conditions=[]) for index in range(8)]
    mine = [waiting(id=n, label=str(n)) for n in range(1000, 1200)]
    theirs = [private(job(id=n, label=str(n), user="bob")) for n in range(2000, 2032)]
    fake.answers["GET", "/v1/status"] = STATUS | {"gpus": gpus, "jobs": [*theirs, *mine]}
    result = call("status", arguments={})
    told = json.loads(text_of(result))
    assert len(text_of(result)) <= MOST_OF_STATUS
    assert told == result.structured_content
    assert len(told["gpus"]) == 8 and "left_out" not in told
    assert told["gpus"][0]["jobs"] == ["42"] * 4
    assert told["yours"]["queued"][0] == "1000"


def test_of_a_larger_server_the_first_gpus_are_told(fake: FakeDaemon) -> None:
    fake.answers["GET", "/v1/status"] = STATUS | {"gpus": [gpu(n % 8) for n in range(64)]}
    told = json.loads(text_of(call("status", arguments={})))
    assert told["left_out"]["gpus"] == 64 - len(told["gpus"]) > 0


@pytest.mark.parametrize("count", [1, 9, 64])
def test_every_gpu_can_be_seen(fake: FakeDaemon, count: int) -> None:
    faults = [{"kind": "x", "message": "drain the GPU and reset it: " + "nvidia-smi " * 20}]
    gpus = [gpu(n % 8) | {"index": n, "conditions": faults[n % 5 :]} for n in range(count)]
    mine = [
        waiting(id=n, label=str(n), state=state)
        for n in range(1000, 1020)
        for state in ("queued", "pending", "running")
    ]
    fake.answers["GET", "/v1/status"] = STATUS | {"gpus": gpus, "jobs": mine}
    seen: list[int] = []
    left_out = count
    while left_out:
        first = seen[-1] + 1 if seen else 0
        answer = text_of(call("status", arguments={"first_gpu": first}))
        assert len(answer) <= MOST_OF_STATUS
        told = json.loads(answer)
        shown = [each["index"] for each in told["gpus"]]
        assert shown, "or an agent would ask for ever"
        seen += shown
        left_out = told.get("left_out", {}).get("gpus", 0)
    assert seen == list(range(count))


def test_the_past_is_searched(fake: FakeDaemon) -> None:
    arguments = {"search": "lr=1e-3 gpt", "states": "failed", "limit": 5}
    told = json.loads(text_of(call("history", arguments=arguments)))
    assert fake.query == {"text": "lr=1e-3 gpt", "states": "failed", "limit": "5"}
    assert told["jobs"][0]["exit"]["cause"] == "success"
    assert "argv" not in told["jobs"][0], "a list has what an agent needs of each"


@pytest.mark.parametrize("name", [42, "42"])
def test_a_job_is_named_by_a_number_or_its_label(fake: FakeDaemon, name: object) -> None:
    assert json.loads(text_of(call("job", arguments={"job": name})))["label"] == "42"


# -- what a session may change


def request(cwd: object = "/", **changes: Any) -> dict[str, Any]:
    asked = {"cwd": str(cwd), "stdout": None, "stderr": None, "array": None}
    return asked | {"gpus": 1, "time_limit_s": 3600.0} | changes


def own(cwd: Path, **changes: Any) -> dict[str, Any]:
    logs = str(cwd / "carma-42.out")
    return job(**{"cwd": str(cwd), "stdout": logs, "stderr": logs} | changes)


def test_jobs_stay_in_their_folders(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine-too"
    for folder in (mine, other):
        folder.mkdir()
    (mine / "way-out").symlink_to(other)
    limits = Limits([mine])
    limits.check_request(request(mine))
    limits.check_request(request(mine / "run", stdout="logs/%j.out"))
    limits.check_jobs([own(mine), private(job())])
    assert str(mine) in str(limits)
    for refused in (
        request(other),
        request(tmp_path),
        request(mine / "way-out"),
        request(mine, stdout=str(other / "log")),
        request(mine, stderr="../log"),
    ):
        with pytest.raises(CarmaError, match="this session is limited to") as caught:
            limits.check_request(refused)
        assert "--folder" in str(caught.value.hint)
    for its, refusal in (
        (own(other), "job 42 works in"),
        (own(mine, stdout=str(other / "log")), "stdout of job 42 goes to"),
        (own(mine, stderr=str(mine / "way-out/log")), "stderr of job 42 goes to"),
    ):
        with pytest.raises(CarmaError, match=refusal):
            limits.check_jobs([its])


def test_gpu_hours_are_counted_by_time_limits() -> None:
    limits = Limits(gpu_hours=10)
    with limits.spend("submit", as_jobs(request(gpus=2, time_limit_s=7200.0))):
        pass
    assert limits.spent() == "4 of this session's 10 GPU-hours are used"
    with limits.spend("submit", as_jobs(request(gpus=0, time_limit_s=None))):
        pass
    for refused, why in (
        (request(gpus=7), "7 GPU-hours, and this session has 6 left of 10"),
        (request(array={"indices": list(range(7))}), "7 GPU-hours"),
        (request(time_limit_s=None), "without a time limit cannot be counted"),
    ):
        with pytest.raises(CarmaError, match=why) as caught:
            limits.check_time("submit", as_jobs(refused))
        assert "--time" in str(caught.value.hint)
    assert limits.spent().startswith("4 of")


def test_what_carmad_refuses_is_not_counted() -> None:
    limits = Limits(gpu_hours=1)
    with pytest.raises(CarmaError, match="no"), limits.spend("submit", as_jobs(request())):
        raise CarmaError("no", "")
    assert limits.spent().startswith("0 of")


def test_what_carmad_does_not_do_is_not_counted(fake: FakeDaemon) -> None:
    limits = Limits(gpu_hours=3)
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": [job()]}
    fake.answers["POST", "/v1/requeue"] = {
        "schema": 1,
        "results": [{"id": 42, "label": "42", "ok": False, "message": "it still runs"}],
    }
    told = call("requeue", arguments={"job": 42}, allowed=["requeue"], limits=limits)
    assert told.structured_content["results"][0]["message"] == "it still runs"
    assert limits.spent().startswith("0 of")


def test_of_an_array_only_the_tasks_that_run_again_are_counted(fake: FakeDaemon) -> None:
    limits = Limits(gpu_hours=10)
    tasks = [
        ended(code, id=n, label=f"7_{n}", time_limit_s=3600.0) for n, code in enumerate((0, 3))
    ]
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": tasks}
    done = [{"id": task["id"], "label": task["label"], "ok": True, "message": ""} for task in tasks]
    fake.answers["POST", "/v1/requeue"] = {"schema": 1, "results": done}
    assert not call("requeue", arguments={"job": 7}, allowed=["requeue"], limits=limits).is_error
    assert limits.spent().startswith("1 of")
    named = {"job": "7_[0-1]"}
    assert not call("requeue", arguments=named, allowed=["requeue"], limits=limits).is_error
    assert limits.spent().startswith("2 of"), "both are named, and one is counted already"


def test_a_session_submits_no_more_than_it_may(fake: FakeDaemon, tmp_path: Path) -> None:
    limits = Limits([tmp_path], 2)
    here = ["--chdir", str(tmp_path), "--time", "1h", "true"]
    options: dict[str, Any] = {"allowed": ("submit", "requeue", "release"), "limits": limits}
    assert not call("submit", arguments={"words": here}, **options).is_error
    assert fake.body["time_limit_s"] == 3600
    elsewhere = call("submit", arguments={"words": ["--chdir", "/", *here[2:]]}, **options)
    assert "--chdir" in text_of(elsewhere) and str(tmp_path) in text_of(elsewhere)
    of_another = call("requeue", arguments={"job": 42}, **options)
    assert "job 42 works in /home/alice" in text_of(of_another)

    its = own(tmp_path, time_limit_s=3600.0, held=True)
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": [its]}
    assert not call("release", arguments={"job": 42}, **options).is_error, "it is counted already"
    assert not call("requeue", arguments={"job": 42}, **options).is_error
    assert "this session has 0 left of 2" in text_of(
        call("submit", arguments={"words": here}, **options)
    )
    assert not call("requeue", arguments={"job": 42}, **options).is_error, "it is counted already"
    fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": [its | {"attempt": 2}]}
    assert "this session has 0 left of 2" in text_of(
        call("requeue", arguments={"job": 42}, **options)
    )


def test_a_job_that_is_released_is_counted_once(fake: FakeDaemon) -> None:
    """Those of another session cost what they may take, and nothing if they are not held."""
    limits = Limits(gpu_hours=10)
    held = [job(id=n, label=f"7_{n}", held=True, time_limit_s=3600.0) for n in (7, 8)]
    done = {"id": 7, "label": "7_[0-1]", "ok": True, "message": "released", "count": 2}
    refused = {"id": 9, "label": "9", "ok": False, "message": "has ended"}
    fake.answers["POST", "/v1/release"] = {"schema": 1, "results": [done, refused]}
    ended = job(id=9, held=True, time_limit_s=3600.0)
    for jobs, hours in (([job(id=7)], 0), (held[:1], 1), ([*held, ended], 2), (held, 2)):
        fake.answers["GET", "/v1/jobs"] = {"schema": 1, "jobs": jobs}
        result = call("release", arguments={"job": 7}, allowed=["release"], limits=limits)
        assert not result.is_error, text_of(result)
        assert limits.spent().startswith(f"{hours} of")
    listings = [query for _, path, query, _ in fake.asked if path == "/v1/jobs"]
    assert all(query.get("fold", "false").lower() == "false" for query in listings), listings


@pytest.mark.parametrize("name", ["all", "7,8", "7-7", "7_[1-2],8"])
def test_a_call_is_about_one_job(fake: FakeDaemon, name: str) -> None:
    for verb in ("cancel", "hold", "release", "requeue"):
        result = call(verb, arguments={"job": name}, allowed=[verb])
        assert result.is_error
        assert "may name several jobs, and a call is about one" in text_of(result)
    assert fake.asked == []


@pytest.mark.parametrize("name", ["42", "42_1", "42_[1-3,7]", "42_[1-3%2]"])
def test_tasks_of_one_array_are_one_call(fake: FakeDaemon, name: str) -> None:
    assert not call("hold", arguments={"job": name}, allowed=["hold"]).is_error
    assert fake.body == {"select": name}


def test_a_folder_that_is_not_there_is_refused(capsys: Any) -> None:
    assert run(["mcp", "--folder", "/no/such"]) == 2
    assert run(["mcp", "--max-gpu-hours", "many"]) == 2
    err = capsys.readouterr().err
    assert "is not a directory" in err and "is not a number of hours" in err


# -- words that ask for help


@pytest.mark.parametrize("prefix", ["#CARMA", "#SBATCH"])
@pytest.mark.parametrize("words", ["--help", "-h", "-Qh", "--gpus 2 --help"])
def test_a_script_cannot_ask_for_help(
    fake: FakeDaemon, tmp_path: Path, capsys: Any, prefix: str, words: str
) -> None:
    """The parser would print it where the protocol is spoken, and end the session."""
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n{prefix} {words}\necho hi\n")
    for tool in ("what_if", "submit", "estimate"):
        result = call(tool, arguments={"words": [str(script)]}, allowed=["submit", "estimate"])
        assert result.is_error
        assert f"job.sh:2: a {prefix} line cannot ask for help" in text_of(result)
    assert fake.asked == []
    assert capsys.readouterr().out == ""


def test_a_script_may_use_the_word_for_help_as_a_value(fake: FakeDaemon, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#CARMA --name=-h -J--help\necho hi\n")
    result = call("submit", arguments={"words": [str(script)]}, allowed=["submit"])
    assert not result.is_error, text_of(result)


@pytest.mark.parametrize("words", [["--help"], ["-Qh", "true"], ["--gpus", "2", "-h"]])
def test_who_asks_for_help_gets_it(fake: FakeDaemon, capsys: Any, words: list[str]) -> None:
    assert "--gpu-mem" in text_of(call("what_if", arguments={"words": words}))
    assert capsys.readouterr().out == ""


def test_what_ends_a_command_does_not_end_the_session(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carma_agents.reading.complete", lambda *_: sys.exit(3))
    result = call("what_if", arguments={"words": ["true"]})
    assert result.is_error and "exit code 3" in text_of(result)


# -- questions


@pytest.mark.parametrize("mode", MODES)
def test_a_person_is_asked_before_a_job_is_submitted(fake: FakeDaemon, mode: str) -> None:
    words = ["--gpus", "2", "--time", "90m", "--chdir", "/", "sh", "-c", "echo a; ls"]
    questions: list[str] = []
    options: dict[str, Any] = {"arguments": {"words": words}, "mode": mode, "asked": ["submit"]}

    def posted() -> list[Any]:
        return [body for method, path, _, body in fake.asked if (method, path) == SUBMIT]

    for answer in (NO, ElicitResult(action="cancel"), YES_BUT_NO):
        refused = call("submit", answer=answer, **options)
        assert refused.is_error and "did not agree to submit" in text_of(refused)
    assert posted() == []
    done = call("submit", answer=YES, asked_for=questions, **options)
    assert done.structured_content["label"] == "42"
    assert [body["gpus"] for body in posted()] == [2]
    assert questions == [
        "Run `carma submit --gpus 2 --time 90m --chdir / sh -c 'echo a; ls'` in /?"
        " 2 GPUs, at most 3 GPU-hours"
    ]


@pytest.mark.parametrize("changed", ["echo other\n", "#CARMA --gpus 3\n#CARMA --chdir /\necho\n"])
@pytest.mark.parametrize("mode", MODES)
def test_no_job_is_submitted_but_the_one_that_was_asked_about(
    fake: FakeDaemon, tmp_path: Path, mode: str, changed: str
) -> None:
    """The script changes while the question is open. Where the job is read again after the answer,
    the question is put again, too."""
    script = tmp_path / "job.sh"
    texts = ["#!/bin/sh\necho first\n", f"#!/bin/sh\n{changed}"]
    script.write_text(texts[0])
    questions: list[str] = []
    result = call(
        "submit",
        arguments={"words": [str(script)]},
        mode=mode,
        answer=YES,
        asked=["submit"],
        asked_for=questions,
        meanwhile=lambda: script.write_text(texts[1]),
    )
    assert not result.is_error, text_of(result)
    (body,) = (body for method, path, _, body in fake.asked if (method, path) == SUBMIT)
    gpus = body["gpus"]
    assert f"{gpus} GPU" in questions[-1] and f"in {body['cwd']}?" in questions[-1]
    assert body["script"]["text"] == texts[len(questions) - 1]
    assert len(questions) == (1 if mode == "legacy" else 2)


SUBMIT = ("POST", "/v1/jobs")
YES_BUT_NO = ElicitResult(action="accept", content={"yes": False})


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_cannot_ask_does_nothing(fake: FakeDaemon, mode: str) -> None:
    result = call("cancel", arguments={"job": 42}, mode=mode, asked=["cancel"])
    assert result.is_error and "carma mcp --allow cancel" in text_of(result)
    assert [path for _, path, _, _ in fake.asked if path == "/v1/cancel"] == []


def test_whoever_may_and_is_asked_is_asked(fake: FakeDaemon) -> None:
    result = call("hold", arguments={"job": 42}, answer=NO, allowed=["hold"], asked=["hold"])
    assert result.is_error
    assert not call("hold", arguments={"job": 42}, answer=YES, asked=["hold"]).is_error
    assert fake.body == {"select": "42"}


def test_what_would_be_refused_is_not_asked(fake: FakeDaemon) -> None:
    questions: list[str] = []
    result = call(
        "submit",
        arguments={"words": ["--time", "2h", "true"]},
        answer=YES,
        asked_for=questions,
        asked=["submit"],
        limits=Limits(gpu_hours=1),
    )
    assert "this session has 1 left of 1" in text_of(result)
    assert questions == []


def test_a_question_shows_all_that_is_asked_for() -> None:
    hidden = "\u202eab\u200b"
    words = ["--export", "LD_PRELOAD=x.so", "python", f"{hidden} c"]
    asked = about_request("submit", words, request("/run"), "1 of 2 are used")
    assert "--export LD_PRELOAD=x.so" in asked and asked.endswith("1 of 2 are used")
    assert not set(hidden) - set("ab") & set(asked)
    many = [waiting(id=n, label=str(n), argv=["x", hidden]) for n in range(7)]
    asked = about_jobs("release", "0-6", many, "")
    assert "and 2 more" in asked and "7 GPUs, without a time limit" in asked
    assert not set(hidden) - set("ab") & set(asked)


# -- estimates


def estimating(fake: FakeDaemon, say: Callable[[list[str]], Any]) -> None:
    def answer(method: str, target: str, body: Any) -> tuple[int, Any]:
        assert target.startswith("/v1/estimate")
        return 200, say(body["argv"])

    fake.answer = answer  # type: ignore[method-assign]


def canned(fake: FakeDaemon, mib: int | None, **changes: Any) -> Any:
    (one,) = fake.answers["POST", "/v1/estimate"]["estimates"]
    estimate = one | {"source": "trace", "mib": mib, "low": mib, "high": mib}
    estimate |= {"chosen": mib is not None, "why": None if mib else "it stops"}
    return fake.answers["POST", "/v1/estimate"] | {"estimates": [estimate]} | changes


def test_an_estimate_says_how_much_memory_a_job_needs(fake: FakeDaemon) -> None:
    result = call("estimate", arguments={"words": ["true"]}, allowed=["estimate"])
    told = result.structured_content
    assert (told["mib"], told["safe_mib"], told["source"]) == (9000, 11000, "history")
    assert told["fits"] == [{"gpu": 0, "free_mib": 27000, "fits": True}]


def test_an_estimate_says_how_a_script_stops(fake: FakeDaemon) -> None:
    crash = "in line 3: NameError"
    estimating(fake, lambda argv: canned(fake, None, crash=crash))
    for arguments in ({"words": ["true"]}, {"words": ["true"], "fit_mib": 1000}):
        told = call("estimate", arguments=arguments, allowed=["estimate"]).structured_content
        assert (told["crash"], told["why"]) == (crash, "it stops")
        assert "mib" not in told


def test_the_largest_batch_that_fits_is_found(fake: FakeDaemon) -> None:
    tried: list[int] = []

    def say(argv: list[str]) -> Any:
        tried.append(int(argv[-1]))
        return canned(fake, 1000 + 10 * tried[-1])

    estimating(fake, say)
    words = ["true", "--batch-size", "16"]
    arguments = {"words": words, "fit_mib": 4000}
    told = call("estimate", arguments=arguments, allowed=["estimate"]).structured_content
    assert 295 <= told["largest"]["largest"] <= 300
    assert told["mib"] == 1000 + 10 * told["largest"]["largest"]
    assert told["largest"]["depends"] and len(told["largest"]["tried_mib"]) == len(set(tried))


def test_no_batch_is_sought_in_a_shells_line(fake: FakeDaemon) -> None:
    arguments = {"words": ["--wrap", "python train.py"], "fit_mib": 4000}
    result = call("estimate", arguments=arguments, allowed=["estimate"])
    assert "give the command itself" in text_of(result)
    assert fake.asked == []


def test_an_estimate_tells_what_the_memory_is_for(fake: FakeDaemon) -> None:
    remedy = {"what": "half the batch", "saved_mib": 200, "exact": False}
    found = {"modules": [], "lines": [], "remedies": [remedy], "moments": [{"mark": "step1"}]}
    estimating(fake, lambda argv: canned(fake, 9, explanation=found))
    arguments = {"words": ["true"], "explain": True}
    told = call("estimate", arguments=arguments, allowed=["estimate"]).structured_content
    assert told["uses"] == {"remedies": [remedy]}


def test_what_may_not_be_submitted_is_not_tried(fake: FakeDaemon, tmp_path: Path) -> None:
    options: dict[str, Any] = {"allowed": ["estimate"], "limits": Limits([tmp_path])}
    result = call("estimate", arguments={"words": ["--chdir", "/", "true"]}, **options)
    assert "this session is limited to" in text_of(result)
    assert fake.asked == []

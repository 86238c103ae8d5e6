"""Values that look like secrets: a job gets them, nobody is shown them, and nothing has them once
the job has ended."""

from __future__ import annotations

import errno
import gzip
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from carma_testing import a_job, a_spec
from carmad.api.requests import SubmitIn
from carmad.core.jobs.attempt import JobId
from carmad.core.messages import Step, Submitted
from carmad.http.problems import explain_invalid
from carmad.store import retention
from carmad.store.database import StoreFull
from carmad.store.secrets import SecretFiles, looks_secret, split
from carmad.store.sql import SqlStore
from tests.daemon import NO_KERNELS, Carmad, running
from tests.waiting import until

SECRET = f"hf_{uuid.uuid4().hex}"
SHELL = {"HF_TOKEN": SECRET, "PAD_TOKEN_ID": "7", "SECRET_DIM": "64"}
SCRIPT = (
    '[ "$HF_TOKEN" = "$(cat ../expected)" ] && echo right; echo $PAD_TOKEN_ID $SECRET_DIM;'
    " until [ -e go ]; do sleep 0.05; done"
)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        *((name, "x1", True) for name in ("HF_TOKEN", "WANDB_API_KEY", "my_secret_thing")),
        *((name, "x1", True) for name in ("COMET_KEY", "AWS_SECRET_ACCESS_KEY", "X_PRIVATE_KEY")),
        ("DB_PASSWORD", "123456", True),
        ("APIKEY", "5" * 24, True),
        ("HTTPS_PROXY", "http://me:pw@proxy:8080", False),
        ("PAD_TOKEN_ID", "7", False),
        ("SECRET_DIM", "64", False),
        ("DROP_TOKEN_RATE", "-0.5", False),
        ("USE_API_KEY", "true", False),
        ("HF_TOKEN", "", False),
        *((name, "x1", False) for name in ("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AWS_REGION")),
        *((name, "x1", False) for name in ("KEYBOARD", "MONKEY", "PATH")),
    ],
)
def test_what_looks_like_a_secret(name: str, value: str, secret: bool) -> None:
    assert looks_secret(name, value) is secret
    env = (("A", "1"), (name, value))
    assert split(env) == ((("A", "1"),), ((name, value),)) if secret else (env, ())


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            yield path, gzip.decompress(data) if path.suffix == ".gz" else data


def holders(daemon: Carmad) -> set[str]:
    """The files of its state and its log that contain the secret."""
    found = {
        str(path.relative_to(daemon.state))
        for path, data in contents(daemon.state)
        if SECRET.encode() in data
    }
    return found | ({"log"} if SECRET.encode() in daemon.log.read_bytes() else set())


def gone(daemon: Carmad) -> None:
    until(lambda: not holders(daemon), "nothing to have it")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Carmad]:
    (tmp_path / "expected").write_text(SECRET)
    with running(tmp_path, **NO_KERNELS) as carmad:
        yield carmad


def carma(daemon: Carmad, *words: str, rc: int = 0, **env: str) -> str:
    """In a shell with these variables."""
    before, daemon.env = daemon.env, daemon.env | env
    try:
        return daemon.carma(*words, rc=rc)
    finally:
        daemon.env = before


def submit(daemon: Carmad, *words: str, script: str = SCRIPT) -> int:
    words = ("submit", "--parsable", "--gpus", "0", *words, "--wrap", script)
    return int(carma(daemon, *words, **SHELL))


def views(daemon: Carmad, id: int) -> None:
    """Every answer to a question, and what the commands print."""
    status, api = daemon.call("GET", "/v1/openapi.json")
    assert status == 200
    streams = ("/v1/events", "/v1/jobs/{label}/wait")
    paths = [path for path, verbs in api["paths"].items() if "get" in verbs and path not in streams]
    assert "/v1/jobs/{label}/why" in paths
    for path in paths:
        for name in ("label", "gpu", "id", "group", "name"):
            path = path.replace(f"{{{name}}}", str(id))
        try:
            text = json.dumps(daemon.call("GET", path))
        except json.JSONDecodeError as error:  # metrics, the timeline
            text = error.doc
        assert SECRET not in text, path
    for words in (["show", "--json"], ["why", "--json"], ["why"], ["show"], ["logs"], ["queue"]):
        ids = [str(id)] if words[0] != "queue" else []
        assert SECRET not in daemon.carma(*words, *ids), words
    wrong = daemon.submission("true", env={"HF_TOKEN": SECRET, "A=B": SECRET, "X": SECRET + "\0"})
    status, out = daemon.call("POST", "/v1/jobs", wrong)
    assert status == 422 and SECRET not in json.dumps(out)


def test_a_job_gets_what_its_shell_has_and_nothing_keeps_secrets(daemon: Carmad) -> None:
    id = submit(daemon)
    daemon.await_output(id, "right\n7 64\n")
    views(daemon, id)
    (kept,) = (daemon.state / "secrets").iterdir()
    assert (kept.parent.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o700, 0o600)
    assert holders(daemon) == {f"secrets/{kept.name}", f"jobs/{id}.1/launch"}

    daemon.carma("cancel", str(id))
    daemon.ended(id)
    gone(daemon)
    views(daemon, id)

    # from a shell that has it, across a daemon that is killed
    assert carma(daemon, "requeue", str(id), **SHELL) == f"job {id}: requeued\n"
    daemon.kill()
    assert "secrets/" in str(holders(daemon))
    daemon.start()
    until(lambda: daemon.output(id).count("right") == 2, "its second attempt")
    (daemon.work / "go").touch()
    assert daemon.ended(id)["notes"] == []
    gone(daemon)

    # from one that has not
    said = daemon.carma("requeue", str(id))
    assert said.startswith(f"job {id}: requeued, but has no HF_TOKEN: "), said
    job = daemon.ended(id)
    assert daemon.output(id).count("right") == 2
    assert any(note.startswith("has no HF_TOKEN: ") for note in job["notes"]), job["notes"]
    assert "has no HF_TOKEN" in daemon.carma("why", str(id))

    daemon.stop()  # the WAL is checkpointed
    assert not holders(daemon)


def test_tasks_and_failures_keep_none_either(daemon: Carmad) -> None:
    """The last task that needs them, and a job that never started, take them along."""
    id = submit(daemon, "--array", "0-2", "--hold")
    assert len(list((daemon.state / "secrets").iterdir())) == 1
    daemon.carma("cancel", f"{id}_[0-1]")
    daemon.carma("release", f"{id}_2")
    log = daemon.work / f"carma-{id}_2.out"
    until(lambda: log.exists() and "right" in log.read_text(), "the last task")
    (daemon.work / "go").touch()
    daemon.ended(id + 2)
    gone(daemon)
    bad = submit(daemon, script="exit 3")
    assert daemon.ended(bad)["state"] == "failed"
    hopeless = submit(daemon, "-d", f"afterany:{bad}", "--hold")
    daemon.carma("cancel", str(hopeless))
    gone(daemon)
    daemon.kill()
    (daemon.state / "secrets/left-by-a-crash").write_text(SECRET)
    daemon.start()
    assert not holders(daemon)


def test_a_requeue_may_ask_for_names_first(daemon: Carmad) -> None:
    id = submit(daemon, script="true")
    daemon.ended(id)
    answer = daemon.post("/v1/requeue", {"select": str(id), "asks": True})
    assert (answer["results"], answer["lacking"]) == ([], ["HF_TOKEN"])
    assert daemon.job(id)["attempt"] == 1


def test_secrets_of_a_requeue_count_against_the_quota(tmp_path: Path) -> None:
    """They may be longer than those that the jobs had, and each job may have its own."""
    with running(tmp_path, CARMA_LIMITS__QUEUED_MIB_PER_USER="1", **NO_KERNELS) as daemon:
        ids = [
            daemon.submit("true", gpus=0, held=True, env={"HF_TOKEN": "x1", "N": f"{n}"})
            for n in range(50)
        ]
        select = ",".join(map(str, ids))
        daemon.post("/v1/cancel", {"select": select})
        body = {"select": select, "env": {"HF_TOKEN": "x" * 30_000}}
        status, said = daemon.call("POST", "/v1/requeue", body)
        assert status == 409 and "1.4 MiB" in said["error"], said
        assert not list((daemon.state / "secrets").iterdir())


def test_a_full_disk_keeps_no_part_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    files = SecretFiles(tmp_path)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreFull):
        files.keep("one", [SECRET])
    assert not list((tmp_path / "secrets").iterdir())


def test_no_id_that_stays_tells_whether_a_secret_was_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = a_spec(env=(("DB_PASSWORD", "hunter2"),))
    named = retention.without_contents(spec).secrets
    assert named and named == retention.without_contents(spec).secrets
    monkeypatch.setattr(retention, "_KEY", b"of another daemon")
    other = retention.without_contents(spec).secrets
    assert other and other.id != named.id


def test_what_was_lacking_is_looked_for_again(tmp_path: Path) -> None:
    """As when another task of the array is requeued by a shell that has it."""
    spec = a_spec(env=(("HF_TOKEN", SECRET),))
    bare = retention.without_contents(spec)
    assert bare.secrets
    store = SqlStore.open(tmp_path / "carma.db")
    event = Submitted(0.0, JobId(1), (bare,), env=spec.env)
    store.commit(Step((event,), (a_job(1, spec=bare),), (), ()))
    files = SecretFiles(tmp_path)
    files.forget([bare.secrets.id])
    assert store.whole(bare).lacking == ("HF_TOKEN",)
    files.keep(bare.secrets.id, spec.env)
    assert store.whole(bare).env == spec.env
    store.close()


def test_a_backup_has_none_and_its_jobs_say_what_they_lack(daemon: Carmad) -> None:
    id = submit(daemon, "--hold")
    daemon.stop()
    store = SqlStore.open(daemon.state / "carma.db")
    backup = store.backup(1)
    whole = store.whole(store.job(JobId(id)).spec)  # type: ignore[union-attr]
    assert dict(whole.env)["HF_TOKEN"] == SECRET and not whole.lacking
    store.close()
    assert SECRET.encode() not in backup.read_bytes()
    assert SECRET.encode() not in (daemon.state / "carma.db").read_bytes()
    shutil.copy(backup, daemon.state / "carma.db")
    shutil.rmtree(daemon.state / "secrets")  # it is another machine
    daemon.start()
    until(lambda: "has no HF_TOKEN" in daemon.carma("why", str(id)), "it to say so")
    (daemon.work / "go").touch()
    daemon.carma("release", str(id))
    assert daemon.ended(id)["state"] == "succeeded"
    assert "has no HF_TOKEN" in daemon.carma("why", str(id))


def test_an_administrator_may_leave_some_out(tmp_path: Path) -> None:
    (tmp_path / "expected").write_text(SECRET)
    with running(tmp_path, CARMA_SUBMIT__ENV_EXCLUDE="*_TOKEN, NO_*", **NO_KERNELS) as daemon:
        words = ["submit", "--wait", "--gpus", "0", "--wrap", "echo got $HF_TOKEN; exit 3"]
        before, daemon.env = daemon.env, daemon.env | SHELL
        said = daemon.carma(*words, rc=3)
        assert "carma: this server does not give jobs HF_TOKEN; --export HF_TOKEN" in said
        assert daemon.output(1) == "got\n"
        assert "this server did not give it HF_TOKEN" in daemon.carma("why", "1")
        said = daemon.carma(*words[:1], "--export", "HF_TOKEN", *words[1:], rc=3)
        assert "does not give" not in said
        assert daemon.output(2) == f"got {SECRET}\n"
        daemon.env = before


def test_what_is_wrong_with_a_request_is_said_without_its_values() -> None:
    found = {"type": "x", "loc": ("body", "env", "T"), "msg": "wrong", "input": SECRET}
    assert SECRET not in explain_invalid([found])
    request = {"argv": ["true"], "cwd": "/", "env": {"HF_TOKEN": f"{SECRET}\0"}}
    with pytest.raises(ValueError, match="HF_TOKEN") as raised:
        SubmitIn.model_validate(request)
    assert SECRET[:10] not in str(raised.value)

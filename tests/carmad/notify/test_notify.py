"""Messages about jobs: who is told what, by which process, and what a bad address or file does."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import psutil
import pytest

from carma_testing import a_job, a_spec
from carma_testing.builders import changed
from carmad import configfile, units
from carmad.accounts import Account, NoAccount, account
from carmad.config import Notify, Settings
from carmad.core.happenings import Happening, Kind
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import ArrayTask, Owner
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step, Tick
from carmad.errors import CarmaError
from carmad.notify import addresses, post, sender
from carmad.notify.letters import Item, ToldOnce, letter, lines
from carmad.notify.post import Post
from carmad.store.database import StoreFull
from carmad.store.sql import SqlStore
from carmad.store.values import Notice
from cli.main import run
from tests.api_server import as_uid
from tests.attack.users import HOSTILE, needs_root
from tests.daemon import NO_KERNELS, running, until
from tests.fake_daemon import FakeDaemon
from tests.messages import Mail, Target
from tests.waiting import PATIENCE_S


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as served:
        yield served


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user may look into."""
    made = Path(tempfile.mkdtemp(prefix="carma-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def configured(base: Path, *urls: str, uid: int | None = None, mode: int = 0o600) -> Path:
    """The file below a user's XDG_CONFIG_HOME `base`."""
    (base / "carma").mkdir(parents=True, exist_ok=True)
    file = base / "carma/notify.conf"
    file.write_text("# mine\n\n" + "\n".join(urls))
    file.chmod(mode)
    if uid is not None:
        for each in (base, base / "carma", file):
            os.chown(each, uid, -1)
    return file


# -- the file


def test_a_file_has_an_address_on_each_line(tmp_path: Path) -> None:
    configured(tmp_path, "json://a", " mailto://b ")
    name = addresses.path({"XDG_CONFIG_HOME": str(tmp_path)})
    assert addresses.read(name) == ["json://a", "mailto://b"]
    assert addresses.path({"HOME": "/h"}) == "/h/.config/carma/notify.conf"


@pytest.mark.parametrize("what", ["missing", "open", "huge", "fifo", "folder", "empty", "many"])
def test_a_file_that_is_not_as_it_should_be_is_refused(tmp_path: Path, what: str) -> None:
    file = configured(tmp_path, "json://secret")
    match what:
        case "missing":
            file.unlink()
        case "open":
            file.chmod(0o666)
        case "huge":
            file.write_text("json://secret\n" * 10_000)
        case "fifo":
            file.unlink()
            os.mkfifo(file, 0o600)
        case "folder":
            file.unlink()
            file.mkdir(0o700)
        case "empty":
            file.write_text("# nothing\n")
        case "many":
            file.write_text("json://secret\n" * 21)
    with pytest.raises(CarmaError) as refused:
        addresses.read(str(file))
    assert refused.value.hint and "secret" not in str(refused.value)


@needs_root
def test_a_link_to_a_file_of_somebody_else_is_refused(folder: Path) -> None:
    file = configured(folder / "theirs", "json://secret", uid=HOSTILE[1])
    link = folder / "link"
    link.symlink_to(file)
    with pytest.raises(CarmaError, match="belongs to someone else"):
        addresses.read(str(link))


# -- the process that sends


def sent(urls: list[str] | None, **env: str) -> int:
    who = {"uid": os.getuid(), "gid": os.getgid(), "groups": [], "mail_to": [], "domain": ""}
    shared = os.memfd_create("test")
    order = {**who, "title": "t", "body": "b", "env": env, "urls": urls}
    os.write(shared, json.dumps(order).encode())
    argv = [*units.program("carmad.notify.sender"), f"/proc/{os.getpid()}/fd/{shared}"]
    ran = subprocess.run(argv, capture_output=True, env={}, timeout=PATIENCE_S)
    assert ran.stdout == ran.stderr == b"", "it says nothing: an address may be in it"
    return int(os.pread(shared, 9, 0))


def test_the_process_reads_its_users_own_file(target: Target, tmp_path: Path) -> None:
    configured(tmp_path, target.url)
    assert sent(None, XDG_CONFIG_HOME=str(tmp_path)) == sender.SENT
    assert [each["title"] for each in target.got] == ["t"]


def test_a_target_that_fails_twice_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "PAUSES_S", (0.0, 0.0))
    with Target(failing=2) as target:
        assert sender.send([target.url], "t", "b") == []
        assert len(target.got) == 1


def test_one_address_that_takes_it_is_enough(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "PAUSES_S", (0.0,))
    assert sender.send(["json://127.0.0.1:1", target.url, "nonsense://"], "t", "b") == [0, 2]
    assert len(target.got) == 1


def test_an_address_that_never_ends_its_answer_keeps_no_other_waiting(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise carmad would kill the process, and tell the others again."""
    monkeypatch.setattr(sender, "ADDRESS_WITHIN_S", 1.0)
    monkeypatch.setattr(sender, "ALL_WITHIN_S", 2.0)
    with Target(drips=True) as slow:
        assert sender.send([slow.url, target.url], "t", "b") == [0]
        slow.drips = False
    assert len(target.got) == 1


def test_without_a_file_nothing_is_tried_again(tmp_path: Path) -> None:
    assert sent(None, XDG_CONFIG_HOME=str(tmp_path)) == sender.UNUSABLE


def test_a_name_can_add_neither_headers_nor_markup_to_a_mail() -> None:
    name = "x\r\nBcc: all@example.org\u2028\u00e9<b>&amp;"
    written = letter([Item(f"job 1 {name}: failed")], "gpu1")
    with Mail() as mail:
        assert sender.send([mail.url], written.title, written.body) == []
        (got,) = mail.got
    assert got["Subject"] == "[carma gpu1] job 1 x??Bcc: all@example.org?\u00e9<b>&amp;: failed"
    assert got["Bcc"] is None and got["To"].addresses[0].addr_spec == "ada@example.org"
    for part in got.walk():
        if part.get_content_type() == "text/html":
            assert "<b>" not in part.get_content()


# -- what it says


def notice(id: int, job: int, what: str = "end", words: str = "failed") -> Notice:
    return Notice(id, JobId(job), 1.0, what, words)


def test_names_and_output_are_one_short_line() -> None:
    hostile = "x\nBcc: all@example.org\x1b[2J\u2028<b>" + "y" * 1000
    jobs = {JobId(1): a_job(1, spec=a_spec(name=hostile))}
    said = lines([notice(1, 1, words=f"failed: {hostile}")], jobs, lambda array: {}, ToldOnce())
    written = letter(said, "gpu1")
    assert written.title.startswith("[carma gpu1] job 1 x?Bcc: all@example.org?[2J?<b>yyy")
    assert len(written.title) <= 120 and len(written.body.splitlines()) == 1
    assert len(written.body) <= 300


def test_of_an_array_its_end_is_told_once_and_its_first_failure() -> None:
    def task(id: int) -> Job:
        return a_job(id, spec=a_spec(name="sweep", array=ArrayTask(JobId(7), id - 7)))

    jobs = {JobId(id): task(id) for id in (7, 8, 9)}
    once, ends = ToldOnce(), {JobState.SUCCEEDED: 1, JobState.FAILED: 2}
    seen = [notice(1, 7, "fail"), notice(2, 7), notice(3, 8, "fail"), notice(4, 8), notice(5, 9)]
    told = lines(seen, jobs, lambda array: {**ends, JobState.QUEUED: 1}, once)
    assert [item.line for item in told] == ["job 7_0 sweep: failed (its array's first)"]
    assert told == lines(seen[:1], jobs, lambda array: ends, once), "again, if it was not taken"
    (told_last,) = lines(seen[1:], jobs, lambda array: ends, once)
    assert told_last.line == "array 7 sweep: all 3 tasks have ended: 2 failed, 1 succeeded"


def test_many_events_are_one_message() -> None:
    written = letter([Item(f"job {n}: failed", ("why",)) for n in range(5000)], "gpu1")
    assert written.title == "[carma gpu1] 5000 events"
    assert written.body.splitlines()[:2] == ["job 0: failed", "  why"]
    assert written.body.splitlines()[-1] == "and 4950 more"


def test_the_body_repeats_a_subject_only_if_that_is_cut() -> None:
    short = letter([Item("job 1 a: failed", ("its log: /x",))], "gpu1")
    assert (short.title, short.body) == ("[carma gpu1] job 1 a: failed", "its log: /x")
    long = letter([Item(f"job 1 a: failed: {'x' * 150}", ("its log: /x",))], "gpu1")
    assert long.title.endswith("…") and long.body.endswith(f"{'x' * 150}\nits log: /x")
    tail = f"  {'x' * 150}"
    quoted = letter([Item(f"job 1 a: failed: {'x' * 150}", ("its last lines:", tail))], "gpu1")
    assert quoted.body == f"its last lines:\n{tail}", "once is enough"
    assert letter([Item("job 1 a: failed")], "gpu1").body == "job 1 a: failed"


# -- the thread


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = SqlStore.open(tmp_path / "state/carma.db")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_S", "LOOK_S", "FIRST_PAUSE_S", "STUCK_LOOK_S"):
        monkeypatch.setattr(post, name, 0.01)


def an_end(base: Path, id: int = 1, state: JobState = JobState.FAILED, **spec: Any) -> Step:
    """A step in which a job of this process's user ends."""
    me = pwd.getpwuid(os.getuid())
    env = (("XDG_CONFIG_HOME", str(base)), ("SECRET", "x"))
    its = {"notify": "end,fail", "uid": me.pw_uid, "gid": me.pw_gid, "user": me.pw_name, "env": env}
    exit = Exit(Cause.FAILURE, 1, evidence="ValueError: x")
    if state is JobState.SUCCEEDED:
        exit = Exit(Cause.SUCCESS, 0)
    running = a_job(
        id,
        spec=a_spec(name="train", **(its | spec)),
        state=JobState.RUNNING,
        started_at=1.0,
    )
    ended = changed(running, state=state, exit=exit, ended_at=2.0)
    return Step((Tick(2.0),), (ended,), (), (), before=(running,))


def myself() -> Owner:
    return Owner(os.getuid(), pwd.getpwuid(os.getuid()).pw_name)


@pytest.fixture
def told(store: SqlStore) -> Iterator[Post]:
    thread = Post(store, Notify())
    thread.start()
    yield thread
    thread.stop()


def commit(store: SqlStore, thread: Post, step: Step) -> None:
    store.commit(step)
    thread.on_commit(step)


def test_a_failure_is_told_and_forgotten(
    store: SqlStore, told: Post, target: Target, tmp_path: Path
) -> None:
    configured(tmp_path, target.url)
    commit(store, told, an_end(tmp_path))
    until(lambda: target.got, "a message")
    assert "job 1 train: failed, exit code 1: ValueError: x" in target.got[0]["title"]
    until(lambda: not store.to_tell(), "the notice to be forgotten")
    commit(store, told, an_end(tmp_path, 2, notify=None))
    commit(store, told, an_end(tmp_path, 3, JobState.SUCCEEDED, notify="fail,oom"))
    assert not store.to_tell()


def test_what_was_not_told_when_carmad_died_is_told_by_the_next(
    store: SqlStore, target: Target, tmp_path: Path
) -> None:
    configured(tmp_path, target.url)
    store.commit(an_end(tmp_path))
    thread = Post(store, Notify())
    thread.start()
    until(lambda: target.got, "a message")
    thread.stop()


def test_a_target_that_does_not_take_it_is_tried_later_and_given_up(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Target(failing=10**6) as target:
        monkeypatch.setattr(post, "TRIES", 2)
        script = f"import sys; sys.path.append({str(Path.cwd())!r})"
        quickly = f"{script}; from carmad.notify import sender as s; s.PAUSES_S = (); s.main()"
        monkeypatch.setattr(units, "program", lambda module: [sys.executable, "-c", quickly])
        configured(tmp_path, target.url)
        thread = Post(store, Notify())
        store.commit(an_end(tmp_path))
        thread.start()
        until(lambda: not store.to_tell(), "it to be given up")
        thread.stop()
        assert target.failing == 10**6 - 2


def test_the_messages_of_who_had_the_uid_before_keep_nobody_waiting(
    store: SqlStore, told: Post, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post, "FIRST_PAUSE_S", 3600.0)
    configured(tmp_path, target.url)
    store.commit(an_end(tmp_path, 1, user="gone"))
    commit(store, told, an_end(tmp_path, 2))
    until(lambda: target.got, "a message")
    until(lambda: myself() not in store.to_tell(), "it to be forgotten")
    assert store.to_tell() == [myself()._replace(user="gone")], "tried again, and then given up"
    assert len(target.got) == 1 and "job 2" in str(target.got[0])


def test_who_cannot_be_found_for_a_while_is_told_later(
    store: SqlStore, told: Post, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory server is down; who is gone for good is given up."""
    configured(tmp_path, target.url)
    asked: list[str] = []

    def down(user: str, uid: int) -> Account:
        asked.append(user)
        if len(asked) <= 2:
            raise NoAccount(f"there is no {user}")
        return account(user, uid)

    monkeypatch.setattr(post, "account", down)
    commit(store, told, an_end(tmp_path))
    until(lambda: target.got, "a message")
    assert len(asked) == 3
    until(lambda: not store.to_tell(), "the notice to be forgotten")
    monkeypatch.setattr(post, "TRIES", 2)
    commit(store, told, an_end(tmp_path, 2, user="gone"))
    until(lambda: not store.to_tell(), "it to be given up")
    assert len(target.got) == 1


def test_with_a_full_disk_nobody_is_told_the_same_again(
    store: SqlStore, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(tmp_path, target.url)
    tries: list[object] = []
    forget = store.forget_notices

    def full(ids: Iterable[int]) -> None:
        tries.append(ids)
        if len(tries) < 5:
            raise StoreFull("the disk is full")
        forget(ids)

    monkeypatch.setattr(store, "forget_notices", full)
    store.commit(an_end(tmp_path))
    thread = Post(store, Notify())
    thread.start()
    until(lambda: not store.to_tell(), "it to be forgotten")
    thread.stop()
    assert len(target.got) == 1


def senders() -> list[psutil.Process]:
    """Those of this process, which may have other children."""
    children = psutil.Process().children()
    return [each for each in children if "carmad.notify.sender" in str(try_cmdline(each))]


def try_cmdline(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def test_a_target_that_hangs_is_given_up_and_its_sender_killed(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post, "WITHIN_S", 2.0)
    monkeypatch.setattr(post, "TRIES", 1)
    with Mail(hangs=True) as mail:
        configured(tmp_path, mail.url)
        thread = Post(store, Notify())
        store.commit(an_end(tmp_path))
        thread.start()
        (process,) = until(senders, "a sender")
        until(lambda: not store.to_tell(), "it to be given up")
        until(lambda: process not in senders(), "it to be killed")
        thread.stop()


def test_a_user_gets_so_many_messages_an_hour_and_then_one_with_all(
    store: SqlStore, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post, "PER_HOUR", 2)
    configured(tmp_path, target.url)
    thread = Post(store, Notify())
    thread.start()
    for n in (1, 2):
        commit(store, thread, an_end(tmp_path, n))
        until(lambda n=n: len(target.got) == n)
    until(lambda: not store.to_tell())
    for n in (3, 4, 5):
        commit(store, thread, an_end(tmp_path, n))
    until(lambda: thread._tasks, "it to wait for the hour to be over")
    assert len(store.notices(myself(), 10)) == 3 and len(target.got) == 2
    thread.stop()
    monkeypatch.setattr(post, "PER_HOUR", 3)
    thread = Post(store, Notify())
    thread.start()
    until(lambda: len(target.got) == 3)
    assert "3 events" in target.got[2]["title"]
    thread.stop()


def test_administrators_are_told_of_the_server(
    store: SqlStore, target: Target, tmp_path: Path
) -> None:
    file = tmp_path / "admins.conf"
    file.write_text(target.url)
    file.chmod(0o600)
    stuck = [(JobId(7), "job 7 does not start")]
    thread = Post(store, Notify(str(file), stuck_s=0.01), stuck=lambda: stuck[0])
    thread.on_happenings([Happening(1.0, Kind.GPU_LOST, gpu="GPU-1", detail="Xid 79")], {})
    thread.on_happenings([Happening(1.0, Kind.HELD, a_job())], {})
    barred = a_job(5, held=True, barred="there is no ada")
    thread.on_happenings([Happening(1.0, Kind.RETRIED, barred, cause=Cause.NO_ACCOUNT)], {})
    thread.on_failed_commit(StoreFull("the disk is full"))
    thread.start()
    until(lambda: target.got)
    said = target.got[0]["message"].splitlines()
    assert said[:3] == [
        "GPU GPU-1: lost: Xid 79",
        "job 5 is held: there is no ada",
        "carmad cannot record events: the disk is full",
    ]
    said_of_7 = "job 7 does not start"
    until(lambda: any(said_of_7 in each["title"] + each["message"] for each in target.got))
    assert all(each["message"].endswith("more: carma gpus; carma doctor") for each in target.got)
    thread.stop()


def test_a_file_of_administrators_that_others_may_read_is_not_used(
    store: SqlStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "admins.conf"
    file.write_text("json://secret")
    file.chmod(0o644)
    thread = Post(store, Notify(str(file)))
    thread.on_happenings([Happening(1.0, Kind.GPU_LOST, gpu="GPU-1", detail="Xid 79")], {})
    thread.start()
    until(lambda: "nobody is told by" in caplog.text)
    thread.stop()
    assert "secret" not in caplog.text


def test_a_report_is_mailed_on_request(
    fake: FakeDaemon,
    target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("logging.disable", lambda: None)  # of this process, it would stay
    assert run(["stats", "--report", "week", "--mail"]) == 1, "there is no file of addresses"
    configured(tmp_path, target.url)
    assert run(["stats", "--report", "week", "--mail"]) == 0
    assert "json: sent" in capsys.readouterr().out
    assert "| alice" in target.got[0]["message"] and "Nov 2026" in target.got[0]["title"]


# -- the server's own mail


def to(letter: EmailMessage) -> list[str]:
    return [each.addr_spec for each in letter["To"].addresses]


class Sendmail:
    """A program of that name in `folder`, and the mails that it got."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.chmod(0o777)  # nobody sends what administrators get
        self.program = folder / "sendmail"
        self.answer("exit 0")

    def answer(self, command: str) -> None:
        keep = f'its=$(mktemp {self._folder}/mail.XXXXXX); cat >"$its"; mv "$its" "$its.eml"'
        self.program.write_text(f"#!/bin/sh\necho $* >{self._folder}/args\n{keep}\n{command}\n")
        self.program.chmod(0o755)

    @property
    def got(self) -> list[EmailMessage]:
        files = sorted(self._folder.glob("*.eml"), key=lambda file: file.stat().st_mtime_ns)
        return [message_from_bytes(file.read_bytes(), policy=default) for file in files]


@pytest.fixture
def sendmail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Sendmail:
    """For this process, and those that it has send messages."""
    monkeypatch.setattr(sender, "PLACES", str(folder))
    patch = f"from carmad.notify import sender as s; s.PLACES = {str(folder)!r}; s.main()"
    script = f"import sys; sys.path.append({str(Path.cwd())!r}); {patch}"
    monkeypatch.setattr(units, "program", lambda module: [sys.executable, "-c", script])
    return Sendmail(folder)


def test_mail_by_sendmail(sendmail: Sendmail, folder: Path) -> None:
    title = "[carma gpu1] job 1 x: failed"
    assert sender.send_mail(["ada", "b@c.org"], "example.org", title, "body\n") == ""
    assert (folder / "args").read_text() == "-i -t\n"
    (got,) = sendmail.got
    assert (to(got), got["Subject"]) == (["ada@example.org", "b@c.org"], title)
    assert got["From"].addresses[0].addr_spec == "carma@example.org"
    assert got.get_content().strip() == "body"
    assert sender.send_mail(["ada"], "", title, "body") == ""
    assert to(sendmail.got[1]) == [f"ada@{socket.getfqdn()}"], "this host's full name"
    sendmail.answer("echo no such user; exit 67")
    said = sender.send_mail(["ada"], "example.org", title, "body")
    assert said == f"{sendmail.program} ended with code 67: no such user"
    sendmail.program.unlink()
    said = sender.send_mail(["ada"], "example.org", title, "body")
    assert said == f"there is no sendmail in {folder}"


def test_a_mail_address_needs_a_way_to_send_mail() -> None:
    whom = "notify.administrators=root@lab.org"
    with pytest.raises(CarmaError, match=r"notify\.administrators is a mail address, but notify"):
        configfile.change(Settings(), [whom])
    both = [whom, "notify.mail=sendmail"]
    assert configfile.change(Settings(), both).notify.administrators == "root@lab.org"
    with pytest.raises(CarmaError, match=r"notify\.mail should be '' or 'sendmail', not 'smtp:"):
        configfile.change(Settings(), ["notify.mail=smtp://mail.lab.org"])


def test_who_has_no_addresses_of_their_own_gets_mail(
    store: SqlStore, target: Target, tmp_path: Path, sendmail: Sendmail
) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    thread = Post(store, Notify(mail="sendmail", domain="lab.org"))
    thread.start()
    commit(store, thread, an_end(tmp_path))
    until(lambda: sendmail.got, "a mail")
    assert to(sendmail.got[0]) == [f"{me}@lab.org"]
    assert "job 1 train: failed" in sendmail.got[0]["Subject"]
    until(lambda: not store.to_tell(), "the notice to be forgotten")
    configured(tmp_path, target.url)
    commit(store, thread, an_end(tmp_path, 2))
    until(lambda: target.got, "a message")
    until(lambda: not store.to_tell(), "the notice to be forgotten")
    for id, address in ((3, "boss@example.org"), (4, "ada"), (5, None)):
        store.commit(an_end(tmp_path, id, mail_user=address))
    thread.on_commit(an_end(tmp_path, 5))
    until(lambda: not store.to_tell(), "all of them to be told")
    thread.stop()
    assert sorted(map(to, sendmail.got[1:])) == [["ada@lab.org"], ["boss@example.org"]]
    assert len(target.got) == 2, "without --mail-user, one's own file counts"


def test_administrators_may_be_mail_addresses(store: SqlStore, sendmail: Sendmail) -> None:
    thread = Post(store, Notify(mail="sendmail", administrators="root@lab.org, ann@lab.org"))
    thread.on_happenings([Happening(1.0, Kind.GPU_LOST, gpu="GPU-1", detail="Xid 79")], {})
    thread.start()
    until(lambda: sendmail.got, "a mail")
    thread.stop()
    assert to(sendmail.got[0]) == ["root@lab.org", "ann@lab.org"]


def test_a_trial_says_why_a_mail_was_not_taken(store: SqlStore, sendmail: Sendmail) -> None:
    def send_test(settings: Notify) -> str:
        with ThreadPoolExecutor(1) as request:  # a browser's event loop may run in this thread
            return request.submit(Post(store, settings).send_test, myself()).result()

    mails = Notify(mail="sendmail", domain="lab.org")
    assert send_test(mails) == ""
    assert to(sendmail.got[0]) == [f"{myself().user}@lab.org"]
    sendmail.answer("echo the queue is full; exit 75")
    assert "the queue is full" in send_test(mails)
    with pytest.raises(CarmaError, match="this server sends no mail"):
        send_test(Notify())


def test_mail_from_the_daemon(folder: Path) -> None:
    base = folder / "config"
    me = pwd.getpwuid(os.getuid()).pw_name
    settings = {"CARMA_NOTIFY__MAIL": "sendmail", "CARMA_NOTIFY__DOMAIN": "lab.org"}
    with running(folder, **NO_KERNELS, **settings) as daemon:
        daemon.env |= {"XDG_CONFIG_HOME": str(base)}
        boss = ("--mail-user", "boss@example.org")
        daemon.carma("submit", "--mail-type=END", *boss, "--name", "two", "--hold", "true")
        assert "mails to" in daemon.carma("show", "1")
        assert "is not a mail address" in daemon.carma("submit", "--mail-user", "x y", "true", rc=2)
        if sender.find_sendmail() is None:
            said = daemon.carma("doctor", "--notify", rc=1)
            assert f"mail to {me}: it was not taken: there is no sendmail in " in said
            assert "there is no sendmail" in daemon.carma("doctor", rc=None)
    (folder / "two").mkdir()
    with running(folder / "two", **NO_KERNELS) as daemon:
        daemon.env |= {"XDG_CONFIG_HOME": str(base)}
        assert "notify.conf" in daemon.carma("doctor", "--notify", rc=None)


# -- all of it


def test_a_job_tells_its_owner(folder: Path, target: Target) -> None:
    base = folder / "config"
    with running(folder, **NO_KERNELS) as daemon:
        daemon.env |= {"XDG_CONFIG_HOME": str(base)}
        refused = daemon.carma("submit", "--notify", "end", "true", rc=1)
        assert "no message can be sent: cannot read" in refused and "notify.conf" in refused
        daemon.carma("submit", "--mail-type", "END", "--hold", "true")
        assert daemon.job(1)["notify"] is None
        configured(base, target.url)
        said = daemon.carma("doctor", "--notify")
        assert "1 address" in said and "json: sent" in said
        assert target.got.pop()["title"].endswith("test")
        shell = "/bin/sh", "-c", "echo oh no; exit 3"
        daemon.carma("submit", "--mail-type=END,FAIL", "--name", "mine", *shell)
        until(lambda: target.got, "a message")
        assert "job 2 mine: failed, exit code 3" in target.got[0]["title"]
        body = target.got[0]["message"].splitlines()
        assert body[0] == "command: /bin/sh -c 'echo oh no; exit 3'"
        assert body[1] == "on GPU 0", "not its UUID"
        assert body[2].startswith("attempt 1 ran for ")
        assert body[3] == f"its log: {daemon.work}/carma-2.out"
        assert body[5:7] == ["its last lines:", "  oh no"]
        assert body[-1] == "more: carma why 2"
        daemon.carma("submit", "--notify", "start", "--name", "begins", "true")
        until(lambda: len(target.got) == 2, "its start")
        assert target.got.pop()["title"].endswith(" job 3 begins: started on GPU 0")
        daemon.carma("submit", "--notify", "limit80", "--time", "0:02", "sleep", "30")
        until(lambda: len(target.got) == 2, "another")
        assert "80 % of its time limit have passed" in target.got[1]["title"]
        daemon.stop()
    for file in (daemon.state / "carma.db", daemon.log):
        assert target.url.encode() not in file.read_bytes()


@needs_root
def test_users_are_told_by_processes_of_their_own(folder: Path, target: Target) -> None:
    """Each has a file that only they may read; one has somebody else's, and is told nothing."""
    ann, ben, eve = HOSTILE
    urls = {uid: f"{target.url}/{uid}" for uid in (ann, ben)}
    with running(folder, **NO_KERNELS) as daemon:
        for uid in (ann, ben, eve):
            home = folder / f"home{uid}"
            work = home / "work"
            work.mkdir(parents=True)
            os.chown(work, uid, -1)
            if uid == eve:
                (home / "carma").mkdir()
                (home / "carma/notify.conf").symlink_to(folder / f"home{ann}/carma/notify.conf")
            else:
                configured(home, urls[uid], uid=uid)
            body = daemon.submission("/bin/sh", "-c", f"exit {uid % 7}", notify="end,start")
            body |= {"cwd": str(work), "name": f"of-{uid}"}
            body["env"] |= {"XDG_CONFIG_HOME": str(home)}
            status, out = as_uid(uid, daemon.socket, "POST", "/v1/jobs", body)
            assert status == 201, out
        until(lambda: "could not be told" in daemon.log.read_text(), "eve to be refused")
        until(lambda: _told(target) >= {ann, ben}, "the others to be told")
        assert eve not in _told(target)


def _told(target: Target) -> set[int]:
    return {uid for uid in HOSTILE for each in target.got if f"of-{uid}" in each["message"]}

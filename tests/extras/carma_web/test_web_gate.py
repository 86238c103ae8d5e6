"""Who gets past the token of `carma web`: its owner; not other users of the machine, nor other
sites' pages."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from carma_web import command
from carma_web.app import HEADERS, LACKS_TOKEN
from carma_web.once import once
from carma_web.page import message_cookie
from cli.problems import Problem
from tests.api_server import as_user
from tests.attack.users import HOSTILE, needs_root
from tests.daemon import CARMA, Carmad, clean_environment, running
from tests.extras.carma_web.web import Web, serving
from tests.waiting import PATIENCE_S

IGNORED = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"


Asking = Callable[..., http.client.HTTPConnection]


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: str


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("gate")) as carmad:
        yield carmad


@pytest.fixture(scope="module")
def other(carmad: Carmad) -> Iterator[Web]:
    with serving(carmad) as web:
        yield web


def ask(web: Web, path: str, method: str = "GET", port: str = "", **headers: str) -> Answer:
    """Exactly that path; `headers` with _ for -."""
    at = urlsplit(web.origin)
    assert at.hostname and at.port
    connection = http.client.HTTPConnection(
        at.hostname, int(port) if port else at.port, timeout=PATIENCE_S
    )
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    with connection.getresponse() as answer:
        return Answer(answer.status, answer.headers, answer.read().decode())


def cookie(web: Web) -> str:
    return f"carma={web.token}"


def turned_away(found: Answer) -> bool:
    """Without learning anything: the answer is the same for all."""
    return (found.status, found.body) == (401, LACKS_TOKEN)


# -- who has the token


def test_only_who_has_the_token_sees_anything(web: Web, other: Web) -> None:
    base = web.base
    for path in ("/", f"{base}/", f"{base}", f"{base}/live", f"{base}/static/live.js", "/x", "*"):
        assert turned_away(ask(web, path)), path
        assert turned_away(ask(web, path, Cookie=cookie(other))), path
        assert turned_away(ask(web, f"{path}?token={other.token}")), path
        assert turned_away(ask(web, f"{path}?token=")), path
    assert turned_away(ask(web, f"{other.base}/", Cookie=cookie(web)))
    assert ask(web, f"{base}/", Cookie=cookie(web)).status == 200
    assert ask(web, f"{base}/", Cookie=f"x=1; {cookie(web)}; y=2").status == 200


@needs_root
def test_another_user_of_the_machine_without_the_token_and_with_anothers(
    web: Web, other: Web
) -> None:
    def attack() -> list[bool]:
        paths = ["/", f"{web.base}/", f"{web.base}/look.css", f"/?token={other.token}"]
        return [turned_away(ask(web, path, Cookie=cookie(other))) for path in paths]

    assert as_user(HOSTILE[0], attack) == [True] * 4


def test_the_link_leaves_a_cookie_for_its_path_alone_and_no_token_in_the_address(web: Web) -> None:
    for path, to in (
        ("/", f"{web.base}/"),
        (f"{web.base}/", f"{web.base}/"),
        (f"{web.base}/jobs?user=a%26b&", f"{web.base}/jobs?user=a%26b"),
    ):
        found = ask(web, f"{path}{'' if '?' in path else '?'}token={web.token}")
        assert (found.status, found.headers["Location"]) == (303, to)
        (morsel,) = SimpleCookie(found.headers["Set-Cookie"]).values()
        assert (morsel.key, morsel.value, morsel["path"]) == ("carma", web.token, f"{web.base}/")
        assert morsel["httponly"] and morsel["samesite"] == "lax" and not morsel["domain"]
        assert "token" not in found.headers["Location"]
    assert ask(web, f"/elsewhere?token={web.token}").status == 401


def test_nothing_can_be_smuggled_into_the_redirect(web: Web) -> None:
    bad = "%0d%0aSet-Cookie:%20evil=1"
    for path in (f"{web.base}/{bad}?token=", f"{web.base}/?x={bad}&token="):
        found = ask(web, path + web.token)
        assert found.status == 303 and "evil" not in str(found.headers.get_all("Set-Cookie"))
        assert found.headers["Location"].startswith(f"{web.base}/")
    away = ask(web, f"{web.base}//evil.example/?token={web.token}").headers["Location"]
    assert away.startswith(f"{web.base}/")
    assert turned_away(ask(web, f"//evil.example/?token={web.token}"))
    # What the Host header says is no path.
    assert turned_away(ask(web, "/", Host=f"x{web.base}/", Cookie=cookie(web)))


def test_the_token_is_in_no_command_line_and_no_environment(web: Web) -> None:
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            for name in ("cmdline", "environ"):
                try:
                    text = (each / name).read_bytes()
                except OSError:
                    continue
                assert web.token.encode() not in text, each


# -- other sites


def test_forms_of_other_sites_are_refused(web: Web) -> None:
    def post(**headers: str) -> int:
        return ask(web, f"{web.base}/nowhere", "POST", Cookie=cookie(web), **headers).status

    here = web.origin
    assert post(Sec_Fetch_Site="same-origin") == 404
    assert post(Origin=here) == 404
    for site in ("cross-site", "same-site", "none", ""):
        assert post(Sec_Fetch_Site=site, Origin=here) == 403
    elsewhere = ("null", "http://evil.example", "http://127.0.0.1:1", f"{here}.evil.example")
    assert [post(Origin=origin) for origin in elsewhere] == [403] * 4
    assert post() == 403
    forged = ask(web, f"{web.base}/?token={web.token}", "POST", Sec_Fetch_Site="cross-site")
    assert forged.status == 303, "it goes to the page, and does nothing"


def test_odd_methods_do_nothing(web: Web) -> None:
    def asked(method: str) -> Answer:
        return ask(web, f"{web.base}/", method, Cookie=cookie(web), Origin=web.origin)

    assert asked("HEAD").status == 200 and not asked("HEAD").body
    for method in ("OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "BREW"):
        found = asked(method)
        assert found.status == 405 and web.token not in found.body
        assert turned_away(ask(web, f"{web.base}/", method))


# -- what an answer says


def test_every_answer_has_the_headers(web: Web, other: Web) -> None:
    mine = {"Cookie": cookie(web)}
    for path, headers, status in (
        ("/", {}, 401),
        (f"{web.base}/?token={web.token}", {}, 303),
        (f"{web.base}/", mine, 200),
        (f"{web.base}/look.css", mine, 200),
        (f"{web.base}/static/live.js", mine, 200),
        (f"{web.base}/nowhere", mine, 404),
        (f"{web.base}/static/nowhere", mine, 404),
        (f"{web.base}/?part=nothing", mine, 404),
    ):
        found = ask(web, path, **headers)
        assert found.status == status, path
        for name, value in HEADERS.items():
            if name != "Cache-Control":
                assert found.headers.get_all(name) == [value], (path, name)
        assert "server" not in found.headers
        assert "Access-Control-Allow-Origin" not in found.headers


def test_only_static_files_are_served(web: Web) -> None:
    for path in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "../../../../etc/passwd", "", "."):
        found = ask(web, f"{web.base}/static/{path}", Cookie=cookie(web))
        assert found.status == 404, path
    assert ask(web, f"{web.base}/static//etc/passwd", Cookie=cookie(web)).status == 404


def test_a_message_in_a_cookie_is_only_text(web: Web) -> None:
    words = '"<script>alert(1)</script>\\015\\012Set-Cookie: evil=1"'
    anothers = ask(web, f"{web.base}/", Cookie=f"{cookie(web)}; carma-told={words}")
    assert "alert(1)" not in anothers.body
    words = f"{message_cookie(web.base)}={words}"
    found = ask(web, f"{web.base}/", Cookie=f"{cookie(web)}; {words}")
    assert found.status == 200
    assert "<script>alert" not in found.body and "&lt;script&gt;alert" in found.body
    assert "evil" not in str(found.headers)


def test_what_is_too_long_harms_nobody(web: Web) -> None:
    long = "x" * 200_000
    for path, headers in (
        (f"{web.base}/?{long}", {"Cookie": cookie(web)}),
        (f"{web.base}/", {"Cookie": f"{cookie(web)}; y={long}"}),
        (f"{web.base}/?part={long[:20_000]}", {"Cookie": cookie(web)}),
    ):
        with contextlib.suppress(ConnectionError):  # it is refused before all of it is sent
            assert ask(web, path, **headers).status in (400, 404)
    with socket.create_connection(("127.0.0.1", urlsplit(web.origin).port)) as connection:
        connection.sendall(b"\0\xff\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert ask(web, f"{web.base}/", Cookie=cookie(web)).status == 200


# -- the way there


def test_over_a_forwarded_port(web: Web) -> None:
    """As by `ssh -L`: the Host header has another port."""
    at = ("127.0.0.1", urlsplit(web.origin).port or 0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        threading.Thread(target=_forward, args=(listening, at), daemon=True).start()
        assert turned_away(ask(web, f"{web.base}/", port=port))
        came = ask(web, f"{web.base}/?token={web.token}", port=port)
        assert came.headers["Location"] == f"{web.base}/", "no host: it stays on that port"
        assert ask(web, f"{web.base}/", port=port, Cookie=cookie(web)).status == 200
        posted = {"method": "POST", "port": port, "Cookie": cookie(web)}
        here = f"http://127.0.0.1:{port}"
        assert ask(web, f"{web.base}/nowhere", **posted, Origin=here).status == 404
        assert ask(web, f"{web.base}/nowhere", **posted, Origin=web.origin).status == 403


def _forward(listening: socket.socket, to: tuple[str, int]) -> None:
    while True:
        try:
            ours, _ = listening.accept()
        except OSError:
            return
        theirs = socket.create_connection(to)
        for one, two in ((ours, theirs), (theirs, ours)):
            threading.Thread(target=_pump, args=(one, two), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while chunk := source.recv(65_536):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


# -- starting and ending


def test_two_at_once_have_a_port_each_and_a_taken_one_is_refused(
    carmad: Carmad, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    with command._bind(0) as free:
        monkeypatch.setattr(command, "PORT", free.getsockname()[1])
        with command._bind(None) as second:
            assert second.getsockname()[1] > command.PORT
        monkeypatch.setattr(command, "TRIED", 1)
        with pytest.raises(Problem, match=r"no port from \d+ to \d+ is free"):
            command._bind(None)
    port = str(urlsplit(web.origin).port)
    assert f"port {port} cannot be used: Address already in use" in carmad.carma(
        "web", "--port", port, rc=1
    )


ENDING = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


@contextlib.contextmanager
def started(socket: str, kept: Path, *under: str) -> Iterator[tuple[subprocess.Popen[str], Asking]]:
    """`carma web` that keeps its token in `kept`, and what sends it a request for a path."""
    words = [*under, *CARMA, "web", "--port", "0", "--read-only", "--token-file", str(kept)]
    env = clean_environment() | {"CARMA_SOCKET": socket}
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        ran = stack.enter_context(
            subprocess.Popen(words, env=env, stdout=pipe, stderr=pipe, text=True)
        )
        stack.callback(ran.kill)
        assert ran.stdout
        link = urlsplit(ran.stdout.readline().strip())
        head = {"Cookie": f"carma={kept.read_text().strip()}"}

        def ask(path: str, times: int = 1) -> http.client.HTTPConnection:
            asked = http.client.HTTPConnection("127.0.0.1", link.port or 0, timeout=PATIENCE_S)
            stack.callback(asked.close)
            asked.request("GET", link.path + path, headers=head)
            lines = [f"GET {link.path}{path} HTTP/1.1", f"Host: {link.netloc}"]
            lines += [f"Cookie: {head['Cookie']}", "", ""]
            asked.sock.sendall((times - 1) * "\r\n".join(lines).encode())
            return asked

        yield ran, ask


@pytest.mark.parametrize("signum", ENDING)
def test_it_ends_by_signal_and_says_nothing_of_the_token(
    carmad: Carmad, tmp_path: Path, signum: signal.Signals
) -> None:
    kept = tmp_path / "token"
    with started(carmad.socket, kept) as (ran, ask):
        assert ask("live").getresponse().status == 200
        ran.send_signal(signum)
        said, errors = ran.communicate(timeout=PATIENCE_S)
        assert ran.returncode == -signum
        assert kept.read_text().strip() not in said + errors
        assert not errors, "of the stream that was open"


@pytest.mark.parametrize("signum", ENDING)
def test_it_ends_by_signal_while_carmad_hangs_and_nobody_reads(
    tmp_path: Path, signum: signal.Signals
) -> None:
    with socket.socket(socket.AF_UNIX) as hanging, contextlib.ExitStack() as stack:
        hanging.settimeout(PATIENCE_S)
        hanging.bind(str(tmp_path / "hanging"))
        hanging.listen()
        first = threading.Thread(target=lambda: healthy(hanging))
        first.start()
        ran, ask = stack.enter_context(started(str(tmp_path / "hanging"), tmp_path / "token"))
        first.join()
        ask("look.css", 300).sock.recv(1, socket.MSG_PEEK)  # answers that nobody will read
        assert ask("live").getresponse().status == 200
        asked = [stack.enter_context(hanging.accept()[0])]  # the events that the stream tells of
        for _ in range(3):
            ask("")
            asked.append(stack.enter_context(hanging.accept()[0]))  # a thread waits for each
        ran.send_signal(signum)
        assert ran.communicate(timeout=PATIENCE_S) == ("", "")
        assert ran.returncode == -signum


def test_pages_wait_for_carmad_side_by_side() -> None:
    together = threading.Barrier(2, timeout=PATIENCE_S)

    class Page:
        @once
        def answer(self) -> int:
            return together.wait()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda page: page.answer, (Page(), Page()))) == [0, 1]


def healthy(listening: socket.socket) -> None:
    """Answers the first request as carmad does, and no other one."""
    with listening.accept()[0] as asked:
        asked.recv(10_000)
        body = json.dumps({"schema": 1, "version": "0.1.0"})
        asked.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


@pytest.mark.skipif(shutil.which("nohup") is None, reason="there is no nohup")
def test_below_nohup_it_outlives_its_terminal(carmad: Carmad, tmp_path: Path) -> None:
    with started(carmad.socket, tmp_path / "token", "nohup") as (ran, ask):
        assert ask("live").getresponse().status == 200
        ran.send_signal(signal.SIGHUP)
        assert ask("look.css").getresponse().status == 200
        ran.send_signal(signal.SIGTERM)
        ran.communicate(timeout=PATIENCE_S)
        assert ran.returncode == -signal.SIGTERM


def test_without_a_daemon_it_says_so_and_a_page_comes_back_with_it(
    carmad: Carmad, tmp_path: Path
) -> None:
    nowhere = {**carmad.env, "CARMA_SOCKET": str(tmp_path / "none")}
    ran = subprocess.run([*CARMA, "web"], env=nowhere, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "no answer at" in ran.stderr and "hint:" in ran.stderr
    with running(tmp_path) as daemon, serving(daemon) as web:
        daemon.stop()
        gone = ask(web, f"{web.base}/", Cookie=cookie(web))
        assert gone.status == 503 and "is carmad running?" in gone.body
        assert re.search('<meta http-equiv="refresh" content="[0-9]+">', gone.body)
        daemon.start()
        assert ask(web, f"{web.base}/", Cookie=cookie(web)).status == 200


# -- the file with the token


def test_a_token_that_may_change_something_is_not_kept(carmad: Carmad, tmp_path: Path) -> None:
    said = carmad.carma("web", "--token-file", str(tmp_path / "token"), rc=2)
    assert "goes with --read-only" in said and not (tmp_path / "token").exists()


def test_the_token_is_kept_where_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    before = os.umask(0)
    try:
        token = command._token(str(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert command._token(str(path)) == token == path.read_text().strip()
    assert len(token) >= 32


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path) -> None:
    path = tmp_path / "token"
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); {IGNORED}"
    code = f"{limit}; from carma_web import command; command._token({str(path)!r})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"Problem: cannot write {path}: " in ran.stderr and not path.exists()


def test_a_token_that_others_may_know_is_refused(tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(Problem) as error:
            command._token(str(path))
        assert error.value.hint
        return str(error.value)

    path = tmp_path / "token"
    command._token(str(path))
    for mode in (0o640, 0o604, 0o660, 0o602):
        path.chmod(mode)
        assert "other users may open" in refused(path)
    path.chmod(0o600)
    link, fifo, empty = tmp_path / "link", tmp_path / "fifo", tmp_path / "empty"
    link.symlink_to(path)
    assert "cannot read" in refused(link)
    os.mkfifo(fifo, 0o600)
    assert "is not a file" in refused(fifo)
    assert "is not a file" in refused(tmp_path)
    assert "cannot write" in refused(tmp_path / "none" / "token")
    for text in ("", "short", "x" * 300, "x" * 30 + "\x1b[2J", "ü" * 30):
        empty.write_text(text)
        empty.chmod(0o600)
        assert "has no token" in refused(empty)
    if os.geteuid() == 0:
        os.chown(path, HOSTILE[0], HOSTILE[0])
        assert "belongs to another user" in refused(path)

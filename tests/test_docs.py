"""Checks the documentation against the code: generated pages, commands, settings, links."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.api.render import CODES
from carmad.config import Preconditions, Settings
from carmad.configfile import dump, load
from cli.commands import diagnosis, gpumemnet, server
from cli.commands.submit import read
from cli.commands.submit_options import build_parser
from cli.verbs import VERBS
from docs import generate
from docs.pages import http_api, reasons, settings

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference"
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
GROUPS = {
    "daemon": server.daemon,
    "config": diagnosis.config,
    "gpumemnet": gpumemnet.gpumemnet,
}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", generate.pages())
def test_a_generated_page_is_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == generate.pages()[name], "run: .venv/bin/python docs/generate.py"


def test_no_generated_page_is_left_over() -> None:
    reference = {f"reference/{path.name}" for path in REFERENCE.iterdir()}
    assert reference == set(generate.pages()) - {"hardware.md"}


def test_every_command_is_documented() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    for verb in VERBS:
        if verb.name in GROUPS:
            continue
        assert f"### `carma {verb.name}`\n" in page
        assert verb.function().__doc__, f"carma {verb.name} says nothing of itself"
        for alias in verb.aliases:
            assert f"`carma {alias}`" in page
    for group, app in GROUPS.items():
        for command in app.registered_commands:
            assert command.callback is not None
            name = command.name or command.callback.__name__
            assert f"### `carma {group} {name}`\n" in page
            assert command.callback.__doc__


def test_every_option_of_submit_is_documented() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    for action in build_parser()._actions:
        for option in action.option_strings:
            assert re.search(rf"`{re.escape(option)}[ `]", page), option
        assert action.help, action.option_strings


def test_every_setting_is_documented_and_says_what_it_means() -> None:
    page = (REFERENCE / "settings.md").read_text(encoding="utf-8")
    known = {s.key for s in settings.settings()}
    for line in dump(Settings(preconditions=Preconditions())).splitlines():
        name = line.removeprefix("# ").split(" ")[0]
        if line and not line.startswith("["):
            assert f"| `{name}` |" in page, name
    for setting in settings.settings():
        assert settings.MORE.get(setting.key) or setting.comment, setting.key
    assert set(settings.MORE) <= known, "words for a setting that is gone"


def test_every_reason_has_an_example_and_a_word() -> None:
    assert set(reasons.HELP) == reasons.reasons()
    assert set(reasons.OF_THE_JOB + reasons.POLICYS) <= reasons.reasons()


def test_every_state_and_path_is_documented() -> None:
    states = (REFERENCE / "states.md").read_text(encoding="utf-8")
    for state, code in CODES.items():
        assert f"| `{state}` | `{code}` |" in states
    api = (REFERENCE / "http-api.md").read_text(encoding="utf-8")
    for path, methods in http_api.schema()["paths"].items():
        for method in methods:
            assert f"### `{method.upper()} {path}`" in api


# -- links


def _anchors(text: str) -> set[str]:
    """As GitHub derives them from headings."""
    bare = FENCE.sub("", text)
    titles = re.findall(r"^#+ (.+)$", bare, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _links(text: str) -> Iterator[str]:
    yield from LINK.findall(FENCE.sub("", text))


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in _links(text):
        if link.startswith(("https://", "http://")):
            continue
        where, _, anchor = link.partition("#")
        target = (page.parent / where).resolve() if where else page
        assert target.exists(), f"{link}: there is no such file"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        if anchor:
            assert anchor in _anchors(target.read_text(encoding="utf-8")), f"{link}: no such part"


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_every_page_of_docs_can_be_found(page: Path) -> None:
    if page.name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        return
    others = "".join(other.read_text(encoding="utf-8") for other in PAGES if other != page)
    assert f"{page.name})" in others or f"{page.name}#" in others, "no page links here"


# -- shell lines


def _shell_lines(page: Path) -> Iterator[list[str]]:
    for kind, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind not in ("sh", "bash"):
            continue
        for line in body.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="&;")
            lexer.whitespace_split = True
            for separator, words in itertools.groupby(lexer, lambda word: word in ("&&", ";")):
                command = [] if separator else list(words)
                while command and (command[0] == "sudo" or "=" in command[0]):
                    command = command[1:]
                if command:
                    yield command


def _make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_shell_lines_name_what_there_is(page: Path) -> None:
    verbs = {verb.name for verb in VERBS}
    for words in _shell_lines(page):
        program = Path(words[0]).name
        if program == "make":
            assert set(words[1:]) <= _make_targets(), words
        elif program == "carma":
            assert words[1] in verbs, words
            if words[1] in GROUPS:
                names = [
                    c.name or c.callback.__name__
                    for c in GROUPS[words[1]].registered_commands
                    if c.callback
                ]
                assert words[2] in names, words
        elif program == "python" and words[1:] and words[1].endswith(".py"):
            given = words[1]
            assert given == "train.py" or (ROOT / given).exists(), words


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_submissions_shown_can_be_read(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("WANDB_API_KEY", "x")
    for words in _shell_lines(page):
        if words[:2] == ["carma", "submit"] and words[2] != "job.sh":
            read(words[2:])


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_settings_shown_are_settings(page: Path, tmp_path: Path) -> None:
    for kind, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind == "toml":
            file = tmp_path / "carma.toml"
            file.write_text(body, encoding="utf-8")
            load(file, {})


def test_the_readmes_quick_start_is_two_commands() -> None:
    first = FENCE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert first is not None
    assert first[2] == "make demo\nmake test\n"


def test_the_example_script_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, request = read(["examples/job.sh"])
    assert (request["name"], request["gpus"], request["memory_mib"]) == ("resnet50", 1, 8192)
    assert (request["time_limit_s"], request["warn"]["before_s"]) == (7200.0, 120)


def test_pictures_ask_nothing_of_the_internet() -> None:
    for picture in (ROOT / "docs/images").glob("*.svg"):
        text = picture.read_text(encoding="utf-8")
        assert "@font-face" not in text and "url(http" not in text

"""Checks the documentation against the code: generated pages, commands, settings, links."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.text import Text

from carmad import registry
from carmad.config import Preconditions, Settings
from carmad.configfile import dump, load
from carmad.states import CODES
from cli.submission import build_parser, read
from cli.verbs import leaves
from docs import generate, screenshots
from docs.pages import http_api, reasons, settings
from docs.publish import FENCE, links

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)

FOLDERS = "benchmarks|carma_client|carmad|cli|docs|estimators|extras|lab|policies|recovery|tests"
NAMED = re.compile(rf"`((?:{FOLDERS})/[a-z0-9_./-]+)`")


def _ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == generate.page(name), "run: .venv/bin/python docs/generate.py"


def test_no_generated_page_is_left_over() -> None:
    reference = {f"reference/{path.name}" for path in REFERENCE.iterdir()}
    assert reference == {name for name in generate.PAGES if name.startswith("reference/")}


def test_every_command_is_documented() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    for verb in leaves():
        assert f"### `carma {verb.name}`\n" in page


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
        assert setting.comment, setting.key
    assert set(settings.PLUGINS) <= known


def test_help_and_reference_name_every_policy_and_other_plugin_of_carma() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["entry-points"]
    meanings = {setting.key: settings.meaning(setting) for setting in settings.settings()}
    for key, kind in settings.PLUGINS.items():
        for name in declared[f"carma.{kind}"]:
            assert f"`{name}`" in meanings[key]
    assert sorted(declared["carma.policies"]) == registry.own_names("policies")


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


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_links_lead_somewhere_on_github(page: Path) -> None:
    """On the site, `tests/docs/test_docs_site` checks them."""
    for link in links(page):
        where, _, anchor = link.partition("#")
        target = (page.parent / where).resolve() if where else page
        assert target.exists(), f"{link}: there is no such file"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        if anchor:
            assert anchor in _anchors(target.read_text(encoding="utf-8")), f"{link}: no such part"


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_files_that_a_page_names_exist(page: Path) -> None:
    for name in NAMED.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (ROOT / f"{name}.py").exists(), name


def test_every_page_can_be_reached_from_the_index() -> None:
    found, waiting = {ROOT / "README.md"}, [ROOT / "docs/index.md"]
    while waiting:
        page = waiting.pop()
        if page.suffix == ".md" and page not in found:
            found.add(page)
            waiting += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    assert not {_ids(page) for page in set(PAGES) - found}


# -- shell lines


def _shell_lines(page: Path) -> Iterator[list[str]]:
    for _, kind, body in FENCE.findall(page.read_text(encoding="utf-8")):
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
    verbs = {verb.name for verb in leaves()}
    text = page.read_text(encoding="utf-8")
    for words in _shell_lines(page):
        program = Path(words[0]).name
        if program == "make":
            assert set(words[1:]) <= _make_targets(), words
        elif program == "carma":
            assert {words[1], " ".join(words[1:3])} & verbs or words[1].startswith("--"), words
        elif program == "python" and words[1:] and words[1].endswith(".py"):
            given = words[1]
            there = given == "train.py" or (ROOT / given).exists() or f"cat > {given}" in text
            assert there, words


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_submissions_shown_can_be_read(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("WANDB_API_KEY", "x")
    for words in _shell_lines(page):
        if words[:2] == ["carma", "submit"] and words[2] != "job.sh":
            read(words[2:])


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_settings_shown_are_settings(page: Path, tmp_path: Path) -> None:
    for _, kind, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind == "toml":
            file = tmp_path / "carma.toml"
            file.write_text(body, encoding="utf-8")
            load(file, {})


def test_the_readme_begins_with_three_commands_on_the_readers_script() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    own, without_gpu = (each[3].splitlines() for each in FENCE.finditer(text))
    verbs = [shlex.split(line, comments=True)[:2] for line in own]
    assert verbs == [["carma", verb] for verb in ("estimate", "submit", "why")]
    assert without_gpu[0] == "python3 demo.py"
    first = text[: FENCE.search(text).end()]  # type: ignore[union-attr]
    assert first.count("![") == 1 and len(first.split()) < 180, "a screen"
    assert "What it does not do" in text[len(first) :].partition("##")[0]
    assert "paper" not in text.partition("## What it does")[0], "papers have a page of their own"


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="needs logrotate")
def test_the_logrotate_snippet_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/guides/logs.md").read_text(encoding="utf-8")
    (snippet,) = (body for _, kind, body in FENCE.findall(page) if "copytruncate" in body)
    log, file = tmp_path / "carmad.log", tmp_path / "logrotate.conf"
    log.write_text("a line\n", encoding="utf-8")
    file.write_text(snippet.replace("/var/lib/carma/carmad.log", str(log)), encoding="utf-8")
    argv = ["logrotate", "--debug", "--force", "--state", str(tmp_path / "state"), str(file)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0 and "error" not in done.stderr, done.stderr
    assert "truncating" in done.stderr, done.stderr


def test_the_example_script_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, request = read(["examples/job.sh"])
    assert (request["name"], request["gpus"], request["memory_mib"]) == ("resnet50", 1, 8192)
    assert (request["time_limit_s"], request["warn"]["before_s"]) == (7200.0, 120)


def test_pictures_ask_nothing_of_the_internet() -> None:
    for picture in (ROOT / "docs/images").glob("*.svg"):
        text = picture.read_text(encoding="utf-8")
        assert "@font-face" not in text and "url(http" not in text


def test_a_film_shows_each_frame_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screenshots, "IMAGES", tmp_path)
    frames = ["one\nstays", "two & <3\nstays", "two & <3\nstays\nlast"]
    screenshots.film("short", "a film", [Text(frame) for frame in frames])
    drawn = ElementTree.parse(tmp_path / "short.svg")
    ticks = len(frames) + round(screenshots.HELD_S * screenshots.FASTER / screenshots.FRAME_S)
    shown: dict[int, list[str]] = {tick: [] for tick in range(ticks)}
    still = []
    for group in drawn.iter("{http://www.w3.org/2000/svg}g"):
        if found := re.fullmatch(r"f( z)? s(\d+) l(\d+)", group.get("class", "")):
            words = "".join(group.itertext()).replace("\N{NO-BREAK SPACE}", " ")
            still += [words] if found[1] else []
            for tick in range(int(found[2]), int(found[2]) + int(found[3])):
                shown[tick].append(words)
    asked = [frame.split("\n") for frame in frames]
    assert [sorted(shown[tick]) for tick in range(ticks)] == [
        sorted(asked[min(tick, len(frames) - 1)]) for tick in range(ticks)
    ]
    assert sorted(still) == sorted(asked[-1])  # where pictures do not move

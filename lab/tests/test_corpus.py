"""The corpus of public scripts: its lists, its made data, and how it is fetched."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from carmad.plugin import Refusal
from lab.corpus import made
from lab.corpus.draw import linked, order
from lab.corpus.listed import LIST, MAKERS, UNSEEN, Repository, Script, prepare, read
from lab.corpus.mistakes import Mistake, mistakes
from lab.corpus.scripts import _judge, command

REASONS = {
    *("cannot be fetched", "not PyTorch", "no training command in its README"),
    *("packages", "data or weights"),
}


@pytest.mark.parametrize("page", [LIST, UNSEEN])
def test_what_is_listed_can_be_made(page: Path) -> None:
    repositories = read(page)
    assert len({one.name for one in repositories}) == len(repositories)
    for one in repositories:
        assert len(one.commit) == 40 or one.name == "ultralytics/ultralytics"
        assert one.scripts
        for script in one.scripts:
            assert all(data.split()[0] in MAKERS for data in script.data), script.name


def test_what_was_drawn_was_not_known_and_has_a_reason_if_it_is_passed_over() -> None:
    known, drawn = read(LIST), read(UNSEEN)
    passed = tomllib.loads(UNSEEN.read_text())["passed_over"]
    names = [one.name.lower() for one in drawn] + [one["name"].lower() for one in passed]
    assert len(drawn) == 40
    assert len(set(names)) == len(names)
    assert not {one.name.lower() for one in known} & set(names)
    assert {one["reason"] for one in passed} == REASONS


def test_each_mistake_is_in_a_script_that_is_listed() -> None:
    listed = list(mistakes())
    assert len(listed) >= 30
    assert not any(one.script.stops or one.script.lacks for one in listed)


def test_a_mistake_is_at_its_line() -> None:
    script = Script("a/b", "python train.py")
    text = "layer = 3\nx = 2\ny = layer(x)\n"
    assert Mistake(script, "train.py", "x = 2", "x = 3\n").put_into(text)[1] == 2
    assert Mistake(script, "train.py", "layer = 3", "layer = 4", "y = ").put_into(text)[1] == 3


def test_a_repository_comes_from_a_mirror_and_gets_its_data(tmp_path: Path) -> None:
    origin = tmp_path / "mirror" / "ann" / "nets"
    origin.mkdir(parents=True)
    (origin / "README.md").write_text("```python\nimport os\n```\n```python\nimport torch\n```\n")
    git = ("git", "-C", str(origin), "-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run((*git, *words), check=True)
    head = subprocess.run((*git, "rev-parse", "HEAD"), check=True, capture_output=True, text=True)
    script = Script(
        "ann/nets", "python readme.py", data=("names words.txt",), block="README.md torch"
    )
    repository = Repository("ann/nets", head.stdout.strip(), (script,))
    folder = repository.clone(tmp_path / "clones", tmp_path / "mirror")
    assert repository.clone(tmp_path / "clones", None) == folder, "it is there"
    cwd = prepare(script, folder)
    assert (cwd / "readme.py").read_text() == "import torch\n"
    assert (cwd / "words.txt").read_text().count("\n") == len(made.WORDS) ** 2
    assert command(script, cwd, "/opt/bin/python").argv == ("/opt/bin/python", "readme.py")


def test_what_is_said_to_stop_and_is_not_known_to_is_wrong() -> None:
    crash = Refusal("the script stops at train.py:3: KeyError", "look", 1.0, crash="at train.py:3")
    assert _judge(Script("a/b", "python train.py"), crash) == "wrong"
    assert _judge(Script("a/b", "python train.py", stops="train.py:3: KeyError"), crash) == "stops"
    assert _judge(Script("a/b", "python train.py", lacks="weights"), crash) == "lacks"
    assert _judge(Script("a/b", "python train.py"), Refusal("no", "look", 1.0)) == "refused"


def test_an_order_is_drawn_of_links_that_are_not_known() -> None:
    page = "[a](https://github.com/ann/nets) https://github.com/topics/x github.com/Ann/Nets.git."
    assert linked(page) == ["ann/nets", "Ann/Nets"]
    names = [*linked(page), "bob/gans", "cy/seen"]
    drawn = order(names, "name = 'Cy/Seen'")
    assert sorted(drawn) == ["ann/nets", "bob/gans"]
    assert drawn == order(reversed([*drawn, "cy/seen"]), "cy/seen"), "by the seed alone"

"""The verbs that scripts call: argparse and typer read the same words alike."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import app, hot
from cli.main import run
from cli.problems import Usage
from cli.reader import Parser

WORDS = [
    *("submit true", "submit -G 2 -t 2h --gpu-mem 4G -- python -t 3 x", "submit -Ga100:2 -HW true"),
    *("submit --gres=gpu:2 --param a=1,2 --param b=3 --zip true", "submit --time 0 true"),
    *("submit --no-requeue --export A=b,c=d --export NONE true", "submit -QJname -D / true -D x"),
    *(
        "submit -p gpu -N 1 --account=x true",
        "submit --wrap",
        "submit",
        "submit --",
        "submit -- --",
    ),
    *("submit --nice -5 true", "submit --after 3,last -d afterok:4 true --json", "submit --json -"),
    *("submit --time x true", "submit --gpus -1 true", "submit --nope true", "submit -G"),
    *("submit --exclusive=1 true", "submit --stages forward=1s --allreduce star true"),
    *("queue", "queue -u bob --me -t R,PD -j 1,3 -S -jobid -hlr -o jobid", "queue --sort=-name"),
    *("queue --watch --every 5", "queue --every x", "queue -u", "queue 42", "queue --start --json"),
    *("wait 1 3 5-8", "wait --any 4 --json", "wait 4 --any 5", "wait", "wait --anyway 4"),
    *("cancel all -u bob", "cancel -u bob 4", "cancel 3 --json", "cancel", "cancel --user"),
]


def by_argparse(words: list[str]) -> dict[str, Any] | int:
    verb, *rest = words
    try:
        return vars(hot.read(Parser(f"carma {verb}", hot.TABLES[verb]), rest))
    except Usage as error:
        return error.exit_code


def by_typer(words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | int:
    read: list[Namespace] = []

    def record(options: Namespace) -> int:
        read.append(options)
        return 0

    monkeypatch.setattr("cli.verbs.Command.function", lambda *_: record)
    try:
        assert app.run(words) == 0
    except Usage as error:
        return error.exit_code
    return vars(read[0])


def alike(values: dict[str, Any] | int) -> dict[str, Any] | int:
    """Without what is not given."""
    if isinstance(values, int):
        return values
    return {name: value for name, value in values.items() if value not in (None, [])}


@pytest.mark.parametrize("words", WORDS)
def test_both_read_alike(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    its = words.split()
    assert alike(by_argparse(its)) == alike(by_typer(its, monkeypatch))


OPTIONS = st.sampled_from(
    [
        *("-G 2", "-t 90", "--gpu-mem 4G", "-H", "--exclusive", "--requeue", "--no-requeue", "-Q"),
        *("--param a=1-3", "--param b=x", "--name n", "-J m", "--gres gpu:1", "--anyway", "-W"),
    ]
)


@given(st.lists(OPTIONS, max_size=6), st.booleans(), st.lists(st.sampled_from(["a", "-b", "--"])))
def test_any_options_in_any_order(options: list[str], marked: bool, rest: list[str]) -> None:
    words = " ".join(options).split()
    its = ["submit", *words, *(["--"] if marked else []), "prog", *rest]
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert alike(by_argparse(its)) == alike(by_typer(its, monkeypatch))


def test_errors_are_worded_alike(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--time", "3x", "true"], ["--gpu-memm", "3G", "true"]):
        said = []
        for verb in ("submit", "run"):
            assert run([verb, *words]) == 2
            said.append(capsys.readouterr().err.replace(f"carma {verb}", "carma VERB"))
        assert said[0] == said[1]

"""The one Python command of a shell script, found without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.tracer.shell import Unclear, command, unwrapped

ENV = {"HOME": "/home/u", "PATH": "/bin", "EPOCHS": "7"}


def found(text: str, *args: str, gpus: int = 4) -> list[str]:
    return command(["bash", "-c", text, "run.sh", *args], ENV, "/work", gpus)[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --lr 0.1  # fast", "python train.py --lr 0.1"),
        ("set -e\nmkdir -p out\necho start\npython t.py > log 2>&1", "python t.py"),
        ("python -u t.py \\\n  --a 1 \\\n  --b 2 | tee log &\nwait", "python -u t.py --a 1 --b 2"),
        ("A=3; B=$((A * 4 + 1))\npython t.py --n $B --e ${EPOCHS}", "python t.py --n 13 --e 7"),
        ("python t.py --lr ${LR:-0.5} $1 $#", "python t.py --lr 0.5 x 2"),
        ('a=(--p 1)\na+=(--q "2")\npython t.py "${a[@]}"', "python t.py --p 1 --q 2"),
        ("for s in 5 6; do for b in 1 2; do python t.py $s $b; done; done", "python t.py 5 1"),
        ("if [ -f x ]; then wget http://y; fi; exec torchrun t.py", "torchrun t.py"),
        ("cat <<EOF > c\npython no.py\nEOF\npython yes.py", "python yes.py"),
        ("python -m pip install x && python --version\npython t.py", "python t.py"),
        (
            "torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) t.py",
            "torchrun --nproc_per_node=4 t.py",
        ),
        ("python t.py --name run_$(date +%s)", "python t.py --name run_x"),
        ("train() {\n  python t.py --fixed\n}\ntrain 3", "python t.py --fixed"),
        (
            "srun -n 1 timeout 3h nice -n 5 python t.py",
            "srun -n 1 timeout 3h nice -n 5 python t.py",
        ),
    ],
)
def test_the_command_is_found(text: str, words: str) -> None:
    assert found(text, "x", "y z") == words.split()


def test_arguments_are_passed_on() -> None:
    assert found('python t.py "$@" $2', "x", "y z") == ["python", "t.py", "x", "y z", "y", "z"]
    assert found('python t.py "$@" "$1"') == ["python", "t.py", ""]


def test_quotes_keep_words_together() -> None:
    assert found('A=\'x  y\'; python t.py "$A" $A \'it\'\'s\' "a\\"b" ""') == [
        *("python", "t.py", "x  y", "x", "y", "its", 'a"b', "")
    ]


def test_what_is_set_goes_to_the_program() -> None:
    text = """
        source ~/venv/bin/activate
        export A=1 B
        C=2
        cd sub && cd ..
        cd data
        D=3 python t.py
        """
    words, env, cwd = command(["sh", "-c", text], ENV, "/work", 1)
    assert (words, cwd) == (["python", "t.py"], "/work/data")
    assert env["PATH"] == "/home/u/venv/bin:/bin"
    assert (env["A"], env["D"]) == ("1", "3")
    assert "C" not in env, "it was not exported"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo hello", "runs no Python command"),
        ("python a.py\npython b.py", r"runs 2 Python commands \(python a.py, python b.py\)"),
        ("python t.py --seed $(cat seed)", "is not known before it runs"),
        ("python t.py ${A%.*}", "is not known before it runs"),
        ("f() { python t.py $1; }\nf 3", "is not known before it runs"),
    ],
)
def test_what_is_not_clear_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unclear, match=why):
        found(text)


def test_a_script_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text('#!/bin/bash\ncd "$(dirname "$0")"/src\npython t.py $1\n')
    words, _, cwd = command(["bash", "-e", "run.sh", "9"], ENV, str(tmp_path), 1)
    assert (words, cwd) == (["python", "t.py", "9"], f"{tmp_path}/src")


@pytest.mark.parametrize(
    "front", ["nohup", "nice -n 5", "timeout -k 1 3h", "taskset -c 0-3", "time", "stdbuf -oL nohup"]
)
def test_programs_in_front_are_left_out(front: str) -> None:
    assert unwrapped([*front.split(), "python", "-u", "t.py"]) == ["python", "-u", "t.py"]

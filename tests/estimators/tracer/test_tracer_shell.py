"""The one Python command of a shell script, found without running it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.tracer.command import unwrap
from estimators.tracer.shell import Unclear, command

ENV = {"HOME": "/home/u", "PATH": "/bin", "EPOCHS": "7"}


def found(text: str, *args: str, gpus: int = 4, **env: str) -> list[str]:
    return command(["bash", "-c", text, "run.sh", *args], ENV | env, "/work", gpus).words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --lr 0.1  # fast", "python train.py --lr 0.1"),
        ("set -e\nmkdir -p out\necho start\npython t.py > log 2>&1", "python t.py"),
        ("python -u t.py \\\n  --a 1 \\\n  --b 2 | tee log &\nwait", "python -u t.py --a 1 --b 2"),
        ("A=3; B=$((A * 4 + 1))\npython t.py --n $B --e ${EPOCHS}", "python t.py --n 13 --e 7"),
        ("python t.py --lr ${LR:-0.5} $1 $#", "python t.py --lr 0.5 x 2"),
        ("python t.py $1_lr $12 ${1}_lr $\u00b2", "python t.py x_lr x2 x_lr $\u00b2"),
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
    words, env, cwd, _ = command(["sh", "-c", text], ENV, "/work", 1)
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
    told = command(["bash", "-e", "run.sh", "9"], ENV, str(tmp_path), 1)
    assert told[:1] + told[2:] == (["python", "t.py", "9"], f"{tmp_path}/src", "")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unclear, match="runs no Python command"):
        command(["bash", "pipe"], ENV, str(tmp_path), 1)


def skipped(text: str, shell: str = "bash", **env: str) -> str:
    return command([shell, "-c", text], ENV | env, "/work", 4).skipped


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH -n 1\nset -euo pipefail\nexport A=1 B=$A\necho go\npython t.py > log 2>&1\nrm x",
        "nvidia-smi > /dev/null; cd /data && python t.py 2>&1 | tee log",
        'cd "$(dirname "$0")"; cd "$(dirname ${BASH_SOURCE[0]})"; python t.py "$@"',
        "for s in 1 2; do CUDA_LAUNCH_BLOCKING=1 python t.py --seed $s; done",
        "A=(--p 1); exec nohup python t.py ${A[@]} &",
    ],
)
def test_a_script_that_is_understood_says_so(text: str) -> None:
    assert skipped(text) == ""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("wget http://x/y.zip && python t.py", "`wget` before"),
        ("mkdir -p out\npython t.py", "`mkdir` before"),
        ("module load cuda; python t.py", "`module` before"),
        ("source env\npython t.py", "`source env` before"),
        ("python -m pip install einops; python t.py", "`python` before"),
        ("echo a: 1 > conf.yaml; python t.py", "`echo` before"),
        ("cat > c <<EOF\nx\nEOF\npython t.py", "input"),
        ("echo yes | python t.py", "input"),
        ("python t.py < answers", "input"),
        ("python t.py --name $(date +%s)", "output of `date`"),
        ("cd $(dirname $0/..); python t.py", "output of `dirname`"),
        ("if [ -f x ]; then\npython t.py\nfi", "conditions"),
        ("train() { python t.py; }; make data; train", "functions"),
        ("python t.py --data data/*.csv", "patterns"),
        ("D=~/data; python t.py $D", "patterns"),
        ("cd -; python t.py", "`cd`"),
        ("export SEED=$RANDOM; python t.py", "SEED is not known"),
    ],
)
def test_what_had_no_effect_is_told(text: str, what: str) -> None:
    assert what in skipped(text)


def test_startup_files_are_not_read() -> None:
    assert "startup" in command(["bash", "-lc", "python t.py"], ENV, "/work", 1).skipped


def test_arrays_and_what_is_not_known_stay_out_of_the_environment() -> None:
    text = 'A=(x y); export A B="$A" C=$RANDOM D="${A[*]}" E="$*"; python t.py'
    env = command(["sh", "-c", text, "run", "1", "2"], ENV, "/work", 1).env
    assert env == ENV | {"B": "x", "D": "x y", "E": "1 2"}


def test_conda_is_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "envs" / "x" / "etc" / "conda" / "activate.d").mkdir(parents=True)
    known = {"CONDA_EXE": f"{tmp_path}/bin/conda"}
    for text in ("conda activate x", "conda activate base", f". {tmp_path}/etc/profile.d/conda.sh"):
        text = f"{text}; conda activate x; python t.py"
        told = command(["sh", "-c", text], ENV | known, "/work", 1)
        assert told.env["PATH"].startswith(f"{tmp_path}/envs/x/bin:")
        assert "activation" in told.skipped
    with pytest.raises(Unclear, match="conda environment x"):
        found("conda activate x; python t.py")
    assert "`conda` before" in skipped("conda run -n x make; python t.py")


@pytest.mark.parametrize(
    "text",
    [
        "python -m",
        "python t.py $((2(3))) $((())) $((1+()))",
        "python t.py --seed $RANDOM",
        "python t.py --gpu $CUDA_VISIBLE_DEVICES",
        "python t.py 'no end",
        'python t.py "no end\\',
    ],
)
def test_what_is_odd_is_refused_or_found(text: str) -> None:
    try:
        assert found(text, CUDA_VISIBLE_DEVICES="")[0] == "python"
    except Unclear as error:
        assert str(error)


def test_arguments_may_be_set_and_shifted() -> None:
    assert found("shift 2; python t.py $1", "a", "b", "c") == ["python", "t.py", "c"]
    assert found("set -e; set -- x y; python t.py $2") == ["python", "t.py", "y"]


PIECES = st.sampled_from(
    [
        *(
            "python t.py",
            " ",
            "\n",
            ";",
            "'",
            '"',
            "\\",
            "$",
            "${",
            "}",
            "$((",
            "))",
            "$(",
            ")",
            "(",
        ),
        *(
            "`",
            "<<EOF",
            "EOF",
            ">",
            "<",
            "|",
            "&",
            "a=(",
            "=",
            "A",
            "1",
            "*",
            "/",
            "for x in",
            "do",
        ),
        *("done", "if", "cd", "export", "conda activate", "source", "set --", "shift", "python -m"),
    ]
)


@given(st.lists(PIECES, max_size=14).map("".join))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(Unclear):
        assert found(text)


@pytest.mark.parametrize(
    "front", ["nohup", "nice -n 5", "timeout -k 1 3h", "taskset -c 0-3", "time", "stdbuf -oL nohup"]
)
def test_programs_in_front_are_left_out(front: str) -> None:
    assert unwrap([*front.split(), "python", "-u", "t.py"]) == ["python", "-u", "t.py"]

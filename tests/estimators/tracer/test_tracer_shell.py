"""The Python command of a shell script: bash runs the script, but none of its programs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.tracer import shell
from estimators.tracer.command import unwrap
from estimators.tracer.shell import Unclear, command

ENV = {"HOME": "/home/u", "PATH": os.environ["PATH"], "EPOCHS": "7"}


@pytest.fixture(scope="module", autouse=True)
def _landlock() -> None:
    try:
        found("python t.py")
    except Unclear as error:
        if "Landlock" in str(error):
            pytest.skip("this kernel has no Landlock or no seccomp")


def found(text: str, *args: str, gpus: int = 4, **env: str) -> list[str]:
    return command(["bash", "-c", text, "run.sh", *args], ENV | env, "/", gpus).words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --lr 0.1  # fast", "python train.py --lr 0.1"),
        ("set -e\nmkdir -p out\necho start\npython t.py > log 2>&1", "python t.py"),
        ("python -u t.py \\\n  --a 1 \\\n  --b 2 | tee log &\nwait", "python -u t.py --a 1 --b 2"),
        ("A=3; B=$((A * 4 + 1))\npython t.py --n $B --e ${EPOCHS}", "python t.py --n 13 --e 7"),
        ("python t.py $((-7 / 2)) $((-7 % 3)) $((2 ** 5)) $((0x1f))", "python t.py -3 -1 32 31"),
        ("python t.py --lr ${LR:-0.5} $1 $#", "python t.py --lr 0.5 x 2"),
        ("python t.py $1_lr $12 ${1}_lr $\u00b2", "python t.py x_lr x2 x_lr $\u00b2"),
        ('a=(--p 1 # one\n)\na+=(--q "2")\npython t.py "${a[@]}"', "python t.py --p 1 --q 2"),
        (
            "for s in {5..6}; do for b in $(seq 2); do python t.py $s $b; done; done",
            "python t.py 5 1",
        ),
        (
            "for ((i = 0; i < 2; i++)); do python t.py $i | tee $i & p[$i]=$!; wait; done",
            "python t.py 0",
        ),
        ("if [ -f x ]; then python a.py; else exec torchrun t.py; fi", "torchrun t.py"),
        ("case ${2%% *} in y) N=1 ;; *) N=2 ;; esac; python t.py $N", "python t.py 1"),
        ("set -e; mkdir x; [[ -d / ]] && rm -r x; python t.py", "python t.py"),
        ("cat <<EOF > c\npython no.py\nEOF\npython yes.py", "python yes.py"),
        ("python t.py <<'EOF' --n 1\nx $(python no.py)\nEOF\n", "python t.py --n 1"),
        ("python -m pip install x && python --version\npython t.py", "python t.py"),
        (
            "torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) t.py",
            "torchrun --nproc_per_node=4 t.py",
        ),
        ("python t.py --gpus $CUDA_VISIBLE_DEVICES", "python t.py --gpus 0,1,2,3"),
        (
            "c=configs/a.b.yaml; n=${c##*/}; python t.py ${n%.*} $(basename $c .yaml)",
            "python t.py a.b a.b",
        ),
        (
            "log() { echo $1; }\ntrain() {\n  local n=${2:-8}\n  python t.py $1 $n\n}\ntrain 3",
            "python t.py 3 8",
        ),
        (
            'O=" --a 1"; O+=" --b 2"; C="python t.py $O"; echo $C; eval $C',
            "python t.py --a 1 --b 2",
        ),
        ("(CUDA_VISIBLE_DEVICES=0 python t.py) & (python t.py > log) & wait", "python t.py"),
        ("exec > >(tee -a log) 2>&1; exec 2> err; command python t.py", "python t.py"),
        (
            "while getopts g: o; do case $o in g) G=$OPTARG ;; esac; done; python t.py $G",
            "python t.py 2",
        ),
        (
            "python prepare.py; python train.py 1; python train.py 2; python eval.py",
            "python train.py 1",
        ),
        ("x=$(python -c 'print(1)' | tail -1); tail -f log & python t.py", "python t.py"),
        ("python t.py 1 & python t.py 2 & python t.py 3 & wait", "python t.py 1"),
        (
            "exec 3>&1 4>&2; exec 5< /etc/passwd; read -u 5 x; exec python t.py ${x%%:*}",
            "python t.py root",
        ),
        ("command cd /; ~/bin/python t.py $(command -p basename a/b)", "/home/u/bin/python t.py b"),
        ("trap 'python no.py' EXIT ERR; trap - DEBUG; ! [ a ]; python t.py", "python t.py"),
        ("export $(printf 'A=1\\nB=2' | xargs); python t.py $A$B > a/dev/log", "python t.py 12"),
        ("export BASH_ENV=/dev/null POSIXLY_CORRECT=1; bash -c 'python t.py'", "python t.py"),
        ("builtin kill -9 $$; python t.py", "python t.py"),
        ("python a.py; python train.py > log", "python train.py"),
        ("until nc -z db 1 && [ -e go ]; do sleep 5; done; python train.py", "python train.py"),
        ("w() { while :; do echo; sleep 1; done; }; w & python train.py; wait", "python train.py"),
        (
            "set -e; rm a; rm b > c; nvidia-smi > d; tail a > b; command python t.py > e",
            "python t.py",
        ),
        ("exec {fd}> lock; flock $fd; A=1 time python t.py", "time python t.py"),
        (
            "python t.py $(nvidia-smi --query-gpu=index --format=csv,noheader | tail -1)",
            "python t.py 3",
        ),
        (
            "srun -n 1 timeout 3h nice -n 5 python t.py",
            "srun -n 1 timeout 3h nice -n 5 python t.py",
        ),
    ],
)
def test_the_command_is_found(text: str, words: str) -> None:
    args = ("-g", "2") if "getopts" in text else ("x", "y z")
    assert found(text, *args) == words.split()


def test_the_python_that_reports_may_be_the_scripts_own() -> None:
    words, *_ = command(["sh", "-c", f"mkdir x && {sys.executable} t.py"], {}, "/", 1)
    assert words == [sys.executable, "t.py"]


def test_quotes_keep_words_together() -> None:
    assert found('python t.py "$@" $2', "x", "y z") == ["python", "t.py", "x", "y z", "y", "z"]
    assert found('A=\'x  y\'; A="$A > b" python t.py "$A" $A \'it\'\'s\' "a\\"b" "" "c >" d') == [
        *("python", "t.py", "x  y", "x", "y", "its", 'a"b', "", "c >", "d")
    ]


def test_what_is_set_goes_to_the_program(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "activate").write_text("PATH=/venv/bin:$PATH; deactivate() { :; }\n")
    text = "source ./activate; export A=1 B; C=2; cd data && cd .. && cd data; D='3 4' python t.py"
    words, env, cwd, *_ = command(["sh", "-c", text], ENV, str(tmp_path), 1)
    assert (words, cwd) == (["python", "t.py"], f"{tmp_path}/data")
    assert env["PATH"] == f"/venv/bin:{ENV['PATH']}"
    assert (env["A"], env["D"]) == ("1", "3 4")
    assert "C" not in env, "it was not exported"
    assert not [name for name in env if "carma" in name.lower()] and "BASH_ENV" not in env
    assert "CUDA_VISIBLE_DEVICES" not in env, "the script did not set it"
    env = command(["bash", "-c", "set -a; A=1; python t.py"], {}, "/", 1).env
    assert set(env) - {"LC_CTYPE"} == {"A", "PWD", "SHLVL", "_"}, "nothing of the reporter's"


def test_posix_mode_is_left() -> None:
    """In it, bash would read no BASH_ENV."""
    assert found("python t.py", POSIXLY_CORRECT="1") == ["python", "t.py"]
    assert found("python t.py", SHELLOPTS="posix") == ["python", "t.py"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo hello", "runs no Python command"),
        ("python a.py\npython b.py", r"runs 2 Python commands \(python a.py, python b.py\)"),
        ("python t.py --seed $(curl x)", "is not known before it runs"),
        ("set -e; cd /none; python t.py", "perhaps because .*/none"),
        ("if", "perhaps because .*syntax error"),
        ("python t.py $(nvidia-smi --query-gpu=memory.free --format=csv)", "is not known before"),
        ("find /etc/passwd -exec python t.py {} \\;", "perhaps because `find`"),
        ("set -x; KEY=secret", "runs no Python command$"),
        ("echo $(curl x)! >&2", "perhaps because \u2026!"),
    ],
)
def test_what_is_not_clear_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unclear, match=why):
        found(text)


def test_a_pipe_does_not_break() -> None:
    """A program that is left out neither reads what the one before prints, nor makes it fail."""
    text = "set -eo pipefail; for n in {1..20}; do python t.py $n | tee log; done"
    assert command(["bash", "-c", text], ENV, "/", 1).note.endswith("of 20 Python commands")


def test_a_script_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "run.sh").write_text('#!/bin/bash\ncd "$(dirname "$0")"/src\npython t.py $1\n')
    (tmp_path / "run.sh").chmod(0o755)
    texts = ["./run.sh 9", "exec ./run.sh 9", "N=1 ./run.sh 9 > log"]
    for argv in (
        ["bash", "-e", "run.sh", "9"],
        ["zsh", "run.sh", "9"],
        *(["sh", "-c", it] for it in texts),
    ):
        told = command(argv, ENV, str(tmp_path), 1)
        assert told[:1] + told[2:] == (["python", "t.py", "9"], f"{tmp_path}/src", "", "")
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims" / "python").write_text('#!/usr/bin/env bash\nexec pyenv exec "$0" "$@"\n')
    argv = ["sh", "-c", "$PWD/shims/python t.py"]
    assert command(argv, ENV, str(tmp_path), 1).words == [f"{tmp_path}/shims/python", "t.py"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unclear, match="no file"):
        command(["bash", "pipe"], ENV, str(tmp_path), 1)


def test_make_runs_its_recipes(tmp_path: Path) -> None:
    recipe = "N = 3\ntrain: data.zip\n\t@echo go\n\tcd src && python t.py --n $(N) \\\n\t  --x\n"
    (tmp_path / "Makefile").write_text(f"{recipe}data.zip:\n\twget http://x\n")
    (tmp_path / "src").mkdir()
    told = command(["make", "train", "N=4"], ENV, str(tmp_path), 1)
    assert told.words == ["python", "t.py", "--n", "4", "--x"]
    assert (told.cwd, told.skipped) == (f"{tmp_path}/src", "`wget` before it was not run")


def test_what_was_chosen_is_noted() -> None:
    text = "python prepare.py; for n in 1 2; do python train.py $n; done; python eval.py"
    told = command(["bash", "-c", text], ENV, "/", 1)
    assert told.words == ["python", "train.py", "1"]
    assert told.note == "only the first run of train.py was traced, of 4 Python commands"
    assert told.skipped == "`python prepare.py` before it was not run"


def skipped(text: str, **env: str) -> str:
    return command(["bash", "-c", text], ENV | env, "/", 4).skipped


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH -n 1\nset -eu -o pipefail\nexport A=1 B=2\necho go\npython t.py > log 2>&1\nrm x",
        "nvidia-smi > /dev/null; cd /tmp && python t.py 2>&1 | tee log",
        'cd "$(dirname "$0")"; cd "$(dirname ${BASH_SOURCE[0]:-x})"; python t.py "$@"',
        "A=(--p 1); exec nohup python t.py ${A[@]} &",
        "if [ -f x ]; then\npython t.py\nelse python t.py --name $(date +%s) *.py; fi",
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
        ("python -m pip install einops; python t.py", "`python` before"),
        ("echo a: 1 > conf.yaml; python t.py", "`echo` before"),
        ("cat > c <<EOF\nx\nEOF\npython t.py", "`cat` before"),
        ("export SEED=$(curl x); python t.py", "`curl` before"),
        ("export MEMORY=$CARMA_GPU_MEM_MB; python t.py", "MEMORY is not known"),
    ],
)
def test_what_had_no_effect_is_told(text: str, what: str) -> None:
    assert what in skipped(text)


def test_conda_activates(tmp_path: Path) -> None:
    """Its own program prints what its shell function evaluates."""
    (tmp_path / "conda").write_text(
        """#!/bin/sh
        if [ "$1" = shell.posix ]; then echo "export CONDA_PREFIX='/envs/$3'"
        else echo 'conda() { local ask="$(command conda shell.posix "$@")"; eval "$ask"; }'; fi
        """
    )
    (tmp_path / "conda").chmod(0o755)
    text = 'eval "$(conda shell.bash hook)"; conda activate x; python t.py'
    told = command(["bash", "-c", text], ENV | {"PATH": f"{tmp_path}:{ENV['PATH']}"}, "/", 1)
    assert (told.env["CONDA_PREFIX"], told.skipped) == ("/envs/x", "")


def test_nothing_is_written_and_nobody_killed(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    text = f"""
        echo x > a; : > b; printf x >> c; touch d; exec 3> e; cp run.sh f; sed -n wg run.sh
        kill -9 {other.pid}; pkill -9 -f 'sleep 600'
        x=kill; $x -9 {other.pid}; python t.py; echo $((a[$(touch h; echo 0)]))
        """
    (tmp_path / "run.sh").write_text(text)
    assert command(["bash", "run.sh"], ENV, str(tmp_path), 1).words == ["python", "t.py"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]
    assert other.poll() is None
    other.kill()
    other.wait()


def test_an_old_kernel_runs_no_shell_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError

    monkeypatch.setattr(shell, "_confine", refuse)
    with pytest.raises(Unclear, match="needs Landlock"):
        found("python t.py")


@pytest.mark.parametrize("text", ["while :; do :; done", "read x < /dev/zero", "cat /dev/zero"])
def test_what_does_not_end_is_ended(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "PATIENCE_S", 1)
    began = time.monotonic()
    assert found(f"python t.py; {text}") == ["python", "t.py"]
    with pytest.raises(Unclear, match="longer than 1 s"):
        found(text)
    assert time.monotonic() - began < 20


def test_what_it_says_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "PATIENCE_S", 1)
    tracemalloc.start()
    with pytest.raises(Unclear, match="longer than 1 s"):
        found("cat /dev/zero >&2")
    assert tracemalloc.get_traced_memory()[1] < 2 * shell.MOST_BYTES
    tracemalloc.stop()


def test_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process group of its own would not be ended."""
    monkeypatch.setattr(shell, "PATIENCE_S", 1)
    found("set -m; builtin command sleep 601.5 & builtin command sleep 602.5 & python t.py")
    left = subprocess.run(["pgrep", "-f", "sleep 60[12].5"], check=False, capture_output=True)
    assert left.stdout == b""


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


@settings(max_examples=40)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(Unclear):
        assert found(text.replace("\0", ""))


@pytest.mark.parametrize(
    "front", ["nohup", "nice -n 5", "timeout -k 1 3h", "taskset -c 0-3", "time", "stdbuf -oL nohup"]
)
def test_programs_in_front_are_left_out(front: str) -> None:
    assert unwrap([*front.split(), "python", "-u", "t.py"]) == ["python", "-u", "t.py"]

"""Makes docs/images/*.svg: `python docs/screenshots.py`. Takes about two minutes.

A carmad of its own runs training jobs on three emulated GPUs with the default settings; what its
API answers is drawn by the command line's own code and saved by rich. As root, `--as ada,grace`
submits in the names of these users, who must exist and be able to run this Python. `--only
estimate` makes that one alone: a recording, which needs PyTorch and no daemon.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType
from rich.text import Text

from cli import client, dashboard, output, render

IMAGES = Path(__file__).parent / "images"
WIDTH = 124
TYPED_S, READ_S, WAIT_S = 0.8, 3.0, 2.0  # a command; what it printed; for more of it at most
# rich's own, but with the reader's fonts instead of one from the Internet
LOOK = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace"
)
SCRIPT = Path(__file__).parents[1] / "tests/scripts/gpt.py"
ARGUMENTS = ("--batch_size=12", "--n_layer=12", "--n_head=12", "--n_embd=768", "--block_size=1024")
TRAIN = [sys.executable, "-m", "carmad.gpu.emulated_job"]

# name, submit's options, what the job does; who runs it: the first user or the second
EARLY = (
    ("resnet50", "--gpu-mem 8G --time 2h", "--memory-mib 7110 --seconds 600 --sm 0.55", 0),
    ("bert-base", "--gpu-mem 22G", "--memory-mib 20560 --seconds 600 --sm 0.9 --dram 0.5", 1),
    ("vgg16", "--time 8h", "--memory-mib 9320 --seconds 600 --sm 0.45", 0),
)
LATER = (
    ("gpt2-xl", "--gpu-mem 36G", "--memory-mib 33000 --seconds 300", 1),
    ("ablation", "--array 0-2%2 --gpu-mem 4G", "--memory-mib 3200 --seconds 60", 0),
    ("eval", "--after 1", "--memory-mib 2000", 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as", dest="users", default=pwd.getpwuid(os.getuid()).pw_name)
    parser.add_argument("--only", choices=("jobs", "estimate"))
    options = parser.parse_args()
    users = (options.users.split(",") * 2)[:2]
    home = Path(tempfile.mkdtemp(prefix="carma-"))
    home.chmod(0o711)  # the jobs of others look for the emulated cards in it
    os.environ["CARMA_SOCKET"] = str(home / "sock")
    IMAGES.mkdir(exist_ok=True)
    if options.only != "jobs":
        of_an_estimate(home)
    if options.only == "estimate":
        shutil.rmtree(home)
        return
    carma("daemon", "start", "--emulated", "3xA100-40GB", "--state-dir", str(home / "state"))
    (home / "state").chmod(0o711)
    try:
        of_jobs(users)
    finally:
        carma("cancel", "all", *(("--user", users[0]) if os.getuid() == 0 else ()))
        carma("cancel", "1-99")
        carma("daemon", "stop")
        shutil.rmtree(home)


def of_an_estimate(home: Path) -> None:
    """A recording of `carma estimate` without a daemon, on a copy of tests/scripts/gpt.py."""
    (home / "train.py").write_text(SCRIPT.read_text())
    train = " ".join(("python train.py", *ARGUMENTS))
    recording(
        "estimate",
        home,
        f"carma estimate {train.replace('768', '770')}",  # 12 heads do not divide it
        f"carma estimate --explain --plot - {train}",
    )


def of_jobs(users: list[str]) -> None:
    for job in EARLY:
        submit(*job, users=users)
    wait_until(lambda: all(j["state"] == "running" for j in jobs()), 20)
    submit("unet", "--gpu-mem 10G --time 1h", "--memory-mib 8800 --seconds 500 --sm 0.3", 1, users)
    wait_until(lambda: jobs()[3]["state"] == "running", 90)
    for job in LATER:
        submit(*job, users=users)
    time.sleep(35)  # GPU 0 settles again, and the head of the line still does not fit
    status = client.get("/v1/status")
    picture("status", "carma top", output.as_rich(dashboard.status(status, WIDTH), WIDTH))
    why = client.get("/v1/jobs/5/why")
    picture("why", "carma why 5", output.as_rich(render.why(why), 92), 92)


def submit(name: str, options: str, does: str, who: int, users: list[str]) -> None:
    person = pwd.getpwnam(users[who])
    words = [*options.split(), "-J", name, "-o", "/dev/null", "-D", "/", "--export", "NONE"]
    carma("submit", *words, "--", *TRAIN, *does.split(), uid=person.pw_uid, gid=person.pw_gid)


def carma(*words: str, uid: int | None = None, gid: int | None = None) -> None:
    other: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": []} if uid else {}
    subprocess.run([Path(sys.executable).with_name("carma"), *words], check=False, **other)


def jobs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/jobs")["jobs"]
    return found


def wait_until(holds: Any, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"it did not come to pass: {json.dumps(jobs())[:2000]}")
        time.sleep(0.5)


def recording(name: str, folder: Path, *commands: str) -> None:
    """Type the commands one after the other, and show their output at the pace at which it came,
    but for long waits."""
    bin = Path(sys.executable).parent
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    here = {"PATH": f"{bin}:{os.environ['PATH']}", "CARMA_SOCKET": str(folder / "none")}
    shown, at, played_s = Text(), list[float](), 0.0  # `at`: seconds until each line
    for command in commands:
        shown.append("$ ", "bold green").append(f"{command}\n")
        at.append(played_s)
        played_s += TYPED_S
        last = time.monotonic()
        made = subprocess.Popen(
            shlex.split(command),
            cwd=folder,
            env={**os.environ, **terminal, **here},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert made.stdout is not None
        for line in made.stdout:
            shown.append(Text.from_ansi(line.rstrip())).append("\n")
            now = time.monotonic()
            played_s += min(now - last, WAIT_S)
            at.append(played_s)
            last = now
        made.wait()
        shown.append("\n")
        at.append(played_s)
        played_s += READ_S
    picture(name, "carma estimate", shown, at=at)


def picture(
    name: str, title: str, drawn: RenderableType, width: int = WIDTH, at: Sequence[float] = ()
) -> None:
    console = Console(record=True, width=width, force_terminal=True, file=io.StringIO())
    console.print(drawn)
    file = IMAGES / f"{name}.svg"
    console.save_svg(str(file), title=title, code_format=LOOK, unique_id=name)
    if at:
        file.write_text(played(file.read_text(), name, at))
    print(file)


def played(svg: str, name: str, at: Sequence[float]) -> str:
    """Lets the lines appear one after the other, unless the reader prefers reduced motion."""
    rules = "".join(
        f'[clip-path="url(#{name}-line-{line})"]{{animation:{name} 1ms {s:.2f}s backwards}}\n'
        for line, s in enumerate(at)
    )
    style = f"@keyframes {name} {{from {{visibility:hidden}}}}\n{rules}"
    motion = f"@media (prefers-reduced-motion: no-preference) {{\n{style}}}\n"
    return svg.replace("</style>", f"{motion}</style>", 1)


if __name__ == "__main__":
    main()

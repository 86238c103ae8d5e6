"""Makes docs/images/*.svg: `python docs/screenshots.py`. Takes about three minutes.

A carmad of its own runs training jobs on three emulated GPUs with the default settings; what its
API answers is drawn by the command line's own code and saved by rich. As root, `--as ada,grace`
submits in the names of these users, who must exist and be able to run this Python. `--only` makes
some alone: `estimate` is a recording that needs PyTorch and no daemon, `demo` one of `carma demo`,
`scripts` one of estimates of public scripts, with the `--folder` and `--python` of
`lab.corpus.scripts`.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group, RenderableType
from rich.text import Text

from carma_simulator.demo import sharing
from carma_simulator.demo.jobs import demo_trace
from cli import client, overview, render
from cli.text import draw

IMAGES = Path(__file__).parent / "images"
WIDTH = 124
LINE = 24.4  # height of a line that rich draws
FILM_WIDTH = 106  # of a film, in columns
FRAME_S, FASTER, HELD_S = 1.2, 3.0, 6.0  # between frames as it was; the last one stays
TYPED_S, READ_S, WAIT_S = 0.8, 3.0, 2.0  # a command; what it printed; for more of it at most
# rich's own, but with the reader's fonts instead of one from the Internet
LOOK = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace"
)
SCRIPT = Path(__file__).parents[1] / "tests/scripts/gpt.py"
ARGUMENTS = ("--batch_size=12", "--n_layer=12", "--n_head=12", "--n_embd=768", "--block_size=1024")
PUBLIC = (
    ("ultralytics+ultralytics", "yolo train model=yolov8n.yaml data=coco/data.yaml imgsz=320"),
    ("DLR-RM+stable-baselines3", "python readme.py"),
    ("pytorch+examples/word_language_model", "python main.py --accel"),
    ("pytorch+examples/distributed/FSDP2", "--gpus 2 torchrun --nproc_per_node=2 example.py"),
)
TRAIN = [sys.executable, "-m", "carmad.gpu.emulated_job"]

# name, submit's options, what the job does; who runs it: the first user or the second
EARLY = (
    ("resnet50", "--gpu-mem 8G --time 2h", "--memory-mib 7110 --seconds 600 --sm 0.35", 0),
    ("bert-base", "--gpu-mem 22G --time 3h", "--memory-mib 20560 --seconds 600 --sm 0.6", 1),
    ("vgg16", "--time 8h", "--memory-mib 9320 --seconds 600 --sm 0.45", 0),
)
LATER = (
    ("gpt2-xl", "--gpu-mem 36G", "--memory-mib 33000 --seconds 300", 1),
    ("ablation", "--array 0-2%1 --gpu-mem 4G", "--memory-mib 3200 --seconds 60", 0),
    ("eval", "--after 1", "--memory-mib 2000", 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--as", dest="users", default=pwd.getpwuid(os.getuid()).pw_name)
    parser.add_argument("--only", choices=("demo", "jobs", "estimate", "scripts"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--python", type=Path)
    options = parser.parse_args()
    users = (options.users.split(",") * 2)[:2]
    home = Path(tempfile.mkdtemp(prefix="carma-"))
    home.chmod(0o711)  # the jobs of others look for the emulated cards in it
    IMAGES.mkdir(exist_ok=True)
    if options.only in (None, "demo"):
        of_the_demo(home)
    if options.only in (None, "estimate"):
        of_an_estimate(home)
    if options.only == "scripts":
        of_public_scripts(options.folder, options.python)
    if options.only in (None, "jobs"):
        of_jobs(home, users)
    shutil.rmtree(home)


def of_the_demo(home: Path) -> None:
    """A film of `carma demo`, faster than it was."""
    trace = demo_trace()
    frames: list[RenderableType] = []
    last: RenderableType = ""
    with sharing.replays(home / "demo") as both:

        def keep(now: float) -> None:
            nonlocal last
            last = sharing.picture(now, both, len(trace), FILM_WIDTH)
            if now >= len(frames) * FRAME_S:
                frames.append(last)

        sharing.play(trace, both, keep)
        frames.append(Group(last, Text(f"\n{sharing.summary(both)}", "bold")))
    film("demo", "carma demo", frames)


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


def of_public_scripts(folder: Path, python: Path) -> None:
    """A recording of `carma estimate` on four scripts, unchanged."""
    recording(
        "estimate-scripts",
        folder,
        *(f"cd {cwd} && carma estimate {script}" for cwd, script in PUBLIC),
        python=python,
    )


def of_jobs(home: Path, users: list[str]) -> None:
    os.environ["CARMA_SOCKET"] = str(home / "sock")
    carma("daemon", "start", "--emulated", "3xA100-40GB", "--state-dir", str(home / "state"))
    (home / "state").chmod(0o711)
    try:
        of_running_jobs(users)
    finally:
        carma("cancel", "all", *(("--user", users[0]) if os.getuid() == 0 else ()))
        carma("cancel", "1-99")
        carma("daemon", "stop")


def of_running_jobs(users: list[str]) -> None:
    for job in EARLY:
        submit(*job, users=users)
    wait_until(lambda: all(j["state"] == "running" for j in jobs()), 20)
    submit("unet", "--gpu-mem 10G --time 1h", "--memory-mib 8800 --seconds 500 --sm 0.2", 1, users)
    wait_until(lambda: jobs()[3]["state"] == "running", 90)
    for job in LATER:
        submit(*job, users=users)
    time.sleep(60)  # GPUs settle again, and the head of the line still does not fit
    status = client.get("/v1/status")
    picture("status", "carma top", draw(overview.status(status, WIDTH)))
    why = client.get("/v1/jobs/5/why")
    picture("why", "carma why 5", draw(render.why(why)), 92)


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


def recording(name: str, folder: Path, *commands: str, python: Path | None = None) -> None:
    """Type the commands one after the other, and show their output at the pace at which it came,
    but for long waits. `python`: what `python` is there."""
    bins = [str(found.parent) for found in (python, Path(sys.executable)) if found]
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    path = ":".join((*bins, os.environ["PATH"]))
    places = {"PATH": path, "CARMA_SOCKET": "/nonexistent/carmad.sock"}
    shown, at, played_s = Text(), list[float](), 0.0  # `at`: seconds until each line
    for command in commands:
        shown.append("$ ", "bold green").append(f"{command}\n")
        at.append(played_s)
        played_s += TYPED_S
        last = time.monotonic()
        made = subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            env={**os.environ, **terminal, **places},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert made.stdout is not None
        for line in made.stdout:
            for here in (str(folder), *bins):
                line = line.replace(f"{here}/", "")
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
    console = _recorder(width)
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


def film(name: str, title: str, frames: Sequence[RenderableType]) -> None:
    """The frames one after the other, again and again; where pictures do not move, and for readers
    who prefer reduced motion, the last one. What a line shows for several frames is there once."""
    console = _recorder(FILM_WIDTH)
    heights = [len(console.render_lines(frame)) for frame in frames]
    height = max(heights)
    for frame, used in zip(frames, heights, strict=True):
        console.print(frame)
        console.line(height - used)
    styles, matrix = console.export_svg(code_format="{styles}@{matrix}", unique_id=name).split("@")
    lines = _lines(matrix, name, height, len(frames))
    ticks = len(frames) + round(HELD_S * FASTER / FRAME_S)
    drawn, lengths = "", set[int]()
    for line in lines:
        for at, many in _runs(line):
            last = at + many == len(frames)
            many += last * (ticks - len(frames))
            lengths.add(many)
            kind = f"f{' z' * last} s{at} l{many}"
            drawn += f'<g class="{kind}">{line[at]}</g>\n' if line[at] else ""
    tick_s = FRAME_S / FASTER
    moves = "".join(
        f"@keyframes l{many} {{{100 * many / ticks:.3f}%,to{{visibility:hidden}}}}\n"
        f".l{many}{{animation-name:l{many}}}\n"
        for many in sorted(lengths)
    ) + "".join(f".s{at}{{animation-delay:{(at - ticks) * tick_s:.2f}s}}\n" for at in range(ticks))
    motion = (
        ".f{visibility:hidden}.z{visibility:visible}\n"
        "@media (prefers-reduced-motion: no-preference){\n"
        f".f{{visibility:visible;animation:{ticks * tick_s:.2f}s step-end infinite}}\n{moves}}}\n"
    )
    frame = _recorder(FILM_WIDTH)
    frame.print("\n" * (height - 1))
    look = LOOK.replace("{styles}", "@styles").replace("{matrix}", "@matrix")
    made = frame.export_svg(title=title, code_format=look, unique_id=name)
    made = re.sub(rf'<clipPath id="{name}-line-.*?</clipPath>', "", made, flags=re.DOTALL)
    file = IMAGES / f"{name}.svg"
    file.write_text(made.replace("@styles", styles + "\n" + motion).replace("@matrix", drawn))
    print(file)


def _lines(matrix: str, name: str, height: int, frames: int) -> list[list[str]]:
    """What each line shows in each frame, of a console that shows the frames below each other."""
    lines = [[""] * frames for _ in range(height)]
    at = re.compile(rf' y="([\d.]+)"(.*?) clip-path="url\(#{name}-line-(\d+)\)"')
    for text in re.findall(r"<text .*?</text>", matrix):
        found = at.search(text)
        assert found
        frame, line = divmod(int(found[3]), height)
        y = float(found[1]) - frame * height * LINE
        text = text.replace(found[0], f' y="{y:.1f}"{found[2]}').replace("&#160;", "\u00a0")
        lines[line][frame] += text
    return lines


def _runs(line: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where something begins in it, and how often it is repeated there."""
    at = 0
    for _, same in itertools.groupby(line):
        many = len(list(same))
        yield at, many
        at += many


def _recorder(width: int) -> Console:
    return Console(
        record=True, width=width, force_terminal=True, file=io.StringIO(), markup=False, emoji=False
    )


if __name__ == "__main__":
    main()

"""The pictures of `carma web` in docs/images: CARMA_PICTURES=docs/images pytest THIS_FILE."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import needs_browser
from tests.daemon import ROOT, Carmad, running
from tests.extras.carma_web.web import DESKTOP, Web, browsing, picture
from tests.waiting import until

pytestmark = [
    needs_browser,
    pytest.mark.skipif("CARMA_PICTURES" not in os.environ, reason="no pictures are wanted"),
]
LONG_S = 900
WALL = (1920, 1080)
PHONE = (390, 844)
TRAIN = ("python3", "train.py")
SCRIPT = f"""
import runpy
runpy.run_path({str(ROOT / "examples/emulated_train.py")!r}, run_name="__main__")
"""
# As if one had dragged over the minutes in which the daemon has run.
ZOOM_JS = """
for (const { data, plot } of charts.values()) {
  const begin = data.series[0].values.findIndex((value) => value !== null);
  plot.setScale("x", { min: data.times[begin] - 20, max: data.times.at(-1) });
}
"""
SETTINGS = {"CARMA_MONITOR__WINDOW_S": "4"}


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("web"), "8xA100-40GB", **SETTINGS) as carmad:
        yield carmad


def submit(
    carmad: Carmad, name: str, gib: int, *options: str, seconds: int = LONG_S, load: float = 0.2
) -> int:
    """Of `gib`, it uses most. Returns its id."""
    held = [*TRAIN, "--model", name.split()[0], "--memory-mib", str(gib * 1024 - 900)]
    said = carmad.carma(
        *("submit", "-J", name, "--gpu-mem", f"{gib}G", *options, "--", *held),
        *("--seconds", str(seconds), "--load", str(load)),
    )
    return int(said.split()[-1])


@pytest.fixture(scope="module")
def lab(carmad: Carmad) -> int:
    """A morning in a lab. Returns a job that shares its GPU."""
    Path(carmad.work, "train.py").write_text(SCRIPT)
    first = submit(carmad, "vit-base lr=3e-4", 14, "--time", "8h", "--on", "0")
    carmad.await_state(first, "running")
    submit(carmad, "bert-large squad", 18, "--on", "1", load=0.5)
    submit(carmad, "gpt2-medium", 30, "--on", "2", seconds=60, load=0.9)
    submit(carmad, "resnet50 cutmix", 10, "--time", "2h", "--on", "0")
    submit(carmad, "whisper distil", 8, "--on", "0", load=0.1)
    submit(carmad, "mixtral-eval", 36, "--gpus", "2", "--on", "3,4", load=0.7)
    submit(carmad, "segment cells", 16, "--on", "5", load=0.4)
    submit(carmad, "segment nuclei", 12, "--on", "5", load=0.3)
    submit(carmad, "wav2vec2 ctc", 20, "--on", "6", load=0.6)
    submit(carmad, "seed-sweep", 12, "--array", "0-3%2", seconds=30)
    leak = [*TRAIN, "--model", "unet-3d", "--grow", "9000", "--seconds", "20"]
    carmad.carma("submit", "-J", "unet-3d leak", "--gpu-mem", "5G", "--", *leak)
    carmad.carma(
        "submit", "-J", "quick-eval", "--gpu-mem", "3G", "--", "python3", "-c", "import wandb"
    )
    until(lambda: len(carmad.get("/v1/history")["jobs"]) > 4, "some to end", within_s=400)
    submit(carmad, "llama-lora", 38, "--gpus", "4", "--exclusive", "--time", "8h")
    submit(carmad, "diffusion ablation", 36)
    submit(carmad, "clip-finetune", 24, "--hold")
    carmad.carma("reserve", "--on", "0,1", "--from", "now+30h", "--for", "20h")
    carmad.carma("reserve", "--on", "2", "--users", "root", "--from", "now+60h", "--for", "30h")
    carmad.carma("limit", "default", "--gpus", "8", "--jobs", "200")
    return first


@pytest.mark.parametrize(
    ("name", "size", "dark"),
    [("web", DESKTOP, False), ("web-dark", DESKTOP, True), ("web-phone", PHONE, False)],
)
def test_gpus_and_jobs(web: Web, lab: int, name: str, size: tuple[int, int], dark: bool) -> None:
    with browsing(web, "/", size, dark) as page:
        page.locator("#gpu-7").wait_for()
        if size == DESKTOP:
            page.locator("#spark-7 canvas").wait_for()
        picture(page, name, whole=False)


def test_a_gpu(web: Web, lab: int) -> None:
    with browsing(web, "/gpus/0?hours=1") as page:
        page.locator("#load canvas").wait_for()
        page.evaluate(ZOOM_JS)
        picture(page, "web-gpu")


def test_a_job(web: Web, lab: int) -> None:
    with browsing(web, f"/jobs/{lab}") as page:
        page.locator("#chart-load canvas").wait_for()
        page.locator("#log", has_text="step").wait_for()
        picture(page, "web-job")


def test_the_wall_and_the_history(web: Web, lab: int) -> None:
    with browsing(web, "/wall", WALL) as page:
        page.locator("#gpu-2").wait_for()
        picture(page, "web-wall")
    with browsing(web, "/history") as page:
        page.locator("#found tbody tr").first.wait_for()
        picture(page, "web-history", whole=False)


def test_the_preview_of_a_job(carmad: Carmad, web: Web, lab: int) -> None:
    with browsing(web, "/submit") as page:
        page.get_by_label("Command, or job script").fill(
            "python3 train.py --model gpt2-medium --memory-mib 29820 --seconds 60 --load 0.9"
        )
        page.get_by_label("Directory to run in").fill(str(carmad.work))
        page.locator("#field-name").fill("gpt2-medium")
        page.locator("#field-memory_mib").fill("31G")
        page.get_by_role("button", name="Preview").click()
        page.locator("#estimate table").wait_for(timeout=120_000)
        picture(page, "web-submit")


def test_administration(web: Web, lab: int) -> None:
    with browsing(web, "/admin") as page:
        page.locator(".calendar").wait_for()
        picture(page, "web-admin")

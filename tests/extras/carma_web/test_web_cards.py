"""What the pages say of a GPU, from the daemon's answer."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from carma_web.app import COOKIE, base_of, build
from carma_web.gpu import Card
from carma_web.hues import Hues
from carma_web.wall import LEAST, Wall
from cli import client
from tests import fake_daemon
from tests.extras.carma_web.test_web_others import STATUS, TOKEN

MIB = (9_000, 6_000, 3_000, 2_000)
THRESHOLDS = {"risk": {"sm_active": 0.8, "sm_occupancy": 0.45, "dram_active": 0.4}}


def resident(id: int, mib: int, kernelless_s: float = 0.0) -> dict[str, Any]:
    made = {"id": id, "label": str(id), "user": "ann", "name": f"job-{id}", "mode": "streams"}
    return made | {"memory_mib": mib, "kernelless_s": kernelless_s}


def gpu(index: int = 0, **changes: Any) -> Any:
    jobs = [resident(7 * at, mib) for at, mib in enumerate(MIB)]
    jobs[-1]["kernelless_s"] = 125.0
    made = {"conditions": [], "jobs": jobs, "outsiders": [], "memory_used_mib": 22_000}
    return fake_daemon.gpu(index, **made | changes)


def test_the_bar_is_the_memory_of_each_job_and_of_others() -> None:
    held = Card(gpu(), Hues()).held
    assert [share.name for share in held] == ["0", "7", "14", "21", "others"]
    assert [share.mib for share in held] == [*MIB, 2_000]
    assert len({share.colour for share in held}) == 5
    begins = [sum(share.width for share in held[:at]) for at in range(5)]
    assert [share.begin for share in held] == pytest.approx(begins, abs=0.05)
    assert sum(share.width for share in held) == pytest.approx(100 * 22_000 / 40_960, abs=0.05)
    assert not Card(gpu(memory_used_mib=None, jobs=[resident(1, 0)]), Hues()).held


def test_a_job_without_a_kernel_is_first_and_the_last_line_tells_how_many_more() -> None:
    card = Card(gpu(), Hues(), lines=3)
    assert [job["label"] for job in card.jobs] == ["21", "0"] and card.more == 2
    assert len(Card(gpu(), Hues(), lines=4).jobs) == 4


@pytest.mark.parametrize("path", ["?part=gpus", "wall?part=cards", "gpus/0?part=now"])
def test_every_page_shows_a_job_without_a_kernel(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    answers = {
        "/v1/gpus": {"gpus": [gpu()], "thresholds": THRESHOLDS},
        "/v1/status": STATUS | {"gpus": [gpu()]},
    }
    monkeypatch.setattr(client, "get", lambda path, **query: answers[path])
    app = build(TOKEN, read_only=True)
    pages = TestClient(app, f"http://test{base_of(TOKEN)}", cookies={COOKIE: TOKEN})
    said = pages.get(path).text
    assert said.count("no kernel") == 1
    assert "no kernel for 2:05" in said or path.startswith("wall")
    for share in Card(gpu(), Hues()).held:
        assert said.count(f'fill="{share.colour}"') >= 1


@pytest.mark.parametrize(("gpus", "jobs", "lines"), [(8, 4, 4), (8, 8, 5), (4, 8, 8), (16, 3, 1)])
def test_cards_on_the_wall_leave_room_for_the_line(gpus: int, jobs: int, lines: int) -> None:
    wall = Wall.__new__(Wall)
    many = [resident(id, 1) for id in range(jobs)]
    wall.__dict__["status"] = {"gpus": [gpu(0, jobs=many) for _ in range(gpus)]}
    assert wall.lines == lines
    assert wall.room >= LEAST or lines == 1

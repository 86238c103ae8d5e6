"""Memory limits that are enforced: on emulated cards, by the driver's calls, and end to end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from carmad.core.jobs.attempt import GpuId, MemoryLimits
from carmad.gpu.card import ATTEMPT, SLOTS, Card, OutOfMemory, group_of
from carmad.gpu.emulated import EmulatedSource
from carmad.gpu.emulated import create as create_all
from carmad.gpu.limits import EmulatedLimiter
from tests.daemon import NO_KERNELS, Carmad, running, train, until

if TYPE_CHECKING:
    from tests.daemon import Json

ALL = 40_960


class Cards:
    """An emulated card, and the processes of attempts on it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        create_all(folder, "1xA100-40GB")
        (gpu,) = EmulatedSource(folder).discover()
        self.gpu: GpuId = gpu.id
        self.limiter = EmulatedLimiter(str(folder))
        self.opened: list[Card] = []

    def process(self, attempt: str = "") -> Card:
        self._patch.setenv(ATTEMPT, attempt)
        its = Card(str(self._folder / f"{self.gpu}.card"))
        its.attach()
        self.opened.append(its)
        return its

    def limit(self, attempt: str, guaranteed_mib: int, most_mib: int | None) -> None:
        limits = (MemoryLimits(self.gpu, guaranteed_mib, most_mib),)
        assert self.limiter.limit(attempt, None, limits) == ""


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cards]:
    its = Cards(tmp_path, monkeypatch)
    yield its
    for each in its.opened:
        each.close()


def refused(process: Card, mib: int) -> OutOfMemory:
    with pytest.raises(OutOfMemory) as error:
        process.allocate(mib)
    return error.value


def test_all_processes_of_an_attempt_share_its_limit(cards: Cards) -> None:
    cards.limit("7.1", 4_000, 10_000)
    one, other = cards.process("7.1"), cards.process("7.1")
    one.allocate(6_000)
    error = refused(other, 4_001)
    assert (error.free_mib, error.total_mib) == (4_000, 10_000)
    other.allocate(4_000)
    cards.process("8.1").allocate(20_000)


def test_what_is_guaranteed_is_there_and_others_cannot_take_it(cards: Cards) -> None:
    cards.limit("7.1", 12_000, 31_000)
    owner, other = cards.process("7.1"), cards.process()
    owner.allocate(2_000)
    assert refused(other, ALL - 12_000 + 1).free_mib == ALL - 12_000
    other.allocate(ALL - 12_000)
    owner.allocate(10_000)


def test_limits_change_while_a_process_runs_and_can_be_lifted(cards: Cards) -> None:
    cards.limit("7.1", 0, 10_000)
    process = cards.process("7.1")
    process.allocate(10_000)
    cards.limit("7.1", 0, 20_000)
    process.allocate(10_000)
    cards.limit("7.1", 0, 15_000)
    assert refused(process, 1).free_mib == 0
    cards.limit("7.1", 0, None)
    process.allocate(ALL - 20_000)


def test_what_an_ended_attempt_was_guaranteed_is_free(cards: Cards) -> None:
    for number in range(SLOTS):
        cards.limit(f"{number}.1", 600, ALL)
    with pytest.raises(AssertionError, match="no more than 64 limits"):
        cards.limit("more.1", 1, ALL)
    for number in range(SLOTS):
        cards.limiter.forget(f"{number}.1")
    cards.process().allocate(ALL)


def test_an_attempts_directory_gives_its_group() -> None:
    names = {f"/var/lib/carma/jobs/{job}.{n}" for job in range(300) for n in range(5)}
    assert len({group_of(name) for name in names}) == len(names)
    assert group_of("") == 0
    assert all(0 < group_of(name) < 2**63 for name in names)


def test_a_directory_without_cards_gives_no_limits_and_says_why(tmp_path: Path) -> None:
    limiter = EmulatedLimiter(str(tmp_path / "none"))
    assert "No such file" in limiter.limit("7.1", None, (MemoryLimits(GpuId("GPU-0")),))


# -- end to end


@pytest.fixture
def one_gpu(tmp_path: Path) -> Iterator[Carmad]:
    on = {"CARMA_COLLOCATION__GUARANTEE_MEMORY": "true"}
    with running(tmp_path, "1xA100-40GB", **NO_KERNELS, **on) as carmad:
        yield carmad


def bounds(daemon: Carmad, job: int) -> tuple[int | None, int | None]:
    memory: Json = daemon.job(job)["memory"]
    return memory.get("guaranteed_mib"), memory.get("most_mib")


def most_for(daemon: Carmad, job: int | None) -> int:
    """How much a process of this job, or of none, could allocate on the empty card."""
    card = Card(str(next(daemon.state.rglob("*.card"))))
    group = group_of(str(daemon.state / "jobs" / f"{job}.1")) if job else 0
    try:
        with card.lock():
            return bisect_right(
                range(ALL), False, key=lambda mib: not card.has_room(mib + 1, group)
            )
    finally:
        card.close()


def waits_for(file: str, mib: int) -> str:
    """A shell's words: it trains once the file is there."""
    words = " ".join(train(memory_mib=mib, seconds=0.5, warmup=0.1, sm=0.3))
    return f"until [ -e {file} ]; do sleep 0.05; done; exec {words}"


def test_a_job_that_outgrows_its_promise_fails_and_its_neighbour_gets_its_memory(
    one_gpu: Carmad,
) -> None:
    wrong = one_gpu.sh(waits_for("grow", 20_000), memory_mib=12_000, stdout="wrong.out")
    until(lambda: bounds(one_gpu, wrong) == (12_000, ALL), "its limits")
    right = one_gpu.sh(waits_for("go", 24_000), memory_mib=25_000, stdout="right.out")
    until(lambda: bounds(one_gpu, right) == (25_000, ALL - 12_000), "the neighbour's limits")
    until(lambda: bounds(one_gpu, wrong) == (12_000, ALL - 25_000), "its new limits")
    until(lambda: most_for(one_gpu, wrong) == ALL - 25_000, "these to be set")
    shown = one_gpu.carma("show", str(wrong))
    assert "guaranteed 11.7G, may use 15.6G" in shown

    (one_gpu.work / "grow").touch()
    until(lambda: one_gpu.job(wrong)["failures"], "its failure")
    (failure,) = one_gpu.job(wrong)["failures"]
    assert (failure["cause"], failure["limit_mib"]) == ("gpu_oom", ALL - 25_000)
    assert failure["evidence"].startswith("it met its own limit of 15.6G")
    assert failure["neighbours"] == []
    until(lambda: bounds(one_gpu, right) == (25_000, ALL), "the neighbour to have all of it")

    (one_gpu.work / "go").touch()
    assert one_gpu.ended(right)["state"] == "succeeded"
    again = one_gpu.ended(wrong)
    assert (again["state"], again["attempt"]) == ("succeeded", 2)
    assert again["memory"]["most_mib"] is None


def test_limits_outlive_the_daemon_that_set_them(one_gpu: Carmad) -> None:
    one = one_gpu.sh(waits_for("go", 11_000), memory_mib=12_000)
    until(lambda: bounds(one_gpu, one) == (12_000, ALL), "its limits")
    one_gpu.kill()
    one_gpu.start()
    assert bounds(one_gpu, one) == (12_000, ALL)
    assert most_for(one_gpu, None) == ALL - 12_000
    (one_gpu.work / "go").touch()
    assert one_gpu.ended(one)["state"] == "succeeded"
    until(lambda: most_for(one_gpu, None) == ALL, "all of it to be free")

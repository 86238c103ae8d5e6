"""Runs many experiments in parallel processes, and none that the cache knows already.

What an experiment is made of is its caller's; how one runs is `carmad.sim.run`'s.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context

from carmad.errors import CarmaError
from carmad.sim.cache import Cache, keys
from carmad.sim.experiment import Experiment
from carmad.sim.outcome import Outcome
from carmad.sim.run import simulate


def sweep(
    experiments: Sequence[Experiment], jobs: int, cache: Cache | None = None
) -> Iterator[tuple[Experiment, Outcome]]:
    """Each experiment and its outcome, in the order given; at most `jobs` run at once.

    Raises CarmaError, which names the experiment, when one fails. That ends the others, and so do
    Ctrl-C and SIGTERM: with `jobs` above 1 it is for the main thread only.
    """
    hashes = keys(experiments) if cache else [""] * len(experiments)
    known = [cache.get(key) if cache else None for key in hashes]
    due = [
        (experiment, cache, key)
        for experiment, key, outcome in zip(experiments, hashes, known, strict=True)
        if outcome is None
    ]
    jobs = min(jobs, len(due))
    fresh = _in_parallel(due, jobs) if jobs > 1 else (_run(*one) for one in due)
    for experiment, outcome in zip(experiments, known, strict=True):
        yield experiment, next(fresh) if outcome is None else outcome


def title(experiment: Experiment) -> str:
    settings = experiment.settings
    return f"{settings.policy} (estimator {experiment.estimator}, seed {experiment.seed})"


_Due = tuple[Experiment, Cache | None, str]


def _in_parallel(due: Sequence[_Due], jobs: int) -> Iterator[Outcome]:
    # Not forked: the caller may have threads, a progress bar's for one.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    others = active_children()
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        futures = _hand_out(pool, due)
        for (experiment, _, _), future in zip(due, futures, strict=True):
            try:
                yield future.result()
            except BrokenProcessPool:
                raise CarmaError(
                    f"{title(experiment)}: its process, or one beside it, was killed",
                    "is there too little memory? try fewer at once with --jobs",
                ) from None
    except BaseException:  # Ctrl-C and SIGTERM, too: whoever waits for this has waited long enough
        for process in active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: object) -> None:
    sys.exit(128 + number)  # as a shell has it


def _hand_out(pool: ProcessPoolExecutor, due: Sequence[_Due]) -> list[Future[Outcome]]:
    """The processes begin with Ctrl-C blocked: a terminal sends it to all, and one is to react."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(_run, *one) for one in due]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(experiment: Experiment, cache: Cache | None, key: str) -> Outcome:
    try:
        outcome = simulate(experiment)
    except CarmaError as error:
        raise CarmaError(f"{title(experiment)}: {error.message}", error.hint) from error
    except Exception as error:
        error.add_note(f"while simulating {title(experiment)}")
        raise
    if cache is not None:
        cache.put(key, outcome)
    return outcome

"""Changing jobs from a login node: `cancel`, `hold`, `release`, `requeue`; and `wait`.

Whose jobs may be changed is for Slurm to say: everything is asked of it as the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from carmad.errors import CarmaError
from cli import output
from cli.client import outcomes
from cli.cluster import jobs, slurm
from cli.problems import Problem, Unknown, Unreachable

if TYPE_CHECKING:
    from argparse import Namespace


def cancel(options: Namespace) -> int:
    """Cancel jobs. Running ones get SIGTERM, then SIGKILL."""
    return _each(options, ("scancel", "--quiet"), "cancelled")


def hold(options: Namespace) -> int:
    """Keep waiting jobs from starting."""
    return _each(options, ("scontrol", "hold"), "held")


def release(options: Namespace) -> int:
    """Release held jobs."""
    return _each(options, ("scontrol", "release"), "released")


def requeue(options: Namespace) -> int:
    """Run jobs again, under their old numbers."""
    return _each(options, ("scontrol", "requeue"), "queued again")


def _each(options: Namespace, words: Sequence[str], done: str) -> int:
    results: list[dict[str, Any]] = []
    for label in jobs.select(options.jobs, options.user):
        try:
            if options.user:
                jobs.of_user(label, options.user)
            _refuse(done, slurm.all_of(label))
            slurm.ask(*words, label)
            results.append({"label": label, "ok": True, "message": done})
        except Unreachable as error:
            if not results and not isinstance(error, Unknown):
                raise
            # What was done before, and to which job it is not known, has to be told.
            results.append(_failure(label, f"{error.message}: {error.hint}"))
            _tell(results, options.json)
            return error.exit_code
        except slurm.Gone:
            results.append(_failure(label, f"Slurm does not know it: {slurm.FORGETS}"))
        except CarmaError as error:
            results.append(_failure(label, error.message))
    if not results:
        raise Problem("no job is selected", "see `carma queue --me`")
    _tell(results, options.json)
    return 0 if all(result["ok"] for result in results) else 1


def _failure(label: str, message: str) -> dict[str, Any]:
    return {"label": label, "ok": False, "message": message}


def _tell(results: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        output.print_json({"schema": 1, "results": results})
        return
    import sys

    for name, ok, message in outcomes(results):
        print(f"job {name}: {message}", file=sys.stdout if ok else sys.stderr)


def _refuse(done: str, tasks: Sequence[slurm.Row]) -> None:
    """What Slurm's commands do without a word, though it has no effect. Raises Problem."""
    if done == "cancelled" and all(row.state.ended for row in tasks):
        raise Problem("has ended already")
    if done == "held" and all(row.state.name == "running" for row in tasks):
        raise Problem("runs already")


def wait(options: Namespace) -> int:
    """Wait for jobs to end. Exits with the exit code of the first that failed, or 0."""
    ended = []
    for end in jobs.ends([*jobs.select(options.jobs)]):
        ended.append(end)
        if not options.json:
            print(f"job {end.label}: {end.state.replace('_', ' ')}", flush=True)
        if options.any:
            break
    if options.json:
        output.print_json({"schema": 1, "jobs": [end._asdict() for end in ended]})
    return next((end.exit_code for end in ended if end.exit_code), 0)

"""`python -m tests.releases.make 0.1.0`: the state directory of a carmad of this release that died.

To be run once, on the commit that is released: 0.1.0 was made on f75e15c, with revision 0001. The
zip has the database as SQL, a `launch` file for each attempt under way, and the supervisor's code.
`ROOT` stands for the folder, and root for who submitted it all.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from carma_testing.builders import a_job
from carmad.attempt import cgroup, process_tree, starting, supervisor
from carmad.attempt.environment import job_environment
from carmad.attempt.launcher import ATTEMPT_VARIABLE, launch_fields
from carmad.core.gpus.gpu import Drain
from carmad.core.jobs.attempt import Cause, Exit, JobId, Mode
from carmad.core.jobs.findings import Usage
from carmad.core.jobs.job import Job, Retry
from carmad.core.jobs.spec import ArrayTask, JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.messages import Event, Step, Tick
from carmad.core.placing.decision import Decision, Placement
from carmad.gpu.emulated import KINDS, uuid_of
from carmad.store.sql import SqlStore

HERE = Path(__file__).parent
ROOT = "/carma-release"
AT = 1_780_000_000.0
GPUS = [uuid_of(KINDS["A100-40GB"], index) for index in range(4)]
PATH = "/usr/local/bin:/usr/bin:/bin"


def spec(name: str, script: str, **changes: object) -> JobSpec:
    plain = JobSpec(
        argv=("/bin/sh", "-c", script),
        user="root",
        uid=0,
        gid=0,
        cwd=f"{ROOT}/work",
        name=name,
        env=(("PATH", PATH), ("COLOR", name)),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def jobs() -> list[Job]:
    """One of each kind; its name says which."""
    says = 'echo "$COLOR"'
    made: list[Job] = []

    def add(
        name: str, state: JobState, script: str = says, spec_changes: object = (), **fields: object
    ) -> None:
        id = JobId(len(made) + 1)
        its = spec(name, script, **dict(spec_changes))  # type: ignore[call-overload]
        made.append(a_job(id, spec=its, state=state, submitted_at=AT + id, **fields))

    over: dict[str, Any] = {
        "attempt": 1,
        "gpus": (GPUS[0],),
        "mode": Mode.STREAMS,
        "started_at": AT + 50,
        "ended_at": AT + 90,
    }
    add(
        "succeeded",
        JobState.SUCCEEDED,
        exit=Exit(Cause.SUCCESS, 0),
        usage=Usage(900, 5.0, 3.0, 40.0),
        **over,
    )
    add("failed", JobState.FAILED, "exit 3", exit=Exit(Cause.FAILURE, 3, evidence="exit 3"), **over)
    add("cancelled", JobState.CANCELLED, exit=Exit(Cause.CANCELLED), ended_at=AT + 60)
    add("held", JobState.QUEUED, held=True)
    add("queued", JobState.QUEUED)
    add("pending", JobState.PENDING)
    add(
        "tried-again",
        JobState.QUEUED,
        attempt=1,
        failures=(Exit(Cause.GPU_OOM, 1),),
        retry=Retry("alone", exclusive=True),
    )
    first = JobId(len(made) + 1)
    for index in range(2):
        add("task", JobState.QUEUED, spec_changes={"array": ArrayTask(first, index, 1)})
    here: dict[str, Any] = {"attempt": 1, "mode": Mode.STREAMS, "started_at": AT + 95}
    add("starting", JobState.STARTING, gpus=(GPUS[0],), **here)
    waits = "echo up; read go < fifo; exit 3"
    add("running", JobState.RUNNING, waits, gpus=(GPUS[1],), kernels=((GPUS[1], AT + 96),), **here)
    add(
        "stopping",
        JobState.STOPPING,
        "echo up; sleep 1000",
        gpus=(GPUS[2],),
        stop=Cause.CANCELLED,
        **here,
    )
    return made


def dump(folder: Path) -> str:
    store = SqlStore.open(folder / "carma.db")
    event: Event = Tick(AT + 99)
    decisions = tuple(
        Decision(job.started_at, "magm", Placement(job.id, job.gpus))
        for job in jobs()
        if job.started_at
    )
    drain = Drain(GPUS[3], "fan swap", "root", AT)
    store.commit(Step((event,), tuple(jobs()), decisions, (), (drain,)))
    store.close()
    with sqlite3.connect(folder / "carma.db") as connection:
        return "\n".join(connection.iterdump())


def main(release: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(HERE / f"{release}.zip", "w", zipfile.ZIP_DEFLATED) as kept,
    ):
        kept.writestr("dump.sql", dump(Path(folder)))
        for job in jobs():
            if job.state in (JobState.RUNNING, JobState.STOPPING):
                directory = f"jobs/{job.id}.{job.attempt}"
                env = job_environment(job, job.gpus, mps_pipe=None, mps_log=None)
                env[ATTEMPT_VARIABLE] = f"{ROOT}/state/{directory}"
                kept.writestr(f"{directory}/launch", launch_fields(job, env, 1.0))
        for module in (supervisor, cgroup, process_tree, starting):
            name = f"code/carmad/attempt/{Path(str(module.__file__)).name}"
            kept.write(str(module.__file__), name)


if __name__ == "__main__":
    main(sys.argv[1])

"""`snakemake --executor carma`: each job of a workflow is a job of CARMA.

Snakemake looks for a package of exactly this name. Of a rule, CARMA hears of `threads` and of the
resources `gpu` (none: 0), `gpu_mem` (MiB on each GPU), `mem_mb` and `runtime` (minutes).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings

from carma_client import calls

BAD = frozenset({"failed", "cancelled", "timed_out", "out_of_memory", "gone"})

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,  # the jobs run on this server
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,  # a job has the environment that it is submitted from
    auto_deploy_default_storage_provider=False,
)


class Executor(RemoteExecutor):  # type: ignore[misc]  # Snakemake is not typed
    def run_job(self, job: JobExecutorInterface) -> None:
        name = f"{'group' if job.is_group() else 'rule'}-{job.name}-{job.jobid}"
        log = Path(".snakemake", "carma_logs").absolute() / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            label = calls.submit(
                ["/bin/sh", "-c", self.format_job_exec(job)],
                name=name,
                stdout=str(log).replace("%", "%%"),
                export=self.envvars(),
                **options(job),
            )
        except Exception as error:
            raise WorkflowError(f"CARMA did not take job {name}: {error}") from error
        self.logger.info(f"Job {job.jobid} is CARMA's job {label} (log: {log}).")
        info = SubmittedJobInfo(job, external_jobid=label, aux={"log": str(log)})
        self.report_job_submission(info)

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        async with self.status_rate_limiter:
            states = self._states([info.external_jobid for info in active_jobs])
        for info in active_jobs:
            state = "running" if states is None else states.get(info.external_jobid, "gone")
            if state == "succeeded":
                self.report_job_success(info)
            elif state in BAD:
                said = f"CARMA's job {info.external_jobid} is {state.replace('_', ' ')}. "
                self.report_job_error(info, msg=said, aux_logs=[info.aux["log"]])
            else:
                yield info

    def _states(self, ids: list[str]) -> dict[str, str] | None:
        """None: CARMA does not answer, and may be restarting."""
        try:
            return {label: job["state"] for label, job in calls.jobs(ids).items()}
        except Exception as error:  # noqa: BLE001 - a job goes on, whatever kept the answer away
            self.logger.warning(f"CARMA does not answer: {error}")
            return None

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        calls.act("cancel", [info.external_jobid for info in active_jobs])


def options(job: JobExecutorInterface) -> dict[str, Any]:
    """A job's options, by CARMA's names, from its threads and resources."""
    asked = job.resources
    runtime = asked.get("runtime")
    return {
        "gpus": asked.get("gpu") or 0,
        "cpus": job.threads,
        "memory_mib": asked.get("gpu_mem"),
        "host_memory_mib": asked.get("mem_mb"),
        "time_limit_s": 60.0 * runtime if runtime else None,
    }

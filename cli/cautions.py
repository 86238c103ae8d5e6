"""Notes about parts of a simulation that will not have the effect that they seem to have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from carmad.readable import clean
from cli import output

if TYPE_CHECKING:
    from carmad.sim.experiment import Experiment
    from carmad.sim.task import Load

OF_A_NODE = 8  # GPUs per node, as in most large servers


def note_idle_seeds(seeds: Sequence[int], experiments: Sequence[Experiment]) -> None:
    """Note that the seeds make no difference, if no estimate has an error."""

    def has_errors(experiment: Experiment) -> bool:
        physics = experiment.physics
        of_memory = physics.estimate_error and experiment.estimator != "none"
        return bool(of_memory or physics.duration_error)

    if len(set(seeds)) > 1 and not any(map(has_errors, experiments)):
        output.note(
            "the seeds make no difference, since estimates have no errors: see --estimator and"
            " --set physics.estimate_error or physics.duration_error."
            " For another workload, change the seed of the trace, as in generate:NAME?seed=1"
        )


def note_missing_pairs(base: Experiment) -> None:
    """Note how much of the trace a file of measured pairs covers."""
    from carmad.core.types import Mode
    from carmad.sim import interference as models

    model = models.make(base.interference)
    if isinstance(model, models.Measured):
        mode = Mode.MPS if base.settings.collocation.mps else Mode.STREAMS
        known, asked = model.coverage((task.load for task in base.trace.tasks), mode)
        if known < asked or not asked:
            _, _, file = base.interference.partition(":")
            output.note(
                f"{known:,} of {asked:,} models of the trace, at their batch sizes, have pairs"
                f" measured under {mode.value} in {file}; for the others: learned"
            )


def note_mixed_names(base: Experiment) -> None:
    """Note jobs that policies take for runs of the same job, although they are not."""
    loads: dict[tuple[str, str, int], set[Load]] = {}
    for task in base.trace.tasks:
        loads.setdefault((task.user, task.name, task.gpus), set()).add(task.load)
    if mixed := [name for (_, name, _), found in loads.items() if len(found) > 1]:
        output.note(
            f"jobs of the same name, user and number of GPUs that differ in load: {len(mixed):,}"
            f" names, such as {clean(mixed[0])}; policies take them for runs of the same job"
        )


def note_oversized(base: Experiment) -> None:
    """Note jobs that want more GPUs, or more memory, than the cluster has."""
    nodes, tasks = base.cluster.nodes, base.trace.tasks
    gpus = max(1, sum(node.gpus for node in nodes if not node.instances))
    if wide := [task for task in tasks if task.gpus > gpus]:
        most = max(wide, key=lambda task: task.gpus)
        whole = math.ceil(most.gpus / OF_A_NODE)
        shape = f"{most.gpus}x" if whole == 1 else f"{whole}x{OF_A_NODE}x"
        output.note(
            f"jobs that want more GPUs than there are: {len(wide):,}; the largest,"
            f" {clean(most.name)}, wants {most.gpus}: --gpus {shape}{nodes[0].kind.name}"
        )
    mib = max(unit.memory_mib for node in nodes for unit in node.units)
    if big := [task for task in tasks if task.load.memory_mib > mib]:
        most = max(big, key=lambda task: task.load.memory_mib)
        output.note(
            f"jobs that want more memory than any GPU has: {len(big):,}; the largest,"
            f" {clean(most.name)}, wants {most.load.memory_mib:,} MiB"
        )

"""Settings that are proposed for a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from carma_simulator.experiment import Experiment, Outcome
from carma_simulator.tuning import Proposal, Ran, propose, tunable
from carmad import configfile, registry
from carmad.config import Settings
from carmad.core.jobs.states import JobState
from tests.extras.carma_simulator.outcomes import attempt, experiment, job, outcome

GSS = "policies.lucid.sharing_capacity"
T_PROF = "profiling.run_s"


def proposed(jcts: Callable[[dict[str, Any]], Sequence[float]]) -> tuple[Proposal, list[Ran]]:
    """What is proposed if the jobs take so long under some settings, and all that was simulated.
    None: the job does not finish."""

    def run(asked: Experiment) -> Ran:
        return asked, ran(jcts(configfile.by_name(asked.settings)))

    def sweep(experiments: Sequence[Experiment]) -> list[Ran]:
        made = [run(each) for each in experiments]
        simulated.extend(made)
        return made

    simulated: list[Ran] = []
    current = run(experiment(ran([1.0] * 4), Settings(policy="lucid")))
    return propose(current, sweep), simulated


def ran(jcts: Sequence[float]) -> Outcome:
    return outcome(
        *(
            job(
                at,
                attempt(at, at + abs(jct)),
                state=JobState.SUCCEEDED if jct > 0 else JobState.OUT_OF_MEMORY,
            )
            for at, jct in enumerate(jcts)
        )
    )


def test_values_that_help_both_halves_are_proposed() -> None:
    """Each setting is tried with what was found best of those before it."""

    def jcts(values: dict[str, Any]) -> Sequence[float]:
        faster = 10 * (values[T_PROF] == 100) + 20 * (values[GSS] == 1)
        return [100 - faster] * 2 + [200 - faster] * 2

    found, simulated = proposed(jcts)
    assert (found.changes, found.holds) == ({T_PROF: 100, GSS: 1}, True)
    assert configfile.by_name(found.best[0].settings)[GSS] == 1
    assert len(simulated) == sum(map(len, tunable("lucid").values()))
    assert found.text == (
        "lucid: proposed for the settings file, which stays as it is:\n"
        "[profiling]\nrun_s = 100\n\n[policies.lucid]\nsharing_capacity = 1\n"
        "the mean JCT of the earlier half of the jobs, for which this was chosen: -30%;"
        " of the later half: -15%"
    )


def test_what_helps_only_the_jobs_that_chose_it_is_not_proposed() -> None:
    found, _ = proposed(lambda values: [100 + 9 * values[GSS], 100, 100 - values[GSS], 100])
    assert (found.changes, found.holds) == ({GSS: 0}, False)
    assert "tried, and not proposed for the settings file" in found.text


def test_a_change_of_less_than_a_hundredth_is_chance() -> None:
    found, _ = proposed(lambda values: [1000 - (values[GSS] == 1)] * 4)
    assert found.changes == {}


def test_a_shorter_mean_of_fewer_jobs_is_no_gain() -> None:
    def jcts(values: dict[str, Any]) -> Sequence[float]:
        return [100, -100 if values[GSS] == 0 else 300, 100, 100]

    found, _ = proposed(jcts)
    assert found.text == "lucid: of the settings tried, none is better than the current ones"


def test_all_that_a_policy_declares_is_a_setting_that_takes_these_values() -> None:
    declared = registry.settings_of_plugins()
    policies = [name for (_, name), own in declared.items() if hasattr(own, "TUNABLE")]
    assert "lucid" in policies
    for name in policies:
        for key, values in tunable(name).items():
            for value in values:
                changed = configfile.change(Settings(policy=name), [f"{key}={value}"])
                assert configfile.by_name(changed)[key] == value

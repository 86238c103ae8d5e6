from carma_simulator.experiment import Experiment, Load, Task, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carma_simulator.traces.sources import load
from carmad.config import Settings
from lab.cluster.stages import First, simulate_staged


def job(submit_s, duration_s, gpus=1, mib=4096):
    known = (("known", mib),)
    load = Load(memory_mib=mib)
    return Task(
        name="j", submit_s=submit_s, duration_s=duration_s, gpus=gpus, load=load, estimates=known
    )


def experiment(*tasks, cluster="2x2xA100-40GB", policy="exclusive"):
    return Experiment(Trace("t", tasks), parse(cluster), Settings(policy=policy), estimator="known")


def attempts(outcome):
    return [job.attempts for job in outcome.jobs]


def ends(outcome):
    return [job.ended_at for job in outcome.jobs]


def test_one_node_in_two_stages_is_one_stage():
    trace = load("generate:lab?seed=4&tasks=60")
    for policy in ("exclusive", "magm"):
        known = Experiment(trace, parse("8xA100-40GB"), Settings(policy=policy), "oracle")
        one, two = simulate(known), simulate_staged(known, First())
        assert attempts(two.outcome) == attempts(one)
        assert two.outcome.makespan_s == one.makespan_s
        assert two.outcome.gpus == one.gpus
        assert two.first_wait_s == 0


def test_a_job_waits_at_its_node_while_another_is_idle():
    """Sums fit everywhere, so the third job is sent behind the first, which is the longer one."""
    tasks = [job(0, 1000, gpus=2), job(1, 100, gpus=2), job(2, 100, gpus=2)]
    asked = experiment(*tasks)
    assert ends(simulate(asked)) == [1010, 111, 221]  # 10 s to the first kernel each
    blind = simulate_staged(asked, First())
    assert ends(blind.outcome) == [1010, 111, 1120]
    assert blind.first_wait_s == 0
    assert blind.node_wait_s == (1010 - 2) / 3
    assert blind.wait_beside_idle == (1010 - 111) / (1010 - 2)
    late = simulate_staged(asked, First(late=True))
    assert ends(late.outcome) == [1010, 111, 1120]  # sent at once: nobody waits there yet


def test_the_first_stage_holds_a_job_whose_sum_fits_nowhere():
    """Of 80 GiB each, 60 are asked for: the third job waits for the shorter of the two."""
    tasks = [job(0, 1000, mib=30_720, gpus=2), job(1, 100, mib=30_720, gpus=2)]
    third = job(2, 100, mib=30_720)
    held = simulate_staged(experiment(*tasks, third), First())
    assert ends(held.outcome) == [1010, 111, 221]
    assert held.first_wait_s == (111 - 2) / 3 and held.node_wait_s == 0


def test_units_are_rounded_up_and_gpus_can_be_counted_instead():
    tasks = [job(0, 1000, mib=20_000), job(1, 100, mib=20_000), job(2, 100, mib=20_000)]
    tasks += [job(3, 100, mib=20_000)]
    asked = experiment(*tasks, cluster="1x2xA100-40GB", policy="magm")
    rounded = simulate_staged(asked, First(unit_mib=21_000)).outcome  # 3 units, 1 each
    exact = simulate_staged(asked, First(unit_mib=1)).outcome
    counted = simulate_staged(asked, First(unit_mib=0)).outcome
    assert all(job.attempts for out in (rounded, exact, counted) for job in out.jobs)
    assert rounded.jobs[3].attempts[0].launched_at >= rounded.jobs[1].ended_at
    assert counted.jobs[2].attempts[0].launched_at >= counted.jobs[1].ended_at
    assert not any(len(at.gpus) > 1 for job in counted.jobs for at in job.attempts)


def test_a_packed_first_stage_queues_jobs_beside_idle_nodes():
    tasks = [job(n, 500) for n in range(4)]
    waits = {}
    for choice in ("packed", "least", "measured"):
        asked = experiment(*tasks, cluster="4x2xA100-40GB")
        waits[choice] = simulate_staged(asked, First(choice)).node_wait_s
    assert waits == {"packed": (508 + 508) / 4, "least": 0, "measured": 0}


def test_the_same_run_has_the_same_outcome():
    known = Experiment(
        load("generate:lab?seed=4&tasks=60"),
        parse("4x2xA100-40GB"),
        Settings(policy="magm"),
        "oracle",
    )
    first, second = (simulate_staged(known, First("measured")) for _ in range(2))
    assert attempts(first.outcome) == attempts(second.outcome)
    assert first.outcome.gpus == second.outcome.gpus

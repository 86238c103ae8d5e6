"""Reading, writing, importing and generating traces."""

import statistics
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carma_simulator.catalogue import Profile, find, load_of
from carma_simulator.experiment import Load, Rejected, Task, Trace
from carma_simulator.traces import public
from carma_simulator.traces import rows as native
from carma_simulator.traces.generators import GENERATORS
from carma_simulator.traces.sources import assign, load
from carmad.core.jobs.findings import StageTimes
from carmad.core.jobs.layout import Layout, Stage
from carmad.errors import CarmaError
from carmad.installed import how_to_add
from carmad.options import MAX_TIME_S

PROJECT = Path(__file__).parents[3]
LAB_DAY = PROJECT / "examples" / "traces" / "lab_day.csv"

words = st.text(st.characters(exclude_categories=["C"], include_characters="\n"))
positive = st.floats(1e-300, MAX_TIME_S)
shares = st.floats(0, 1)
loads = st.builds(
    Load,
    model=words,
    batch_size=st.integers(0, 1 << 20),
    memory_mib=st.integers(1, 1 << 30),
    sm_active=shares,
    sm_occupancy=shares,
    dram_active=shares,
)
tasks = st.builds(
    Task,
    name=words.filter(bool),
    submit_s=st.floats(0, 1e9),
    duration_s=positive,
    gpus=st.integers(1, 4096),
    user=words,
    load=loads,
    reference=words,
    expected_s=st.none() | positive,
    deadline_s=st.none() | positive,
    time_limit_s=st.none() | positive,
    declared_mib=st.none() | st.integers(1, 10**6),
    exclusive=st.booleans(),
    fails=st.booleans(),
    estimates=st.sampled_from([(), (("horus", 7),), (("horus", 40000), ("fake tensor", 1))]),
)
amounts = st.floats(0, 1e6)
stages = st.lists(
    st.builds(
        Stage,
        replicas=st.integers(1, 9),
        forward_s=amounts,
        backward_s=amounts,
        in_mib=amounts,
        weights_mib=amounts,
        tensor=st.integers(1, 4),
        experts_mib=amounts,
    ),
    min_size=1,
    max_size=3,
)
spread = st.builds(
    lambda stages, allreduce, times: Task(
        name="spread",
        submit_s=0.0,
        duration_s=1.0,
        gpus=sum(stage.replicas * stage.tensor for stage in stages),
        layout=Layout(tuple(stages), allreduce),
        iteration_s=0.5,
        stages=tuple(times),
    ),
    stages,
    st.sampled_from(["ring", "tree"]),
    st.lists(
        st.builds(
            StageTimes,
            load_s=amounts,
            forward_s=amounts,
            backward_s=amounts,
            communication_s=amounts,
            sync=st.sampled_from(["backward", "forward"]),
            gpu=st.sampled_from(["", "NVIDIA A100-SXM4-40GB"]),
        ).filter(lambda t: t.load_s + t.forward_s + t.backward_s + t.communication_s > 0),
        max_size=2,
    ),
)
tasks |= spread


def begun(drawn):
    """As a trace's tasks stand: in order, the first submitted at 0."""
    ranked = sorted(drawn, key=lambda task: task.submit_s)
    first = [Task(name="first", submit_s=0.0, duration_s=1.0)]
    return (*first, *ranked)


def file(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def gaps(trace):
    return [after.submit_s - before.submit_s for before, after in pairwise(trace.tasks)]


def p95(values):
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


# CARMA's own form


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@settings(max_examples=40)
@given(drawn=st.lists(tasks, max_size=5))
def test_what_is_written_is_read_back(tmp_path_factory, suffix, drawn):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path_factory.mktemp("traces") / f"mine.{suffix}"
    trace = Trace("mine", begun(drawn))
    native.write_trace(trace, path)
    assert native.read_trace(path) == trace


def test_a_trace_of_nothing_is_one_too(tmp_path):
    native.write_trace(Trace("empty", ()), tmp_path / "empty.csv")
    assert native.read_trace(tmp_path / "empty.csv") == Trace("empty", ())


def test_missing_columns_and_empty_numbers_are_defaults(tmp_path):
    path = file(
        tmp_path, "t.csv", "name,submit_s,duration_s,gpus,fails\na,0,60,,\nb,1.5,60,2,True\n"
    )
    assert native.read_trace(path).tasks == (
        Task(name="a", submit_s=0, duration_s=60),
        Task(name="b", submit_s=1.5, duration_s=60, gpus=2, fails=True),
    )


def test_the_first_task_in_time_begins_the_trace(tmp_path):
    path = file(tmp_path, "t.csv", "name,submit_s,duration_s\nlate,130,5\nearly,100,5\n")
    assert [(t.name, t.submit_s) for t in native.read_trace(path).tasks] == [
        ("early", 0),
        ("late", 30),
    ]


def test_only_columns_that_say_something_are_written(tmp_path):
    path = tmp_path / "t.csv"
    task = Task(name="a", submit_s=0.0, duration_s=0.1, gpus=2, estimates=(("horus", 900),))
    native.write_trace(Trace("t", (task,)), path)
    assert path.read_text() == "name,submit_s,duration_s,gpus,estimate_horus_mib\na,0,0.1,2,900\n"


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ("a,0,sixty,1,0.5", "duration_s is 'sixty', but must be a number"),
        ("a,0,nan,1,0.5", "duration_s is nan, but must be a finite number"),
        ("a,0,,1,0.5", "duration_s is '', but must be a number"),
        ("a,0,0,1,0.5", "duration_s is 0, but must be more than 0"),
        ("a,0,60,0,0.5", "asks for no GPU"),
        ("a,0,60,-2,0.5", "asks for -2 GPUs"),
        ("a,0,60,1.5,0.5", "gpus is 1.5, but must be a whole number"),
        ("a,0,60,1,1.5", "sm_active is 1.5, but must be between 0 and 1"),
        ("a,0,60,1", "has 4 cells, but must have 5"),
        ("a,0,60,1,0.5,6", "has 6 cells, but must have 5"),
    ],
)
def test_bad_rows_are_named_by_line_and_reason(tmp_path, cells, why):
    # A name of two lines before, and an empty line: both count.
    header = "name,submit_s,duration_s,gpus,sm_active"
    path = file(tmp_path, "t.csv", f'{header}\n"a\nb",0,60,1,0.5\n\n{cells}\nc,9,60,1,0.5\n')
    trace = native.read_trace(path)
    assert trace.rejected == (Rejected(5, why),)
    assert [task.name for task in trace.tasks] == ["a\nb", "c"]


def test_a_layout_that_makes_no_sense_is_no_task(tmp_path):
    text = "name,submit_s,duration_s,gpus,layout,stages\n"
    text += "a,0,1,2,2x forward=20ms,load=1ms forward=2ms backward=3ms\n"
    text += "b,0,1,2,3x forward=20ms,\nc,0,1,2,2x forward=20,\nd,0,1,2,,load=1ms\n"
    trace = native.read_trace(file(tmp_path, "t.csv", text))
    assert [task.layout for task in trace.tasks] == [Layout((Stage(2, 0.02),))]
    assert trace.tasks[0].stages == (StageTimes(0.001, 0.002, 0.003),)
    words = [rejected.why for rejected in trace.rejected]
    assert words[0] == "its layout needs 3 GPUs, but it asks for 2"
    assert words[1].startswith("layout: '20' is not a valid stage time")
    assert words[2].startswith("stages: 'load=1ms' lacks forward=")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,submit_s\na,0\n", "lacks the columns: duration_s"),
        ("", "lacks the columns: name, submit_s, duration_s"),
        ("name,submit_s,duration_s,gpu,estimate_mib\n", "unknown columns: gpu, estimate_mib"),
        ("name,submit_s,duration_s,name\n", "more than one column: name"),
    ],
)
def test_wrong_columns_are_an_error(tmp_path, text, message):
    with pytest.raises(CarmaError, match=message):
        native.read_trace(file(tmp_path, "t.csv", text))


def test_unknown_columns_are_told_which_are_known(tmp_path):
    with pytest.raises(CarmaError) as raised:
        native.read_trace(file(tmp_path, "t.csv", "name,submit_s,duration_s,gpu\n"))
    known = raised.value.hint
    assert known.startswith("known: name, submit_s, duration_s, gpus, user, ")
    assert known.endswith(", has_kernels, estimate_NAME_mib")


def test_memory_may_be_none_at_all_and_not_less(tmp_path):
    text = "name,submit_s,duration_s,memory_mib\na,0,1,0\nb,0,1,-1\n"
    trace = native.read_trace(file(tmp_path, "t.csv", text))
    assert [task.load.memory_mib for task in trace.tasks] == [0]
    assert trace.rejected == (Rejected(3, "memory_mib is -1, but must be 0 or more"),)


def test_what_is_no_text_is_an_error(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\x1f\x8b\xff\xfe")
    with pytest.raises(CarmaError, match="not a CSV file"):
        native.read_trace(path)
    with pytest.raises(CarmaError, match="No such file"):
        native.read_trace(tmp_path / "none.csv")
    with pytest.raises(CarmaError, match="cannot write"):
        native.write_trace(Trace("t", ()), tmp_path / "none" / "t.csv")


def test_parquet_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CarmaError) as raised:
        native.read_trace(tmp_path / "t.parquet")
    assert raised.value.hint == how_to_add("sim")


def test_what_is_no_parquet_is_an_error(tmp_path):
    pytest.importorskip("pyarrow")
    path = file(tmp_path, "t.parquet", "name,submit_s,duration_s\n")
    with pytest.raises(CarmaError, match="cannot read"):
        native.read_trace(path)


# Importers, on small fixtures


def test_philly(tmp_path):
    path = file(
        tmp_path,
        "philly.csv",
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:01:55,2951.5,8,23612.0,6214e9\n"
        "yesterday,10.0,1,10.0,6214e9\n"
        "2017-10-09 07:01:55,0.0,1,0.0,6214e9\n"
        "2017-10-09 07:01:55,10.0,0,0.0,6214e9\n",
    )
    trace = public.philly(path)
    assert trace.tasks == (
        Task(name="", submit_s=0, duration_s=2951.5, gpus=8, user="6214e9"),
        Task(name="", submit_s=3600, duration_s=66, user="11cb48"),
    )
    assert trace.rejected == (
        Rejected(4, "timestamp is 'yesterday', but must be a date and time"),
        Rejected(5, "duration_s is 0, but must be more than 0"),
        Rejected(6, "asks for no GPU"),
    )


HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u1,vc,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:11,2020-06-10 04:55:19,36848,10
2,u2,vc,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
3,u3,vc,8,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:41:38,10,0
4,u3,vc,0,1,1,COMPLETED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:41:38,10,0
5,u3,vc,1,1,1,COMPLETED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:41:08,-20,0
6,u3,vc,1,1,1,CANCELLED,2020-06-09 18:41:28,None,2020-06-09 18:41:38,0,10
7,u3,vc,1,1,1,SUSPENDED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:41:38,10,0
8,u3,vc,1,1,1,TIMEOUT,2020-06-09 18:41:28,2020-06-09 18:41:18,2020-06-09 18:41:38,20,-10
9,u3,vc,1,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-09 18:41:28,0,0
"""


SACCT = """\
JobName|User|Submit|ElapsedRaw|State|AllocTRES
train|ann|2026-11-20T10:00:00|3600|COMPLETED|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=32G,node=1
eval, all|bob|2026-11-20T10:10:00|60|CANCELLED by 1000|cpu=2,gres/gpu=1
train|ann|2026-11-20T11:00:00|7|FAILED|gres/gpu=1
cpu|ann|2026-11-20T11:00:00|7|COMPLETED|cpu=1,gres/gpumem=4
gone|ann|2026-11-20T11:00:00|0|CANCELLED by 0|gres/gpu=1
now|ann|2026-11-20T11:00:00|70|RUNNING|gres/gpu=1
"""


def test_what_sacct_says(tmp_path):
    trace = load(f"slurm:{file(tmp_path, 'jobs.txt', SACCT)}")
    found = [(t.name, t.user, t.submit_s, t.duration_s, t.gpus, t.fails) for t in trace.tasks]
    assert found == [
        ("train", "ann", 0.0, 3600.0, 2, False),
        ("eval, all", "bob", 600.0, 60.0, 1, False),
        ("train", "ann", 3600.0, 7.0, 1, True),
    ]
    why = [row.why for row in trace.rejected]
    assert why == ["asks for no GPU", "never ran", "has not ended: it is RUNNING"]
    assert all(task.load.model for task in trace.tasks), "drawn"


def test_helios(tmp_path):
    trace = public.helios(file(tmp_path, "Venus/cluster_log.csv", HELIOS))
    assert trace.name == "Venus"
    assert trace.tasks == (
        Task(name="", submit_s=0, duration_s=36848, user="u1"),
        Task(name="", submit_s=26, duration_s=249, gpus=4, user="u2", fails=True),
        Task(name="", submit_s=27, duration_s=10, gpus=8, user="u3"),
    )
    assert [(bad.line, bad.why.partition(",")[0]) for bad in trace.rejected] == [
        (5, "asks for no GPU"),
        (6, "ends before it starts"),
        (7, "start_time is 'None'"),
        (8, "state is 'SUSPENDED'"),
        (9, "starts before it is submitted"),
        (10, "duration_s is 0"),
    ]


def pai_folder(folder):
    file(
        folder,
        "pai_job_table.csv",
        "j1,i1,ann,Terminated,100.0,900.0\n"
        "j2,i2,bob,Failed,40.0,300.0\n"
        "j3,i3,bob,Running,50.0,\n"
        "j4,i4,bob,Terminated,60.0,70.0\n"
        "j5,i5,bob,Terminated,70.0,80.0\n"
        "j6,i6,bob,Terminated,x,80.0\n",
    )
    file(
        folder,
        "pai_task_table.csv",
        "j1,ps,2.0,Terminated,110.0,900.0,600.0,29.3,,\n"
        "j1,worker,5.0,Terminated,120.0,880.0,600.0,29.3,50.0,V100M32\n"
        "j1,evaluator,1.0,Terminated,200.0,890.0,600.0,29.3,100.0,V100M32\n"
        "j2,tensorflow,1.0,Failed,45.0,300.0,600.0,29.3,25.0,MISC\n"
        "j3,tensorflow,1.0,Running,55.0,,600.0,29.3,100.0,T4\n"
        "j4,tensorflow,1.0,Terminated,65.0,70.0,600.0,29.3,0.0,\n"
        "j5,tensorflow,1.0,Terminated,80.0,75.0,600.0,29.3,100.0,T4\n"
        "j6,tensorflow,1.0,Terminated,80.0,85.0,600.0,29.3,100.0,T4\n"
        "j7,tensorflow,1.0,Terminated,80.0,85.0,600.0,29.3,100.0,T4\n",
    )
    return folder


def test_pai(tmp_path):
    folder = pai_folder(tmp_path / "pai")
    trace = public.pai(folder)
    # j1: 5 × ½ + 1 GPUs, from the first worker's start to the evaluator's end
    one = Task(name="j1", submit_s=60, duration_s=770, gpus=4, user="ann", reference="V100-32GB")
    two = Task(name="j2", submit_s=0, duration_s=255, user="bob", fails=True)
    assert trace.tasks == (two, one)
    assert trace.rejected == (
        Rejected(3, "has not ended: its status is 'Running'"),
        Rejected(4, "asks for no GPU"),
        Rejected(5, "pai_task_table.csv, line 7: ends before it starts"),
        Rejected(6, "start_time is 'x', but must be a number"),
        Rejected(9, "pai_task_table.csv, line 9: its job is not in pai_job_table.csv"),
    )


def test_recurring_jobs_of_pai_have_their_groups_name(tmp_path):
    folder = pai_folder(tmp_path / "pai")
    file(folder, "pai_group_tag_table.csv", "i1,ann,V100M32,g7,nmt\ni9,ann,,g8,\n")
    assert [task.name for task in public.pai(folder).tasks] == ["j2", "g7"]


def test_the_load_of_an_unknown_model_is_the_default():
    assert load_of("vgg16", 128, "imagenet") == find("vgg16", 128, "imagenet")
    assert load_of("of_my_own", 7) == Load("of_my_own", 7)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("a,0,1e300", "duration_s is 1e+300, but must be at most 10 years"),
        ("a,1e300,60", "submit_s is 1e+300, but must be at most 1e+10"),
        (",0,60", "has no name"),
    ],
)
def test_a_row_that_no_simulation_can_use_says_why(tmp_path, row, why):
    path = file(tmp_path, "t.csv", f"name,submit_s,duration_s\nb,0,60\n{row}\n")
    trace = native.read_trace(path)
    assert [task.name for task in trace.tasks] == ["b"]
    assert trace.rejected == (Rejected(3, why),)


# Models for traces that name none

SIZES = ("light", "medium", "heavy")
ONE_EACH = tuple(Profile(Load(size), "", 1, size, None, "") for size in SIZES)
ON_TWO = Profile(Load("two"), "", 2, "heavy", None, "")


def ramp(count, gpus=1):
    """Each task longer than the one before."""
    return tuple(
        Task(name=f"t{n}", submit_s=float(n), duration_s=1.0 + n, gpus=gpus) for n in range(count)
    )


def test_larger_tasks_draw_larger_models():
    drawn = assign(Trace("t", ramp(1000)), seed=1, profiles=ONE_EACH)
    assert Counter(t.load.model for t in drawn.tasks) == {"light": 300, "medium": 600, "heavy": 100}
    light, medium, heavy = (
        statistics.mean(t.duration_s for t in drawn.tasks if t.load.model == size) for size in SIZES
    )
    assert light + 200 < medium < heavy - 200
    # A place in the order is a quarter of all tasks off at most.
    assert {t.load.model for t in drawn.tasks[:50]} == {"light"}
    assert "heavy" not in {t.load.model for t in drawn.tasks[:600]}
    assert drawn == assign(Trace("t", ramp(1000)), seed=1, profiles=ONE_EACH)
    assert drawn != assign(Trace("t", ramp(1000)), seed=2, profiles=ONE_EACH)


def test_models_for_two_gpus_go_to_tasks_with_several():
    both = (*ONE_EACH, ON_TWO)
    single = assign(Trace("t", ramp(400)), profiles=both)
    double = assign(Trace("t", ramp(400, gpus=2)), profiles=both)
    assert "two" not in {t.load.model for t in single.tasks}
    assert {"two", "heavy"} <= {t.load.model for t in double.tasks}


def test_a_recurring_job_keeps_its_model_and_a_known_load_stays():
    known = Task(name="k", submit_s=0, duration_s=9, load=Load("mine", 4, 777))
    again = [Task(name="again", submit_s=float(n), duration_s=5.0**n) for n in range(9)]
    others = [Task(name="again", submit_s=9.0, duration_s=5.0**n, user=f"u{n}") for n in range(9)]
    drawn = assign(Trace("t", (known, *again, *others)), profiles=ONE_EACH)
    assert drawn.tasks[0] == known
    assert len({task.load.model for task in drawn.tasks[1:10]}) == 1
    assert len({task.load.model for task in drawn.tasks[10:]}) > 1


def test_jobs_without_names_draw_one_model_each_and_are_named_by_it():
    unnamed = [Task(name="", submit_s=float(n), duration_s=5.0**n) for n in range(9)]
    drawn = assign(Trace("t", tuple(unnamed)), profiles=ONE_EACH).tasks
    assert {task.load.model for task in drawn} == {"light", "medium", "heavy"}
    assert all(t.name == f"{t.load.model}-b{t.load.batch_size}" for t in drawn)


# Generators

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "median", "mean", "late", "least", "most"),
    [
        ("carma-1", 182.5, 229.45, 599, 1, 600),
        ("carma-2", 275.5, 310.0, 601, 3, 816),
    ],
)
def test_carmas_traces_have_the_printed_statistics(name, seed, median, mean, late, least, most):
    trace = load(f"generate:{name}?seed={seed}")
    between = gaps(trace)
    assert len(trace.tasks) == 60
    assert statistics.median(between) == pytest.approx(median, rel=0.04)
    assert statistics.mean(between) == pytest.approx(mean, rel=0.03)
    assert p95(between) == pytest.approx(late, rel=0.03)
    assert (min(between), max(between)) == (least, most)
    light = [t for t in trace.tasks if t.gpus == 1 and t.load.memory_mib < 1100]  # table 4 (c)
    double = [t for t in trace.tasks if t.gpus == 2]
    assert (len(light), len(double)) in ((18, 6), (19, 6), (20, 6), (21, 6))  # dlrm is as small
    assert {task.reference for task in trace.tasks} == {"A100-40GB"}


def test_the_second_trace_is_clocked_first_and_bursts_later():
    between = gaps(load("generate:carma-2"))
    begin, end = between[:18], between[-18:]
    assert statistics.median(begin) == pytest.approx(600, abs=2)
    assert statistics.median(end) < 200


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize(
    ("name", "a_day", "mean_s", "mean_gpus"),
    [("philly", 12_389 / 31, 25_533, 1.30), ("venus", 23_859 / 30, 5_419, 6.7)],
)
def test_the_clusters_have_lucids_statistics(name, seed, a_day, mean_s, mean_gpus):
    trace = load(f"generate:{name}?seed={seed}&tasks=4000")
    durations = [task.duration_s for task in trace.tasks]
    assert statistics.mean(durations) == pytest.approx(mean_s, rel=0.001)
    assert statistics.median(durations) < mean_s / 5
    days = trace.tasks[-1].submit_s / 86_400
    assert len(trace.tasks) / days == pytest.approx(a_day, rel=0.05)
    assert statistics.mean(t.gpus for t in trace.tasks) == pytest.approx(mean_gpus, rel=0.03)
    assert sum(t.gpus <= 8 for t in trace.tasks) > 0.945 * len(trace.tasks)


def test_venus_sleeps_at_night():
    tasks = load("generate:venus?tasks=8000").tasks
    hours = Counter(int(task.submit_s // 3600) % 24 for task in tasks)
    assert 4 * sum(hours[h] for h in range(4, 8)) < sum(hours[h] for h in range(14, 18))


def test_a_cluster_is_scaled_to_the_gpus_at_hand():
    trace = load("generate:philly?tasks=400&gpus=4")
    assert max(task.gpus for task in trace.tasks) == 4
    days = trace.tasks[-1].submit_s / 86_400
    assert 400 / days == pytest.approx(12_389 / 31 * 4 / 864, rel=0.05)


def test_cuckoos_workload_has_its_pattern_and_deadlines():
    tasks = load("generate:cuckoo").tasks
    thousands = Counter(int(task.submit_s // 1000) for task in tasks)
    assert len(tasks) == 521 and max(task.submit_s for task in tasks) <= 30_000
    assert thousands[0] == pytest.approx(100, abs=1)
    assert all(7 <= thousands[n] <= 41 for n in range(1, 30))
    slack = [task.deadline_s / task.duration_s for task in tasks]
    assert statistics.mean(slack) == pytest.approx(8, abs=0.3)
    assert statistics.stdev(slack) == pytest.approx(2, abs=0.3)
    assert {task.gpus for task in tasks} == {2}


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_repeats_itself_and_nothing_is_left_without_a_model(name):
    trace = load(f"generate:{name}?seed=4&tasks=50")
    assert trace == load(f"generate:{name}?seed=4&tasks=50")
    assert trace.tasks != load(f"generate:{name}?seed=5&tasks=50").tasks
    assert len(trace.tasks) == 50 and trace.tasks[0].submit_s == 0
    assert all(task.load.model for task in trace.tasks)
    assert len(load(f"generate:{name}?tasks=1").tasks) == 1


# One way to all of them


def test_an_import_draws_models_and_a_run_of_tasks(tmp_path):
    rows = "".join(f"2017-10-09 07:{n:02}:00,{n + 1}.0,1,1.0,vc\n" for n in range(60))
    path = file(tmp_path, "p.csv", f"timestamp,duration,num_gpus,gpu_time,cluster\n{rows}bad\n")
    whole, run = load(f"philly:{path}"), load(f"philly:{path}?tasks=10&seed=1")
    assert len(whole.tasks) == 60 and all(task.load.model for task in whole.tasks)
    first = int(run.tasks[0].duration_s)
    assert [task.duration_s for task in run.tasks] == list(range(first, first + 10))
    assert [task.submit_s for task in run.tasks] == [60.0 * n for n in range(10)]
    assert run.name == f"p[{first - 1}:{first + 9}]"
    assert run.rejected == whole.rejected != ()
    assert run == load(f"philly:{path}?tasks=10&seed=1")
    assert run.tasks != load(f"philly:{path}?tasks=10&seed=2").tasks


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("phily:trace.csv", "no trace is of the kind 'phily'"),
        ("generate:carma-3", "no generator is called 'carma-3'"),
        ("generate:lab?gpus=3", "takes no 'gpus'"),
        ("generate:lab?days=x", "takes no 'days'"),
        ("generate:lab?tasks=0", "tasks is '0'"),
        ("generate:lab?seed=-1", "seed is '-1'"),
        ("generate:lab?seed=", "seed is ''"),
        ("philly:none.csv?gpus=2", "takes no 'gpus'"),
        ("philly:none.csv", "cannot read none.csv"),
        ("none.csv", "cannot read none.csv"),
    ],
)
def test_what_is_no_source_is_an_error(source, message):
    with pytest.raises(CarmaError, match=message):
        load(source)


def test_another_package_can_bring_a_kind_of_trace(tmp_path, monkeypatch):
    info = tmp_path / "my_traces-1.dist-info"
    file(info, "METADATA", "Name: my_traces\nVersion: 1\n")
    entries = "[carma.traces]\nmine = my_traces:read\nbroken = my_traces.missing:read\n"
    file(info, "entry_points.txt", entries)
    code = "from carma_simulator.traces.public import philly as read\n"
    file(tmp_path, "my_traces.py", code)
    monkeypatch.syspath_prepend(tmp_path)
    row = "2017-10-09 07:00:00,60.0,1,60.0,vc\n"
    path = file(tmp_path, "p.csv", f"timestamp,duration,num_gpus,gpu_time,cluster\n{row}")
    assert load(f"mine:{path}?seed=3") == load(f"philly:{path}?seed=3")
    with pytest.raises(CarmaError, match="'broken' of traces cannot be loaded"):
        load(f"broken:{path}")
    with pytest.raises(CarmaError) as raised:
        load(f"other:{path}")
    assert "broken, " in raised.value.hint and ", mine, " in raised.value.hint


def test_the_example_is_what_its_command_makes():
    made, read = load("generate:lab?seed=5"), load(str(LAB_DAY))
    assert read.tasks == made.tasks
    assert len(read.tasks) == 40 and not read.rejected
    assert len({task.user for task in read.tasks}) == 5
    assert {task.gpus for task in read.tasks} == {1, 2}

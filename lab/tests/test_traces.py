"""Importing the workloads of papers' artifacts, and the public files."""

import pytest

from carma_simulator.catalogue import find
from carma_simulator.experiment import Experiment, Load, Rejected
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carma_simulator.traces.sources import load
from carmad.config import Settings
from carmad.errors import CarmaError
from lab.data import DATA
from lab.traces import carma, muri, sia

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public data are not here")


def file(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


MURI = """job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,priority
0,16,0,4378042,vgg16,16,1453510000,3840000,0
1,1,27069500,5190727,novel,64,2683606000,13956000,1
2,0,27069500,5190727,vgg16,16,2683606000,13956000,1
3,1,27069500,5190727,vgg16,16,-1,13956000,1
"""


def test_muri(tmp_path):
    trace = muri.read(file(tmp_path, "trace1.csv", MURI))
    known, novel = trace.tasks
    assert (known.submit_s, known.duration_s, known.gpus) == (0, 1_453_510, 16)
    assert (known.name, novel.name) == ("vgg16-b16", "novel-b64")
    assert (known.load.model, known.load.batch_size) == ("vgg16", 16)
    assert known.load.memory_mib > Load().memory_mib  # it comes from the catalogue
    assert (novel.submit_s, novel.load) == (27_069.5, Load("novel", 64))
    assert [bad.line for bad in trace.rejected] == [4, 5]


def test_sia(tmp_path):
    path = file(
        tmp_path,
        "workloads/w.csv",
        "name,time,application,num_replicas,batch_size\n"
        "a,100,yolov3,2,64\nb,150.5,yolov3,12,64\nc,200,yolov3,3,64\nd,200,ncf,1,256\n"
        "e,200,yolov3,0,64\nf,200,yolov3,24,64\n",
    )
    file(
        tmp_path,
        "throughput/yolov3-placements-dgx.csv",
        "local_bsz,step_time,sync_time,placement\n"
        "8,2.0,0.4,2\n4,1.0,0.2,2\n4,1.0,0.5,48\n8,2.0,0.5,48\n4,1.0,0.5,888\n",
    )
    trace = sia.read(path)
    # a: 32 for each GPU in 4 parts of 8, and gradients wait once: 2 + 3 × 1.6 s
    # b: 6 for each GPU, half way between 4 and 8: 1.5 s
    assert [(t.submit_s, t.gpus) for t in trace.tasks] == [(0, 2), (50.5, 12)]
    assert {t.name for t in trace.tasks} == {"yolov3-b64"}
    assert trace.tasks[0].duration_s == pytest.approx(14_577 * 6.8)
    assert trace.tasks[1].duration_s == pytest.approx(14_577 * 1.5)
    assert {task.reference for task in trace.tasks} == {"A100-40GB"}
    assert trace.rejected == (
        Rejected(4, "asks for 3 GPUs, and no step was measured on that many"),
        Rejected(5, "is ncf at batch size 256: its steps are unknown"),
        Rejected(6, "asks for no GPU"),
        Rejected(7, "has a batch of 3 per GPU, smaller than any measured"),
    )


def test_sia_without_its_measurements_is_an_error(tmp_path):
    path = file(
        tmp_path,
        "workloads/w.csv",
        "name,time,application,num_replicas,batch_size\na,1,yolov3,2,64\n",
    )
    with pytest.raises(CarmaError, match="yolov3-placements-dgx"):
        sia.read(path)


def test_carma(tmp_path):
    path = file(tmp_path, "trace1.csv", "submit_s,task\n0,bert\n181,vgg\n190,none\n200,odd\n")
    file(
        tmp_path,
        "tasks.csv",
        "task,model,dataset,batch_size,gpus,epochs,epoch_minutes,duration_s,mem_mib,"
        "horus_mib,faketensor_mib,gpumemnet_mib\n"
        "bert,BERT_base,wiki,32,1,1,14.92,895.2,19828.0,17456.9336,40000.0,32000.0\n"
        "vgg,vgg16,imagenet,64,2,1,46.7,2802.0,11760.0,40000.0,40000,40000.0\n"
        "odd,vgg16,imagenet,64,2,1,46.7,soon,11760.0,40000.0,40000,40000.0\n",
    )
    trace = carma.read(path)
    bert, vgg = trace.tasks
    assert (bert.duration_s, bert.gpus, bert.load.memory_mib) == (895.2, 1, 19_828)
    assert bert.estimates == (("horus", 17_457), ("gpumemnet", 32_000))
    assert (vgg.submit_s, vgg.gpus, vgg.load.batch_size) == (181, 2, 64)
    assert vgg.estimates == ()  # 40000 stands for none
    assert trace.rejected == (
        Rejected(4, "is of 'none', which is not in tasks.csv"),
        Rejected(5, "tasks.csv, line 4: duration_s is 'soon', but must be a number"),
    )


def test_carma_where_a_run_has_measured_its_own_tasks(tmp_path):
    path = file(tmp_path, "heavy60.csv", "seconds,task\n0,vgg3\n73,mnist\n80,none\n")
    file(
        tmp_path,
        "heavy60_tasks.csv",
        "task,model,batch_size,gpus,smact,duration_s,memory_gb\n"
        "vgg3,vgg16,128,1,0.426,2607,15.87\n"
        "mnist,mnist,,2,0.07,132,2.26\n",
    )
    trace = carma.read(path)
    vgg, mnist = trace.tasks
    assert (vgg.duration_s, vgg.gpus, vgg.load.memory_mib) == (2607, 1, 15_870)
    assert (mnist.submit_s, mnist.duration_s, mnist.gpus, mnist.load.batch_size) == (73, 132, 2, 0)
    known = find("vgg16", 128, "imagenet")
    assert known.sm_active == 0.852
    assert vgg.load.sm_active == 0.426
    assert vgg.load.dram_active == pytest.approx(known.dram_active / 2)
    assert vgg.load.sm_occupancy == pytest.approx(known.sm_occupancy / 2)
    assert trace.rejected == (Rejected(4, "is of 'none', which is not in heavy60_tasks.csv"),)


def test_two_tasks_of_one_name_are_an_error(tmp_path):
    path = file(tmp_path, "trace1.csv", "submit_s,task\n0,bert\n")
    header = "task,model,dataset,batch_size,gpus,duration_s,mem_mib,"
    row = "bert,BERT_base,wiki,32,1,895.2,19828.0,17456.9,40000.0,32000.0\n"
    file(tmp_path, "tasks.csv", f"{header}horus_mib,faketensor_mib,gpumemnet_mib\n{row}{row}")
    with pytest.raises(CarmaError, match="two tasks called 'bert': lines 2 and 3"):
        carma.read(path)


@pytest.mark.parametrize("policy", ["lucid", "castor"])
def test_imported_jobs_that_recur_share_profiles_and_gpus(tmp_path, policy):
    jobs = [f"{n},1,{3600_000 * n},9,dqn,128,7200000,1,0\n" for n in range(8)]
    path = file(tmp_path, "trace.csv", MURI.partition("\n")[0] + "\n" + "".join(jobs))
    settings = Settings(policy=policy)
    outcome = simulate(Experiment(load(f"muri:{path}"), parse("1xV100-32GB"), settings))
    stays = [attempt for job in outcome.jobs for attempt in job.attempts]
    assert any(a.launched_at < b.launched_at < a.ended_at for a in stays for b in stays)


@needs_data
@pytest.mark.parametrize(
    ("source", "count", "last_s", "gpus", "gpu_s"),
    [
        pytest.param(
            *("philly:philly/philly.csv", 82_247, 9_408_690, 107_235, 3_521_082_502),
            marks=pytest.mark.long,
        ),
        ("muri:muri/trace1.csv", 1494, 10_817_570, 7398, 1_379_976_364),
        ("muri:muri/trace2.csv", 5755, 8_572_283, 29_825, 2_966_695_253),
        ("muri:muri/trace3.csv", 992, 8_166_025, 9346, 420_084_355),
        ("carma:carma/trace1.csv", 60, 13_767, 63, 107_997),
    ],
)
def test_public_traces(source, count, last_s, gpus, gpu_s):
    kind, _, path = source.partition(":")
    trace = load(f"{kind}:{DATA / path}")
    assert (len(trace.tasks), trace.rejected) == (count, ())
    assert trace.tasks[-1].submit_s == pytest.approx(last_s)
    assert sum(task.gpus for task in trace.tasks) == gpus
    assert sum(task.gpus * task.duration_s for task in trace.tasks) == pytest.approx(gpu_s)
    assert all(task.load != Load() for task in trace.tasks)


@needs_data
def test_sias_public_workloads():
    paths = sorted((DATA / "sia" / "workloads").glob("*.csv"))
    assert len(paths) == 13
    for path in paths:
        trace = load(f"sia:{path}")
        assert (len(trace.tasks), trace.rejected) == (160, ())
        assert all(100 < task.duration_s < 7 * 3600 for task in trace.tasks)
    # Four GPUs, 16 images for each in two parts of 8, the first without waiting for gradients.
    [one, *_] = [t for t in load(f"sia:{paths[0]}").tasks if t.name.startswith("yolov3")]
    assert one.duration_s == pytest.approx(14_577 * (2 * 0.42601 - 0.07482), rel=1e-4)

"""The catalogue of training jobs: looking up loads, and agreement with its sources."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from carma_simulator.catalogue import PROFILES, Profile, activity, find

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public data are not there")
MURI = ("dqn", "a2c", "bert", "gpt2", "resnet18", "vgg16", "vgg19", "shufflenet_v2_x1_0")
SIA = ("cifar10", "bert", "deepspeech2", "yolov3", "imagenet", "ncf")
ASRPT = ("VGG19", "ResNet152", "Inception-V3", "BERT-large", "XLNet-large", "T5", "GPT")
LUCID = ("DCGAN", "EfficientNet", "LSTM", "NeuMF", "PPO", "PointNet", "TD3", "Transformer")
CARMA = [profile for profile in PROFILES if profile.source.startswith("CARMA")]


def memory_mib(model: str, batch_size: int = 0, dataset: str = "") -> int:
    load = find(model, batch_size, dataset)
    assert load is not None
    return load.memory_mib


class TestFind:
    @pytest.mark.parametrize("name", ["resnet50", "ResNet-50", "RESNET_50", " resnet 50"])
    def test_case_and_punctuation_do_not_count(self, name: str) -> None:
        assert memory_mib(name, 64, "imagenet") == 7106

    @pytest.mark.parametrize(
        ("asked", "found"), [(1, 16), (32, 32), (47, 32), (49, 64), (100, 128), (4096, 128)]
    )
    def test_the_nearest_batch_size(self, asked: int, found: int) -> None:
        load = find("vgg16", asked)
        assert load is not None
        assert load.batch_size == found

    def test_the_first_one_where_the_batch_size_is_not_known(self) -> None:
        load = find("vgg16")
        assert load is not None
        assert load.batch_size == 32

    def test_the_data_set_decides_between_equal_names(self) -> None:
        assert memory_mib("efficientnet_b0", 64, "CIFAR-100") == 720
        assert memory_mib("efficientnet_b0", 64, "ImageNet") == 6692

    def test_an_unknown_data_set_is_passed_over(self) -> None:
        assert find("dlrm", dataset="mine") == find("dlrm")

    def test_an_unknown_model(self) -> None:
        assert find("perceptron") is None
        assert find("") is None

    @pytest.mark.parametrize("model", [*MURI, *SIA, *ASRPT, *LUCID])
    def test_the_models_of_the_traces(self, model: str) -> None:
        assert find(model) is not None


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: f"{p.load.model}-{p.load.batch_size}")
def test_every_row_is_possible(profile: Profile) -> None:
    load = profile.load
    assert 400 < load.memory_mib < 40_960
    assert 0 <= load.sm_occupancy <= load.sm_active <= 1
    assert 0 <= load.dram_active <= 0.8
    assert profile.gpus in (1, 2)
    assert profile.source


def test_busy_time_is_more_than_busy_sms() -> None:
    sm, occupancy, dram = activity(0.64, 0.5)
    assert sm == pytest.approx(0.512)  # 0.64 · √0.64
    assert occupancy == pytest.approx(0.47 * 0.512**1.44)
    assert dram == pytest.approx(0.4)
    assert activity(0.0, 0.0) == (0.0, 0.0, 0.0)
    assert max(activity(1.0, 1.0)) == 1.0


def test_carmas_groups_are_those_of_its_table_4() -> None:
    assert len(CARMA) == 50
    assert {p.size for p in CARMA if p.dataset == "cifar100"} == {"light"}
    assert {p.size for p in CARMA if p.dataset == "wiki"} == {"heavy"}
    assert {p.load.model for p in CARMA if p.gpus == 2} == {
        "xlnet_base",
        "xlnet_large",
        "gpt2_large",
    }
    light, heavy = (find(*of) for of in (("resnet18", 64, "cifar100"), ("vgg16", 128)))
    assert light and heavy
    assert light.sm_active < 0.3 < 0.8 < heavy.sm_active


@needs_data
def test_carmas_tasks_are_those_of_its_artifact() -> None:
    with (DATA / "carma" / "tasks.csv").open(newline="") as file:
        published = sorted(
            (
                row["model"],
                row["dataset"],
                int(row["batch_size"]),
                int(row["gpus"]),
                float(row["duration_s"]),
                int(float(row["mem_mib"])),
            )
            for row in csv.DictReader(file)
        )
    ours = sorted(
        (p.load.model, p.dataset, p.load.batch_size, p.gpus, p.duration_s, p.load.memory_mib)
        for p in CARMA
    )
    assert ours == published


@needs_data
def test_lucids_jobs_are_those_of_its_artifact() -> None:
    with (DATA / "lucid" / "single_job_profiles_rtx3090.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["amp"] == "0"]
    loads = {
        (p.load.model, p.load.batch_size): p.load for p in PROFILES if p.source.startswith("Lucid")
    }
    assert len(loads) == len(rows)
    for row in rows:
        load = loads[row["model"], int(row["batchsize"])]
        sm, _, dram = activity(float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100)
        assert load.memory_mib == int(float(row["gmem"]))
        assert (load.sm_active, load.dram_active) == pytest.approx((sm, dram), abs=0.01)

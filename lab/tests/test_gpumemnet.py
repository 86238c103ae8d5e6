"""Making GPUMemNet's weights: generating, building and labelling networks, and training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from estimators.gpumemnet import network
from estimators.gpumemnet.features import FAMILIES, TYPE_OF, TYPES, family, features, kinds
from estimators.gpumemnet.files import Origin, read_card
from estimators.tracer.report import Layer
from lab.gpumemnet.data import Sample, read_samples, write_samples
from lab.gpumemnet.synthesis import BLOCKS, INPUTS, Cnn, Mlp, Stage, Transformer, synthesise

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from estimators.tracer import fakecuda
from lab.gpumemnet import networks, training
from lab.gpumemnet.__main__ import run
from lab.gpumemnet.networks import build
from lab.memory import timm

fakecuda.install()  # PyTorch makes its threads in the first backward pass, real or fake, for good

SMALL_CNN = Cnn(
    batch=2,
    image=32,
    outputs=5,
    stem=4,
    stages=(Stage(16, 1), Stage(24, 2)),
    block="plain",
    activation="ReLU",
    batch_norm=True,
    dropout=True,
    hidden=8,
)
SMALL_TRANSFORMER = Transformer(
    batch=2,
    kind="encoder",
    length=16,
    outputs=50,
    width=32,
    heads=2,
    feed_forward=(64, 32),
    activation="GELU",
    dropout=True,
    fused=True,
    joint=False,
)


# -- synthesis


@pytest.mark.parametrize("name", FAMILIES)
def test_a_seed_draws_the_same_networks_again(name: str) -> None:
    first, again, other = (list(islice(synthesise(name, seed), 20)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_the_five_rules() -> None:
    mlps = [each for each in islice(synthesise("mlp", 0), 400) if isinstance(each, Mlp)]
    assert {len(each.widths) for each in mlps} == set(range(1, 13))
    decades = Counter(len(str(each.inputs)) for each in mlps)  # evenly, on a logarithmic scale
    assert min(decades[2], decades[3]) > 0.6 * max(decades[2], decades[3])
    deep = [each.widths for each in mlps if len(each.widths) == 12 and max(each.widths) > 500]
    assert any(widths[0] == widths[5] == widths[-1] for widths in deep)
    assert any(widths[0] > 2 * widths[5] > 3 * widths[-1] for widths in deep)
    assert any(widths[0] == widths[-1] > 4 * widths[5] for widths in deep)
    assert {(each.batch_norm, each.dropout) for each in mlps} == {
        (norm, dropout) for norm in (True, False) for dropout in (True, False)
    }
    cnns = [each for each in islice(synthesise("cnn", 0), 200) if isinstance(each, Cnn)]
    assert {each.block for each in cnns} == set(BLOCKS)
    assert min(each.image for each in cnns) == 28 and max(each.image for each in cnns) == 384
    many = islice(synthesise("transformer", 0), 200)
    transformers = [each for each in many if isinstance(each, Transformer)]
    assert {each.kind for each in transformers} == set(INPUTS)
    assert {each.fused for each in transformers} == {True, False}


# -- building


@pytest.mark.parametrize("block", BLOCKS)
def test_a_cnn_of_each_block_trains(block: str) -> None:
    assert _loss_of(replace(SMALL_CNN, block=block)) > 0


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("fused", [True, False])
def test_a_transformer_of_each_kind_trains(kind: str, fused: bool) -> None:
    assert _loss_of(replace(SMALL_TRANSFORMER, kind=kind, fused=fused, joint=fused)) > 0


def test_attention_computes_the_same_fused_or_not() -> None:
    losses = []
    for fused in (True, False):
        torch.manual_seed(0)
        model, inputs = build(
            replace(SMALL_TRANSFORMER, kind="decoder", fused=fused, dropout=False)
        )
        losses.append(float(model(*inputs).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def _loss_of(drawn: Cnn | Transformer) -> float:
    torch.manual_seed(0)
    model, inputs = build(drawn)
    inputs = tuple(x.zero_() for x in inputs)
    loss = model(*inputs)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    return float(loss.detach())


# -- labels


def test_a_trace_labels_a_network() -> None:
    drawn = Mlp(64, 1000, 10, (4096, 4096), "ReLU", batch_norm=True, dropout=False)
    sample = networks.label_by_trace(drawn)
    assert sample.batch == 64
    assert Counter(kinds(sample.layers)) == {"Linear": 3, "BatchNorm1d": 2, "ReLU": 2}
    weights = 1000 * 4096 + 4096**2 + 4096 * 10
    assert sum(layer.parameters for layer in sample.layers) > weights
    adam_mib = 16 * weights / 2**20  # weights, gradients, two moments
    assert 544 + adam_mib < sample.mib < 544 + 1.4 * adam_mib


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name == "transformer" else name
        for name in FAMILIES
    ],
)
def test_what_is_drawn_is_of_the_family_that_it_is_taken_for(name: str) -> None:
    for drawn in islice(synthesise(name, 1), 3):
        sample = networks.label_by_trace(drawn)
        assert family(sample.layers) == name
        assert sample.batch == drawn.batch
        assert set(kinds(sample.layers)) <= TYPE_OF.keys()


def test_networks_that_do_not_fit_are_passed_over_but_not_for_ever() -> None:
    kept = iter([None, Sample(1, (), 1), None, Sample(2, (), 2), Sample(3, (), 3)])
    found = networks.samples("mlp", 0, 2, lambda _: next(kept))
    assert [sample.batch for sample in found] == [1, 2]
    with pytest.raises(RuntimeError, match="did not fit"):
        list(networks.samples("mlp", 0, 1, lambda _: None))


# -- training


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Samples whose memory follows a simple law."""
    made = []
    for drawn in islice(synthesise("mlp", 0), 240):
        assert isinstance(drawn, Mlp)
        widths = (drawn.inputs, *drawn.widths)
        layers = []
        for before, wide in pairwise(widths):
            layers += [Layer("Linear", wide, before * wide), Layer(drawn.activation, wide, 0)]
        bytes_ = 16 * sum(layer.parameters for layer in layers)
        made.append(Sample(drawn.batch, tuple(layers), 544 + bytes_ // 2**20))
    return made


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "EPOCHS", {"mlp": 30, "transformer": 2})
    monkeypatch.setattr(training, "RANGES_GB", (2,))


ORIGIN = Origin("mlp", 0, "traced", "2.13.0", 544)


def test_numpy_says_what_torch_says(samples: list[Sample], short: None) -> None:
    seen = [features(sample.layers, sample.batch) for sample in samples]
    outcome = training.cross_validate(seen, samples, 8)
    assert Counter(member.kind for member in outcome.members) == {"mlp": 3, "transformer": 3}
    for member in outcome.members:
        for i in (0, 50, 239):
            weights = {**member.weights, "edges": np.array([2, 4, 6, 8])}
            told = network.Ensemble((weights,)).probabilities(seen[i])[0]
            np.testing.assert_allclose(told, member.probabilities[i], atol=1e-4)


def test_wider_bins_are_sums_of_the_finest() -> None:
    finest = np.linspace(0.0, 1.0, 2 * 41, dtype=np.float32).reshape(2, 41)
    wide = training._wider(finest, 8)
    assert wide.shape == (2, 6)  # up to 40 GB, and above
    np.testing.assert_allclose(wide[:, 0], finest[:, :8].sum(1), rtol=1e-6)
    np.testing.assert_allclose(wide[:, -1], finest[:, -1])


@pytest.mark.long
def test_bins_next_to_the_most_likely_one_come_next(samples: list[Sample], short: None) -> None:
    """The classifiers know that bins are ordered."""
    seen = [features(sample.layers, sample.batch) for sample in samples]
    for member in training.cross_validate(seen, samples, 8).members:
        steps = np.diff(member.probabilities[:, :-1], axis=1)  # the last has no upper edge
        falls = np.cumsum(steps < -1e-4, axis=1) > 0
        assert not ((steps > 1e-4) & falls).any()


@pytest.mark.long
def test_training_learns_and_is_judged_on_what_it_has_not_seen(
    samples: list[Sample], short: None, tmp_path: Path
) -> None:
    made = training.train(ORIGIN, samples)
    made.save(tmp_path)
    card = read_card("mlp", tmp_path)
    assert card == made.card
    score = {score.ensemble: score for score in card.scores}
    truth = training.labels(samples, 2, 8)
    commonest = Counter(truth.tolist()).most_common(1)[0][1] / len(samples)
    assert score["mlp"].accuracy > commonest
    # The weights as they were saved, asked again, in numpy and half precision.
    again = training.test(card, tmp_path, ORIGIN, samples)
    assert again.tested == score["both"].tested == round(0.3 * len(samples))
    assert again.accuracy == pytest.approx(score["both"].accuracy, abs=0.03)
    everything = training.test(card, tmp_path, replace(ORIGIN, seed=1), samples)
    assert everything.tested == len(samples)
    with pytest.raises(ValueError, match="another seed"):
        training.test(card, tmp_path, ORIGIN, samples[1:])


def test_nothing_of_the_test_split_is_learned_from(samples: list[Sample]) -> None:
    truth = training.labels(samples, 1, 8)
    rest, test = training.split_test(truth)
    assert not set(rest) & set(test)
    assert len(test) == round(0.3 * len(samples))
    for learn, check in training._folds(rest, truth):
        assert not set(learn) & set(check)
        assert set(learn) | set(check) <= set(rest)
        assert len(check) == pytest.approx(0.3 * len(rest), abs=1)


def test_bins_begin_where_the_paper_has_them() -> None:
    made = [Sample(1, (), mib) for mib in (560, 7_999, 8_000, 39_999, 40_000, 70_000)]
    assert training.labels(made, 8, 40).tolist() == [0, 0, 1, 4, 5, 5]


# -- data


def test_data_are_read_as_they_were_written(tmp_path: Path) -> None:
    origin = Origin("mlp", 3, "traced", "2.13.0", 544)
    linear, relu = Layer("Linear", 8, 64), Layer("ReLU", 8, 0)
    samples = [Sample(16, (linear, relu), 900), Sample(32, (linear,), 560)]
    write_samples(tmp_path / "data.jsonl.gz", origin, samples)
    assert read_samples(tmp_path / "data.jsonl.gz") == (origin, samples)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl.gz"]


@pytest.mark.parametrize("content", [b"", b"no gzip", b"\x1f\x8b\x08\x00cut"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.jsonl.gz").write_bytes(content)
    with pytest.raises(ValueError, match="not labelled networks"):
        read_samples(tmp_path / "data.jsonl.gz")


# -- the command


def test_generate_train_evaluate(
    tmp_path: Path, short: None, samples: list[Sample], capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.jsonl.gz"
    words = ["generate", str(few), "--family", "mlp", "--count", "3", "--seed", "5"]
    run(words)
    origin, labelled = read_samples(few)
    assert (origin.family, origin.seed, len(labelled)) == ("mlp", 5, 3)

    many, folder = tmp_path / "many.jsonl.gz", tmp_path / "weights"
    write_samples(many, ORIGIN, samples)
    run(["train", str(many), "--to", str(folder)])
    run(["evaluate", "--weights", str(folder)])
    trained = capsys.readouterr().out
    assert "0.97 0.96" in trained  # of the paper, at 2 GB
    run(["evaluate", str(few), "--weights", str(folder)])
    assert "3" in capsys.readouterr().out.splitlines()[-1].split()


def test_what_ships_is_shown_beside_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    run(["evaluate"])
    out = capsys.readouterr().out
    assert {line.split()[0] for line in out.splitlines()[1:]} == set(FAMILIES)
    assert out.count(" yes") == len(FAMILIES)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["evaluate", "none.gz"], "No such file"),
        (["train", "twice.gz", "twice.gz", "--to", "weights"], "two files of mlp"),
        (["evaluate", "--weights", "nowhere"], "no weights in nowhere"),
        (["generate", "x.gz", "--family", "cnn", "--measure"], "torch finds no GPU"),
    ],
)
def test_what_can_go_wrong_is_told(
    words: list[str],
    problem: str,
    samples: list[Sample],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write_samples(Path("twice.gz"), ORIGIN, samples[:3])
    with pytest.raises((OSError, RuntimeError, ValueError), match=problem):
        run(words)


def test_every_type_of_layer_has_a_place_in_a_token() -> None:
    assert len(features([Layer("Linear", 1, 1)], 1).tokens[0]) == len(TYPES) + 2


# -- on measured runs


def test_a_bin_is_right_where_the_peak_is_in_it() -> None:
    def seen(peak: float, top: float | None) -> timm.Seen:
        return timm.Seen(timm.Run("m", 8, peak, 0.0), 0.0, 0.0, 0.0, 0.0, "cnn", top)

    runs = [
        seen(9_000.0, 7_456.0),  # with 1,739 MiB of context, a bin from 1,195 to 9,195
        seen(1_200.0, 7_456.0),
        seen(1_190.0, 7_456.0),  # below it
        seen(9_200.0, 7_456.0),  # above it
        seen(9_000.0, None),  # refused
    ]
    found = {row.what: row.value for row in timm.bins(runs, 1_739.0)}
    assert found == {
        "answers": 4,
        "right bin of 8 GB": 50.0,
        "always the commonest bin": 50.0,
        "error P50 of who is always right": pytest.approx((195 + 7_995) / 2 / 1024),
    }

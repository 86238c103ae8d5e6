"""What a script does after its first two steps: evaluation, saving, its largest batch, and late
mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from carmad.config import Estimation
from carmad.plugin import Refusal
from estimators.tracer.report import Report
from estimators.tracing import _gaps
from tests.estimators.tracer.test_tracer_script import (
    MIB,
    PARAMETERS,
    job,
    looked,
    loop,
    needs,
    report,
    written,
)

__all__ = ["job"]

PATIENT = Estimation(within_s=120.0, rest_s=60.0)

EPOCHS = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.zeros(6400, 1024))
train, test = DataLoader(data, 64, shuffle=True), DataLoader(data, {batch})
read = 0

def evaluate():
    model.eval()
    losses = []
    with torch.no_grad():
        for (x,) in test:
            losses.append(model(x.cuda()).mean().item())
    {evaluation}
    return sum(losses) / len(losses)

for epoch in range(3):
    model.train()
    for (x,) in train:
        read += 1
        optimizer.zero_grad()
        model(x.cuda()).mean().backward()
        optimizer.step()
    evaluate()
    {saving}
"""
SAVING = "torch.save({'model': model.state_dict(), 'epoch': epoch}, 'last.pt')"


def epochs(batch: int = 64, evaluation: str = "pass", saving: str = SAVING, after: str = "") -> str:
    return loop(EPOCHS.format(batch=batch, evaluation=evaluation, saving=saving) + after)


def followed(job: Path, text: str, **fields: object) -> Report:
    """With time for all of it: these machines may be busy."""
    seen = report(job, written(job, text), estimation=PATIENT, **fields)
    assert seen.steps == 2
    assert seen.rest is not None
    return seen


def only(text: str, job: Path) -> str:
    """The late crash of a script whose first two steps are traced."""
    rest = followed(job, text).rest
    assert rest is not None
    return rest.crash


def test_a_run_is_followed_to_its_end(job: Path) -> None:
    """Its loops over data are cut short, so that three epochs are soon over."""
    seen = followed(job, epochs(after="assert read == 2 + 2 * 2, read"))
    assert seen.rest is not None
    assert (seen.rest.end, seen.rest.crash, seen.rest.missing) == ("", "", ())
    assert list(seen.rest.phases) == ["training", "evaluation", "saving"]
    assert 4 * PARAMETERS < seen.rest.phases["evaluation"] < seen.rest.phases["training"]


def test_a_large_batch_in_evaluation_is_the_peak_of_the_run(job: Path) -> None:
    usual, large = (followed(job, epochs(batch)) for batch in (64, 6400))
    assert usual.rest is not None and large.rest is not None
    assert usual.rest.phases["training"] == large.rest.phases["training"]
    assert large.rest.phases["evaluation"] > large.rest.phases["training"]
    assert large.rest.phases["evaluation"] <= large.reserved
    hidden = 4 * 6400 * 4096
    assert large.floor > usual.floor + hidden
    assert sum(large.parts.values()) == large.reserved


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"evaluation": "print(lossses)"}, "NameError: name 'lossses' is not defined"),
        ({"evaluation": "x @ x"}, "RuntimeError: mat1 and mat2 shapes cannot be"),
        ({"evaluation": "torch.sum(x, dims=1)"}, "TypeError: sum() received an invalid"),
        ({"saving": "torch.save(model.state_dictionary(), 'last.pt')"}, "AttributeError: "),
        ({"saving": "torch.save(0, 'no/last.pt')"}, "RuntimeError: Parent directory no does not"),
        ({"saving": "open('no/log.txt', 'w')"}, "FileNotFoundError: "),
        ({"after": "model.load(torch.load('last.pt'))"}, "AttributeError: 'Sequential' object"),
    ],
)
def test_a_late_mistake_is_told_with_its_line(change: dict[str, str], line: str, job: Path) -> None:
    text = epochs(**change)
    mistake = next(iter(change.values()))
    number = 1 + [one.strip() for one in text.splitlines()].index(mistake)
    assert only(text, job).startswith(f"at {job.parent / 'script.py'}:{number}: {line}")


@pytest.mark.parametrize(
    "change",
    [
        {"evaluation": "assert len(losses) == 100"},  # the loop was cut short
        {"evaluation": "if len(losses) > 50: best = 1\n    print(best)"},
        {"evaluation": "torch.zeros(6400) == torch.cat([x] * len(losses))[:, 0]"},
        {"evaluation": "assert losses[-1] < 0.5"},  # a value from the GPU
        {"evaluation": "torch.stack([x for x in losses if x > 1e9])"},
        {"saving": "torch.load('best.pt') if read > 5 else None"},
        {"evaluation": "import socket; socket.create_connection(('192.0.2.1', 9))"},
    ],
)
def test_what_the_trace_may_have_caused_is_not_blamed_on_the_script(
    change: dict[str, str], job: Path
) -> None:
    seen = followed(job, epochs(**change))
    usual = followed(job, epochs())
    assert seen.steps == 2
    assert seen.rest is not None and usual.rest is not None
    assert seen.rest.crash == ""
    assert seen.rest.phases["training"] == usual.rest.phases["training"]


def test_a_loop_that_was_cut_short_is_not_the_scripts_where_no_value_was_read(job: Path) -> None:
    for check in ("assert len(losses) == 100", "torch.zeros(6400) + torch.zeros(64 * len(losses))"):
        text = epochs(evaluation=check).replace(".mean().item()", ".mean()")
        assert only(text, job) == "", check


def test_what_was_not_reached_is_said(job: Path) -> None:
    seen = followed(job, epochs(evaluation="assert len(losses) == 100"))
    assert seen.rest is not None
    assert seen.rest.missing == ("saving",)
    assert list(_gaps(seen.rest)) == [
        f"saving was not reached: it stopped at {job.parent / 'script.py'}:23: "
        "AssertionError: no message"
    ]


def test_a_script_that_never_ends_is_left(job: Path) -> None:
    seen = report(job, written(job, loop("while True: step()")))
    assert seen.rest is not None
    assert seen.rest.missing == ("evaluation", "saving")


def test_a_loader_inside_a_generator_is_not_ended(job: Path) -> None:
    """That would raise "generator raised StopIteration" there. The loader around it ends."""
    text = """
        from torch.utils.data import DataLoader, TensorDataset
        class Endless(DataLoader):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.batches = super().__iter__()
            def __iter__(self):
                for _ in range(len(self)):
                    yield next(self.batches)
        data = TensorDataset(torch.zeros(6400, 1024))
        given = 0
        for epoch in range(2):
            for (x,) in Endless(data, 64):
                given += 1
                optimizer.zero_grad()
                model(x.cuda()).mean().backward()
                optimizer.step()
        assert given == 4, given
        batches = iter(DataLoader(data, 640))
        for turn in range(10):
            next(batches)
        torch.save(0, "last.pt")
        """
    seen = followed(job, loop(text))
    assert seen.rest is not None
    assert seen.rest.end == ""
    assert "saving" in seen.rest.phases


def test_the_largest_batch_has_the_longest_sample(job: Path) -> None:
    text = """
        from torch.utils.data import DataLoader
        from torch.nn.utils.rnn import pad_sequence
        data = [torch.zeros(1 + at % 7, 1024) for at in range(500)]
        data[321] = torch.zeros(400, 1024)
        for x in DataLoader(data, 16, collate_fn=lambda some: pad_sequence(some, True)):
            optimizer.zero_grad()
            model(x.cuda()).mean().backward()
            optimizer.step()
        """
    seen = followed(job, loop(text))
    assert seen.rest is not None
    assert list(seen.rest.phases) == ["training", "largest batch"]
    more = seen.rest.phases["largest batch"] - seen.rest.phases["training"]
    assert more > 4 * 16 * 400 * 4096
    assert seen.floor >= seen.rest.phases["largest batch"] - 32 * MIB


def test_a_checkpoint_is_loaded_again(job: Path) -> None:
    text = """
        import io, shutil
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "epoch": 7}, "saved.pt")
        torch.save(model.state_dict(), file)
        shutil.copyfile("saved.pt", "best.pt")
        kept = torch.load("best.pt", map_location="cpu")
        assert kept["epoch"] == 7
        assert all(not one.is_cuda for one in kept["model"].values())
        model.load_state_dict(kept["model"])
        file.seek(0)
        assert all(one.is_cuda for one in torch.load(file).values())
        for turn in range(2): step()
        """
    assert followed(job, loop(text)).steps == 2


def test_data_without_an_end_are_not_blamed_for_ending(job: Path) -> None:
    """As in llama2.c: a generator loops over a loader whose dataset has no end."""
    text = """
        from torch.utils.data import DataLoader, IterableDataset
        class Endless(IterableDataset):
            def __iter__(self):
                while True:
                    yield torch.zeros(1024)
        def batches():
            for x in DataLoader(Endless(), 64):
                yield x.cuda()
        batch = batches()
        for turn in range(50):
            model(next(batch)).mean().backward()
            optimizer.step()
        """
    seen = followed(job, loop(text))
    assert seen.rest is not None
    assert (seen.steps, seen.rest.crash) == (2, "")


def test_what_a_loader_takes_can_be_asked(job: Path) -> None:
    """Lightning makes a loader anew, with the arguments that it was made with."""
    text = """
        import inspect
        from torch.utils.data import DataLoader
        assert "batch_sampler" in inspect.signature(DataLoader.__init__).parameters
        for turn in range(2): step()
        """
    seen = followed(job, loop(text))
    assert seen.steps == 2


@needs("transformers")
def test_a_model_of_transformers_is_saved(job: Path) -> None:
    text = """
        from transformers import BertConfig, BertForMaskedLM  # two of its weights are one
        sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=99)
        bert = BertForMaskedLM(BertConfig(intermediate_size=64, **sizes)).cuda()
        for turn in range(2): step()
        bert.save_pretrained("bert")
        """
    seen = followed(job, loop(text))
    assert seen.rest is not None
    assert (seen.rest.end, "saving" in seen.rest.phases) == ("", True)


def test_before_two_steps_a_mistake_is_told_as_ever(job: Path) -> None:
    answer = looked(job, written(job, epochs().replace("optimizer.step()", "optimizer.stepp()")))
    assert isinstance(answer, Refusal) and "stepp" in answer.crash
    assert not isinstance(answer, Report)

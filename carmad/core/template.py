"""Recognises runs of the same job: commands that differ only in what does not affect memory.

Unknown arguments count. So do positional arguments, in their order, and the command's own name; the
order of options does not. `--batch-size 64`, `--batch_size=64` and `batch_size=64` (Hydra,
OmegaConf) are the same.

- FREE arguments are ignored: seeds, learning rates, logging intervals, ports.
- LENGTHS, how long it trains, are separate: they change neither memory nor speed.
- PLACES are ignored unless their value is a number: directories, names, notes. (`--output 10`
  may well be a layer.)
- RATES count as on or off: dropout keeps a mask whatever its rate, momentum a buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


FREE = _names("""
    seed random-seed manual-seed global-seed data-seed
    lr learning-rate base-lr min-lr max-lr warmup-lr lr-scheduler lr-scheduler-type sched
    warmup-epochs warmup-steps warmup-ratio
    cooldown-epochs patience print-freq log-interval log-every log-every-n-steps log-freq
    logging-steps save-every save-steps save-freq save-interval save-total-limit
    port master-port rdzv-id rdzv-endpoint
""")
LENGTHS = _names("""
    epochs num-epochs n-epochs max-epochs total-epochs num-train-epochs
    max-steps max-iters total-steps total-timesteps
""")
PLACES = _names("""
    out output out-dir outdir output-dir output-path log-dir logdir logging-dir log-file save-dir
    save-path run-dir work-dir exp-dir results-dir checkpoint-dir ckpt-dir default-root-dir
    run-name exp-name experiment-name job-name run-id exp-id tag tags notes comment project
    wandb-project wandb-name wandb-run-name wandb-group wandb-entity
""")
RATES = _names("""
    weight-decay wd momentum dropout attn-dropout hidden-dropout drop drop-rate drop-path
    label-smoothing clip-grad grad-clip max-grad-norm gradient-clip-val mixup cutmix ema-decay
""")
LONGEST = 2000  # words plus characters of an ordinary command
SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w./@]*)=(.*)", re.DOTALL)
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Template:
    """The part of a command that is equal for runs of the same job."""

    words: tuple[str, ...]  # the command, its script, other positional arguments
    options: frozenset[str]  # name=value
    lengths: frozenset[str] = field(default=frozenset(), compare=False)  # name=value

    def values(self) -> Iterator[str]:
        """All values that may be file names. A module (`-m pkg.train`) counts as its file."""
        yield from self.words
        for name, _, value in (option.partition("=") for option in self.options):
            yield value.replace(".", "/") + ".py" if name == "m" else value

    def differs_in(self, other: Template) -> frozenset[str]:
        """The names of the options in which two commands differ."""
        return frozenset(option.partition("=")[0] for option in self.options ^ other.options)


def ordinary(argv: tuple[str, ...]) -> bool:
    """Whether results for a command may be cached: for thousands of long ones they may not."""
    return len(argv) + sum(map(len, argv)) <= LONGEST


def template(argv: tuple[str, ...]) -> Template:
    return (_template if ordinary(argv) else _template.__wrapped__)(argv)


@lru_cache(maxsize=4096)
def _template(argv: tuple[str, ...]) -> Template:
    words: list[str] = []
    options: set[str] = set()
    lengths: set[str] = set()
    rest = list(reversed(argv))
    while rest:
        word = rest.pop()
        if _is_option(word):
            name, given, value = word.lstrip("-").partition("=")
            if not given and rest and not _is_option(rest[-1]) and not SETTING.fullmatch(rest[-1]):
                value = rest.pop()
        elif setting := SETTING.fullmatch(word):
            name, value = setting.groups()
        else:
            words.append(word)
            continue
        name = name.replace("_", "-")
        if name.rpartition(".")[2].lower() in LENGTHS:
            lengths.add(f"{name}={value}")
        else:
            options |= _option(name, value)
    return Template(tuple(words), frozenset(options), frozenset(lengths))


def _is_option(word: str) -> bool:
    return word.startswith("-") and not NUMBER.fullmatch(word)


def _option(name: str, value: str) -> set[str]:
    """Empty for an option that is ignored. `-b` and `-B` differ; `trainer.max_epochs` is recognised
    by its last part, and all of `hydra.…` counts as places."""
    known = name.rpartition(".")[2].lower()
    is_number = NUMBER.fullmatch(value) is not None
    if known in FREE or name.startswith("hydra.") or (known in PLACES and not is_number):
        return set()
    if known in RATES and is_number:
        value = "on" if float(value) else "off"
    return {f"{name}={value}"}

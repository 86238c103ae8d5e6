"""Recognises runs of the same job: same user, directory, Python environment, number of GPUs, and
commands that differ only in what affects neither memory nor speed nor duration.

Unknown arguments count. So do positional arguments, in their order, and the command's own name; the
order of options does not. `--batch-size 64`, `--batch_size=64` and `batch_size=64` (Hydra,
OmegaConf) are the same.

- FREE arguments are ignored: seeds, learning rates, logging intervals, ports.
- LENGTHS, how long it trains, are separate: they change neither memory nor speed.
- PLACES are ignored unless their value is a number: directories, names, notes. (`--output 10`
  may well be a layer.)
- RATES count as on or off: dropout keeps a mask whatever its rate, momentum a buffer.

A sweep is an array whose tasks have the same command and different values in it. A task stores its
own values only; its command is derived from them and the array's. Values take the place of `{NAME}`
in the command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from carmad.core.jobs.spec import JobSpec

Params = tuple[tuple[str, str], ...]  # of a sweep: names and values

PYTHON = ("VIRTUAL_ENV", "CONDA_PREFIX")
TELLING = frozenset({*PYTHON, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})
LETTERS = 12  # of a group's id


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
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
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
    last_part = name.rpartition(".")[2].lower()
    is_number = NUMBER.fullmatch(value) is not None
    if last_part in FREE or name.startswith("hydra.") or (last_part in PLACES and not is_number):
        return set()
    if last_part in RATES and is_number:
        value = "on" if float(value) else "off"
    return {f"{name}={value}"}


# -- sweeps


def params(spec: JobSpec) -> Params:
    return spec.array.params if spec.array else ()


def fill(argv: tuple[str, ...], params: Params) -> tuple[str, ...]:
    """The command with these values. A placeholder in a value is left as it is."""
    if not params:
        return argv
    values = dict(params)
    return tuple(_PLACEHOLDER.sub(lambda m: values.get(m[1], m[0]), word) for word in argv)


def command(spec: JobSpec) -> tuple[str, ...]:
    """The words that the task runs."""
    return fill(spec.argv, params(spec))


def telling_params(spec: JobSpec) -> Params:
    """The parameters that may affect memory or speed, by the rules of this module: not learning
    rates, seeds and the like."""
    return tuple(one for one in params(spec) if tells(*one))


@lru_cache(maxsize=1024)
def tells(name: str, value: str) -> bool:
    """Whether the parameter may affect memory or speed."""
    return bool(template(("", f"--{name}={value}")).options)


def variables(params: Params) -> dict[str, str]:
    """The environment variables that tell a task its values: CARMA_PARAM_LR."""
    return {"CARMA_PARAM_" + re.sub(r"\W", "_", name.upper()): value for name, value in params}


# -- groups


def telling_variables(env: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The environment variables that distinguish jobs with the same command."""
    return tuple((name, value) for name, value in env if name in TELLING)


def group(spec: JobSpec) -> str:
    """A short id shared by all of its owner's runs of the job, stable across restarts."""
    env, params = dict(spec.env), telling_params(spec)
    argv = fill(spec.argv, params)
    silent = tuple(one for one in params if f"{{{one[0]}}}" not in " ".join(spec.argv))
    python = tuple(env.get(name, "") for name in PYTHON)
    where = (spec.user, spec.cwd, spec.conda_env, *python)
    if spec.container is not None:
        where += (spec.container,)
    digest = _group if ordinary(argv) else _group.__wrapped__
    its = digest((*where, *map("=".join, silent)), argv, spec.gpus, spec.batch_size)
    return f"{its}-{spec.uid}"


@lru_cache(maxsize=1)  # for the tasks of an array, which come one after the other
def _group(
    where: tuple[str | None, ...], argv: tuple[str, ...], gpus: int, batch_size: int | None
) -> str:
    command = template(argv)
    how = command.words, sorted(command.options), sorted(command.lengths)
    what = repr((where, how, gpus, batch_size))
    return blake2b(what.encode(), digest_size=LETTERS // 2).hexdigest()

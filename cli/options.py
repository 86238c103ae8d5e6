"""The options of `carma submit` and of the other verbs that scripts call, as tables, from which
`cli.reader` and `cli.app` read them; and what verbs do with options. Imports stay light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carmad.options import HINTS, OPTIONS, RESOURCES, RUN, START, Option
from carmad.states import CODES, HELD, NEW, RETRIED, named_by
from cli.problems import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Table = dict[str, Option]

OUTPUT = "output"
WATCH_S = 2.0


def _table(**options: Option) -> Table:
    for name, option in options.items():
        option.name = name
    return options


def _text(*flags: str, **about: Any) -> Option:
    return Option(*flags, **{"default": None, "section": OUTPUT, **about})


def _switch(*flags: str, **about: Any) -> Option:
    return Option(*flags, **{"default": False, "section": OUTPUT, **about})


FORMS = _table(  # other forms of a job's options, and options that the client handles
    gres=_text(
        "--gres",
        section=RESOURCES,
        read="gres",
        metavar="gpu:[KIND:]N",
        rare=True,
        help="number of GPUs, and perhaps their kind, in Slurm's form",
    ),
    allreduce=_text(
        "--allreduce",
        section=HINTS,
        read="allreduce",
        metavar="NAME",
        rare=True,
        help="all-reduce algorithm of the replicas of a --layout: ring (default) or tree",
    ),
    param=_text(
        "--param",
        section=START,
        read="param",
        metavar="NAME=LIST",
        repeated=True,
        help="a sweep: an array with a task for each value, such as lr=1e-3,1e-4 or seed=0-4, and"
        " for each combination if given several times. The value takes the place of {NAME} in the"
        " command, or follows it as --NAME VALUE, and is in CARMA_PARAM_NAME. --array %N: at most"
        " N tasks at a time",
    ),
    params=_text(
        "--params",
        section=START,
        metavar="FILE",
        rare=True,
        help="a sweep with a task for each row of a CSV file, whose first row has the names",
    ),
    zip=_switch(
        "--zip",
        section=START,
        rare=True,
        help="take the values of all --param together, not combined",
    ),
    after_ok=_text(
        "--after",
        section=START,
        read="after",
        metavar="ID[,ID]",
        help="start once these jobs have succeeded; 'last' is your last job",
    ),
    chdir=_text(
        "-D",
        "--chdir",
        section=RUN,
        metavar="DIR",
        help="working directory (default: the current one)",
    ),
    export=_text(
        "--export",
        section=RUN,
        read="export",
        metavar="NAME=VALUE",
        repeated=True,
        help="set a variable in the job's environment, or pass on one by its NAME; NONE: start"
        " from a minimal environment instead of the current one",
    ),
    no_copy=_switch(
        "--no-copy",
        section=RUN,
        rare=True,
        help="run a job script where it is, as it is when the job starts, instead of a copy made"
        " now",
    ),
    mail_type=_text(
        "--mail-type",
        section=RUN,
        read="mail_type",
        metavar="LIST",
        rare=True,
        help="--notify in Slurm's words: BEGIN, END, FAIL, TIME_LIMIT_80, ALL",
    ),
    wrap=_text("--wrap", section=RUN, metavar="TEXT", help="run TEXT with /bin/sh"),
)
JSON = _table(json=_switch("--json", help="print the daemon's answer as JSON"))
AFTERWARDS = _table(  # what is to be done with the job's id
    wait=_switch("-W", "--wait", help="wait for the job to end; exit with its code"),
    anyway=_switch(
        "--anyway",
        rare=True,
        help="submit it though the program, the script or a folder is missing now, and return at"
        " once: on a terminal, carma submit otherwise waits for a trial of the script's first"
        " steps, and asks what to do if the script stops by itself",
    ),
    parsable=_switch("--parsable", help="print only the job's id"),
    quiet=_switch("-Q", "--quiet", help="print only errors"),
    dry_run=_switch(
        "--dry-run",
        "--test-only",
        help="do not submit; show where the job would run now, or why it would wait",
    ),
)
IGNORED = _table(  # options of sbatch that mean nothing here
    **{
        f"slurm_{flags[-1][2:].replace('-', '_')}": _text(
            *flags,
            metavar="VALUE",
            repeated=True,
            rare=True,
            help="ignored: it is for scripts that were written for Slurm",
        )
        for flags in (
            *(("-A", "--account"), ("-n", "--ntasks")),
            *(("-N", "--nodes"), ("-p", "--partition"), ("-q", "--qos"), ("-w", "--nodelist")),
            *(("-x", "--exclude"), ("--cpus-per-gpu",), ("--mem-per-cpu",), ("--mem-per-gpu",)),
            *(("--ntasks-per-node",), ("--reservation",)),
        )
    }
)
JOB = OPTIONS | FORMS | AFTERWARDS | JSON
SUBMIT = JOB | IGNORED

OF_USER = _table(user=_text("-u", "--user", metavar="USER", help="only this user's jobs"))
CHOICE = OF_USER | _table(
    me=_switch("--me", help="only your own jobs"),
    states=_text(
        "-t",
        "--states",
        metavar="STATES",
        help="only jobs in these states: R,PD or running,queued; or all",
    ),
)
QUEUE = (
    CHOICE
    | _table(
        jobs=_text("-j", "--jobs", metavar="JOBS", help="only these jobs: 1,3,5-8"),
        sort=_text(
            "-S", "--sort", metavar="COLUMN", help="sort by this column; -COLUMN reverses the order"
        ),
        noheader=_switch("-h", "--noheader", help="omit the header line"),
        long=_switch("-l", "--long", help="show more columns"),
        format=_text(
            "-o",
            "--format",
            metavar="COLUMNS",
            help="choose columns, such as jobid,name,peak; a wrong one lists all that there are",
        ),
        array=_switch("-r", "--array", help="list every task of an array; --json always does"),
        watch=_switch("-w", "--watch", help="keep it up to date; q quits"),
        every=_text(
            "--every",
            read="interval",
            metavar="SECONDS",
            help=f"with --watch: how often (default: {WATCH_S:g})",
        ),
        start=_switch(
            "--start", help="from when to when waiting jobs are expected to start; with -u"
        ),
    )
    | JSON
)
WAIT = (
    _table(any=_switch("--any", help="return when the first has ended, with its exit code")) | JSON
)
CANCEL = OF_USER | JSON
JOBS_HELP = "job ids: 42, 1,3,5-8, 42_3, 42_[1-3], last, or all (yours)"


class Cleared:
    """The value of an option that is given in order to have none, such as `--time 0`."""


CLEARED = Cleared()


def parser_of(option: Option) -> Callable[[str], Any] | None:
    """What reads its value."""
    if not option.read:
        return None
    from cli import parse

    if option.read == "whole":
        return parse.whole(option.limits["ge"], option.limits["le"])
    read: Callable[[str], Any] = getattr(parse, option.read)

    def read_or_clear(text: str) -> Any:
        value = read(text)
        return CLEARED if value is None else value

    return read_or_clear


def find_ignored(options: Any) -> list[str]:
    """The options of sbatch's that were given, as words."""
    return [
        f"{option.flag}={value}"
        for name, option in IGNORED.items()
        for value in getattr(options, name, None) or ()
    ]


# Of each of these, the last that was given is meant.
EXCLUSIVE = (("gpus", "gres"), ("host_memory_mib", "mem_per_cpu", "mem_per_gpu"))


def override(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options: those given later, or else earlier; None for the others."""
    given = {name: value for name, value in later.items() if value is not None}
    dropped = {name for names in EXCLUSIVE if given.keys() & names for name in names}
    kept = {name: None if name in dropped else value for name, value in earlier.items()}
    return {**later, **kept, **given}


def settle(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value is CLEARED else value for name, value in values.items()}


def selection(words: Sequence[str]) -> str:
    """`1 3 5-8` is the same as `1,3,5-8`."""
    return ",".join(words)


def user_of(user: str | None, mine: bool | None) -> str | None:
    if not mine:
        return user
    import os
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def states_of(text: str | None) -> tuple[str | None, frozenset[str]]:
    """The states to request, and the codes to keep: H and RQ are kinds of waiting."""
    if text is None:
        return None, frozenset()
    if text == "all":
        return ",".join(CODES), frozenset()
    states: set[str] = set()
    codes: set[str] = set()
    for word in text.split(","):
        kind = word.upper()
        named = NEW if kind in (HELD, RETRIED) else named_by(word)
        if not named:
            hint = f"states: {', '.join(CODES)}; or their codes"
            raise Usage(f"{word.lower()!r} is not a state", hint)
        states |= named
        is_name = kind.lower() in CODES
        codes |= {CODES[kind.lower()]} if is_name else {kind}
        codes |= {HELD, RETRIED} if is_name and named <= NEW else set()
    return ",".join(sorted(states)), frozenset(codes)


def check(read: Callable[[str], Any], text: str | None) -> Any:
    """The result of one of cli.parse's parsers, with its error as a usage error."""
    from argparse import ArgumentTypeError

    if text is None:
        return None
    try:
        return read(text)
    except ArgumentTypeError as error:
        raise Usage(str(error)) from None

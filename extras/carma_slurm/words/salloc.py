"""`salloc`: a shell, or a command, at this terminal, as a job."""

from __future__ import annotations

import os

from carma_slurm import words
from carma_slurm.words.request import build_parser, job_request
from carma_slurm.words.srun import run_at_terminal
from cli.problems import Usage

USAGE = "salloc [OPTION…] [COMMAND [ARG…]]"
ABOUT = (
    "Wait for room, then run a shell or the command here, as a job; srun in it starts its tasks."
)


def salloc(args: list[str]) -> int:
    parser = build_parser("salloc", USAGE, ABOUT)
    parser.add_argument("--no-shell", action="store_true", help="not supported")
    given, command, _ = parser.split(args)
    if parser.parse_args(given).no_shell:
        raise Usage("--no-shell is not supported", "a job without processes ends at once")
    shell = [os.environ.get("SHELL") or "/bin/sh", "-i"]
    name = command[0] if command else "interactive"
    words_of_job = [*given, *(command or shell)]
    options, body, ignored = job_request(parser, words_of_job, lambda _: None, name)
    if not options.quiet:
        words.ignore("salloc", ignored)
    if options.chdir:
        os.chdir(options.chdir)
    labels: list[str] = []

    def grant(label: str) -> None:
        labels.append(label)
        if not options.quiet:
            words.say("salloc", f"Granted job allocation {label}")

    code = run_at_terminal(body, options.quiet, grant)
    for label in labels[-1:] if not options.quiet else ():
        words.say("salloc", f"Relinquishing job allocation {label}")
    return code

"""`carma adopt`: a process that was started outside of CARMA becomes a job."""

from __future__ import annotations

from carmad.options import OPTIONS
from cli import client, output
from cli.options import add_json
from cli.parse import whole
from cli.submit_options import add_option

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace

    from cli.parser import Parser

CHOSEN = ("name", "memory_mib", "time_limit_s")
MAX_PID = (1 << 31) - 1


def adopt_options(parser: Parser) -> None:
    parser.add_argument("pid", type=whole(1, MAX_PID), metavar="PID", help="a process on a GPU")
    for name in CHOSEN:
        add_option(parser, OPTIONS[name])
    add_json(parser)


def adopt(options: Namespace) -> int:
    """Make a job of a process of yours that already runs on a GPU."""
    body = {"pid": options.pid, **{name: getattr(options, name) for name in CHOSEN}}
    job = client.post("/v1/adopt", body)
    if options.json:
        output.print_json(job)
        return 0
    gpus = ", ".join(str(gpu["index"]) for gpu in job["gpus"])
    print(f"Process {options.pid} is now job {job['label']}, on GPU {gpus}")
    return 0

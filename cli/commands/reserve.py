"""`carma reserve`: keeps GPUs for some users for a time, or for maintenance."""

from __future__ import annotations

from cli import client, output
from cli.options import add_json
from cli.parse import gpu_count, moment, seconds, whole
from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace

    from cli.parser import Parser

PATH = "/v1/reservations"


def reserve_options(parser: Parser) -> None:
    parser.add_argument("--gpus", metavar="N", type=gpu_count, help="how many; CARMA chooses which")
    parser.add_argument("--on", metavar="GPU,…", help="these: indices or UUIDs, or all")
    parser.add_argument(
        "--users", metavar="USER,…", help="whose jobs may start there; left out: for maintenance"
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="TIME",
        type=moment,
        help="from when: now (the default), now+2h, 22:30, 'mon 9:00' or 2026-11-20T22:30",
    )
    parser.add_argument(
        "--for", dest="lasts_s", metavar="TIME", type=seconds, help="for how long: 4h, 1-12"
    )
    parser.add_argument("--weekly", action="store_true", help="every week for a year")
    parser.add_argument(
        "--cancel", metavar="ID", type=whole(1, 10**9), help="cancel this reservation"
    )
    add_json(parser)


def reserve(options: Namespace) -> int:
    """Reserve GPUs (administrators), or list the reservations.

    Others' jobs that could not end in time do not start there; running ones are not stopped."""
    new = (options.gpus, options.on, options.users, options.start, options.lasts_s)
    if options.cancel is not None:
        answer = client.post(f"{PATH}/{options.cancel}/cancel", {})
        said = f"reservation {options.cancel} is cancelled"
    elif options.weekly or any(each is not None for each in new):
        answer = client.post(PATH, _wish(options))
        said = ""
    else:
        answer = client.get(PATH)
        said = "" if answer["reservations"] else "nothing is reserved"
    if options.json:
        output.print_json(answer)
        return 0
    if said:
        print(said)
    for each in answer["reservations"] if options.cancel is None else ():
        print(f"{each['id']}: {each['text']}")
        for words in each["in_the_way"]:
            print(f"   {words}")
    return 0


def _wish(options: Namespace) -> dict[str, object]:
    if options.lasts_s is None:
        raise Usage("for how long?", "Add --for 4h; --from is when it begins.")
    return {
        "gpus": options.gpus,
        "on": options.on.split(",") if options.on else None,
        "users": options.users.split(",") if options.users else [],
        "starts_at": options.start or moment("now"),
        "lasts_s": options.lasts_s,
        "weekly": options.weekly,
    }

"""Who has used how much, who may, and what is reserved: `share`, `limit`, `reserve`, `book`."""

from __future__ import annotations

from carmad.readable import clean
from cli import client, output
from cli.options import add_json
from cli.parse import gpu_count, moment, seconds, whole
from cli.problems import Usage
from cli.text import NOTHING, Table, columns, heading

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

    from cli.parser import Parser

MOST = 1_000_000_000


def share_options(parser: Parser) -> None:
    add_json(parser)


def share(options: Namespace) -> int:
    """A job without GPUs counts as the part of the GPUs that it has of the CPUs or the host memory.
    HOST: the number of GPUs that the user's running jobs without GPUs count as. Users of the same
    rank go by arrival.
    """
    answer = client.get("/v1/share")
    if options.json:
        output.print_json(answer)
        return 0
    made = Table(columns("USER~ GROUP~ WEIGHT> GPU-H> GPUS> HOST> WAITING> RANK> URGENT-GPU-H>"))
    of_use = "gpu_hours", "gpus", "host_gpus"
    keys = "user", "group", "weight", *of_use, "waiting", "rank", "urgent_gpu_hours"
    for user in answer["users"]:
        made.add(*(_word(user.get(key)) for key in keys))  # an older carmad sends no host_gpus
    output.show([made])
    if not answer["enabled"]:
        output.note("jobs start in order of arrival: fairness.enabled is off")
    elif band := answer.get("band_gpu_hours"):  # an older carmad sends none
        output.note(f"users whose use differs by less than {band:.4g} GPU-h go by arrival")
    return 0


def limit_options(parser: Parser) -> None:
    from cli.parse import gpu_hours, whole

    natural = whole(0, MOST)
    parser.add_argument(
        "subject", nargs="?", metavar="WHO", help="a user, @group, or default: each other user"
    )
    parser.add_argument("-G", "--gpus", type=natural, metavar="N", help="GPUs held at once")
    parser.add_argument(
        "--gpu-hours",
        type=gpu_hours,
        metavar="HOURS/PERIOD",
        help="GPU-hours used per day, week or month: 100/week",
    )
    parser.add_argument("--jobs", type=natural, metavar="N", help="waiting jobs; not of a group")
    parser.add_argument(
        "--booking",
        type=natural,
        metavar="HOURS",
        help="GPU-hours that may be booked ahead; without a limit, none (see `carma book`)",
    )
    parser.add_argument("--clear", action="store_true", help="remove the limit")
    add_json(parser)


def limit(options: Namespace) -> int:
    """The users of a group share its limit. What is not given stays as it was."""
    hours, per = options.gpu_hours or (None, None)
    given = {
        "gpus": options.gpus,
        "gpu_hours": hours,
        "per": per,
        "jobs": options.jobs,
        "booking": options.booking,
    }
    body = {name: value for name, value in given.items() if value is not None}
    if body and options.clear:
        raise Usage("--clear takes no other option", "it removes the whole limit")
    if not options.subject:
        if body or options.clear:
            raise Usage("whose limit?", "carma limit USER, @GROUP or default")
        answer = client.get("/v1/limits")
    elif body or options.clear:
        words = body | {"subject": options.subject} | ({"clear": True} if options.clear else {})
        answer = client.post("/v1/limits", words)
    else:
        from urllib.parse import quote

        answer = client.get(f"/v1/limits/{quote(options.subject, safe='')}")
    if options.json:
        output.print_json(answer)
        return 0
    output.show([_table(answer.get("limits") or [answer["limit"]])])
    if changes := answer.get("changes"):
        output.show([*heading("changes"), _table(changes)])
    return 0


def _table(limits: Sequence[dict[str, Any]]) -> Table:
    made = Table(columns("WHO~ GPUS> GPU-H> JOBS> BOOKING> SET-BY~ SINCE"))
    for one in limits:
        made.add(*_limit(one))
    return made


def _limit(limit: dict[str, Any]) -> tuple[str, ...]:
    from cli.text import local_time

    gpus, hours, jobs = limit["gpus"], limit["gpu_hours"], limit["jobs"]
    used = limit.get("gpu_hours_used")
    held = "" if limit["subject"] == "default" else limit.get("gpus_held", "")
    return (
        clean(limit["subject"]),
        NOTHING if gpus is None else f"{held} of {gpus}" if held != "" else str(gpus),
        NOTHING
        if hours is None
        else f"{f'{used:.4g} of ' if used is not None else ''}{hours:g} per {limit['per']}",
        NOTHING if jobs is None else str(jobs),
        NOTHING if (most := limit.get("booking")) is None else _booking(limit, most),
        clean(limit["set_by"]) or "settings",
        local_time(limit["set_at"]),
    )


def _booking(limit: dict[str, Any], most: float) -> str:
    booked = limit.get("gpu_hours_booked")
    return f"{most:g} GPU-h" if booked is None else f"{booked:.4g} of {most:g} GPU-h"


def _word(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else clean(value) or NOTHING


PATH = "/v1/reservations"


def reserve_options(parser: Parser) -> None:
    parser.add_argument("--gpus", metavar="N", type=gpu_count, help="how many; CARMA chooses which")
    parser.add_argument(
        "--users", metavar="USER,…", help="whose jobs may start there; left out: for maintenance"
    )
    parser.add_argument("--weekly", action="store_true", help="every week for a year")
    _slot_options(parser)


def reserve(options: Namespace) -> int:
    """Others' jobs that could not end in time do not start there; running ones are not stopped."""
    more = {"users": options.users.split(",") if options.users else [], "weekly": options.weekly}
    return _reserve(options, more, any(more.values()))


def book_options(parser: Parser) -> None:
    parser.add_argument(
        "gpus", metavar="GPUS", nargs="?", type=gpu_count, help="how many; CARMA chooses which"
    )
    _slot_options(parser)


def book(options: Namespace) -> int:
    """Only your jobs start there then, and others' that end before. How much you may book is set by
    administrators: `carma limit`. Without words, it lists what is booked and reserved.
    """
    if options.gpus is None and not options.on and options.lasts_s is not None:
        options.gpus = 1
    return _reserve(options, {"book": True}, False)


def _slot_options(parser: Parser) -> None:
    parser.add_argument("--on", metavar="GPU,…", help="these: indices or UUIDs, or all")
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
    parser.add_argument("--cancel", metavar="ID", type=whole(1, 10**9), help="cancel it")
    add_json(parser)


def _reserve(options: Namespace, more: dict[str, object], is_new: bool) -> int:
    """`more`: what else the request says; `is_new`: whether that asks for a reservation."""
    slot = (options.gpus, options.on, options.start, options.lasts_s)
    if options.cancel is not None:
        answer = client.post(f"{PATH}/{options.cancel}/cancel", {})
        said = f"reservation {options.cancel} is cancelled"
    elif is_new or any(each is not None for each in slot):
        answer = client.post(PATH, _wish(options) | more)
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
        booked = " (booked)" if each.get("booked") else ""
        print(f"{each['id']}: {each['text']}{booked}")
        for words in each["in_the_way"]:
            print(f"   {words}")
    for each in answer.get("booking", ()):  # an older carmad sends none
        booked = f"{each['gpu_hours_booked']:.4g} of {each['gpu_hours']:g} GPU-hours"
        print(f"{clean(each['subject'])} has booked {booked}")
    return 0


def _wish(options: Namespace) -> dict[str, object]:
    if options.lasts_s is None:
        raise Usage("for how long?", "Add --for 4h; --from is when it begins.")
    return {
        "gpus": options.gpus,
        "on": options.on.split(",") if options.on else None,
        "starts_at": options.start or moment("now"),
        "lasts_s": options.lasts_s,
    }

"""Who has used how much, who may, and what is reserved: `share`, `limit`, `reserve`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

from carmad.readable import clean
from cli import client, output, parse
from cli.app import Json, argument, complete_users, option
from cli.problems import Usage
from cli.text import NOTHING, Table, columns, heading, local_time

PATH = "/v1/reservations"


def share(json: Json = False) -> int:
    """A job without GPUs counts as the part of the GPUs that it has of the CPUs or the host memory.
    HOST: the number of GPUs that the user's running jobs without GPUs count as. Users of the same
    rank go by arrival.
    """
    answer = client.get("/v1/share")
    if json:
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


def limit(
    subject: Annotated[
        str | None,
        argument(
            "WHO",
            "a user, @group, or default: each other user",
            autocompletion=complete_users,
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        option("-G", "--gpus", metavar="N", read=parse.whole(0), help="GPUs held at once"),
    ] = None,
    gpu_hours: Annotated[
        Any,
        option(
            "--gpu-hours",
            metavar="HOURS/PERIOD",
            read=parse.gpu_hours,
            help="GPU-hours used per day, week or month: 100/week",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        option("--jobs", metavar="N", read=parse.whole(0), help="waiting jobs; not of a group"),
    ] = None,
    booking: Annotated[
        int | None,
        option(
            "--booking",
            metavar="HOURS",
            read=parse.whole(0),
            help="GPU-hours that users may reserve for themselves; without a limit, none (see"
            " `carma reserve --me`)",
        ),
    ] = None,
    clear: Annotated[bool, option("--clear", help="remove the limit")] = False,
    json: Json = False,
) -> int:
    """The users of a group share its limit. What is not given stays as it was."""
    hours, per = gpu_hours or (None, None)
    given = {
        "gpus": gpus,
        "gpu_hours": hours,
        "per": per,
        "jobs": jobs,
        "booking": booking,
    }
    body = {name: value for name, value in given.items() if value is not None}
    if body and clear:
        raise Usage("--clear takes no other option", "it removes the whole limit")
    if not subject:
        if body or clear:
            raise Usage("whose limit?", "carma limit USER, @GROUP or default")
        answer = client.get("/v1/limits")
    elif body or clear:
        words = body | {"subject": subject} | ({"clear": True} if clear else {})
        answer = client.post("/v1/limits", words)
    else:
        answer = client.get(f"/v1/limits/{quote(subject, safe='')}")
    if json:
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


def reserve(
    gpus: Annotated[
        int | None,
        option("--gpus", metavar="N", read=parse.whole(0), help="how many; CARMA chooses which"),
    ] = None,
    on: Annotated[
        str | None, option("--on", metavar="GPU,...", help="these: indices or UUIDs, or all")
    ] = None,
    start: Annotated[
        str | None,
        option(
            "--from",
            metavar="TIME",
            read=parse.moment,
            help="from when: now (the default), now+2h, 22:30, 'mon 9:00' or 2026-11-20T22:30",
        ),
    ] = None,
    lasts_s: Annotated[
        float | None,
        option("--for", metavar="TIME", read=parse.seconds, help="for how long: 4h, 1-12"),
    ] = None,
    me: Annotated[
        bool,
        option(
            "--me",
            help="for your own jobs, out of the GPU-hours that `carma limit` lets you reserve",
        ),
    ] = False,
    users: Annotated[
        str | None,
        option(
            "--users",
            metavar="USER,...",
            help="whose jobs may start there; without it and --me: for maintenance",
        ),
    ] = None,
    weekly: Annotated[bool, option("--weekly", help="every week for a year")] = False,
    cancel: Annotated[
        int | None, option("--cancel", metavar="ID", read=parse.whole(1), help="cancel it")
    ] = None,
    json: Json = False,
) -> int:
    """Others' jobs that could not end in time do not start there; running ones are not stopped.
    Without options, it lists what is reserved.
    """
    if me and (users or weekly):
        raise Usage("--me takes no --users and --weekly", "the reservation is for your jobs, once")
    if me and gpus is None and not on:
        gpus = 1
    if cancel is not None:
        answer = client.post(f"{PATH}/{cancel}/cancel", {})
        said = f"reservation {cancel} is cancelled"
    elif me or users or weekly or any(each is not None for each in (gpus, on, start, lasts_s)):
        answer = client.post(PATH, _wish(gpus, on, start, lasts_s) | _whose(me, users, weekly))
        said = ""
    else:
        answer = client.get(PATH)
        said = "" if answer["reservations"] else "nothing is reserved"
    if json:
        output.print_json(answer)
        return 0
    if said:
        print(said)
    for each in answer["reservations"] if cancel is None else ():
        booked = " (booked)" if each.get("booked") else ""
        print(f"{each['id']}: {each['text']}{booked}")
        for words in each["in_the_way"]:
            print(f"   {words}")
    for each in answer.get("booking", ()):  # an older carmad sends none
        booked = f"{each['gpu_hours_booked']:.4g} of {each['gpu_hours']:g} GPU-hours"
        print(f"{clean(each['subject'])} has booked {booked}")
    return 0


def _wish(
    gpus: int | None, on: str | None, start: str | None, lasts_s: float | None
) -> dict[str, object]:
    if lasts_s is None:
        raise Usage("for how long?", "Add --for 4h; --from is when it begins.")
    return {
        "gpus": gpus,
        "on": on.split(",") if on else None,
        "starts_at": start or parse.moment("now"),
        "lasts_s": lasts_s,
    }


def _whose(me: bool, users: str | None, weekly: bool) -> dict[str, object]:
    return {"book": True} if me else {"users": users.split(",") if users else [], "weekly": weekly}

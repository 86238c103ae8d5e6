"""When an entry of a crontab is due: five fields as in crontab(5), or a word such as `@daily`.

CronSim reads the fields as Debian's cron does, in the server's time zone. A fixed hour that comes
twice in autumn counts once, and one that spring leaves out is due at the end of the gap; what is
due every hour, or more often, stays so.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from cronsim import CronSim, CronSimError
from tzlocal import get_localzone

from carmad.errors import CarmaError

WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
HINT = "Five fields: minute hour day month weekday, such as 30 2 * * mon-fri; or @daily."


@lru_cache(maxsize=4096)
def next_time(schedule: str, after: float) -> float:
    """The first time later than `after` by the server's clock, in Unix seconds. Raises CarmaError
    if it is no schedule, or one whose time never comes."""
    try:
        begin = datetime.fromtimestamp(after, get_localzone())
        times = CronSim(WORDS.get(schedule, schedule), begin)
    except CronSimError as error:
        raise CarmaError(f"{schedule!r:.80} is no schedule: {error}", HINT) from None
    return next(times).timestamp()

"""What `carma top` shows above the jobs: the host and the GPUs, from a few cells on a small
terminal to graphs of the last half hour and all processes on a large one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.columns import Columns

from carmad.readable import clean
from cli import overview
from cli.text import NOTHING, Table, bar, columns, draw, drawn, fraction, height, memory, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carmad.api.gpus import GpuOut
    from carmad.api.server import StatusOut
    from carmad.api.timeline import GpuTimelineOut, TimelineOut
    from cli.text import Block, Styled

PAST_S = 1800.0  # that the graphs show
LOW, NARROW = 16, 60  # a terminal with fewer lines, or columns, gets cells instead of a table
LEAST_JOBS = 4  # lines of jobs that nothing takes the place of: a header, and three
PANEL = 50  # columns of a GPU's graphs, at least
LEAST_GRAPH, MOST_GRAPH = 2, 24  # lines of a graph
BLOCKS = " ▁▂▃▄▅▆▇█"


class Host(NamedTuple):
    """`cpu`: the share of all CPUs that was busy since the last look."""

    cpu: float
    used_mib: int
    total_mib: int


def head(
    answer: StatusOut, past: TimelineOut | None, host: Host, room: int, lines: int, jobs: int
) -> Block:
    """As many of the `lines` as the jobs can spare. `jobs`: the lines that all of them take;
    `past`: the last half hour."""
    cards = answer["gpus"]
    top: list[Block] = [overview.headline(answer), _host(host), ""]
    table = overview.gpus(cards, room >= overview.ROOM_FOR_BARS)
    end: list[Block] = [""]
    if lines < LOW or room < NARROW:
        top, table = [_small(answer, host)], [_cells(cards, room, lines - LEAST_JOBS - 1)]
        end = []
    elif height([*top, *table, *end], room) > lines - LEAST_JOBS:
        table = [_cells(cards, room, lines - LEAST_JOBS - 4)]
    left = lines - height([*top, *table, *end], room) - max(LEAST_JOBS, jobs)
    processes: list[Block] = ["", _processes(cards)]
    needed = height(processes, room)
    if needed == 2 or needed > left:
        processes, needed = [], 0
    graphs = _graphs(past, cards, room, left - needed)
    if processes and not graphs and (graphs := _graphs(past, cards, room, left)):
        processes = []  # the table above has them, too
    return draw([*top, *table, *graphs, *processes, *end])


def wants_past(room: int, lines: int) -> bool:
    """Whether a terminal of this size may show graphs."""
    return room >= max(PANEL, NARROW) and lines >= LOW + LEAST_GRAPH


def _small(answer: StatusOut, host: Host) -> Styled:
    if troubles := answer["server"].get("troubles", ()):
        return styled((f"{clean(troubles[0])}: carma doctor", "bold red"))
    counts = answer["counts"]
    return styled(f"{counts['running']} running, {counts['queued']} waiting · CPU {host.cpu:.0%}")


def _cells(cards: Sequence[GpuOut], room: int, lines: int) -> Block:
    """The GPUs, several on a line, each with its number, its load and memory; without bars where
    they are many."""
    loads = [_load(gpu) for gpu in cards]
    longest = max(map(len, loads), default=0)
    found: Block = ""
    for bars in (True, False):
        cells = [
            _cell(gpu, load.rjust(longest), bars) for gpu, load in zip(cards, loads, strict=True)
        ]
        found = Columns(map(drawn, cells), padding=(0, 1))
        if height([found], room) <= lines:
            break
    return found


def _load(gpu: GpuOut) -> str:
    used, total = gpu["memory_used_mib"], gpu["memory_mib"]
    busy = "" if gpu["sm_active"] is None else f"{gpu['sm_active']:.0%} "
    return f"{busy}{NOTHING if used is None else used // 1024}/{total // 1024}G"


def _cell(gpu: GpuOut, load: str, bars: bool) -> Styled:
    used, total = gpu["memory_used_mib"], gpu["memory_mib"]
    style = overview.GPU_STYLE.get(gpu["state"], "yellow")
    drawn = f" {bar(None if used is None else used / total, 4)}" * bars
    return styled((f"{gpu['index']:>2}{drawn}", style), f" {load}")


def _host(host: Host) -> Styled:
    share = host.used_mib / host.total_mib if host.total_mib else None
    return styled(
        ("host  CPU ", "dim"),
        (bar(host.cpu, overview.BAR_WIDTH), "cyan"),
        f" {host.cpu:<5.0%}",
        ("memory ", "dim"),
        (bar(share, overview.BAR_WIDTH), "cyan"),
        f" {memory(host.used_mib)}/{memory(host.total_mib)}",
    )


def _graphs(
    past: TimelineOut | None, cards: Sequence[GpuOut], room: int, lines: int
) -> list[Block]:
    """Of each GPU, how busy it was and how full its memory; [] where there is no room."""
    if past is None or not cards:
        return []
    of = {one["id"]: one for one in past["gpus"]}
    each = min(len(cards), max(1, room // PANEL))
    tall = min(MOST_GRAPH, lines // -(-len(cards) // each) - 2)  # below an empty line and a title
    if tall < LEAST_GRAPH:
        return []
    wide = (room - 2 * (each - 1)) // each
    panels = [_panel(gpu, of.get(gpu["id"]), wide, tall) for gpu in cards]
    return [Columns(map(drawn, panels), padding=(0, 2))]


def _panel(gpu: GpuOut, past: GpuTimelineOut | None, wide: int, tall: int) -> Styled:
    """Below an empty line, a title, and below that the two graphs side by side."""
    half = (wide - 1) // 2
    total = gpu["memory_mib"]
    busy = past["sm_active"] if past else []
    used = [None if mib is None else mib / total for mib in past["used_mib"]] if past else []
    left = f"GPU {gpu['index']}  SM {fraction(gpu['sm_active'])}"
    right = f"memory {memory(gpu['memory_used_mib'])}/{memory(total)}"
    ago = f"{PAST_S / 60:.0f} min"
    title = "\n" + left.ljust(half - len(ago)) + f"{ago} {right[:half].ljust(half)}"
    lines = zip(graph(busy, half, tall), graph(used, half, tall), strict=True)
    graphs = (part for a, b in lines for part in ("\n", (a, "green"), " ", (b, "cyan")))
    return styled((title, "bold"), *graphs)


def graph(values: Sequence[float | None], wide: int, tall: int) -> list[str]:
    """Of values from 0 to 1, the latest on the right; the lines from the top. Where nothing is
    known, it is empty; 0 is drawn as a line. Textual's sparklines have no fixed scale."""
    fine = len(BLOCKS) - 1
    levels = [_level(values, at, wide, tall * fine) for at in range(wide)]
    return [
        "".join(BLOCKS[min(fine, max(0, level - line * fine))] for level in levels)
        for line in range(tall - 1, -1, -1)
    ]


def _level(values: Sequence[float | None], at: int, wide: int, top: int) -> int:
    """The height of a column, which may stand for several values: their mean."""
    first = at * len(values) // wide
    last = max(first + 1, (at + 1) * len(values) // wide)
    known = [value for value in values[first:last] if value is not None]
    if not known:
        return 0
    return max(1, round(min(1.0, sum(known) / len(known)) * top))


def _processes(cards: Sequence[GpuOut]) -> Table:
    """Who is on which GPU: jobs, and processes that are not CARMA's."""
    made = Table(columns("GPU> USER MEMORY> PROCESS~ WHAT~"))
    for gpu in cards:
        on = str(gpu["index"])
        for job in gpu["jobs"]:
            whose = f"job {job['label']}" + (f", {job['mode']}" if job["mode"] else "")
            used = memory(job["memory_mib"])
            made.add(on, clean(job["user"]), used, whose, clean(job["name"]))
        for one in gpu["outsiders"]:
            whose = f"pid {one['pid']}, not CARMA's"
            used = memory(one["memory_mib"])
            made.add(on, clean(one["user"]), used, whose, clean(one["command"]), style="dim")
    return made

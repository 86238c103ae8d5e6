"""What `carma top` shows above the jobs: the host and the GPUs, from a few cells on a small
terminal to graphs of the last half hour and all processes on a large one. Pure."""

from __future__ import annotations

from carmad.readable import clean
from cli import overview
from cli.text import NOTHING, Table, bar, columns, cut, fraction, in_style, layout, memory

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Sequence

    from carmad.api.gpus import GpuOut
    from carmad.api.server import StatusOut
    from carmad.api.timeline import GpuTimelineOut, TimelineOut
    from cli.host import Host
    from cli.text import Block, Line

PAST_S = 1800.0  # that the graphs show
LOW, NARROW = 16, 60  # a terminal with fewer lines, or columns, gets cells instead of a table
CELL, SHORT_CELL = 9, 3  # columns of a cell besides its load: number, bar and gaps
LEAST_JOBS = 4  # lines of jobs that nothing takes the place of: a header, and three
PANEL = 50  # columns of a GPU's graphs, at least
LEAST_GRAPH, MOST_GRAPH = 2, 24  # lines of a graph
BLOCKS, ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*#%"


def head(
    answer: StatusOut,
    past: TimelineOut | None,
    host: Host,
    room: int,
    height: int,
    jobs: int,
    plain: bool = False,
) -> list[Line]:
    """As many of the `height` lines as the jobs can spare. `jobs`: the lines that all of them take;
    `past`: the last half hour; `plain`: in ASCII."""
    cards = answer["gpus"]
    if height < LOW or room < NARROW:
        return _small(answer, host, room, height - LEAST_JOBS, plain)
    bars = room >= overview.ROOM_FOR_BARS
    top = layout([overview.headline(answer), _host(host, plain), ""], room)
    table = layout(overview.gpus(cards, bars, plain), room)
    most = height - len(top) - LEAST_JOBS - 1
    if len(table) > most:
        table = _cells(cards, room, most, plain)
    made = [*top, *table]
    left = height - len(made) - max(LEAST_JOBS, jobs) - 1
    processes = [(), *layout(_processes(cards), room)]
    if len(processes) == 2 or len(processes) > left:
        processes = []
    graphs = _graphs(past, cards, room, left - len(processes), plain)
    if processes and not graphs and (graphs := _graphs(past, cards, room, left, plain)):
        processes = []  # the table above has them, too
    return [*made, *graphs, *processes, ()]


def wants_past(room: int, height: int) -> bool:
    """Whether a terminal of this size may show graphs."""
    return room >= max(PANEL, NARROW) and height >= LOW + LEAST_GRAPH


# -- small


def _small(answer: StatusOut, host: Host, room: int, height: int, plain: bool) -> list[Line]:
    counts = answer["counts"]
    troubles = answer["server"].get("troubles", ())
    cpu = NOTHING if host.cpu is None else f"{host.cpu:.0%}"
    words = f"{counts['running']} running, {counts['queued']} waiting · CPU {cpu}"
    first = in_style(words, "")
    if troubles:
        first = in_style(f"{clean(troubles[0])}: carma doctor", "bold red")
    return [cut(first, room), *_cells(answer["gpus"], room, height - 2, plain)]


def _cells(cards: Sequence[GpuOut], room: int, height: int, plain: bool) -> list[Line]:
    """The GPUs, several on a line, each with its number, its load and memory; shorter where they
    are many, and with the number of those that there is no room for."""
    texts = [_load(gpu) for gpu in cards]
    longest = max(map(len, texts), default=0)
    each = max(1, (room + 1) // (longest + CELL))
    short = len(cards) > each * height
    if short:
        each = max(1, (room + 1) // (longest + SHORT_CELL))
    cells = [
        _cell(gpu, text.rjust(longest), short, plain)
        for gpu, text in zip(cards, texts, strict=True)
    ]
    most = each * max(1, height)
    if len(cells) > most:
        hidden = len(cells) - most + 1
        cells[most - 1 :] = [in_style(f" +{hidden} GPUs", "dim")]
    return [
        tuple(span for cell in cells[at : at + each] for span in cell)
        for at in range(0, len(cells), each)
    ]


def _load(gpu: GpuOut) -> str:
    used, total = gpu["memory_used_mib"], gpu["memory_mib"]
    busy = "" if gpu["sm_active"] is None else f"{gpu['sm_active']:.0%} "
    return f"{busy}{NOTHING if used is None else used // 1024}/{total // 1024}G"


def _cell(gpu: GpuOut, load: str, short: bool, plain: bool) -> Line:
    used, total = gpu["memory_used_mib"], gpu["memory_mib"]
    share = used / total if used is not None else None
    style = overview.GPU_STYLE.get(gpu["state"], "yellow")
    number = f"{gpu['index']:>2}"
    if short:
        return (number, style), (f" {load}", "")
    bars = bar(share, 4, plain)
    return (f"{number} ", style), (bars, style), (f" {load} ", "")


# -- large


def _host(host: Host, plain: bool) -> Line:
    share = host.used_mib / host.total_mib if host.total_mib else None
    busy = NOTHING if host.cpu is None else f"{host.cpu:.0%}"
    return (
        ("host  CPU ", "dim"),
        (bar(host.cpu, overview.BAR_WIDTH, plain), "cyan"),
        (f" {busy:<5}", ""),
        ("memory ", "dim"),
        (bar(share, overview.BAR_WIDTH, plain), "cyan"),
        (f" {memory(host.used_mib)}/{memory(host.total_mib)}", ""),
    )


def _graphs(
    past: TimelineOut | None, cards: Sequence[GpuOut], room: int, height: int, plain: bool
) -> list[Line]:
    """Of each GPU, how busy it was and how full its memory; [] where there is no room."""
    if past is None or not cards:
        return []
    of = {one["id"]: one for one in past["gpus"]}
    each = min(len(cards), max(1, room // PANEL))
    rows = -(-len(cards) // each)
    tall = min(MOST_GRAPH, height // rows - 2)  # below an empty line and a title
    if tall < LEAST_GRAPH:
        return []
    wide = (room - 2 * (each - 1)) // each
    made: list[Line] = []
    for at in range(0, len(cards), each):
        panels = [
            _panel(gpu, of.get(gpu["id"]), wide, tall, plain) for gpu in cards[at : at + each]
        ]
        made += [(), *(_beside(lines) for lines in zip(*panels, strict=True))]
    return made


def _beside(lines: Sequence[Line]) -> Line:
    made: list[tuple[str, str]] = []
    for line in lines:
        made += [*line, ("  ", "")]
    return tuple(made[:-1])


def _panel(
    gpu: GpuOut, past: GpuTimelineOut | None, wide: int, tall: int, plain: bool
) -> list[Line]:
    """A title, and below it the two graphs side by side."""
    half = (wide - 1) // 2
    total = gpu["memory_mib"]
    busy = past["sm_active"] if past else []
    used = [None if mib is None else mib / total for mib in past["used_mib"]] if past else []
    name = f"GPU {gpu['index']}"
    left = f"{name}  SM {fraction(gpu['sm_active'])}"
    right = f"memory {memory(gpu['memory_used_mib'])}/{memory(total)}"
    ago = f"{PAST_S / 60:.0f} min"
    title = (
        (left.ljust(half - len(ago)) + ago, "bold"),
        (" ", ""),
        (right[:half].ljust(half), "bold"),
        (" " * (wide - 2 * half - 1), ""),
    )
    graphs = zip(graph(busy, half, tall, plain), graph(used, half, tall, plain), strict=True)
    rest = " " * (wide - 2 * half - 1)
    return [title, *(((a, "green"), (" ", ""), (b, "cyan"), (rest, "")) for a, b in graphs)]


def graph(values: Sequence[float | None], wide: int, tall: int, plain: bool = False) -> list[str]:
    """Of values from 0 to 1, the latest on the right; the lines from the top. Where nothing is
    known, it is empty; 0 is drawn as a line."""
    steps = ASCII if plain else BLOCKS
    fine = len(steps) - 1
    levels = [_level(values, at, wide, tall * fine) for at in range(wide)]
    return [
        "".join(steps[min(fine, max(0, level - line * fine))] for level in levels)
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


def _processes(cards: Sequence[GpuOut]) -> list[Block]:
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
    return [made]

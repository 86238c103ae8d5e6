"""`sinfo`: the one partition, and in it the one node, this server. Imports stay light."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from carma_slurm import CLUSTER, PARTITION, words
from carma_slurm.words.fields import names_this_node
from carma_slurm.words.formats import lay_out, parse_names, parse_percent, show
from carma_slurm.words.node import read_node
from cli.problems import Usage

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from carma_slurm.words.node import Node
    from cli.reader import Parser

ABOUT = "Show this server as Slurm shows a partition of one node."
SHORT = "%9P %.5a %.10l %.6D %.6t %N"
SUMMARY = "%9P %.5a %.10l %.16F %N"
NODES = "%N %.6D %.9P %6t"
LONG = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
LONG_NODES = "%N %.6D %.9P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E"
SHORT_STATES = {"mixed": "mix", "idle": "idle", "drained": "drain", "draining": "drng"}


class Field:
    def __init__(self, name: str, header: str, text: Callable[[Node], str]) -> None:
        self.name = name
        self.header = header
        self.text = text


def _counts(node: Node, total: int, free: int) -> str:
    """Allocated, idle, other and all."""
    return f"{total - free}/{free}/0/{total}"


LETTERS = {
    "P": Field("partition", "PARTITION", lambda _: f"{PARTITION}*"),
    "R": Field("partitionname", "PARTITION", lambda _: PARTITION),
    "a": Field("available", "AVAIL", lambda _: "up"),
    "l": Field("time", "TIMELIMIT", lambda _: "infinite"),
    "L": Field("defaulttime", "DEFAULTTIME", lambda _: "n/a"),
    "D": Field("nodes", "NODES", lambda _: "1"),
    "F": Field("nodeaiot", "NODES(A/I/O/T)", lambda n: "1/0/0/1" if n.runs else "0/1/0/1"),
    "A": Field("nodeai", "NODES(A/I)", lambda n: "1/0" if n.runs else "0/1"),
    "t": Field("statecompact", "STATE", lambda n: SHORT_STATES[n.state]),
    "T": Field("statelong", "STATE", lambda n: n.state),
    "N": Field("nodelist", "NODELIST", lambda n: n.name),
    "n": Field("nodehost", "HOSTNAMES", lambda n: n.name),
    "o": Field("nodeaddr", "NODE_ADDR", lambda n: n.name),
    "c": Field("cpus", "CPUS", lambda n: str(n.cpus)),
    "C": Field("cpusstate", "CPUS(A/I/O/T)", lambda n: _counts(n, n.cpus, n.cpus_free)),
    "O": Field("cpusload", "CPU_LOAD", lambda n: f"{n.load:.2f}"),
    "m": Field("memory", "MEMORY", lambda n: str(n.memory_mib)),
    "e": Field("freemem", "FREE_MEM", lambda n: str(n.free_mib)),
    "d": Field("disk", "TMP_DISK", lambda _: "0"),
    "G": Field("gres", "GRES", lambda n: n.gres),
    "f": Field("features", "AVAIL_FEATURES", lambda _: "(null)"),
    "b": Field("features_act", "ACTIVE_FEATURES", lambda _: "(null)"),
    "g": Field("groups", "GROUPS", lambda _: "all"),
    "h": Field("oversubscribe", "OVERSUBS", lambda _: "YES"),
    "p": Field("prioritytier", "PRIO_TIER", lambda _: "1"),
    "r": Field("root", "ROOT", lambda _: "no"),
    "s": Field("size", "JOB_SIZE", lambda _: "1-infinite"),
    "B": Field("maxcpuspernode", "MAX_CPUS_PER_NODE", lambda _: "UNLIMITED"),
    "E": Field("reason", "REASON", lambda _: "none"),
    "w": Field("weight", "WEIGHT", lambda _: "1"),
    "X": Field("sockets", "SOCKETS", lambda _: "1"),
    "Y": Field("cores", "CORES", lambda n: str(n.cpus)),
    "Z": Field("threads", "THREADS", lambda _: "1"),
    "z": Field("socketcorethread", "S:C:T", lambda n: f"1:{n.cpus}:1"),
    "v": Field("version", "VERSION", lambda _: "22.05.8"),
    "V": Field("cluster", "CLUSTER", lambda _: CLUSTER),
}
USED = Field("gresused", "GRES_USED", lambda n: n.gres_in_use)  # it has no letter
NAMES = {field.name: field for field in (*LETTERS.values(), USED)}


def declare(parser: Parser) -> None:
    add = parser.add_argument
    add("-h", "--noheader", action="store_true", help="omit the header line")
    add("-o", "--format", metavar="FORMAT", help=f"such as '%%P %%G'; letters: {''.join(LETTERS)}")
    add("-O", "--Format", metavar="FIELDS", help=f"such as gres:30; fields: {', '.join(NAMES)}")
    add("-N", "--Node", action="store_true", help="a line for each node")
    add("-l", "--long", action="store_true", help="show more columns")
    add("-s", "--summarize", action="store_true", help="without the nodes' states")
    add("-p", "--partition", metavar="NAMES", help="any name is that of the one partition")
    add("-n", "--nodes", metavar="NAMES", help="only these nodes")
    add("-t", "--states", metavar="STATES", help="only nodes in these states")
    add("-i", "--iterate", metavar="SECONDS", help="repeat every SECONDS")
    add("-e", "--exact", action="store_true", help="ignored")
    add("-a", "--all", action="store_true", help="ignored")
    add("-r", "--responding", action="store_true", help="ignored")
    add("-M", "--clusters", metavar="NAMES", help="ignored: there is one server")
    add("-S", "--sort", metavar="FIELDS", help="ignored: there is one line")
    add("-v", "--verbose", action="store_true", help="ignored")
    add("--noconvert", action="store_true", help="ignored")
    add("--local", action="store_true", help="ignored")
    add("--json", action="store_true", help="print JSON")


def sinfo(args: list[str]) -> int:
    options = words.read("sinfo", ABOUT, declare, args)
    return words.repeat("sinfo", lambda: _show(options), options)


def _show(options: Any) -> int:
    if options.Format:
        columns, after = parse_names(options.Format, NAMES)
    else:
        columns, after = parse_percent(options.format or _usual(options), LETTERS)
    node = read_node()
    shown = _is_chosen(options, node)
    if options.json:
        print(json.dumps({"meta": {}, "errors": [], "nodes": [_record(node)] if shown else []}))
        return 0
    if options.long and not (options.noheader or options.iterate):
        print(words.today())
    show(lay_out(columns, [node] if shown else [], not options.noheader, after=after))
    return 0


def _usual(options: Any) -> str:
    if own := os.environ.get("SINFO_FORMAT"):  # before -l, as Slurm has it
        return own
    if options.Node:
        return LONG_NODES if options.long else NODES
    return LONG if options.long else SUMMARY if options.summarize else SHORT


def _is_chosen(options: Any, node: Node) -> bool:
    states = [word.lower() for word in words.split(options.states)]
    if any(not word.isalpha() for word in states):
        raise Usage(f"Bad state string: {options.states}")
    if options.nodes and not names_this_node(options.nodes):
        return False
    return not states or any(node.state.startswith(word) or word == "all" for word in states)


def _record(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "hostname": node.name,
        "state": node.state,
        "partitions": [PARTITION],
        "cpus": node.cpus,
        "alloc_cpus": node.cpus - node.cpus_free,
        "idle_cpus": node.cpus_free,
        "real_memory": node.memory_mib,
        "free_memory": node.free_mib,
        "gres": node.gres,
        "version": "22.05.8",
    }

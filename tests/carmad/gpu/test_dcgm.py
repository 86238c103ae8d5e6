"""DcgmProfiler and its parsers, run against a fake `dcgmi` shell script."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carmad.core.gpus.gpu import Gpu
from carmad.core.jobs.attempt import GpuId
from carmad.gpu import dcgm, dcgm_health
from carmad.gpu.dcgm import DcgmProfiler, Entity, Place, parse_discovery, parse_row
from carmad.gpu.dcgm_health import DcgmHealth, parse_health
from carmad.gpu.source import Activity, Unit
from tests.waiting import until

A, B = GpuId("GPU-aaaa"), GpuId("GPU-bbbb")
MIG, MIG2 = GpuId("MIG-1111"), GpuId("MIG-2222")
UNITS = (Unit(Gpu(A, 0, "H100", 80000)), Unit(Gpu(B, 1, "H100", 80000)))

# DCGM's ids are not in the order of anything.
LIST = f"""\
2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:C1:00.0                                         |
|        | Device UUID: {B}                                                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:81:00.0                                         |
|        | Device UUID: {A}                                                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
+-----------+
| Switch ID |
+-----------+
+-----------+
1 CPUs found.
+--------+----------------------------------------------------------------------+
| CPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: Grace                                                          |
+--------+----------------------------------------------------------------------+
"""

TREE = f"""\
+-------------------+--------------------------------------------------------------------+
| Instance Hierarchy                                                                     |
+===================+====================================================================+
| GPU 0             | GPU {A} (EntityID: 1)                                         |
| -> I 0/1          | GPU Instance (EntityID: 7)                                         |
|    -> CI 0/1/0    | Compute Instance (EntityID: 9)                                     |
|    -> CI 0/1/1    | Compute Instance (EntityID: 10)                                    |
| -> I 0/13         | GPU Instance (EntityID: 8)                                         |
|    -> CI 0/13/0   | Compute Instance (EntityID: 6)                                     |
+-------------------+--------------------------------------------------------------------+
"""

HEADER_4 = """\
#Entity   SMACT             SMOCC             DRAMA
ID
"""
HEADER_3 = """\
# Entity        SMACT        SMOCC        DRAMA
      Id
"""
ROWS = """\
GPU 0     0.552             0.527             0.001
GPU 1     1.000             0.250             0.800
"""

ALL = "1002,1003,1005,1001,1004,1007,1008,1009,1010,1011,1012"
ONE = Activity(0.552, 0.527, 0.001)
TWO = Activity(1.0, 0.25, 0.8)


class FakeDcgmi:
    """A command whose answers are files that a test may replace while it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = str(folder / "dcgmi")
        script = f"""#!/bin/sh
            cd {folder}
            echo "$@" >>calls
            case "$1 $2" in
            "discovery -l") cat list ;;
            "discovery -c") cat tree ;;
            "health -g") case "$*" in *-s*) echo on >watches ;; *) cat health ;; esac ;;
            dmon*) . ./dmon ;;
            esac
        """
        Path(self.command).write_text(script)
        Path(self.command).chmod(0o755)
        self.tell("list", LIST)
        self.tell("tree", TREE)

    def tell(self, name: str, text: str) -> None:
        draft = self.folder / "draft"
        draft.write_text(text)
        draft.replace(self.folder / name)

    def keep_printing(self, rows: str) -> None:
        self.tell("rows", rows)
        self.tell("dmon", "while cat rows; do sleep 0.01; done\n")

    def calls(self, word: str) -> list[str]:
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(word)]


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDcgmi:
    monkeypatch.setattr(dcgm, "_BACK_OFF_S", (0.01, 0.05))
    return FakeDcgmi(tmp_path)


@contextmanager
def opened(
    dcgmi: FakeDcgmi, units: tuple[Unit, ...] = UNITS, period_s: float = 60
) -> Iterator[DcgmProfiler]:
    before = set(threading.enumerate())
    profiler = DcgmProfiler(period_s, dcgmi.command)
    profiler.open(units)
    try:
        yield profiler
    finally:
        profiler.close()
        assert set(threading.enumerate()) <= before, "others' may end meanwhile"


# --- parsing ---


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("GPU 0     0.552             0.527             0.001\n", (Entity("GPU", 0), ONE)),
        ("    GPU 12      1.000  0.250  0.800   \n", (Entity("GPU", 12), TWO)),
        ("GPU-I 3   N/A   N/A   0.500\n", (Entity("GPU-I", 3), Activity(None, None, 0.5))),
        ("GPU-CI 4  0.5 0.5 N/A\n", (Entity("GPU-CI", 4), Activity(0.5, 0.5, None))),
        ("GPU 0  140737488355328.000  1407374883...  -1.0\n", (Entity("GPU", 0), Activity())),
        ("GPU 0  nan  inf  1.001\n", (Entity("GPU", 0), Activity(None, None, 1.0))),
        ("GPU 0     0.552             0.527             0.0", None),  # cut short
        ("GPU 0     0.552             0.527\n", None),
        ("Switch 0  0.552  0.527  0.001\n", None),
        ("#Entity   SMACT             SMOCC             DRAMA\n", None),
        ("# Entity        SMACT        SMOCC        DRAMA\n", None),
        ("ID\n", None),
        ("      Id\n", None),
        ("\n", None),
    ],
)
def test_rows(line: str, parsed: tuple[Entity, Activity] | None) -> None:
    assert parse_row(line) == parsed


def test_discovery_joins_ids_to_uuids() -> None:
    assert parse_discovery(LIST) == {
        Place(A): Entity("GPU", 1),
        Place(B): Entity("GPU", 0),
    }


def test_discovery_finds_mig_instances_by_the_drivers_ids() -> None:
    assert parse_discovery(LIST + TREE) == {
        Place(A): Entity("GPU", 1),
        Place(B): Entity("GPU", 0),
        Place(A, 1): Entity("GPU-I", 7),
        Place(A, 1, 0): Entity("GPU-CI", 9),
        Place(A, 1, 1): Entity("GPU-CI", 10),
        Place(A, 13): Entity("GPU-I", 8),
        Place(A, 13, 0): Entity("GPU-CI", 6),
    }


# --- running ---


@pytest.mark.parametrize("header", [HEADER_4, HEADER_3])
def test_readings_come_by_uuid_past_repeated_headers(dcgmi: FakeDcgmi, header: str) -> None:
    dcgmi.keep_printing(header + ROWS + header)
    with opened(dcgmi) as profiler:
        assert until(profiler.read, wanted=lambda read: len(read) == 2) == {A: TWO, B: ONE}
        assert profiler.missing() == ()
    assert dcgmi.calls("dmon") == [f"dmon -e {ALL} -d 60000 -i 1,0"]


def test_pipes_and_traffic_are_read_beside(dcgmi: FakeDcgmi) -> None:
    dcgmi.keep_printing(
        "GPU 1  0.5 0.4 0.3  0.9 0.25 0.8 N/A  1048576 524288 9223372036... 140737488355328\n"
    )
    with opened(dcgmi) as profiler:
        found = until(profiler.read)
    assert isinstance(found, dict)
    assert found[A].sm_active == 0.5
    assert dict(found[A].more) == {
        "graphics_active": 0.9,
        "tensor_active": 0.25,
        "fp32_active": 0.8,
        "pcie_tx_mib_s": 1.0,
        "pcie_rx_mib_s": 0.5,
    }


def test_where_all_at_once_is_too_much_the_three_are_read(dcgmi: FakeDcgmi) -> None:
    refuses = "case $3 in *1004*) echo 'Error setting watches'; exit 1;; esac\n"
    dcgmi.tell("rows", ROWS)
    dcgmi.tell("dmon", refuses + "while cat rows; do sleep 0.01; done\n")
    with opened(dcgmi) as profiler:
        assert until(profiler.read, wanted=lambda read: len(read) == 2) == {A: TWO, B: ONE}
        assert profiler.missing() == ()
    assert [line.split()[2] for line in dcgmi.calls("dmon")] == [ALL, "1002,1003,1005"]


def test_the_last_reading_counts(dcgmi: FakeDcgmi) -> None:
    dcgmi.keep_printing(ROWS)
    with opened(dcgmi) as profiler:
        until(lambda: profiler.read().get(A) == TWO)
        dcgmi.tell("rows", "GPU 1 0.1 0.2 0.3\n")
        until(lambda: profiler.read().get(A) == Activity(0.1, 0.2, 0.3))


def test_old_readings_are_none(dcgmi: FakeDcgmi) -> None:
    dcgmi.tell("dmon", f"cat <<EOF\n{ROWS}EOF\nexec sleep 100\n")
    with opened(dcgmi, period_s=0.1) as profiler:
        until(profiler.read)
        until(profiler.read, wanted=lambda read: not read)


def test_dmon_is_started_again_when_it_dies(dcgmi: FakeDcgmi) -> None:
    dcgmi.tell("dmon", "echo 'Error setting watches. Result: -29: requires root'; exit 1\n")
    with opened(dcgmi) as profiler:
        why = until(
            lambda: dict(profiler.missing())["sm_active"], wanted=lambda w: "root" in str(w)
        )
        assert why == "dcgmi: Error setting watches. Result: -29: requires root"
        assert profiler.read() == {}
        # The host engine was restarted, and numbers its GPUs anew.
        dcgmi.tell("list", LIST.replace(A, "X").replace(B, A).replace("X", B))
        asked = len(dcgmi.calls("discovery"))
        until(lambda: len(dcgmi.calls("discovery")) > asked)  # the next dmon may have read the old
        dcgmi.keep_printing(ROWS)
        until(lambda: profiler.read().get(A) == ONE)
    assert len(dcgmi.calls("dmon")) > 1


def test_waits_grow_while_dmon_keeps_dying(
    dcgmi: FakeDcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcgmi.tell("dmon", "exit 1\n")
    monkeypatch.setattr(dcgm, "_BACK_OFF_S", (1.0, 3.0))
    profiler = DcgmProfiler(1.0, dcgmi.command)
    waits: list[float] = []

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            if len(waits) == 4:
                self.set()
            return self.is_set()

    monkeypatch.setattr(profiler, "_stopping", Stopping())
    profiler.open(UNITS)
    until(lambda: len(waits) == 4)
    profiler.close()
    assert waits == [1.0, 2.0, 3.0, 3.0]


def test_values_that_are_not_to_be_had_are_explained(dcgmi: FakeDcgmi) -> None:
    dcgmi.keep_printing("GPU 1  N/A  N/A  N/A\n")
    with opened(dcgmi) as profiler:
        assert until(profiler.read) == {A: Activity()}
        assert "cannot profile" in dict(profiler.missing())["sm_active"]


def test_a_mig_instance_takes_its_sms_from_ci_and_its_memory_from_gi(dcgmi: FakeDcgmi) -> None:
    first = Unit(Gpu(MIG, 0, "H100 1g", 10000, parent=A), gpu_instance=1, compute_instance=0)
    second = Unit(Gpu(MIG2, 1, "H100 1g", 10000, parent=A), gpu_instance=1, compute_instance=1)
    dcgmi.keep_printing(
        "GPU 1  0.9 0.9 0.9\nGPU-I 7  0.3 N/A 0.5\nGPU-I 8  1 1 1\n"
        "GPU-CI 9  0.4 0.2 0.1\nGPU-CI 10  N/A 0.6 N/A\n"
    )
    wanted = {MIG: Activity(0.4, 0.2, 0.5), MIG2: Activity(0.3, 0.6, 0.5)}
    with opened(dcgmi, (first, second)) as profiler:
        until(lambda: profiler.read() == wanted)
    assert dcgmi.calls("dmon")[0].endswith("-i ci:9,i:7,ci:10")


def test_no_dcgmi_is_no_trouble_but_said(tmp_path: Path) -> None:
    profiler = DcgmProfiler(1.0, str(tmp_path / "dcgmi"))
    profiler.open(UNITS)
    until(lambda: "No such file" in dict(profiler.missing())["dram_active"])
    assert profiler.read() == {}
    profiler.close()


def test_close_ends_a_silent_dmon_and_open_starts_anew(dcgmi: FakeDcgmi) -> None:
    dcgmi.tell("dmon", "echo $$ >pid; exec sleep 100\n")
    file = dcgmi.folder / "pid"  # the shell opens it before it writes
    with opened(dcgmi):
        pid = until(lambda: file.exists() and file.read_text().strip())
    assert not Path(f"/proc/{pid}").exists()
    dcgmi.keep_printing(ROWS)
    with opened(dcgmi) as profiler:
        until(profiler.read)


def test_a_host_engine_that_hangs_is_given_up_on(
    dcgmi: FakeDcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm, "_ANSWER_S", 0.05)
    script = Path(dcgmi.command)
    script.write_text("#!/bin/sh\nexec sleep 100\n")
    with opened(dcgmi) as profiler:
        until(lambda: "does not answer" in dict(profiler.missing())["sm_active"])


# --- its health checks ---


def report(**gpus: dict[str, tuple[str, str]]) -> str:
    """As `dcgmi health -c -j` prints it (DcgmiOutputJson): by number of the GPU and system."""
    children = {
        number.strip("_"): {
            "children": {
                "Errors": {
                    "children": {
                        system: {"overflow": said.split("/"), "value": verdict}
                        for system, (verdict, said) in systems.items()
                    }
                }
            },
            "value": "Warning",
        }
        for number, systems in gpus.items()
    }
    body = {"Overall Health": {"value": "Healthy"}, "GPU": {"children": children}}
    return json.dumps({"body": body, "header": ["Health Monitor Report"]}, indent=3)


HOT = report(_1={"Thermal system": ("Warning", "it was slowed/down by heat")})
DEAD = report(
    _0={"Memory system": ("Failure", "a volatile DBE")}, _1={"PCIe system": ("Warning", "replays")}
)


def test_a_report_is_read() -> None:
    found = parse_health(DEAD)
    assert found is not None
    assert {n: [(c.kind, c.drains) for c in its] for n, its in found.items()} == {
        0: [("dcgm_memory", True)],
        1: [("dcgm_pcie", False)],
    }
    assert found[0][0].message == ("DCGM reports Failure for the Memory system: a volatile DBE")
    assert parse_health(report()) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Error: unable to establish a connection",
        "{",
        "[1]",
        "{}",
        '{"body": 3}',
        '{"body": {"GPU": {"children": {"x": {}}}}}',
        '{"body": {"GPU": 7}}',
    ],
)
def test_other_text_is_no_report(text: str) -> None:
    assert parse_health(text) is None


def test_a_node_without_children_has_nothing_to_tell() -> None:
    assert parse_health('{"body": {"GPU": {"children": {"0": {"children": 7}}}}}') == {0: ()}


@pytest.fixture
def asked(dcgmi: FakeDcgmi, monkeypatch: pytest.MonkeyPatch) -> Iterator[DcgmHealth]:
    monkeypatch.setattr(dcgm_health, "EVERY_S", 0.01)
    monkeypatch.setattr(dcgm_health, "SILENT_EVERY_S", 0.01)
    health = DcgmHealth(dcgmi.command)
    yield health
    health.close()


def test_conditions_are_of_the_gpu_whatever_dcgm_calls_it(
    dcgmi: FakeDcgmi, asked: DcgmHealth
) -> None:
    dcgmi.tell("health", HOT)
    asked.open()
    assert until(lambda: asked.conditions(A))[0].kind == "dcgm_thermal"
    assert asked.conditions(B) == ()
    for silence in ("", "Error: unable to establish a connection\n", "Error: watches not enabled"):
        dcgmi.tell("health", silence)
        calls = len(dcgmi.calls("health"))
        until(lambda before=calls: len(dcgmi.calls("health")) > before + 2)
        assert asked.conditions(A), "no answer does not mean that it is over"
    dcgmi.tell("health", report())
    until(lambda: not asked.conditions(A))


def test_its_watches_are_switched_on_if_nobody_has(dcgmi: FakeDcgmi, asked: DcgmHealth) -> None:
    dcgmi.tell("health", "Error: Health watches not enabled. Please enable watches.\n")
    asked.open()
    until((dcgmi.folder / "watches").exists)
    dcgmi.tell("health", HOT)
    until(lambda: asked.conditions(A))


def test_a_dcgm_that_is_not_running_is_asked_again(dcgmi: FakeDcgmi, asked: DcgmHealth) -> None:
    dcgmi.tell("health", "Error: unable to establish a connection to the specified host\n")
    asked.open()
    until(lambda: len(dcgmi.calls("health")) > 2)
    assert asked.conditions(A) == ()
    dcgmi.tell("health", HOT)
    until(lambda: asked.conditions(A))


def test_closing_does_not_wait_for_a_dcgm_that_hangs(dcgmi: FakeDcgmi, asked: DcgmHealth) -> None:
    script = Path(dcgmi.command)
    script.write_text(f"#!/bin/sh\necho >{dcgmi.folder}/asked\nexec sleep 3600\n")
    asked.open()
    until((dcgmi.folder / "asked").exists)
    asked.close()
    assert not [each for each in threading.enumerate() if each.name == "dcgm-health"]

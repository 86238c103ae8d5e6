"""A traced script sees what it writes, and nobody else does.

Each case is a program that runs in a process of its own, for what it gives up is given up for good.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

BEGIN = "import sys\nfrom estimators.tracer import confine, scratch\n"
SHADOW = "scratch.Tree().install()\n"
CONFINE = "confine.limit(4096, 60)\nkernel = confine.confine()\n"
HOOK = "confine._landlock = lambda: False\nassert not confine.confine()\n"
CONFINED, HOOKED = BEGIN + CONFINE, BEGIN + HOOK
ODD_PATH = """
import os, posix
class Path(str):
    def __eq__(self, other):
        return True
    __hash__ = None
    startswith = __eq__
"""
# What each of these would leave behind, or reach, if nothing held it.
DEEDS = {
    "write": "open('new', 'w')",
    "append": "open('kept.txt', 'a')",
    "truncate": "import os; os.truncate('kept.txt', 0)",
    "mkdir": "import os; os.mkdir('new')",
    "remove": "import os; os.remove('kept.txt')",
    "rename": "import os; os.rename('kept.txt', 'new')",
    "symlink": "import os; os.symlink('kept.txt', 'new')",
    "link": "import os; os.link('kept.txt', 'new')",
    "chmod": "import os; os.chmod('kept.txt', 0o600)",
    "utime": "import os; os.utime('kept.txt', (0, 0))",
    "internet": "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "unix": "import socket; socket.socket(socket.AF_UNIX)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "child": "import subprocess; subprocess.run('echo >new', shell=True, check=True)",
    "reopen": "import os; os.open(f'/proc/self/fd/{os.open(\"kept.txt\", 0)}', os.O_RDWR)",
    "in_fd": "import os; os.open(f'/proc/self/fd/{os.open(\".\", 0)}/new', os.O_CREAT | os.O_RDWR)",
    "odd_mkdir": ODD_PATH + "posix.mkdir(Path('new'))",
    "odd_open": ODD_PATH + "posix.open(Path('new'), os.O_CREAT | os.O_RDWR)",
}
FROM_C = {
    "c_write": "assert libc.creat(b'new', 0o600) >= 0",
    "c_rename": "assert libc.rename(b'kept.txt', b'new') == 0",
    "c_unlink": "assert libc.unlink(b'kept.txt') == 0",
    "c_gpu": "assert libc.open(b'/dev/zero', 2) >= 0  # as /dev/nvidia0",
    "c_msgget": "assert libc.msgget(0xCA27A, 0o1600) >= 0",
    # Of what may fail for another reason, only that counts that nobody was let try.
    "flags": "fcntl.ioctl(os.open('kept.txt', 0), 0x40086602, b'\\0' * 8)",  # FS_IOC_SETFLAGS
    "verity": "allowed(libc.ioctl(os.open('kept.txt', 0), 0x40806685, None))",
    "keystroke": "allowed(libc.ioctl(0, 0x5412, b'x'))",  # TIOCSTI
    "c_shmctl": "allowed(libc.shmctl(-1, 0, None))",
    "c_msgctl": "allowed(libc.msgctl(-1, 0, None))",
    "c_semctl": "allowed(libc.semctl(-1, 0, 0))",
    "c_mq_unlink": "allowed(libc.mq_unlink(b'/none'))",
    "c_mount_setattr": "allowed(libc.syscall(442, -1, None, 0, None, 0))",
    # The parent is outside. It is told what holds for it anyway.
    "limits": "core = resource.RLIMIT_CORE; resource.prlimit(up, core, resource.prlimit(up, core))",
    "cpus": "os.sched_setaffinity(up, os.sched_getaffinity(up))",
    "scheduler": "os.sched_setscheduler(up, os.sched_getscheduler(up), os.sched_param(0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, up, os.getpriority(os.PRIO_PROCESS, up))",
    "users_priority": "os.setpriority(os.PRIO_USER, 0, 10)",
    "io_priority": "allowed(libc.syscall(confine._IOPRIO_SET, 1, up, 0))",
    "memory": "open(f'/proc/{up}/mem', 'rb')",
}
C_CODE = """
import ctypes, errno, fcntl, os, resource
libc, up = ctypes.CDLL(None, use_errno=True), os.getppid()
def allowed(result):
    assert ctypes.get_errno() not in (errno.EPERM, errno.EACCES)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside.txt").write_text("inside")
    return tmp_path


def run(program: str, place: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-B", "-c", program]
    return subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=PATIENCE_S)


def everything(place: Path) -> dict[str, object]:
    """What is there, and since when."""
    return {
        str(path.relative_to(place)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_text() if path.is_file() else None,
        )
        for path in place.rglob("*")
    }


def shadowed(program: str, place: Path) -> None:
    before = everything(place)
    for held in ("", CONFINE, HOOK):
        done = run(BEGIN + SHADOW + held + textwrap.dedent(program), place)
        assert done.returncode == 0, done.stderr
        assert everything(place) == before


def test_what_is_written_can_be_read(place: Path) -> None:
    program = """
        import csv, io, json, logging, os, pathlib, sys, tempfile
        out = pathlib.Path("out/run 1")
        out.mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        (out / "args.json").write_text(json.dumps({"a": 1}))
        assert json.loads((out / "args.json").read_text()) == {"a": 1}
        with open("kept.txt", "a") as file:
            file.write(" and more")
        assert open("kept.txt").read() == "kept and more" and os.path.getsize("kept.txt") == 13
        with open("kept.txt", "r+b") as file:
            file.seek(4)
            file.truncate()
        assert open("kept.txt").read() == "kept"
        logging.basicConfig(filename="log.txt", level=logging.INFO)
        logging.info("hello")
        assert "hello" in open("log.txt").read()
        with tempfile.NamedTemporaryFile("w") as file:
            assert os.path.exists(file.name)
        assert not os.path.exists(file.name)
        with tempfile.TemporaryDirectory() as name:
            open(name + "/x", "w").close()
            assert os.listdir(name) == ["x"]
        assert not os.path.isdir(name)
        with tempfile.TemporaryFile() as file:
            assert file.write(b"x") == 1
        with open("all", "w", -1, None, None, None, True, None) as file:
            file.write("x")
        with io.FileIO("raw.bin", "wb") as file:
            file.write(b"raw")
        with open("raw.bin", "rb") as file:
            assert file.read() == b"raw"
        with tempfile.TemporaryDirectory() as name:  # as mmcv reads its configurations
            sys.path[:0] = [name, ""]
            pathlib.Path(name, "configured.py").write_text("width = 7")
            import configured
            pathlib.Path("made.py").write_text("width = 8")
            import made
            assert (configured.width, made.width) == (7, 8)
        (out / "touched").touch()
        assert (out / "touched").exists()
        with open(b"out/run 1/events", "ab") as file:  # as TensorBoard's writer does
            file.write(b"x")
        assert os.path.getsize(b"out/run 1/events") == 1
        assert sorted(os.listdir(b"out/run 1")) == [b"args.json", b"events", b"touched"]
        """
    shadowed(program, place)


def test_directories_show_what_is_new_and_hide_what_is_gone(place: Path) -> None:
    program = """
        import glob, os, pathlib, shutil
        os.makedirs("out/a")
        open("out/a/x", "w").close()
        assert sorted(os.listdir()) == ["folder", "kept.txt", "out"]
        os.remove("kept.txt")
        assert not os.path.exists("kept.txt") and sorted(os.listdir(".")) == ["folder", "out"]
        shutil.rmtree("folder")
        assert not os.path.exists("folder/inside.txt")
        os.mkdir("folder")
        assert os.listdir("folder") == []
        assert glob.glob("**/x", recursive=True) == ["out/a/x"]
        assert list(os.walk("out")) == [("out", ["a"], []), ("out/a", [], ["x"])]
        with os.scandir("out") as entries:
            assert [(e.name, e.is_dir(), e.is_file()) for e in entries] == [("a", True, False)]
        assert [p.name for p in pathlib.Path("out").iterdir()] == ["a"]
        open("kept.txt", "x").close()
        assert open("kept.txt").read() == ""
        """
    shadowed(program, place)


def test_files_move_and_are_linked(place: Path) -> None:
    program = """
        import os, shutil
        with open("new.tmp", "w") as file:
            file.write("new")
        os.replace("new.tmp", "kept.txt")
        assert open("kept.txt").read() == "new" and not os.path.exists("new.tmp")
        os.rename("folder", "moved")
        assert open("moved/inside.txt").read() == "inside" and not os.path.exists("folder")
        shutil.copytree("moved", "copied")
        shutil.move("copied", "again")
        assert open("again/inside.txt").read() == "inside"
        os.symlink("again", "latest")
        assert open("latest/inside.txt").read() == "inside" and "latest" in os.listdir()
        os.unlink("latest")
        assert not os.path.exists("latest") and os.path.exists("again")
        os.makedirs("run/1")
        os.chdir("run/1")
        assert os.getcwd().endswith("run/1")
        open("here", "w").close()
        assert os.path.abspath("here").endswith("run/1/here") and os.path.isfile("here")
        os.chdir("../..")
        assert os.path.isfile("run/1/here")
        """
    shadowed(program, place)


def test_links_are_links(place: Path) -> None:
    (place / "real").symlink_to("folder")
    program = """
        import os, pathlib
        os.makedirs("runs/1")
        os.mkdir("runs/2")
        open("runs/1/x", "w").close()
        os.symlink("1", "runs/latest")
        assert os.readlink("runs/latest") == "1" and os.path.islink("runs/latest")
        assert pathlib.Path("runs/latest").resolve() == pathlib.Path("runs/1").resolve()
        assert sorted(e.name for e in os.scandir("runs") if e.is_symlink()) == ["latest"]
        os.symlink("2", "runs/new")
        os.replace("runs/new", "runs/latest")
        assert os.readlink("runs/latest") == "2" and os.listdir("runs/latest") == []
        assert os.listdir("runs/1") == ["x"] and sorted(os.listdir("runs")) == ["1", "2", "latest"]
        os.symlink("folder", "link")
        assert os.listdir("link") == ["inside.txt"] and open("link/inside.txt").read() == "inside"
        os.rename("real", "moved")
        assert os.readlink("moved") == "folder" and not os.path.lexists("real")
        os.symlink("nowhere", "dangling")
        assert os.path.islink("dangling") and not os.path.exists("dangling")
        assert not [e for e in os.scandir() if e.name == "dangling" and e.is_dir()]
        for name in ("link", "moved", "dangling"):
            os.remove(name)
            assert not os.path.lexists(name)
        assert os.listdir("folder") == ["inside.txt"]
        """
    shadowed(program, place)


def test_libraries_find_what_a_file_system_does(place: Path) -> None:
    program = """
        import bz2, os, shutil, threading
        os.makedirs(b"made/in")
        os.mkdir("other")
        assert not os.path.samefile("made", "other")
        os.symlink("in", b"made/link")
        assert os.path.realpath(b"made/link") == os.fsencode(os.path.realpath("made/in"))
        assert [folder for folder, *_ in os.walk(b"made")] == [b"made", b"made/in"]
        shutil.copytree("made", "copied", symlinks=True)
        assert os.path.islink("copied/link")
        shutil.rmtree(b"copied")
        shutil.move("made", "other")
        with bz2.open("other/made/in/log", "wb") as file:
            file.write(b"x")
        os.link("other/made/in/log", "log")
        assert bz2.open("log").read() == b"x"
        entry = next(os.scandir("other"))
        assert entry.inode() == os.stat("other/made").st_ino and not entry.is_junction()
        folder = os.open("folder", os.O_RDONLY)
        os.rename("inside.txt", "renamed", src_dir_fd=folder, dst_dir_fd=folder)
        assert os.listdir("folder") == ["renamed"]
        for names, number in ("log other", 21), ("other log", 20), ("other other/a", 22):
            try:
                os.rename(*names.split())
            except OSError as error:
                assert error.errno == number, (error, number)
            else:
                raise AssertionError
        before = os.getcwd()
        os.chdir("other")
        assert os.getcwdb() == os.fsencode(f"{before}/other")
        os.fchdir(folder)
        assert os.getcwd() == f"{before}/folder"
        errors = []
        def work(name):
            try:
                for _ in range(40):
                    open(f"{name}.tmp", "w").close()
                    os.replace(f"{name}.tmp", name)
                    os.remove(name)
            except Exception as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(str(n),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        """
    shadowed(program, place)


def test_a_real_link_to_a_directory_can_be_removed(place: Path) -> None:
    (place / "latest").symlink_to("folder")
    program = """
        import os
        os.remove("latest")
        assert not os.path.lexists("latest") and os.path.isfile("folder/inside.txt")
        os.symlink("folder", "latest")
        assert os.path.isfile("latest/inside.txt")
        """
    shadowed(program, place)


def test_what_is_written_has_a_limit(place: Path) -> None:
    program = """
        import errno, os
        scratch.KEPT_BYTES = 1 << 20
        with open("large", "wb") as file:
            file.write(bytes(1 << 20))
        os.rename("large", "larger")
        try:
            open("new", "w")
        except OSError as error:
            assert error.errno == errno.ENOSPC
        else:
            raise AssertionError
        os.remove("larger")
        open("new", "w").close()
        """
    shadowed(program, place)


def test_errors_are_those_of_a_file_system(place: Path) -> None:
    program = """
        import errno, os
        def error(call, *args):
            try:
                call(*args)
            except OSError as error:
                return errno.errorcode[error.errno]
        os.mkdir("new")
        open("new/x", "w").close()
        os.remove("kept.txt")
        assert error(os.mkdir, "new") == error(os.mkdir, "folder") == "EEXIST"
        assert error(os.mkdir, "no/such") == error(open, "no/such", "w") == "ENOENT"
        assert error(open, "new/x", "x") == "EEXIST"
        assert error(open, "folder", "w") == "EISDIR"
        assert error(open, "kept.txt") == error(os.remove, "kept.txt") == "ENOENT"
        assert error(open, "nothing", "r+") == error(os.stat, "nothing") == "ENOENT"
        assert error(os.chmod, "nothing", 0o600) == "ENOENT"
        assert error(os.rmdir, "new") == "ENOTEMPTY"
        assert error(os.rename, "nothing", "x") == "ENOENT"
        assert error(os.listdir, "nothing") == "ENOENT"
        """
    shadowed(program, place)


def test_a_large_file_is_not_copied_to_be_changed(place: Path) -> None:
    with (place / "large").open("wb") as file:
        file.truncate((2 << 30) + 1)
    program = """
        try:
            open("large", "r+b")
        except OSError as error:
            assert error.errno == 28, error
        else:
            raise AssertionError
        assert open("large", "wb").write(b"x") == 1
        """
    before = (place / "large").stat()
    done = run(BEGIN + SHADOW + textwrap.dedent(program), place)
    assert done.returncode == 0, done.stderr
    assert (place / "large").stat() == before


def kernel_confines(place: Path) -> bool:
    return run(CONFINED + "sys.exit(0 if kernel else 9)", place).returncode == 0


@pytest.mark.parametrize("deed", sorted(DEEDS))
def test_the_kernel_lets_nothing_out(deed: str, place: Path) -> None:
    if not kernel_confines(place):
        pytest.skip("this kernel has no Landlock or no seccomp")
    refused(CONFINED, DEEDS[deed], place)


@pytest.mark.parametrize("deed", sorted(FROM_C))
def test_the_kernel_stops_c_code_too(deed: str, place: Path) -> None:
    if not kernel_confines(place):
        pytest.skip("this kernel has no Landlock or no seccomp")
    refused(CONFINED + C_CODE, FROM_C[deed], place)


@pytest.mark.parametrize("path", ["'new'", "b'new'", "pathlib.Path('new')"])
def test_a_hook_keeps_databases_in_memory(path: str, place: Path) -> None:
    begin = f"{HOOKED}import pathlib, sqlite3\nsqlite3.connect(':memory:')\n"
    refused(begin, f"sqlite3.connect({path})", place)


@pytest.mark.parametrize("deed", sorted(DEEDS))
def test_an_older_kernel_leaves_it_to_a_hook(deed: str, place: Path) -> None:
    refused(HOOKED, DEEDS[deed], place)


def refused(begin: str, deed: str, place: Path) -> None:
    before = everything(place)
    done = run(f"{begin}\nprint('ready', flush=True)\n{deed}", place)
    assert done.stdout.startswith("ready"), done.stderr
    assert done.returncode != 0
    assert everything(place) == before


@pytest.mark.parametrize("begin", [CONFINED, HOOKED], ids=["kernel", "hook"])
def test_what_a_script_needs_still_works(begin: str, place: Path) -> None:
    program = """
        import multiprocessing, os, resource, threading
        open("/dev/null", "w").write("x")
        assert multiprocessing.Lock().acquire()
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
        os.nice(1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        assert not os.isatty(0)
        thread = threading.Thread(target=print)
        thread.start(), thread.join()
        file = os.memfd_create("x")
        open(f"/proc/self/fd/{file}", "w").write("x")
        assert open("kept.txt").read() == "kept"
        if os.fork() == 0:
            os._exit(0)
        assert os.wait()[1] == 0
        """
    done = run(begin + textwrap.dedent(program), place)
    assert done.returncode == 0, done.stderr


def test_a_child_process_may_read_and_print(place: Path) -> None:
    if not kernel_confines(place):
        pytest.skip("this kernel has no Landlock or no seccomp")
    program = "import subprocess; print(subprocess.check_output(['cat', 'kept.txt']))"
    assert "kept" in run(CONFINED + program, place).stdout


def test_host_memory_is_limited(place: Path) -> None:
    done = run(CONFINED + "bytearray(5 << 30)", place)
    assert done.returncode == 1
    assert "MemoryError" in done.stderr

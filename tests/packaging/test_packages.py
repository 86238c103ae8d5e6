"""What is built to be installed: the wheel and the Debian package, twice the same; and the life of
the latter, from its installation to its purge, on a machine of namespaces.

That machine is this one with an overlay on it or, as with `make deb-life`, the system below
$CARMA_CLEAN_SYSTEM, which has nothing but a minimal Debian. Only then is the Debian package built
twice: a build takes half a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carmad.options import OPTIONS
from cli.verbs import leaves
from docs import man
from tests.attack.booted import Machine, systemd_in
from tests.daemon import NO_KERNELS, QUICK, ROOT, until
from tests.shared import made_once

CLEAN = os.environ.get("CARMA_CLEAN_SYSTEM", "")
WAITS = "echo up; while [ ! -e ~/go ]; do sleep 0.1; done; rm ~/go; exit 42"
ADA = "/home/ada"
BUILD_WITHIN_S = 3000.0  # half a minute of two cores that it may have to share with twenty others
pytestmark = pytest.mark.timeout(2 * BUILD_WITHIN_S)

# As in tests.attack.booted, but with a root of its own: an overlay on $LOWER. What is written is
# in /upper, and $FOLDER on both sides. dpkg does not index all manual pages of this machine.
INSIDE = """
mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay none -o "lowerdir=$LOWER,upperdir=$0/upper,workdir=$0/work" "$0/root"
cd "$0/root"
mkdir -p "./$FOLDER" upper before
mount --bind "$FOLDER" "./$FOLDER"
mount --bind "$0/upper" upper
mount -t proc proc proc
mount --rbind /dev dev
mount --bind /sys sys
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs -o mode=755 none run
mount -t tmpfs -o mode=755 none home
rm -rf etc/systemd/system/* etc/fstab usr/sbin/policy-rc.d
rm -rf lib/systemd/system/*.wants lib/systemd/system-generators
rm -f var/lib/man-db/auto-update
pivot_root . before
umount -l /before
rmdir /before
exec env -i container=carma PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=basic.target --show-status=no
"""


VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
CLIENT_WHEEL = f"carma_client-{VERSION}-py3-none-any.whl"  # for programs in other environments
# What must make no difference: the folder, the umask and the time zone.
DIFFERENTLY = (("one", 0o077, "UTC"), ("two/deeper", 0o022, "Asia/Tokyo"))
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}


def test_the_changelog_has_its_form_and_names_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (.+)$", text, re.MULTILINE)
    named = [
        re.fullmatch(r"\[(\d+\.\d+\.\d+)\](?: - \d{4}-\d\d-\d\d)?", one) for one in releases[1:]
    ]
    assert releases[0] == "[Unreleased]"
    versions = [[int(n) for n in one[1].split(".")] for one in named if one]
    assert len(versions) == len(named), releases
    assert versions == sorted(versions, reverse=True)
    assert named[0] and named[0][1] == VERSION
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= KINDS
    debian = (ROOT / "packaging/debian/changelog").read_text(encoding="utf-8")
    assert debian.startswith(f"carma-gpu ({VERSION}) ")


def test_there_is_a_manual_page_for_every_command_and_man_can_read_it(tmp_path: Path) -> None:
    pages = man.pages()
    assert {f"carma-{verb.name.replace(' ', '-')}.1" for verb in leaves()} <= set(pages)
    assert {"carma.1", "carmad.8", "carma.toml.5"} <= set(pages)
    for option in OPTIONS.values():
        for flag in option.flags:
            assert flag.replace("-", "\\-") in pages["carma-submit.1"]
    if shutil.which("groff") is None:
        pytest.skip("groff is not here")
    for name, page in pages.items():
        (tmp_path / name).write_text(page, encoding="utf-8")
    formatted = subprocess.run(
        ["groff", "-man", "-K", "utf8", "-T", "utf8", "-ww", *pages],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (formatted.returncode, formatted.stderr) == (0, "")


# -- the wheel


def checkout(folder: Path) -> Path:
    """A copy of what git tracks, as it is here."""
    folder.mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def dists(tmp_path_factory: pytest.TempPathFactory) -> list[list[Path]]:
    """The wheel and the source distribution, built twice."""
    base = made_once(tmp_path_factory, "dists", _build_dists)
    return [sorted((base / name / "dist").iterdir()) for name, *_ in DIFFERENTLY]


def _build_dists(base: Path) -> None:
    for name, umask, zone in DIFFERENTLY:
        folder = checkout(base / name)
        built = subprocess.run(
            [sys.executable, "-m", "hatchling", "build"],
            cwd=folder,
            env={**os.environ, "TZ": zone},
            umask=umask,
            capture_output=True,
            text=True,
        )
        assert built.returncode == 0, built.stderr


@pytest.mark.long
def test_two_builds_of_the_wheel_and_the_source_are_equal(dists: list[list[Path]]) -> None:
    names = [[path.name for path in built] for built in dists]
    assert names[0] == names[1]
    assert names[0] == [f"carma_gpu-{VERSION}-py3-none-any.whl", f"carma_gpu-{VERSION}.tar.gz"]
    for one, other in zip(*dists, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_an_index_would_take_them(dists: list[list[Path]]) -> None:
    """A dry run of `docs/publishing.md`: nothing is sent."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dists[0])]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == len(dists[0])


def test_the_wheel_has_what_runs_and_whose_it_is_and_nothing_else(
    dists: list[list[Path]],
) -> None:
    with zipfile.ZipFile(dists[0][0]) as wheel:
        names = wheel.namelist()
    packages = {"carma_client", "carmad", "hydra_plugins"}
    packages |= {path.parent.name for path in ROOT.glob("extras/*/__init__.py")}
    own_names = {name.split("/")[2] for name in names if name.startswith("carmad/own/")}
    assert own_names == {"cli", "estimators", "policies", "recovery"}
    own = f"carma_gpu-{VERSION}"
    assert {name.split("/")[0] for name in names} == packages | {
        f"{own}.dist-info",
        f"{own}.data",
    }
    assert f"{own}.dist-info/licenses/LICENSE" in names
    assert f"{own}.data/data/share/carma/{CLIENT_WHEEL}" in names
    vendored = {name.rpartition("/")[0] for name in names if ".min." in name or "vendor" in name}
    for folder in vendored:
        assert any(name.startswith(f"{folder}/") and "LICENSE" in name for name in names), folder
    with tarfile.open(dists[0][1]) as source:
        files = {name.partition("/")[2] for name in source.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md"} <= files


# -- the Debian package


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The package; if built twice, in different folders, umasks and time zones."""
    if shutil.which("dh") is None or shutil.which("git") is None:
        pytest.skip("debhelper or git is not here")
    usable = ["/usr/bin/python3", "-c", "import venv, ensurepip"]
    if subprocess.run(usable, capture_output=True).returncode:
        pytest.skip("the distribution's python3-venv is not here")
    folder = made_once(tmp_path_factory, "debs", _build_debs)
    return sorted(folder.rglob("*.deb"))


def _build_debs(folder: Path) -> None:
    builds = []
    for name, umask, zone in DIFFERENTLY if CLEAN else DIFFERENTLY[:1]:
        temporary = folder / name / "tmp"
        temporary.mkdir(parents=True)
        env = {**os.environ, "TZ": zone, "TMPDIR": str(temporary)}
        env |= {} if CLEAN else {"COMPRESSION": "-Znone"}
        with (folder / name / "log").open("wb") as log:
            command = ["packaging/debian/build", str(folder / name / "its place")]
            builds.append(
                subprocess.Popen(command, cwd=ROOT, env=env, umask=umask, stdout=log, stderr=log)
            )
    for build in builds:
        assert build.wait(BUILD_WITHIN_S) == 0, [
            log.read_text()[-2000:] for log in folder.rglob("log")
        ]


def field(deb: Path, name: str) -> str:
    asked = ["dpkg-deb", "--field", str(deb), name]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(not CLEAN, reason="`make deb-life` builds it twice")
def test_two_builds_of_the_package_are_equal(debs: list[Path]) -> None:
    one, other = debs
    assert one.name == other.name
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.long
def test_the_package_has_all_that_a_server_needs(debs: list[Path]) -> None:
    listed = subprocess.run(
        ["dpkg-deb", "--contents", str(debs[0])], check=True, capture_output=True, text=True
    )
    lines = [line.split() for line in listed.stdout.splitlines()]
    files = {line[5].removeprefix(".") for line in lines}
    for name in man.pages():
        assert f"/usr/share/man/man{name[-1]}/{name}.gz" in files
    assert {"/usr/bin/carma", "/usr/bin/carmad", "/etc/carma/"} <= files
    assert "/usr/share/zsh/vendor-completions/_carma" in files
    assert f"/usr/lib/carma-gpu/share/carma/{CLIENT_WHEEL}" in files
    assert not {name for name in files if name.endswith(".pyc") or "site-packages/torch/" in name}
    about = {name for name in files if name.endswith(".dist-info/")}
    assert len(about) > 20
    depends = field(debs[0], "Depends")
    assert "python3 (<< 3." in depends
    assert "libc6 (>=" in depends
    assert {(line[0][1:], line[1]) for line in lines} <= {
        (mode, "root/root") for mode in ("rwxr-xr-x", "rw-r--r--", "rwxrwxrwx")
    }
    assert {line[0][0] for line in lines if line[0].endswith("rwxrwxrwx")} == {"l"}


@pytest.mark.long
def test_the_packages_version_rises_with_each_commit(debs: list[Path]) -> None:
    version = field(debs[0], "Version")
    assert re.fullmatch(rf"{re.escape(VERSION)}\+git\d{{8}}\.\d{{6}}~\w+[\d.]*", version)
    for earlier, later in (
        (f"{VERSION}+git20261120.120000~debian99", version),
        (version, f"{VERSION}.1+git20261120.120000~debian12"),
    ):
        subprocess.run(["dpkg", "--compare-versions", earlier, "lt", later], check=True)


def later(deb: Path, folder: Path, version: str) -> Path:
    """The same package as if of a later release: its data's version is that, too."""
    tree = folder / "later"
    subprocess.run(["dpkg-deb", "--raw-extract", str(deb), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    was = f"\nVersion: {VERSION}"
    control.write_text(control.read_text().replace(was, f"\nVersion: {version}", 1))
    (info,) = tree.glob("usr/lib/carma-gpu/lib/*/site-packages/carma_gpu-*.dist-info")
    metadata = (info / "METADATA").read_text()
    (info / "METADATA").write_text(metadata.replace(was, f"\nVersion: {version}", 1))
    info.rename(info.with_name(f"carma_gpu-{version}.dist-info"))
    made = folder / "later.deb"
    subprocess.run(["dpkg-deb", "--build", "-Znone", str(tree), str(made)], check=True)
    shutil.rmtree(tree)
    return made


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    tmp_path.chmod(0o755)
    variables = {"LOWER": CLEAN or "/", "FOLDER": str(tmp_path)}
    with systemd_in(tmp_path, INSIDE, variables) as machine:
        machine.python = "/usr/bin/python3"
        machine.welcome()
        machine.emulate("/usr/bin/carmad", **QUICK | NO_KERNELS)
        yield machine


def dpkg(machine: Machine, *words: str) -> tuple[int, str]:
    return packages(machine, "dpkg", *words)


def packages(machine: Machine, *words: str) -> tuple[int, str]:
    """What dpkg or apt does, and says."""
    done = subprocess.run(
        [*machine.enter(), "env", "DEBIAN_FRONTEND=noninteractive", *words],
        capture_output=True,
        text=True,
        timeout=BUILD_WITHIN_S,
    )
    return done.returncode, done.stdout + done.stderr


def broken(folder: Path) -> Path:
    """A later package that cannot be installed: as if its files did not fit on the disk."""
    control = folder / "broken/DEBIAN/control"
    control.parent.mkdir(parents=True)
    about = "Version: 98.0\nArchitecture: all\nMaintainer: nobody\nDescription: is broken\n"
    control.write_text(f"Package: carma-gpu\n{about}")
    preinst = control.with_name("preinst")
    preinst.write_text("#!/bin/sh\ndeb-systemd-invoke stop carmad.service carmad.socket\nexit 1\n")
    preinst.chmod(0o755)
    made = folder / "broken.deb"
    tree = str(control.parents[1])
    subprocess.run(["dpkg-deb", "--build", "-Znone", tree, str(made)], check=True)
    return made


@pytest.mark.long
def test_the_life_of_the_package(debs: list[Path], machine: Machine) -> None:
    first = Path(shutil.copy(debs[0], machine.folder / "first.deb"))
    second = later(first, machine.folder, "99.0")
    settings = "[limits]\ngpus_per_user = 3"
    compiled = "find /usr/lib/carma-gpu -name '*.pyc' | wc -l"

    def state(unit: str) -> str:
        return machine.show(unit, "ActiveState")

    def go() -> None:
        machine.run("touch", f"{ADA}/go", user="ada")

    def waiting() -> tuple[int, str]:
        """A job that runs, and the unit that it was started from."""
        job = machine.sh(WAITS)
        machine.await_line(f"{ADA}/carma-{job}.out", "up")
        words = ("list-units", "--plain", "--no-legend", "--state=active", "carma-jobs-*")
        return job, machine.systemctl(*words).split()[0]

    def configure(text: str) -> None:
        machine.run("tee", "/etc/carma/carma.toml", stdin=text)

    def refused_to_purge(unit: str) -> None:
        code, said = dpkg(machine, "--purge", "carma-gpu")
        assert code != 0
        assert f"nothing is deleted: {unit}" in " ".join(said.split())
        assert machine.run("ls", "/var/lib/carma/carma.db")
        assert machine.read("/etc/carma/carma.toml") == settings

    # Installed: it runs, and starts after the next boot, too.
    code, said = dpkg(machine, "--install", str(first))
    assert code == 0, said
    assert "carma-gpu: " not in said
    assert (state("carmad.service"), state("carmad.socket")) == ("active", "active")
    assert machine.systemctl("is-enabled", "carmad.service", "carmad.socket") == "enabled\nenabled"
    assert machine.systemctl("is-enabled", "carma-web.service", check=False) == "disabled"
    assert machine.run("carma", "--version", user="ada") == f"carma {VERSION}"
    assert machine.run("getent", "group", "carma-admin")
    assert int(machine.run("sh", "-c", compiled)) > 1000

    # A user's own modules do not get in its way, and it leaves the package's units alone.
    machine.run("mkdir", f"{ADA}/cli", user="ada")
    machine.run("touch", f"{ADA}/cli/__init__.py", user="ada")
    assert machine.run("env", f"PYTHONPATH={ADA}", "carma", "--version", user="ada")
    machine.run("carma", "daemon", "install", check=False)
    assert not machine.run("find", "/etc/systemd/system", "-name", "carma*", "-type", "f")

    # An upgrade that fails, and one that does not: what the administrator wrote stays, and the job
    # has not noticed.
    configure(settings)
    job, unit = waiting()
    supervisor = machine.show(unit, "MainPID")
    code, said = dpkg(machine, "--install", str(broken(machine.folder)))
    assert code != 0
    assert machine.call("GET", "/v1/health")["version"] == VERSION
    assert int(machine.run("sh", "-c", compiled)) > 1000
    machine.systemctl("start", "carma-web.service")
    page, daemon = (machine.show(f"{each}.service", "MainPID") for each in ("carma-web", "carmad"))
    code, said = dpkg(machine, "--install", str(second))
    assert code == 0, said
    assert machine.run("carma", "--version") == "carma 99.0"
    assert machine.show("carmad.service", "MainPID") not in (daemon, "0")
    assert machine.call("GET", "/v1/health")["version"] == "99.0"
    assert machine.call("GET", "/v1/config")["settings"]["limits"]["gpus_per_user"] == 3
    until(lambda: machine.show("carma-web.service", "MainPID") not in (page, "0"), "a new page")
    assert machine.show(unit, "MainPID") == supervisor
    go()
    ended = machine.await_end(job)
    assert (ended["exit"]["code"], ended["attempt"]) == (42, 1)

    # A purge with a job running refuses before anything is removed, whoever asks for it.
    job, unit = waiting()
    for purge in (
        ("dpkg", "--purge"),
        ("apt-get", "--yes", "purge"),
        ("apt", "-y", "--purge", "remove"),
    ):
        code, said = packages(machine, *purge, "carma-gpu")
        assert code != 0
        assert f"nothing is removed: carma-job-{job}-1" in " ".join(said.split())
        assert machine.run("carma", "--version") == "carma 99.0"
        assert (state("carmad.service"), state("carmad.socket")) == ("active", "active")
    go()
    machine.await_end(job)

    # Removed with a job running: it goes on, and its records stay.
    job, unit = waiting()
    code, said = dpkg(machine, "--remove", "carma-gpu")
    assert code == 0, said
    assert "jobs that still run: 1" in said
    units = ("carmad.service", "carmad.socket", "carma-web.service")
    assert {state(each) for each in units} == {"inactive"}
    assert state(unit) == "active"
    assert not machine.run("find", "/usr/lib/carma-gpu", "/usr/bin/carma", check=False)
    refused_to_purge(unit)
    go()
    until(lambda: state(unit) != "active", "the job to end while nobody watches")

    # Nor is anything deleted under a job that has been told to stop, and does not; or under another
    # installation.
    stubborn = "trap '' TERM; touch /run/stubborn; while :; do sleep 0.1; done"
    machine.run("systemd-run", "--unit=carma-job-99-1", "sh", "-c", stubborn)
    until(lambda: machine.run("find", "/run/stubborn", check=False), "it to ignore SIGTERM")
    machine.systemctl("stop", "--no-block", "carma-job-99-1.service")
    until(lambda: state("carma-job-99-1.service") == "deactivating", "it to be told to stop")
    refused_to_purge("carma-job-99-1.service")
    machine.systemctl("kill", "--signal=KILL", "carma-job-99-1.service")
    until(lambda: state("carma-job-99-1.service") == "failed", "it to be gone")
    machine.run("tee", "/etc/systemd/system/carmad.service", stdin="[Service]\nExecStart=false\n")
    code, said = dpkg(machine, "--purge", "carma-gpu")
    assert code == 0, said
    machine.run("rm", "/etc/systemd/system/carmad.service")

    # Installed again, the earlier one, with settings that are wrong: it says so. Then it finds how
    # the job ended.
    machine.systemctl("mask", "carma-web.service")
    assert machine.read("/etc/carma/carma.toml") == settings
    configure("nonsense = 1\n")
    code, said = dpkg(machine, "--install", str(first))
    assert code == 0, said
    assert "carmad does not run" in said
    assert "takes precedence" not in said
    configure(settings)
    machine.systemctl("unmask", "carma-web.service")
    machine.systemctl("start", "carmad.service")
    ended = machine.await_end(job)
    assert (ended["exit"]["code"], ended["attempt"]) == (42, 1)

    # Purged, though it is damaged, and has a disk of its own.
    machine.systemctl("stop", "carmad.service")
    machine.run("mount", "-t", "tmpfs", "none", "/var/cache/carma")
    machine.run("touch", "/var/cache/carma/something")
    machine.run("rm", "-r", "/usr/lib/carma-gpu/lib")
    code, said = dpkg(machine, "--purge", "carma-gpu")
    assert code == 0, said
    assert "deleting /var/lib/carma\n" in said
    assert machine.run("find", "/var/cache/carma") == "/var/cache/carma"
    machine.run("umount", "/var/cache/carma")
    machine.run("rmdir", "/var/cache/carma")
    left = machine.run("find", "/upper", "-xdev", "-name", "*carma*").split("\n")
    assert left == ["/upper/etc/systemd/system/carmad.service.d"]  # the test's own
    assert machine.run("find", "/etc/systemd/system", "-type", "l") == ""
    assert machine.run("ls", f"{ADA}").split() == [*(f"carma-{n}.out" for n in (1, 2, 3)), "cli"]

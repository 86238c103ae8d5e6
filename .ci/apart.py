"""Runs tests of the middle in a copy of this checkout without the extras, but for `carma_testing`,
which they are written with: `.ci/apart.py FOLDER PYTEST-ARGUMENT…`. FOLDER must not exist.

The copy's Python finds the packages of this checkout's `.venv`, and the copy in place of the
checkout; of CARMA's entry points, it has those whose packages are there.
"""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = ROOT / ".venv/bin"
KEPT = "carma_testing"


def main(folder: Path, *words: str) -> int:
    gone = {path.name for path in (ROOT / "extras").iterdir() if path.is_dir()} - {KEPT}
    _copy_tracked(folder, gone)
    subprocess.run([BIN / "python", "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    for script in BIN.iterdir():
        new = folder / ".venv/bin" / script.name
        if script.is_file() and not new.exists() and script.read_bytes()[:2] == b"#!":
            new.write_text(script.read_text().replace(str(ROOT), str(folder)))
            new.chmod(0o755)
    (theirs,) = (ROOT / ".venv/lib").glob("python*/site-packages")
    (ours,) = (folder / ".venv/lib").glob("python*/site-packages")
    for info in theirs.glob("carma_gpu-*.dist-info"):
        shutil.copytree(info, ours / info.name)
        _forget(ours / info.name / "entry_points.txt", gone)
    paths = (folder, folder / "extras", folder / "packaging/integrations", theirs)
    (ours / "apart.pth").write_text("".join(f"{path}\n" for path in paths))
    pytest = [folder / ".venv/bin/python", "-m", "pytest", *words]
    return subprocess.run(pytest, cwd=folder).returncode


def _copy_tracked(folder: Path, gone: set[str]) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, names.stdout.decode().split("\0")):
        at = name.split("/")
        left_out = (at[0] == "extras" and at[1] in gone) or at[:2] == ["tests", "extras"]
        if not left_out and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def _forget(file: Path, gone: set[str]) -> None:
    points = configparser.ConfigParser(delimiters=("=",))
    points.optionxform = str  # type: ignore[assignment,method-assign]
    points.read_string(file.read_text())
    for group in points.values():
        for name, value in list(group.items()):
            if value.partition(":")[0].partition(".")[0] in gone:
                del group[name]
    with file.open("w") as written:
        points.write(written)


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main(Path(sys.argv[1]).absolute(), *sys.argv[2:]))

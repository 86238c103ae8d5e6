"""The commands of a package of measurements: those it has, and those that are written about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks import ROOT

RUNS = 'if __name__ == "__main__":'


def written(package: str) -> set[str]:
    """In the documentation, in tests, and in what is shipped; but `speed` is a test's invention."""
    pages = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    pages += [*ROOT.glob("*/README.md"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("lab/tests/*.py")]
    pages += ROOT.glob("extras/*/coefficients/*.json")
    named = rf"-m ({package}[.\w]*\w)"
    found = {name for page in pages for name in re.findall(named, page.read_text())}
    return found - {f"{package}.speed"}


def is_there(name: str) -> bool:
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # of a package above it
        return False
    if spec is None or spec.origin is None:
        return False
    file = Path(spec.origin)
    if spec.submodule_search_locations is not None:
        file = file.with_name("__main__.py")
    return file.exists() and RUNS in file.read_text()


def undescribed(package: str) -> Iterator[str]:
    """Commands that the package's own page leaves out."""
    folder = ROOT / package
    readme = (folder / "README.md").read_text()
    for file in (*folder.glob("*.py"), *folder.glob("*/*.py")):
        if file.parent.name not in ("scripts", "tests") and RUNS in file.read_text():
            path = file.relative_to(ROOT)
            name = ".".join(path.with_suffix("").parts).removesuffix(".__main__")
            script = f"`python {path}"  # what a command starts
            if f"`python -m {name}`" not in readme and script not in readme:
                yield name

"""Prints what becomes of an option that one more entry in the table states, and nothing else.

A process of its own, started by `test_options`: the table is read when carmad is imported.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
ENTRY = """
    warm_up_s: float | None = option(
        "--warm-up",
        default=None,
        section=HINTS,
        read="seconds",
        metavar="TIME",
        limits={"gt": 0, "le": MAX_TIME_S},
        memory=False,
        show="warm-up",
        help="a made-up option",
    )
"""
PAGES = ("reference/commands.md", "reference/http-api.md")


def extend_the_table() -> None:
    stated = (ROOT / "carmad/options.py").read_text(encoding="utf-8")
    begin = "    gpus: int = option("
    assert stated.count(begin) == 1
    sys.modules["carmad.options"] = module = ModuleType("carmad.options")
    exec(compile(stated.replace(begin, ENTRY + begin), "options.py", "exec"), vars(module))


def carma(*words: str) -> str:
    from cli.main import run

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run([*words]) == 0
    return printed.getvalue()


def found(folder: Path) -> dict[str, Any]:
    from carma_testing import a_spec
    from carmad.estimates.asking import _alike
    from docs import generate
    from tests.api_server import running

    script = folder / "job.sh"
    script.write_text("#!/bin/sh\n#CARMA --warm-up 90s\n", encoding="utf-8")
    with running(folder) as daemon:
        os.environ["CARMA_SOCKET"] = daemon.path
        carma("submit", "--warm-up", "5m", "true")
        carma("submit", str(script))
        carma("submit", "--warm-up", "7m", str(script))
        carma("submit", "true")
        body = {"argv": ["true"], "cwd": "/", "warm_up_s": 0.0}
        return {
            "help": carma("submit", "--help"),
            "completion": carma("submit", "--help-all"),
            "stored": [daemon.store.job(id).spec.warm_up_s for id in (1, 2, 3, 4)],
            "answer": daemon.call("GET", "/v1/jobs/1")[1]["warm_up_s"],
            "show": [carma("show", str(id)) for id in (1, 4)],
            "out of limits": daemon.call("POST", "/v1/jobs", body),
            "pages": {name: generate.page(name) for name in PAGES},
            "one estimate": _alike(a_spec(warm_up_s=1.0), False) == _alike(a_spec(), False),
        }


if __name__ == "__main__":
    extend_the_table()
    with tempfile.TemporaryDirectory() as folder:
        result = found(Path(folder))
    print(json.dumps(result))

"""`python FOLDER OPTIONS script.py …`, `… -m module …`, `… -c code …`: run in the job's Python.

Becomes the package `carma_tracer`, so that neither its modules nor this folder hide the script's
own; then drops privileges and hands over to `script`.
"""

import importlib.util
import os
import sys
import time
from pathlib import Path

STARTED = time.monotonic()
FOLDER = Path(__file__).absolute().parent
CPU_S = 60.0  # on top of the time allowed: threads share it


def main() -> None:
    sys.dont_write_bytecode = True
    sys.path[:] = [path for path in sys.path if path != str(FOLDER)]
    spec = importlib.util.spec_from_file_location(
        "carma_tracer", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["carma_tracer"] = package
    spec.loader.exec_module(package)

    global __package__
    __package__ = "carma_tracer"
    from .answering import Answer, Clock
    from .command import Options
    from .confine import ASKED, GPUS, confine, limit, show_to_python
    from .scratch import Tree

    first, *words = sys.argv[1:]
    options = Options.loads(first)
    Tree().install()
    confine()
    os.environ.update(ASKED)
    name = "GPU-{:08x}-0000-0000-0000-000000000000" if options.has_uuids else "{}"
    made_up = ",".join(map(name.format, range(options.gpus)))
    show_to_python(GPUS, os.environ.get(GPUS) or made_up)
    limit(options.host_memory_mib, options.longest_s + CPU_S)
    answer = Answer(Clock(STARTED), options)
    answer.clock.install()
    try:
        import torch  # noqa: F401
    except ImportError as error:
        from . import foreign
        from .blame import missing_torch

        how = missing_torch(words[0]) if error.name == "torch" else ""
        if how:
            answer.crash(how)
        if used := foreign.find_named(words[0]):
            answer.refuse(f"it uses {used}, and {foreign.ADVICE}")
        answer.refuse(f"its Python cannot import torch: {error}")
    from .fakecuda import Unfit
    from .script import Trace

    try:
        trace = Trace(options, answer)
    except Unfit as error:
        answer.refuse(str(error))
    if options.note:
        trace.recorder.note(options.note)
    trace.run(words)


main()

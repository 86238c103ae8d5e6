"""A wheel of the Python client alone, made of the files that are installed here: `client-wheel`.

Programs install it in their own environment, whose Python may be older than CARMA's. As it comes
from the server itself, it fits its daemon, and no package index is asked for a name.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NotRequired, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

from carmad import CLIENT, paths
from carmad.api.actions import ResultOut
from carmad.api.events import EventOut
from carmad.api.job import JobOut
from carmad.installed import VERSION
from cli.problems import Problem

if TYPE_CHECKING:
    from argparse import Namespace

    from cli.parser import Parser

NEEDED = ("__init__", "errors", "options", "paths", "readable")  # of carmad
ANSWERS = (JobOut, ResultOut, EventOut)  # what type checkers are to know of the daemon
TAG = "py3-none-any"
HEADER = """\
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict
"""


def client_wheel_options(parser: Parser) -> None:
    parser.add_argument("folder", nargs="?", help="where to put it; default: ~/.cache/carma/client")


def client_wheel(options: Namespace) -> int:
    """pip install "$(carma client-wheel)" installs the client in the environment that pip belongs
    to, with Python 3.8 or newer. It needs no other package.
    """
    folder = Path(options.folder or f"{paths.user_cache_dir()}/client")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        wheel = write_wheel(folder)
    except OSError as error:
        hint = "name another folder: carma client-wheel FOLDER"
        raise Problem(f"cannot write to {folder}: {error.strerror}", hint) from None
    print(wheel.absolute())
    return 0


def write_wheel(folder: Path) -> Path:
    version = "0" if VERSION == "source" else VERSION
    name = f"{CLIENT.replace('-', '_')}-{version}"
    info = f"{name}.dist-info"
    files = dict(_files()) | {
        f"{info}/METADATA": _metadata(version).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {TAG}\n".encode(),
        f"{info}/entry_points.txt": (
            b"[submitit]\nexecutor = carma_client.submitit:CarmaExecutor\n"
            b"job_environment = carma_client.submitit_job:CarmaJobEnvironment\n"
        ),
    }
    record = f"{info}/RECORD"
    lines = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    wheel = folder / f"{name}-{TAG}.whl"
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    part.replace(wheel)
    return wheel


def _metadata(version: str) -> str:
    return (
        f"Metadata-Version: 2.1\nName: {CLIENT}\nVersion: {version}\n"
        "Summary: The Python client of CARMA, a resource manager for a shared GPU server\n"
        "License: Apache-2.0\nRequires-Python: >=3.8\n"
    )


def _digest(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _files() -> Iterator[tuple[str, bytes]]:
    """By their paths in the wheel."""
    for path in sorted(_folder("carma_client").glob("*.py")):
        yield f"carma_client/{path.name}", path.read_bytes()
    for name in NEEDED:
        yield f"carmad/{name}.py", (_folder("carmad") / f"{name}.py").read_bytes()
    for package in ("carma_client", "carmad"):
        yield f"{package}/py.typed", b""
    yield "carmad/api/__init__.pyi", b""
    for answer in ANSWERS:
        yield f"{answer.__module__.replace('.', '/')}.pyi", _stub(answer).encode()
    launcher = find_spec("hydra_plugins.carma_launcher")
    if launcher and launcher.origin:
        yield "hydra_plugins/carma_launcher.py", Path(launcher.origin).read_bytes()


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec and spec.origin
    return Path(spec.origin).parent


def _stub(answer: Any) -> str:
    """The shape of an answer, and those of its parts, for type checkers: the daemon's own modules
    need more than the wheel has."""
    shapes, written = [answer], []
    for shape in shapes:  # it grows
        hints = get_type_hints(shape, include_extras=True)
        for name in shape.__optional_keys__:  # those of a base may not say so themselves
            if _origin(hints[name]) is not NotRequired:
                hints[name] = NotRequired[hints[name]]
        lines = [f"    {name}: {_word(hint, shapes)}" for name, hint in hints.items()]
        written.append("\n".join([f"class {shape.__name__}(TypedDict):", *lines]))
    return "\n\n".join([HEADER, *written, ""])


def _origin(hint: Any) -> Any:
    return get_origin(hint)


def _word(hint: Any, shapes: list[Any]) -> str:
    """The type as a word of a stub; shapes that it names are added."""
    origin, args = _origin(hint), get_args(hint)
    if hint in (None, NoneType):
        return "None"
    if hint is Any:
        return "Any"
    if is_typeddict(hint):
        if hint not in shapes:
            shapes.append(hint)
        return str(hint.__name__)
    if origin in (Union, UnionType):
        return " | ".join(_word(each, shapes) for each in args)
    if hasattr(hint, "__metadata__"):
        return _word(args[0], shapes)
    if origin is NotRequired:
        return f"NotRequired[{_word(args[0], shapes)}]"
    if origin is None:
        return str(hint.__name__)
    inner = (repr(each) if isinstance(each, str) else _word(each, shapes) for each in args)
    return f"{origin.__name__}[{', '.join(inner)}]"

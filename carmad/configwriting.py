"""Settings get into a settings file, whose other content and comments stay."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from carmad import configfile
from carmad.errors import CarmaError

Setting = bool | int | float | str


def settings_text(settings: Mapping[str, Setting]) -> str:
    """As a settings file of its own."""
    return merge_settings("", settings)


def merge_settings(text: str, settings: Mapping[str, Setting]) -> str:
    """`text` with `settings`, given by their whole names, in it. Raises CarmaError."""
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise CarmaError(f"the settings file is not valid TOML: {error}") from error
    for name, value in settings.items():
        *above, key = name.split(".")
        table: Table | tomlkit.TOMLDocument = document
        for group in above:
            table = table.setdefault(group, tomlkit.table())
        table[key] = value
    return tomlkit.dumps(document).rstrip("\n") + "\n"


def write_settings(path: Path, settings: Mapping[str, Setting]) -> None:
    """Replaces the file as a whole, of a link the one that it leads to. Raises CarmaError, also if
    carmad would not take it."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        hint = f"start carmad with one that has:\n{settings_text(settings)}"
        raise CarmaError(f"{path} is not a file that could be changed", hint)
    draft = path.with_name(f".{path.name}.new")
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(merge_settings(text, settings), encoding="utf-8")
        configfile.load(draft, {})
        if path.exists():
            draft.chmod(path.stat().st_mode & 0o7777)
        draft.replace(path)
    except OSError as error:
        hint = f"add to it:\n{settings_text(settings)}"
        raise CarmaError(f"cannot write {path}: {error.strerror}", hint) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)

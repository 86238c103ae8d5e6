"""Settings from a TOML file and the environment, checked; and back to TOML for `carma config show`.

The environment wins over the file: CARMA_POLICY=rr, CARMA_MONITOR__WINDOW_S=5. What a policy,
estimator or telemetry source is called is for those who look it up to check.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from carmad.config import Preconditions, Settings
from carmad.errors import CarmaError

_Key = tuple[str, ...]
_Tree = dict[str, Any]

_PREFIX = "CARMA_"
_SETTINGS = TypeAdapter(Settings)


def _leaves(tree: _Tree, above: _Key = ()) -> Iterator[tuple[_Key, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


_DEFAULTS = dict(_leaves(asdict(Settings())))
_POLICY_KEYS = {field.name for field in fields(Preconditions)}  # below policies.NAME
_SECTIONS = {key[:-1] for key in _DEFAULTS} | {("policies",)}
_WEIGHTS = [("risk", name) for name in ("mean", "median", "p95", "ema")]
# What settings were called in earlier releases; None: they are gone, and change nothing.
_FORMER: dict[_Key, _Key | None] = {
    ("monitor", "outsider_mib"): ("monitor", "external_mib"),
    ("retention", "events_days"): None,
}
_POSITIVE = {
    ("monitor", "period_s"),
    ("monitor", "window_s"),
    ("collocation", "max_jobs_per_gpu"),
}


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings in effect. `path` None: there is no file."""
    tree = {} if path is None else _read(path)
    _rename(tree)
    variables = {key: name for name in environ if (key := _key_of(name)) is not None}
    sources = _Sources(path, variables)
    for key, _ in _leaves(tree):
        sources.expect_setting(key)
    # Strict, so that "5" is no number; and as JSON, where a strict dataclass may be a table.
    in_file = json.dumps(tree, default=str)
    sources.validated(lambda: _SETTINGS.validate_json(in_file, strict=True))
    for key, name in variables.items():
        sources.expect_setting(key)
        _put(tree, key, environ[name])
    return _checked(tree, sources)


def changed(settings: Settings, words: Iterable[str]) -> Settings:
    """`settings` with the words of `--set WORD` over them: monitor.window_s=5."""
    tree = asdict(settings)
    options = dict(map(_assignment, words))
    sources = _Sources(None, {}, options)
    for key, value in options.items():
        sources.expect_setting(key)
        if key in _SECTIONS:
            raise sources.error(key, "is a group of settings, and not one of them")
        _put(tree, key, value)
    return _checked(tree, sources)


def by_name(settings: Settings) -> dict[str, Any]:
    """Every setting under its whole name, such as "monitor.window_s"."""
    return {".".join(key): value for key, value in _leaves(asdict(settings))}


def dump(settings: Settings) -> str:
    """TOML that `load` reads back as the same settings."""
    lines: list[str] = []
    _write(asdict(settings), (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


class _Sources:
    """Where each setting was given, to name it when it is wrong."""

    def __init__(
        self, path: Path | None, variables: Mapping[_Key, str], options: Collection[_Key] = ()
    ) -> None:
        self._path = path
        self._variables = variables
        self._options = options

    def error(self, key: _Key, wrong: str) -> CarmaError:
        default = _DEFAULTS.get(key)
        hint = "" if default is None else f"The default is {_value(default)}."
        return CarmaError(f"{self._where(key)} {wrong}", hint)

    def expect_setting(self, key: _Key) -> None:
        in_policy = len(key) == 3 and key[0] == "policies" and key[2] in _POLICY_KEYS
        if key in _DEFAULTS or key in _SECTIONS or in_policy:
            return
        names = [".".join(known) for known in _DEFAULTS]
        if key[0] == "policies":
            names = [".".join(("policies", *key[1:2], name)) for name in _POLICY_KEYS]
        hint = "`carma config show` lists all of them."
        for near in difflib.get_close_matches(".".join(key), names, n=1):
            variable = _PREFIX + near.upper().replace(".", "__")
            hint = f"Did you mean {variable if key in self._variables else near}?"
        raise CarmaError(f"{self._where(key)} is not a setting", hint)

    def validated(self, validate: Callable[[], Settings]) -> Settings:
        try:
            return validate()
        except ValidationError as error:
            first = error.errors()[0]
            key = tuple(str(part) for part in first["loc"])
            what = first["msg"].removeprefix("Input ")
            if first["type"] in {"dataclass_type", "dict_type"}:
                what = "should be a table"
            raise self.error(key, f"{what}, and not {first['input']!r}") from None

    def _where(self, key: _Key) -> str:
        if name := self._variables.get(key):
            return f"the environment variable {name}"
        if key in self._options:
            return f"--set {'.'.join(key)}"
        return f"{self._path}: {'.'.join(key)}" if self._path else ".".join(key)


def _read(path: Path) -> _Tree:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CarmaError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CarmaError(
            f"{path} is not valid TOML: {error}", "See https://toml.io for the format."
        ) from error


def _key_of(variable: str) -> _Key | None:
    """The setting that a variable is meant for; None for CARMA_SOCKET, CARMA_JOB_ID and others."""
    name = variable.removeprefix(_PREFIX)
    key = tuple(name.lower().split("__"))
    meant = name != variable and (len(key) > 1 or key in _DEFAULTS)
    return _FORMER.get(key, key) if meant else None


def _rename(tree: _Tree) -> None:
    """Give settings of earlier releases their names of today."""
    for (section, name), now in _FORMER.items():
        group = tree.get(section)
        if isinstance(group, dict) and name in group:
            value = group.pop(name)
            if now is not None:
                tree.setdefault(now[0], {}).setdefault(now[1], value)


def _assignment(word: str) -> tuple[_Key, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise CarmaError(f"--set {word} has no value", "as in --set monitor.window_s=5")
    return tuple(name.split(".")), value


def _checked(tree: _Tree, sources: _Sources) -> Settings:
    settings = sources.validated(lambda: _SETTINGS.validate_python(tree))
    for key, wrong in _faults(settings):
        raise sources.error(key, wrong)
    return settings


def _put(tree: _Tree, key: _Key, value: str) -> None:
    for name in key[:-1]:
        tree = tree.setdefault(name, {})
    tree[key[-1]] = value


def _faults(settings: Settings) -> Iterator[tuple[_Key, str]]:
    """What types cannot say."""
    values = dict(_leaves(asdict(settings)))
    if settings.policy_fallback and settings.policy_fallback == settings.policy:
        yield ("policy_fallback",), "is the policy itself, and should be another"
    for key, value in values.items():
        if not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            yield key, f"is {value}, and should be a finite number"
        if value < 0 or (value == 0 and key in _POSITIVE):
            least = "more than 0" if key in _POSITIVE else "0 or more"
            yield key, f"is {value}, and should be {least}"
        if key[0] == "risk" and value > 1:
            yield key, f"is {value}, and should be between 0 and 1"
    weights = sum(values[key] for key in _WEIGHTS)
    if not math.isclose(weights, 1.0, abs_tol=1e-6):
        names = ", ".join(name for _, name in _WEIGHTS)
        yield ("risk",), f"has weights ({names}) that add up to {weights:g}, and should to 1"
    period = settings.monitor.period_s
    for name in ("window_s", "stale_s"):
        value = values["monitor", name]
        if value < period:
            yield (
                ("monitor", name),
                f"is {value}, and should be no less than monitor.period_s, {period}",
            )


def _write(table: _Tree, name: _Key, lines: list[str]) -> None:
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if name and values:
        lines.append(f"\n[{'.'.join(map(_bare, name))}]")
    for key, value in values.items():
        # TOML has no null: a setting that has no value is one that is not there.
        lines.append(f"# {key} is not set" if value is None else f"{key} = {_value(value)}")
    for key, value in table.items():
        if isinstance(value, dict):
            _write(value, (*name, key), lines)


def _bare(name: str) -> str:
    plain = name.replace("_", "").replace("-", "")
    return name if plain.isascii() and plain.isalnum() else _value(name)


def _value(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            # JSON's escapes are TOML's, but for one control character that JSON leaves as it is.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return str(value)

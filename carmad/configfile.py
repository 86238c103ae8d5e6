"""Reads and checks settings from a TOML file and the environment; writes TOML for `carma config
show`.

The environment overrides the file: CARMA_POLICY=rr, CARMA_MONITOR__WINDOW_S=5. Plugins declare
their settings, which are checked like CARMA's own. Names of policies, estimators and telemetry
sources are checked where they are looked up.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from carmad import registry
from carmad.config import POLICY, Preconditions, Settings
from carmad.core.gpus.idling import ladder
from carmad.errors import CarmaError

T = TypeVar("T")

_Key = tuple[str, ...]
_Tree = dict[str, Any]

_PREFIX = "CARMA_"


def _leaves(tree: _Tree, above: _Key = ()) -> Iterator[tuple[_Key, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


_POLICY_KEYS = {field.name for field in fields(Preconditions)}  # below policies.NAME
_WEIGHTS = [("risk", name) for name in ("mean", "median", "p95", "ema")]
_WEIGHTS_OF_USERS = ("fairness", "weights")


@cache
def _defaults() -> dict[_Key, Any]:
    return dict(_leaves(as_tree(Settings(preconditions=Preconditions()))))


@cache
def _sections() -> set[_Key]:
    kinds = {key[:1] for key in registry.settings_of_plugins()}
    return {key[:-1] for key in _defaults()} | kinds | {("policies",), _WEIGHTS_OF_USERS}


def as_tree(settings: Settings) -> _Tree:
    """Nested tables, as in a settings file: plugins' settings are below kind and name."""
    tree = asdict(settings)
    given = tree.pop("plugins")
    del tree["origins"]
    for (kind, name), declared in registry.settings_of_plugins().items():
        own = asdict(declared()) | given.get(f"{kind}.{name}", {})
        tree.setdefault(kind, {}).setdefault(name, {}).update(own)
    return tree


def from_tree(tree: _Tree, origins: Mapping[str, str]) -> Settings:
    """The settings of which this is the tree."""
    return replace(_validate(tree, _Sources(None, {})), origins=dict(origins))


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings in effect. `path` None: there is no file."""
    tree = {} if path is None else _read(path)
    variables = {key: name for name in environ if (key := _key_of(name))}
    words = {key: f"the environment variable {name}" for key, name in variables.items()}
    sources = _Sources(path, words)
    for key, _ in _leaves(tree):
        sources.expect_setting(key)
    _settings(tree, sources, strict=True)  # so that "5" is no number
    origins = {_name(key): "file" for key, _ in _leaves(tree)}
    for key, name in variables.items():
        sources.expect_setting(key)
        _put(tree, key, environ[name])
        origins[_name(key)] = "environment"
    return _complete(tree, origins, sources)


def change(settings: Settings, words: Iterable[str]) -> Settings:
    """`settings` changed by `--set` arguments: monitor.window_s=5. With another policy comes what
    that one's system has, in place of the last one's."""
    tree, origins = as_tree(settings), dict[str, str]()
    for key, value in _leaves(tree):
        origin, usual = settings.origins.get(_name(key)), _defaults().get(key)
        if origin == POLICY:
            _put(tree, key, usual)
        elif origin or value != usual:
            origins[_name(key)] = origin or "a program"
    options = dict(map(_assignment, words))
    sources = _Sources(None, {key: f"--set {_name(key)}" for key in options})
    for key, text in options.items():
        sources.expect_setting(key)
        _put(tree, key, text)
        origins[_name(key)] = "--set"
    return _complete(tree, origins, sources)


def address(text: str) -> tuple[str, int] | None:
    """The host and the port in "127.0.0.1:9430" or "[::1]:9430"; None: it is no such thing."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    whole = parts.netloc == text and parts.username is None
    return (host, port) if whole and host and port else None


def by_name(settings: Settings) -> dict[str, Any]:
    """Every setting by its full name, such as "monitor.window_s"."""
    return {_name(key): value for key, value in _leaves(as_tree(settings))}


def dump(settings: Settings) -> str:
    """TOML that `load` reads back as the same settings. A comment says where each comes from, if it
    is not the default."""
    lines: list[str] = []
    _write(as_tree(settings), (), settings.origins, lines)
    return "\n".join(lines).lstrip("\n") + "\n"


class _Sources:
    """Where each setting was given, for error messages. `words`: of those that no file has."""

    def __init__(self, path: Path | None, words: dict[_Key, str]) -> None:
        self._path = path
        self.words = words

    def error(self, key: _Key, wrong: str) -> CarmaError:
        default = _defaults().get(key)
        hint = "" if default is None else f"The default is {_value(default)}."
        return CarmaError(f"{self._where(key)} {wrong}", hint)

    def expect_setting(self, key: _Key) -> None:
        weight = len(key) == 3 and key[:2] == _WEIGHTS_OF_USERS
        in_policy = len(key) == 3 and key[0] == "policies" and key[2] in _POLICY_KEYS
        if key in _defaults() or in_policy or weight:
            return
        if key in _sections():
            raise self.error(key, "is a group of settings, not a setting")
        names = [*map(_name, _defaults())]
        if key[0] == "policies":
            own = [_name(known) for known in _defaults() if known[:2] == key[:2]]
            names = [".".join(("policies", *key[1:2], name)) for name in _POLICY_KEYS] + own
        hint = "`carma config show` lists all of them."
        for near in difflib.get_close_matches(_name(key), names, n=1):
            variable = _PREFIX + near.upper().replace(".", "__")
            hint = f"Did you mean {variable if _PREFIX in self.words.get(key, '') else near}?"
        raise CarmaError(f"{self._where(key)} is not a setting", hint)

    def validate(self, validate: Callable[[], T], below: _Key = ()) -> T:
        """`below`: the value's place in the settings."""
        try:
            return validate()
        except ValidationError as error:
            first = error.errors()[0]
            key = (*below, *(str(part) for part in first["loc"]))
            if key[:-1] in _defaults():  # of several types that it may have, the first
                key = key[:-1]
            what = first["msg"].removeprefix("Input ")
            raise self.error(key, f"{what}, not {first['input']!r}") from None

    def _where(self, key: _Key) -> str:
        in_file = f"{self._path}: {_name(key)}" if self._path else _name(key)
        return self.words.get(key, in_file)


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
    """The setting of a variable; None for CARMA_SOCKET, CARMA_JOB_ID and others."""
    name = variable.removeprefix(_PREFIX)
    key = tuple(name.lower().split("__"))
    meant = name != variable and (len(key) > 1 or key in _defaults())
    return key if meant else None


def _assignment(word: str) -> tuple[_Key, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise CarmaError(f"--set {word} has no value", "as in --set monitor.window_s=5")
    key = tuple(name.split("."))
    return key, value


def _complete(tree: _Tree, origins: dict[str, str], sources: _Sources) -> Settings:
    """With what the policy's system has, where `origins` does not say that it is set."""
    policy = tree.get("policy", _defaults()["policy",])
    system = registry.systems().get(policy)
    for name, value in (system.settings if system else {}).items():
        if name not in origins:
            key = tuple(name.split("."))
            sources.words[key] = f"{name}, as the system of the policy {policy} has it,"
            sources.expect_setting(key)
            _put(tree, key, value)
            origins[name] = POLICY
    return replace(_validate(tree, sources), origins=origins)


def _validate(tree: _Tree, sources: _Sources) -> Settings:
    settings = _settings(tree, sources, strict=False)
    for key, wrong in _faults(settings):
        raise sources.error(key, wrong)
    return settings


def _settings(tree: _Tree, sources: _Sources, strict: bool) -> Settings:
    """Only those settings of plugins that differ from the default are kept."""
    rest = {**tree}
    plugins: dict[str, _Tree] = {}
    for (kind, name), declared in registry.settings_of_plugins().items():
        table = rest.get(kind)
        if not isinstance(table, dict) or not isinstance(table.get(name), dict):
            continue
        names = {field.name for field in fields(declared)}
        own = {key: value for key, value in table[name].items() if key in names}
        others = {key: value for key, value in table[name].items() if key not in names}
        rest[kind] = {key: value for key, value in table.items() if key != name}
        if others or not own:  # an empty table of a policy has preconditions: the defaults
            rest[kind][name] = others
        value = _of_type(declared, own, sources, strict, (kind, name))
        usual = asdict(declared())
        given = {key: value for key, value in asdict(value).items() if value != usual[key]}
        plugins |= {f"{kind}.{name}": given} if given else {}
    settings: Settings = _of_type(Settings, rest, sources, strict)
    return replace(settings, plugins=plugins)


def _of_type(type_: type, tree: _Tree, sources: _Sources, strict: bool, at: _Key = ()) -> Any:
    adapter = _adapter(type_)
    if not strict:
        return sources.validate(lambda: adapter.validate_python(tree), at)
    # As JSON, from which even a strict dataclass accepts a table.
    text = json.dumps(tree, default=str)
    return sources.validate(lambda: adapter.validate_json(text, strict=True), at)


@cache
def _adapter(type_: type) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


def _name(key: _Key) -> str:
    return ".".join(key)


def _put(tree: _Tree, key: _Key, value: object) -> None:
    for name in key[:-1]:
        if tree.get(name) is None:
            tree[name] = {}
        tree = tree[name]
    tree[key[-1]] = value


def _faults(settings: Settings) -> Iterator[tuple[_Key, str]]:
    """Checks beyond those of one setting's type."""
    values = dict(_leaves(as_tree(settings)))
    if settings.policy_fallback and settings.policy_fallback == settings.policy:
        yield ("policy_fallback",), "is the policy itself, but should be another"
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            yield key, f"is {value}, but should be a finite number"
    if settings.metrics.listen and address(settings.metrics.listen) is None:
        yield ("metrics", "listen"), "should be an address and a port, such as 127.0.0.1:9430"
    for name in ("batch", "hung"):
        try:
            ladder(values["idle", name])
        except CarmaError as error:
            yield ("idle", name), f"cannot be read: {error}, {error.hint}"
    whom = settings.notify.administrators
    if "@" in whom and "/" not in whom and not settings.notify.mail:
        yield ("notify", "administrators"), "is a mail address, but notify.mail is not set"
    weights = sum(values[key] for key in _WEIGHTS)
    if not math.isclose(weights, 1.0, abs_tol=1e-6):
        names = ", ".join(name for _, name in _WEIGHTS)
        yield ("risk",), f"has weights ({names}) that add up to {weights:g} instead of 1"
    period = settings.monitor.period_s
    for name in ("window_s", "known_window_s", "stale_s"):
        value = values["monitor", name]
        if value is not None and value < period:
            yield (
                ("monitor", name),
                f"is {value}, but should be at least monitor.period_s, {period}",
            )


def _write(table: _Tree, name: _Key, origins: Mapping[str, str], lines: list[str]) -> None:
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if name and values:
        lines.append(f"\n[{'.'.join(map(_bare, name))}]")
    for key, value in values.items():
        # TOML has no null: a setting without a value is left out.
        line = f"# {key} is not set" if value is None else f"{key} = {_value(value)}"
        origin = origins.get(_name((*name, key)))
        lines.append(f"{line}  # {origin}" if origin else line)
    for key, value in table.items():
        if isinstance(value, dict):
            _write(value, (*name, key), origins, lines)


def _bare(name: str) -> str:
    plain = name.replace("_", "").replace("-", "")
    return name if plain.isascii() and plain.isalnum() else _value(name)


def _value(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            # JSON's escapes are valid in TOML, except that JSON leaves one control character as is.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return str(value)

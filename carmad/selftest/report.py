"""What the self-test found, as a value and as JSON: what a bug report should attach."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from carmad.configwriting import Setting

SCHEMA = 1

Value = bool | int | float | str


class Verdict(StrEnum):
    HOLDS = "holds"
    DIFFERS = "differs"
    UNKNOWN = "cannot be told here"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one check found. The names in `observed` end with the unit; `settings` are those to
    change, by their whole names."""

    verdict: Verdict
    detail: str
    observed: Mapping[str, Value] = field(default_factory=dict)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    failed: bool = False  # the check was not completed: it may be another time


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Seen):
    """What the check of one fact (`facts`) found."""

    fact: str  # its name


@dataclass(frozen=True, slots=True)
class Report:
    gpu: str
    memory_mib: int
    driver: str
    cuda: str
    date: str  # ISO 8601, UTC
    carma: str
    user: str  # root or user
    findings: tuple[Finding, ...]
    schema: int = SCHEMA

    @property
    def settings(self) -> dict[str, Setting]:
        """All that should be changed."""
        return {name: its for found in self.findings for name, its in found.settings.items()}

    @property
    def differs(self) -> bool:
        return any(found.verdict is Verdict.DIFFERS for found in self.findings)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


def judge(
    holds: bool,
    detail: str,
    settings: Mapping[str, Setting] | None = None,
    /,
    **observed: Value | None,
) -> Seen:
    """`settings` to change where it does not hold. None is not observed."""
    verdict = Verdict.HOLDS if holds else Verdict.DIFFERS
    seen = {name: its for name, its in observed.items() if its is not None}
    rounded = {name: round(v, 3) if type(v) is float else v for name, v in seen.items()}
    return Seen(verdict, detail, rounded, {} if holds else settings or {})


def incomplete(why: str) -> Seen:
    return Seen(Verdict.UNKNOWN, why, failed=True)


def unknown(why: str, **observed: Value) -> Seen:
    return Seen(Verdict.UNKNOWN, why, observed)

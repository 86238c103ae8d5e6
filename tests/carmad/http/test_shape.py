"""What is refused before parsing, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carmad.errors import CarmaError
from carmad.http import bounds as shape
from carmad.http.bounds import require_modest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\[]{},:é\n'),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(alphabet='a"\\[{,'), inside),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("bomb", "of"),
    [
        (b"[" + b"[]," * 2_000_000 + b"[]]", "values"),
        (b"[" * 8_000_000, "lists and objects"),
        (b"]" * 8_000_000, "lists and objects"),
        (b'{"a":' * 1_000_000, "strings"),
        (b"[" * 17 + b"]" * 17, "levels of lists and objects"),
        (b'["",' * 200_000, "strings"),
        (b"[" + b"0," * 4_000_000 + b"0]", "values"),
        (b'"' * 8_000_000, "strings"),
        (b'["\\\\",' * 200_000, "strings"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:6]),
)
def test_bombs_are_refused(bomb: bytes, of: str) -> None:
    with pytest.raises(CarmaError, match=of):
        require_modest(bomb)


BRACKETS = b"[" * 20
STRINGS = (BRACKETS, b"," * 5_000_000, b'\\"[' * 1_000_000, b"\\\\" * 1_000_000)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"\xff", b"{", b'"', *(b'["' + string + b'"]' for string in STRINGS)],
    ids=lambda text: repr(text[:6]),
)
def test_what_strings_hold_does_not_count(text: bytes) -> None:
    require_modest(text)


def test_the_largest_request_is_modest_enough() -> None:
    argv = ['x,[{\\"'] * 10_000
    env = {f"V{n}": '[{"a": 1}]' for n in range(10_000)}
    array = {"indices": list(range(10_000)), "limit": 3}
    after = [{"job": str(n), "kind": "afterok"} for n in range(1000)]
    layout = {"stages": [{"replicas": 1, "forward_s": 1.0}] * 1024}
    body = {"argv": argv, "env": env, "export": env, "array": array, "after": after}
    require_modest(json.dumps({**body, "layout": layout}).encode())


def _counted(value: object, depth: int = 1) -> tuple[int, int]:
    """Containers, and how deep they go."""
    if not isinstance(value, list | dict):
        return 0, 0
    inside = [_counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    deepest = max((deep for _, deep in inside), default=0)
    return 1 + sum(count for count, _ in inside), 1 + deepest


@given(JSON, st.booleans())
def test_it_counts_as_a_parser_does(value: object, ascii: bool) -> None:
    count, deep = _counted(value)
    text = json.dumps(value, ensure_ascii=ascii).encode()
    for name, true in (("MOST_CONTAINERS", count), ("MOST_DEPTH", deep)):
        if true:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(shape, name, true)
                require_modest(text)
                patch.setattr(shape, name, true - 1)
                with pytest.raises(CarmaError):
                    require_modest(text)

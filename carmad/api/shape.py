"""How much a JSON text has in it, before it is parsed: few bytes can become many in memory."""

from __future__ import annotations

from carmad.errors import CarmaError

MOST_STRINGS = 100_000
MOST_VALUES = 100_000
MOST_CONTAINERS = 4096
MOST_DEPTH = 16
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def require_modest(text: bytes) -> None:
    """Raises CarmaError for what has more in it than any request needs.

    What is not JSON is left to the parser, which stops where JSON ends and the counts go wrong.
    """
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote left is a string's end
    _require("strings", plain.count(b'"') // 2, MOST_STRINGS)
    outside = b"".join(plain.split(b'"')[::2])
    _require("values", outside.count(b","), MOST_VALUES)
    brackets = outside.translate(None, _NO_BRACKETS)
    _require("lists and objects", (len(brackets) + 1) // 2, MOST_CONTAINERS)
    depth = deepest = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    _require("levels of lists and objects", deepest, MOST_DEPTH)


def _require(what: str, count: int, most: int) -> None:
    if count > most:
        raise CarmaError(f"the request has {count} {what}; at most {most} are allowed")

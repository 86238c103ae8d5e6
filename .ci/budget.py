"""Prints how many lines of Python each part has, and how many it may have: `[tool.carma.budget]` of
the pyproject.toml in this directory. Ends with 1 if a part has more: take lines away, or raise its
budget, and say why in CHANGELOG."""

import sys
import tomllib
from pathlib import Path


def count_lines(folder: str) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in Path(folder).rglob("*.py"))


def main() -> int:
    over = []
    budget = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["carma"]["budget"]
    for part, its in budget.items():
        lines, most = sum(map(count_lines, its["of"])), its["lines"]
        print(f"{part:15} {lines:>7,} of {most:>7,} lines")
        if lines > most:
            over.append(part)
    if over:
        print(f"over their budgets: {', '.join(over)} (pyproject.toml)", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

"""Sweeps: `--param` and `--params` of `carma submit`, as an array. Imports stay light."""

from __future__ import annotations

from carmad.options import MAX_PARAMS, MAX_TASKS
from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    Columns = dict[str, list[str]]  # the values of each parameter, one for each row

MAX_CHARACTERS = 8 << 20  # of a file: a request has no room for more


def swept(body: dict[str, Any], options: Namespace, plain: bool) -> dict[str, Any]:
    """The request with an array of a task for each combination. `plain`: a command, which gets the
    parameters that it does not mention as arguments."""
    array = body["array"] or {"indices": [], "limit": None}
    if array["indices"]:
        raise Usage("--param makes an array of its own", "with it, --array takes only %N")
    tables = _tables(options)
    names = [name for table in tables for name in table]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Usage(f"the parameter {twice} is given twice", "give each once, with all its values")
    if len(names) > MAX_PARAMS:
        raise Usage(f"{len(names)} parameters: at most {MAX_PARAMS} are allowed")
    columns: Columns = {}
    count = 1
    for table in tables:
        rows = len(next(iter(table.values())))
        count *= rows
        if count > MAX_TASKS:
            raise Usage(f"there are more than {MAX_TASKS} combinations", "submit several sweeps")
        for name, its in columns.items():
            columns[name] = [each for each in its for _ in range(rows)]
        columns |= {name: its * (count // rows) for name, its in table.items()}
    argv = body["argv"]
    if plain:
        silent = [name for name in names if not any(f"{{{name}}}" in word for word in argv)]
        argv = [*argv, *(word for name in silent for word in (f"--{name}", f"{{{name}}}"))]
    array = {"indices": list(range(count)), "limit": array["limit"], "params": columns}
    return body | {"argv": argv, "array": array}


def _tables(options: Namespace) -> list[Columns]:
    """What is combined: the rows of the file, and each --param or, with --zip, all of them."""
    tables = [_read(options.params)] if options.params else []
    given = [{name: values} for name, values in options.param or ()]
    if not options.zip:
        return tables + given
    lengths = {name: len(values) for name, values in options.param or ()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise Usage(f"--zip takes as many values of each parameter: {said}")
    zipped = {name: values for table in given for name, values in table.items()}
    if len(zipped) < len(given):
        raise Usage("a parameter is given twice", "give each once, with all its values")
    return [*tables, zipped] if zipped else tables


def _read(path: str) -> Columns:
    """The columns of a CSV file."""
    import csv
    import io

    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # noqa: PTH123
            text = file.read(MAX_CHARACTERS + 1)  # it may never end
        if len(text) > MAX_CHARACTERS:
            raise Usage(f"{path} is larger than {MAX_CHARACTERS >> 20} MiB")
        header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row] or [[]]
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise Usage(f"{path} is not CSV in UTF-8: {error}") from None
    if not rows or len(rows) > MAX_TASKS:
        hint = f"after the row of names, 1 to {MAX_TASKS} rows are needed"
        raise Usage(f"{path} has {len(rows)} rows of values", hint)
    if odd := next((n for n, row in enumerate(rows, 2) if len(row) != len(header)), None):
        raise Usage(f"{path}: row {odd} does not have {len(header)} values")
    if len(set(header)) < len(header):
        raise Usage(f"{path} has two columns of the same name")
    from argparse import ArgumentTypeError

    from cli.parse import param

    for name in header:
        try:
            param(f"{name}=x")
        except ArgumentTypeError as error:
            raise Usage(f"{path}: {error}") from None
    return {name: [row[at].strip() for row in rows] for at, name in enumerate(header)}

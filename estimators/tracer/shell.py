"""The one Python command of a shell script, found by reading it: nothing is executed.

Understood are variables, arguments, `cd`, `export`, activated environments and the first turn of a
`for`; both branches of an `if` are read. Other commands have no effect: a script that has any that
could matter to the Python command says so (`Command.skipped`). Standard library only.
"""
# Few imports, as in `find`:
# ruff: noqa: PTH112, PTH118, PTH119, PTH120

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from estimators.tracer.command import PREFIXES, whole

MOST_BYTES = 1 << 20
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
TRAINERS = re.compile(r"python\d*(\.\d+)?t?|torchrun|accelerate|uv|ipython|papermill|deepspeed")
NO_TRAINING = frozenset(("--version", "-V", "config", "sync", "pip", "venv"))
HELPERS = frozenset(("pip", "venv", "ensurepip", "http.server", "site", "compileall"))
CONDITIONS = frozenset(
    ("if", "then", "else", "elif", "fi", "while", "until", "case", "esac", "!", "function")
)
WORDS = CONDITIONS | {"do", "done", "{", "}", "exec", "command"}
# Commands that change nothing the Python command could notice.
HARMLESS = frozenset(
    (
        *("echo", "shopt", "sleep", "wait", "date", "hostname", "whoami", "id"),
        *("uname", "nproc", "lscpu", "free", "df", "ls", "pwd", "which", "nvidia-smi", "true", ":"),
    )
)
# Variables that the shell sets, or CARMA for the job alone.
CHANGING = frozenset(
    (
        *("RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "HOSTNAME", "BASHPID"),
        *("PPID", "UID", "EUID", "LINENO", "CUDA_VISIBLE_DEVICES", "CARMA_GPU_MEM_MB"),
    )
)
ENDS = (";;", "&&", "||", ";", "\n", "&", "|", "(", ")")
UNKNOWN = "\0"  # in a word: what only running the script would tell
NEXT = "\1"  # between the words of "$@" and of arrays
SEVERAL = re.compile(r'"\$(?:@|\{@\}|\{\w+\[@\]\})"')
FUNCTION = re.compile(r"\(\s*\)\s*\{")
ARRAY = re.compile(r"([A-Za-z_]\w*)\+?=\(")
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?\n)??[ \t]*\2(?=\n|$)", re.DOTALL)
REDIRECTION = re.compile(r"(?:\d*|&)>>?\|?&?\d*|\d*<&?\d*")
NAME = r"[A-Za-z_]\w*"
VARIABLE = re.compile(
    rf"\$(?:({NAME}|[0-9@*#?$!-])"  # $12 is ${{1}}2
    rf"|\{{({NAME}|[0-9]+|[@*#])(?:\[[@*]\])?(?:(:?[-=])([^}}]*))?\}})"
)
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
OWN_FOLDER = re.compile(r"""\s*dirname\s+(--\s+)?"?\$\{?(0|BASH_SOURCE(\[0\])?)\}?"?\s*""")
CALL = re.compile(r"[\d)]\s*\(|\(\s*\)")  # to Python: not arithmetic
SUM = re.compile(r"[\d\s+\-/%()]*(?:\*(?!\*)[\d\s+\-/%()]+)*")


class Unclear(Exception):
    """There is no one Python command to be found; the message says why."""


class Command(NamedTuple):
    words: list[str]
    env: dict[str, str]
    cwd: str
    skipped: str = ""  # as in `Options`


def command(argv: Sequence[str], env: Mapping[str, str], cwd: str, gpus: int) -> Command:
    """The Python command that `sh script.sh …` or `sh -c text` runs. Raises Unclear, and OSError if
    the script cannot be read."""
    shell, *rest = argv
    flags = []
    while rest and re.fullmatch(r"[-+]\w+", rest[0]):
        flags.append(rest.pop(0))
    if not rest:
        raise Unclear(f"{shell} is given no script")
    name, *given = rest
    if any("c" in flag and flag.startswith("-") for flag in flags):
        text, name = name, given[0] if given else shell
        given = given[1:]
    else:
        name = os.path.join(cwd, name)
        text = beginning(name, MOST_BYTES).decode(errors="replace")
    script = _Script(env, cwd, [name, *given], gpus)
    if any("l" in flag or "i" in flag for flag in flags):
        script.skipped = "the shell's startup files were not read"
    script.read(text)
    if len(script.found) > 1:
        which = ", ".join(sorted({" ".join(argv[:2]) for argv, _, _ in script.found}))
        raise Unclear(f"it runs {len(script.found)} Python commands ({which}): submit one of them")
    if not script.found:
        raise Unclear("it runs no Python command")
    [(words, env, cwd)] = script.found
    skipped = script.skipped
    if any(UNKNOWN in word for word in words):
        raise Unclear(
            f"its command `{' '.join(words)}` is not known before it runs".replace(UNKNOWN, "…")
        )
    if unknown := [name for name, value in env.items() if UNKNOWN in value]:
        skipped = skipped or f"{unknown[0]} is not known before it runs"
    # Shells do not pass arrays on.
    env = {name: it for name, it in env.items() if name not in unknown and NEXT not in it}
    return Command(words, env, cwd, skipped)


def beginning(path: str, most: int) -> bytes:
    """The first bytes of a regular file, none of anything else. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.read(fd, most) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


class _Script:
    def __init__(self, env: Mapping[str, str], cwd: str, args: list[str], gpus: int) -> None:
        self.found: list[tuple[list[str], dict[str, str], str]] = []
        self.skipped = ""
        self._env = dict(env)
        self._own: dict[str, str] = {}  # variables that are not exported
        self._cwd, self._args, self._gpus = cwd, args, gpus
        self._in_function = False
        self._redirected = False

    def _skip(self, what: str) -> None:
        """Something before the Python command has no effect here, but would have one."""
        if not self.found:
            self.skipped = self.skipped or what

    def read(self, text: str) -> None:
        text = HEREDOC.sub("<&-", text.replace("\\\n", " "))
        at, words = 0, []  # type: int, list[str]
        while at < len(text):
            if not words and (match := ARRAY.match(text, at)):
                at = self._array(match[1], text, match.end())
            elif match := FUNCTION.match(text, at):
                words, at, self._in_function = [], match.end(), True
                self._skip("its functions were not called")
            elif end := next((end for end in ENDS if text.startswith(end, at)), ""):
                self._run(words)
                if end == "|":
                    self._skip("its input was left out")
                words, at = [], at + len(end)
            elif text[at].isspace():
                at += 1
            elif text[at] == "#":
                at = text.find("\n", at) % (len(text) + 1)
            elif match := REDIRECTION.match(text, at):
                at = match.end()
                if "<" in match[0]:
                    self._skip("its input was left out")
                if not match[0][-1].isdigit() and text[at : at + 1] not in ("-",):
                    file, at = self._word(text, at + len(text[at:]) - len(text[at:].lstrip(" \t")))
                    self._redirected |= file != ["/dev/null"]
            else:
                more, at = self._word(text, at)
                words += more
        self._run(words)

    def _array(self, name: str, text: str, at: int) -> int:
        """NAME=(word …) and NAME+=(word …); returns where it ends."""
        words = self._own[name].split(NEXT) if name in self._own and text[at - 3] == "+" else []
        while at < len(text) and text[at] != ")":
            if text[at].isspace():
                at += 1
            else:
                more, at = self._word(text, at)
                words += more
        self._own[name] = NEXT.join(words)
        return at + 1

    def _word(self, text: str, at: int) -> tuple[list[str], int]:
        """The word that begins here, expanded, and where it ends. Unquoted variables with spaces
        are several words, or none."""
        parts, quoted, splits = [""], False, False
        while at < len(text):
            char = text[at]
            if char.isspace() or char in ";&|()<>":
                break
            if char == "'":
                end = text.find("'", at + 1) % (len(text) + 1)
                parts[-1] += text[at + 1 : end]
                at, quoted = end + 1, True
            elif char == '"':
                several = SEVERAL.match(text, at)
                value, at = self._read_quoted(text, at + 1)
                first, *others = value.split(NEXT)
                parts[-1] += first
                parts += others
                quoted, splits = quoted or not several, splits or bool(several)
            elif char == "\\":
                parts[-1] += text[at + 1 : at + 2]
                at += 2
            elif char in "$`":
                value, at = self._expand(text, at)
                first, *others = value.replace(NEXT, " ").split() or [""]
                splits = True
                parts[-1] += first
                parts += others
            elif char == "~" and parts == [""]:
                parts[-1] += self._env.get("HOME", "~")
                at += 1
            else:
                if char in "*?[{~" and len(text) > at + 1 and not text[at + 1].isspace():
                    self._skip("the shell's patterns were not expanded")
                parts[-1] += char
                at += 1
        return [part for part in parts if part or quoted or not splits], at

    def _read_quoted(self, text: str, at: int) -> tuple[str, int]:
        value = ""
        while at < len(text) and text[at] != '"':
            if text[at] == "\\" and text[at + 1 : at + 2] in {*'"\\$`'}:
                value += text[at + 1]
                at += 2
            elif text[at] in "$`":
                more, at = self._expand(text, at)
                value += more
            else:
                value += text[at]
                at += 1
        return value, at + 1

    def _expand(self, text: str, at: int) -> tuple[str, int]:
        """What begins with $ or a backquote."""
        if text[at] == "`":
            end = text.find("`", at + 1) % (len(text) + 1)
            return self._output(text[at + 1 : end]), end + 1
        if text.startswith("$(", at):
            end = _closing(text, at + 1)
            inside = text[at + 2 : end]
            if inside.startswith("("):
                return self._sum(inside[1:-1]), end + 1
            return self._output(inside), end + 1
        if match := VARIABLE.match(text, at):
            return self._value(match), match.end()
        if text.startswith("${", at):
            return UNKNOWN, text.find("}", at) % len(text) + 1
        return "$", at + 1

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if self._in_function and (name.isdigit() or name in "@*#"):
            value = UNKNOWN
        elif name.isdigit():
            value = self._args[int(name)] if int(name) < len(self._args) else ""
        elif name in "@*":
            value = NEXT.join(self._args[1:])
        elif name in "#?$!-":
            value = str(len(self._args) - 1) if name == "#" else UNKNOWN
        elif name == "PWD":
            value = self._cwd
        else:
            value = self._own.get(name, self._env.get(name, ""))
            value = value or UNKNOWN * (name in CHANGING)
            if "[" not in match[0]:  # an array's first element
                value = value.partition(NEXT)[0]
        if "*" in match[0]:
            value = value.replace(NEXT, " ")
        if not value and match[3]:
            value = self._read_quoted(match[4].strip("\"'"), 0)[0]
            if "=" in match[3]:
                self._own[name] = value
        return value

    def _sum(self, text: str) -> str:
        values = re.sub(
            r"\$?\{?([A-Za-z_]\w*)\}?",
            lambda m: self._own.get(m[1], self._env.get(m[1], "0")),
            text,
        )
        if len(values) > 100 or not SUM.fullmatch(values) or CALL.search(values):
            return UNKNOWN
        try:
            return str(eval(values.replace("/", "//")))  # digits and + - * / % ( ) alone
        except (SyntaxError, ArithmeticError):
            return UNKNOWN

    def _output(self, text: str) -> str:
        """Of a few commands, whose output is known or does not matter."""
        name = text.split()[0] if text.split() else ""
        if name == "dirname" or (name == "cd" and "dirname" in text):
            if not OWN_FOLDER.fullmatch(text):
                self._skip(f"the output of `{name}` was guessed")
            return os.path.dirname(self._args[0]) or "."
        if name == "pwd":
            return self._cwd
        self._skip(f"the output of `{name}` was guessed")
        if name == "nvidia-smi" and "wc" in text:
            return str(self._gpus)
        return "x" if name in ("date", "hostname", "whoami", "git", "basename") else UNKNOWN

    def _run(self, words: list[str]) -> None:
        redirected, self._redirected = self._redirected, False
        while words and words[0] in WORDS:
            self._in_function &= words[0] != "}"
            if words[0] in CONDITIONS:
                self._skip("its conditions were not checked")
            words = words[1:]
        if words[:1] == ["for"] and "in" in words[1:3]:
            if len(words) < 4:
                self._skip("its loop has nothing to go over")
            self._own[words[1]] = words[3] if len(words) > 3 else ""
            return
        env = dict(self._env)
        while words and (match := ASSIGNMENT.fullmatch(words[0])):
            env[match[1]] = match[2]
            words = words[1:]
            if not words:
                into = self._env if match[1] in self._env else self._own
                into[match[1]] = match[2]
        if words:
            self._execute(words, env, redirected)

    def _execute(self, words: list[str], env: dict[str, str], redirected: bool) -> None:
        name, *rest = words
        known: dict[str, Callable[[list[str]], None]] = {
            **dict.fromkeys(("export", "declare", "readonly", "typeset"), self._export),
            **dict.fromkeys(("cd", "pushd"), self._cd),
            **dict.fromkeys(("source", "."), self._source),
            **dict.fromkeys(("conda", "mamba", "micromamba"), self._conda),
            "shift": self._shift,
            "set": self._set,
        }
        if name in known:
            known[name](rest)
        elif self._trains(words):
            self.found.append((words, env, self._cwd))
        elif name not in HARMLESS or redirected:
            self._skip(f"`{name}` before it was not run")

    def _trains(self, words: list[str]) -> bool:
        """Whether it is a Python command, and not one of the usual helpers."""
        for at, word in enumerate(words):
            base = os.path.basename(word)
            if base in SHELLS:
                return True
            if TRAINERS.fullmatch(base):
                rest = words[at + 1 :]
                helper = rest[:1] == ["-m"] and rest[1:2] and rest[1] in HELPERS
                return bool(rest) and rest[0] not in NO_TRAINING and not helper
            if at == 0 and base not in PREFIXES:
                return False
        return False

    def _export(self, words: list[str]) -> None:
        for word in words:
            name, equals, value = word.partition("=")
            if not name.startswith("-"):
                self._env[name] = value if equals else self._own.get(name, self._env.get(name, ""))

    def _cd(self, words: list[str]) -> None:
        if len(words) != 1 or words[0].startswith("-") or UNKNOWN in words[0]:
            self._skip("where it goes with `cd` is not known")
        else:
            self._cwd = os.path.normpath(os.path.join(self._cwd, words[0]))

    def _shift(self, words: list[str]) -> None:
        del self._args[1 : 1 + whole(words[0] if words else "1", 0)]

    def _set(self, words: list[str]) -> None:
        if "--" in words:
            self._args[1:] = words[words.index("--") + 1 :]

    def _source(self, words: list[str]) -> None:
        file = os.path.join(self._cwd, words[0]) if words else ""
        if file.endswith("/etc/profile.d/conda.sh"):
            self._env["CONDA_EXE"] = file[: -len("etc/profile.d/conda.sh")] + "bin/conda"
        elif os.path.basename(file) == "activate" and not words[1:]:
            self._activate(os.path.dirname(os.path.dirname(file)), "VIRTUAL_ENV")
        else:
            self._skip(f"`source {' '.join(words)}` before it was not run")

    def _conda(self, words: list[str]) -> None:
        if words[:1] != ["activate"]:
            self._skip("`conda` before it was not run")
            return
        name = words[1] if words[1:] else "base"
        folder = os.path.join(self._cwd, name)
        if "/" not in name:
            base = os.path.dirname(os.path.dirname(self._env.get("CONDA_EXE", "")))
            folder = base if name == "base" else os.path.join(base, "envs", name)
            if not base or not os.path.isdir(folder):
                raise Unclear(f"where its conda environment {name} is, is not known")
        if os.path.isdir(os.path.join(folder, "etc", "conda", "activate.d")):
            self._skip("what conda runs on activation was left out")
        self._activate(folder, "CONDA_PREFIX")

    def _activate(self, folder: str, variable: str) -> None:
        self._env[variable] = folder
        self._env["PATH"] = f"{folder}/bin:{self._env.get('PATH', os.defpath)}"


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that opens here is closed."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return end
    return len(text)

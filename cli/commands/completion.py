"""`carma completion SHELL`: a script that completes verbs, options and the ids of live jobs.

Verbs, options and plugin names are part of the script: completing them does not start Python.
"""

from __future__ import annotations

from carmad.errors import CarmaError
from cli import client
from cli.verbs import ITSELF, Group, sections

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from cli.parser import Parser

TAKES_JOBS = (
    "cancel",
    "explain",
    "hold",
    "kill",
    "logs",
    "release",
    "requeue",
    "show",
    "wait",
    "watch",
    "why",
)


SHELLS = ("bash", "zsh", "fish")
IDS = "ids"


def completion_options(parser: Parser) -> None:
    parser.add_argument("shell", choices=(*SHELLS, IDS), help="ids: for use by the scripts")


def completion(options: Namespace) -> int:
    if options.shell == IDS:
        _print_ids()
        return 0
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](_words()), end="")
    return 0


def _print_ids() -> None:
    try:
        jobs = client.get("/v1/jobs", within_s=2.0)["jobs"]
    except CarmaError:
        return  # nothing to offer; completion must not print errors
    for job in jobs:
        print(job["label"])


def _words() -> dict[str, list[str]]:
    """What may follow each verb: its options, or its subcommands."""
    from cli import submission
    from cli.commands import estimate
    from cli.commands.run import parser_of

    own = {
        "submit": submission.build_parser,
        "run": lambda: parser_of("run"),
        "shell": lambda: parser_of("shell"),
        "estimate": estimate.build_parser,
    }
    words: dict[str, list[str]] = {}
    for each in (each for section in sections().values() for each in section):
        if isinstance(each, Group):
            words[each.name] = sorted(verb.name.partition(" ")[2] for verb in each.verbs)
        else:
            made = own.get(each.name, each.parser if each.reads != ITSELF else None)
            try:
                options = _options(made()) if made else []
            except (Exception, SystemExit):  # noqa: BLE001 - foreign code: complete the others
                options = []
            words |= dict.fromkeys((each.name, *each.aliases), options)
    words["completion"] = list(SHELLS)
    return words


def _options(parser: Any) -> list[str]:
    """The options of a verb."""
    options = (option for action in parser._actions for option in action.option_strings)
    return sorted(option for option in options if option.startswith("--"))


def _plugins() -> dict[str, list[str]]:
    """What may follow an option of `simulate` that takes a plugin's name."""
    from carmad import registry

    return {"policy": registry.names("policies"), "recovery": registry.names("recoveries")}


def _bash(words: dict[str, list[str]]) -> str:
    values = "".join(
        f"      --{option}) words='{' '.join(names)}' ;;\n" for option, names in _plugins().items()
    )
    cases = "".join(f"      {verb}) words='{' '.join(more)}' ;;\n" for verb, more in words.items())
    return f"""_carma() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} verb=${{COMP_WORDS[1]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    words='{" ".join(words)}'
  else
    case $verb in
{cases}    esac
    case $verb:$cur in
      *:-*) ;;
      {"|".join(f"{verb}:*" for verb in TAKES_JOBS)}) words=$(carma completion ids 2>/dev/null) ;;
    esac
    case ${{COMP_WORDS[COMP_CWORD-1]}} in
{values}    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _carma carma
"""


def _zsh(words: dict[str, list[str]]) -> str:
    """For `eval`, or as a file `_carma` in $fpath, which zsh runs when `carma` is first completed:
    then what it defines completes that, too."""
    return f"""#compdef carma
(( $+functions[compdef] )) || {{ autoload -U +X compinit && compinit }}
autoload -U +X bashcompinit && bashcompinit
{_bash(words)}if [ "$funcstack[1]" = _carma ]; then
  _bash_complete -o default -F _carma
fi
"""


def _fish(words: dict[str, list[str]]) -> str:
    lines = [
        "complete -c carma -f",
        f"complete -c carma -n __fish_use_subcommand -a '{' '.join(words)}'",
    ]
    for verb, more in words.items():
        seen = f"complete -c carma -n '__fish_seen_subcommand_from {verb}'"
        lines += [f"{seen} -l {word[2:]}" for word in more if word.startswith("--")]
        below = [word for word in more if not word.startswith("--")]
        if below:
            lines.append(f"{seen} -a '{' '.join(below)}'")
    for option, names in _plugins().items():
        given = f"complete -c carma -n '__fish_seen_subcommand_from simulate' -l {option}"
        lines.append(f"{given} -xa '{' '.join(names)}'")
    jobs = " ".join(TAKES_JOBS)
    lines += [
        f"complete -c carma -n '__fish_seen_subcommand_from {jobs}'"
        " -a '(carma completion ids 2>/dev/null)'",
        "complete -c carma -n '__fish_seen_subcommand_from submit sub estimate simulate' -F",
    ]
    return "\n".join(lines) + "\n"

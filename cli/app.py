"""The typer application: every verb but the hot ones (`cli.hot`), and all help and completion. A
verb's module is imported when the verb is called."""

from __future__ import annotations

import inspect
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from carmad import DISTRIBUTION
from carmad.errors import CarmaError
from carmad.options import Option
from cli import hot, verbs
from cli.options import CHOICE, JOBS_HELP, JSON, OF_USER, parser_of
from cli.problems import Usage, no_option, no_value
from cli.verbs import Command

ABOUT = (
    "CARMA runs jobs on the GPUs of a server, several on one GPU where they fit and do not slow"
    " each other down too much."
)
EVERYTHING = "--help-all"
REFUSED = "Refused"  # a panel that is never shown


def _write_sections(formatter: Any, rows: list[tuple[str, Any]]) -> None:
    """Help, under the titles of its panels."""
    for title in dict.fromkeys(title for title, _ in rows):
        with formatter.section(title):
            formatter.write_dl([row for its, row in rows if its == title])


def _rows(command: Any, ctx: typer.Context) -> Iterator[tuple[str, Any]]:
    for param in command.get_params(ctx):
        if record := param.get_help_record(ctx):
            if param.param_type_name == "argument":
                yield "Arguments", (record[0].partition(" <")[0], record[1])
            else:
                yield param.rich_help_panel or "Options", record


class Verbs(TyperGroup):
    """Those of `carma`, or of a group. Until one is called, it is a line of help."""

    def __init__(self, group: Command | None = None, **about: Any) -> None:
        super().__init__(**about)
        self.group = group

    def table(self) -> list[Command]:
        return list(self.group.below) if self.group else verbs.every()

    def list_commands(self, ctx: Any) -> list[str]:
        return [_last(each) for each in self.table()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = self.find(cmd_name)
        if found is None:
            return None
        is_listed = bool(self.group) or found.name in verbs.FIRST or ctx.resilient_parsing
        return TyperCommand(
            cmd_name,
            help=found.summary,
            hidden=not is_listed and EVERYTHING not in ctx.meta,
            rich_help_panel=found.panel if EVERYTHING in ctx.meta else None,
        )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows = list(_rows(self, ctx))
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if not command.hidden:
                rows.append((command.rich_help_panel or "Commands", (name, command.help)))
        _write_sections(formatter, rows)

    def find(self, name: str) -> Command | None:
        if self.group is None:
            return verbs.find(name)
        return next((each for each in self.group.below if _last(each) == name), None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = self.find(args[0])
        if found:
            return args[0], load(found), args[1:]
        if ctx.resilient_parsing:
            return None, None, args[1:]
        raise verbs.unknown(args[0], self.list_commands(ctx), ctx.command_path)


def _last(command: Command) -> str:
    return command.name.rpartition(" ")[2]


class Line(TyperCommand):
    """The words of a verb, after whose options a command of the user's may follow."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        left = super().parse_args(ctx, args)
        command = ctx.params.get("command") or ()
        if words[len(words) - len(command) - 1 :][:1] == ["--"] and len(words) > len(command):
            ctx.params["command"] = ("--", *command)
        return left

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_sections(formatter, list(_rows(self, ctx)))


def load(command: Command) -> Any:
    """A verb or a group with its options, as typer has it."""
    if command.below:
        return Verbs(
            command,
            name=command.name,
            help=command.summary,
            context_settings={"help_option_names": ["-h", "--help"]},
            rich_markup_mode=None,
        )
    here = verbs.elsewhere(command)
    function = _hot(command, here) if command.name in hot.TABLES else _cold(command, here)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(
        command.name,
        cls=Line,
        help=describe(here),
        options_metavar="[OPTION]...",
        context_settings={
            "allow_interspersed_args": "command" not in inspect.signature(function).parameters
        },
    )(function)
    made: Any = typer.main.get_command(app)
    taken = {flag for param in made.params for flag in param.opts}
    names = ["--help"] if "-h" in taken else ["-h", "--help"]
    made.context_settings["help_option_names"] = names
    return made


def _cold(command: Command, here: Command) -> Callable[..., int]:
    own = command.function()
    return own if here.module == command.module else wraps(own)(here.function())


def _hot(command: Command, here: Command) -> Callable[..., int]:
    """With the options of the table that argparse reads otherwise."""

    def call(**given: Any) -> int:
        given.pop("everything")
        return here.function()(Namespace(**given))

    return takes(hot.TABLES[command.name], **ARGUMENTS.get(command.name, {}))(call)


def describe(command: Command) -> str:
    """What its help says of it. A paragraph that begins with \\b keeps its lines."""
    said = inspect.cleandoc(command.function().__doc__ or "")
    paragraphs = [part for part in (command.summary, *said.split("\n\n")) if part.strip()]
    return "\n\n".join(
        part if part.startswith("\b") else " ".join(part.split()) for part in paragraphs
    )


def argument(metavar: str, help: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def option(*flags: str, help: str, read: Callable[[str], Any] | None = None, **more: Any) -> Any:
    """`read`: of `cli.parse`. Without a `metavar`, it is a switch."""
    if read:
        more["parser"] = _reading(read)
    about = {"metavar": "", "show_default": False, **more}
    return typer.Option(*flags, help=help, **about)


def _reading(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return read(text)
        except ArgumentTypeError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def of_table(option_: Option, both: bool = False, **more: Any) -> Any:
    """The annotation of an option in a table. `both`: it can be switched off."""
    flags: Sequence[str] = option_.flags
    about = {"rich_help_panel": option_.section.capitalize(), "hidden": option_.rare, **more}
    if isinstance(option_.default, bool):
        if option_.default or both:
            long = option_.flag
            flags = [*(each for each in flags if each != long), f"{long}/--no-{long[2:]}"]
        return Annotated[bool | None, option(*flags, help=option_.help, **about)]
    read = parser_of(option_)
    one: Any = Any if read else str
    kind = list[one] if option_.repeated else one
    made = option(*flags, help=option_.help, metavar=option_.metavar, read=read, **about)
    return Annotated[kind | None, made]


def _refusal(flag: str, why: str) -> dict[str, Any]:
    """Of an option that another verb has."""

    def refuse(ctx: typer.Context, value: Any) -> None:
        if value:
            raise Usage(f"{flag} is not for `{ctx.command_path}`", why)

    return {"hidden": True, "expose_value": False, "callback": refuse, "rich_help_panel": REFUSED}


def takes(
    table: Mapping[str, Option],
    both: bool = False,
    without: Mapping[str, str] | None = None,
    **others: Any,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A decorator: the function gets the values of the options in this table by their names, None
    for those that are not given, as well as those that it declares. `without`: those that are
    refused, and why. `others`: more annotations."""
    refused = without or {}
    annotations = others | {
        name: of_table(its, both, **_refusal(its.flag, refused[name]) if name in refused else {})
        for name, its in table.items()
    }
    annotations["everything"] = Everything

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        own = inspect.signature(function, eval_str=True)
        declared = [each for each in own.parameters.values() if each.kind != each.VAR_KEYWORD]
        made = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if annotation is Jobs else None,
                annotation=annotation,
            )
            for name, annotation in annotations.items()
        ]
        parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in declared] + made
        its: Any = function
        its.__signature__ = own.replace(parameters=parameters)
        its.__annotations__ = {each.name: each.annotation for each in parameters}
        return function

    return decorate


def _help_all(ctx: typer.Context, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    _show_all(ctx)
    typer.echo(ctx.get_help())
    raise typer.Exit


def _show_all(ctx: typer.Context) -> None:
    ctx.meta[EVERYTHING] = True
    params: Any = ctx.command.params
    for param in params:
        param.hidden = param.rich_help_panel == REFUSED


Everything = Annotated[
    bool,
    option(EVERYTHING, help="show all of this help", is_eager=True, callback=_help_all),
]


def complete_jobs(incomplete: str) -> list[str]:
    return _complete("/v1/jobs", "jobs", "label", incomplete)


def complete_users(incomplete: str) -> list[str]:
    return _complete("/v1/share", "users", "user", incomplete)


def _complete(path: str, of: str, name: str, incomplete: str) -> list[str]:
    """Nothing, if the daemon does not answer: completion must not print errors."""
    from cli import client

    with suppress(CarmaError):
        found = client.get(path, within_s=2.0)[of]
        return [each[name] for each in found if each[name].startswith(incomplete)]
    return []


JOB_HELP = (
    "a job id: 42, 42_3, 42_[1-3] or last (the default); of an array, all tasks; slurm:42 for what"
    " runs in this job of Slurm's"
)
Json = Annotated[bool, option("--json", help=JSON["json"].help)]
Job = Annotated[str, argument("JOB", JOB_HELP, autocompletion=complete_jobs)]
Jobs = Annotated[list[str], argument("JOB", JOBS_HELP, autocompletion=complete_jobs)]
User = Annotated[
    str | None,
    option(
        "-u", "--user", metavar="USER", help=OF_USER["user"].help, autocompletion=complete_users
    ),
]
Me = Annotated[bool, option("--me", help=CHOICE["me"].help)]
States = Annotated[
    str | None, option("-t", "--states", metavar="STATES", help=CHOICE["states"].help)
]
UserCommand = Annotated[
    list[str] | None, argument("COMMAND", "a program or a job script, and its words")
]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "submit": {"command": UserCommand},
    "wait": {"jobs": Jobs},
    "cancel": {"jobs": Jobs},
}


def _version(ctx: typer.Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        typer.echo(f"carma {version(DISTRIBUTION)}")
        raise typer.Exit


application = typer.Typer(
    cls=Verbs,
    help=ABOUT,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@application.callback()
def main(
    version: Annotated[
        bool,
        option("--version", help="print the version", is_eager=True, callback=_version),
    ] = False,
    everything: Everything = False,
) -> None:
    """What comes before the verb."""


def build() -> Any:
    command: Any = typer.main.get_command(application)
    for param in command.params:  # typer's own
        param.hidden = param.name.endswith("_completion")
    return command


def help_of(verb: str) -> str:
    """All of it, plainly."""
    command = load(verbs.OWN[verb])
    with command.make_context(f"carma {verb}", [], resilient_parsing=True) as context:
        _show_all(context)
        said: str = context.get_help()
    return said


def run(words: list[str]) -> int:
    """The exit code. Raises CarmaError."""
    command = build()
    try:
        with command.make_context("carma", [*words] or ["--help"]) as context:
            return command.invoke(context) or 0
    except typer.Exit as done:
        return done.exit_code if words else Usage.exit_code
    except typer.TyperException as error:
        raise _usage(error) from None


def _usage(error: Any) -> Usage:
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context else "carma"
    flag, what = getattr(error, "option_name", ""), error.format_message().rstrip(".")
    if flag and str(error.message).startswith("No such option"):
        known = [name for param in context.command.params for name in param.opts]
        return no_option(path, flag, known)
    if flag and "not take a value" in what:
        return no_value(flag)
    if (param := getattr(error, "param", None)) is not None and error.message:
        flags = [name for name in param.opts if name.startswith("--")]
        why = error.message.removeprefix("Value error, ")  # pydantic's
        what = f"{flags[0] if flags else param.metavar or param.name}: {why}"
    what = what[0].lower() + what[1:] if what[1:2].islower() else what
    return Usage(what, f"see `{path} --help`")

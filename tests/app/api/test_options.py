"""The command line and the Python functions are one interface: a signature says what both of them take."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest

import kerncast
from kerncast.app.cli import VERBS, program
from kerncast.app.cli.verb import Verb, in_options, verb
from kerncast.core.io.arguments import Help
from kerncast.errors import InvalidValue

# Functions of the package whose verb has another name, and verbs whose function is a method.
FUNCTIONS = {"import": "read", "select": "Selector", "merge": "Dataset", "models": "Store"}


def commands():
    for name in VERBS:
        command = program.get_command(click.Context(program), name)
        yield name, command
        if isinstance(command, click.Group):
            for inner in command.list_commands(click.Context(command)):
                yield f"{name} {inner}", command.get_command(click.Context(command), inner)


def test_the_package_has_twenty_names_and_each_is_there():
    """Beside the errors and the version; functions have the names of verbs."""
    errors = {"BadFile", "CannotWrite", "InvalidValue", "KerncastError", "NotFound", "__version__"}
    names = set(kerncast.__all__) - errors
    assert len(names) <= 20
    assert all(getattr(kerncast, name) is not None for name in names)
    assert {FUNCTIONS.get(name, name) for name in VERBS} - names == {"doctor", "list", "serve", "torch"}


@pytest.mark.parametrize("name", [name for name in kerncast.__all__ if inspect.isfunction(getattr(kerncast, name))])
def test_no_parameter_has_the_name_of_a_builtin_and_out_is_named(name):
    """`format`, `set`, `max` … mean Python's own; what a function writes to is always `out=…`."""
    parameters = inspect.signature(getattr(kerncast, name)).parameters
    assert not set(parameters) & set(dir(__builtins__ if inspect.ismodule(__builtins__) else __import__("builtins")))
    if "out" in parameters:
        assert parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY


def test_collect_has_few_parameters():
    """What varies together is one value: how to measure, how much of it, and where."""
    assert len(inspect.signature(kerncast.collect).parameters) <= 12


@dataclass(frozen=True)
class Manner:
    """How to shout."""

    loud: Annotated[bool, Help("With `times=2`: in capitals.")] = False
    pause: Annotated[float | None, Help("Seconds between two.", above=0)] = None


def shout(
    words: Annotated[list[str], Help(metavar="WORD...")],
    *,
    out: Annotated[str | Path | None, Help("Where to write.", required=True)] = None,
    times: Annotated[int, "How often.", Help(metavar="N", least=1)] = 1,
    language: Annotated[Literal["en", "fr"] | None, Help("Which one.")] = None,
    polite: Annotated[bool, Help("Leave the greeting out.")] = True,
    where: Annotated[str | list[str], Help("To whom.")] = (),
    manner: Manner = Manner(),
    progress: str = "auto",
):
    return locals()


def invoked(*args):
    seen = []

    @verb("shout", shout)
    def command(call, *, twice: Annotated[bool, Help("Do it twice.")] = False):
        """Shout."""
        seen.append((call(), twice))

    command.main(list(args), standalone_mode=False)
    return seen[0]


def test_a_verb_has_the_options_of_its_function():
    """Arguments, options, flags of both kinds, several values, choices, and values that group some."""
    given, twice = invoked("a", "b", "--out", "o", "--times", "2", "--no-polite", "--where", "x", "--where", "y", "--loud",
                           "--pause", "0.5", "--twice")  # fmt: skip
    assert twice
    assert given == {
        "words": ("a", "b"), "out": "o", "times": 2, "language": None, "polite": False, "where": ("x", "y"),
        "manner": Manner(True, 0.5), "progress": "auto",
    }  # fmt: skip
    assert invoked("a", "--out", "o")[0]["manner"] == Manner()


@pytest.mark.parametrize("wrong", [["--times", "0"], ["--language", "de"], ["--progress", "x"], ["--pause", "0"]])
def test_a_verb_refuses_what_its_function_does_not_take(wrong):
    """By the declared bounds and choices; a parameter without `Help` is not on the command line."""
    with pytest.raises((click.ClickException, InvalidValue)):
        invoked("a", "--out", "o", *wrong)
    with pytest.raises(click.MissingParameter):
        invoked("a")


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda item: item if isinstance(item, str) else "")
def test_every_option_says_what_it_does(name, command):
    """Every verb is made of signatures, and every option has a text without backticks for options."""
    assert isinstance(command, Verb | click.Group)
    for option in (item for item in command.params if isinstance(item, click.Option)):
        assert option.help or option.name == "seed", f"{name} {option.opts}"


def test_the_library_speaks_of_arguments_and_the_command_line_of_options(run, tmp_path):
    """One sentence: `folds` from Python, --folds from the shell."""
    with pytest.raises(kerncast.InvalidValue, match="`targets` is one of relative"):
        kerncast.train(tmp_path, targets="speed")
    code, _, said = run("train", tmp_path, "--out", tmp_path / "m", "--targets", "speed")
    assert code == 2
    assert "--targets is one of relative" in said


def test_only_what_is_an_option_of_the_command_is_rewritten():
    """Values, flags and `--no-…` are said as options; commands in backticks and unknown names stay."""
    train = program.get_command(click.Context(program), "train")
    collect = program.get_command(click.Context(program), "collect")
    assert in_options("use `folds=3` or `pool=True`, see `kerncast list op` and `nothing`", train) == (
        "use --folds 3 or --pool, see `kerncast list op` and `nothing`"
    )
    assert in_options("leave out `verify=False` and `settings`", collect) == "leave out --no-verify and --set"
    assert in_options("`folds=3`", None) == "`folds=3`"

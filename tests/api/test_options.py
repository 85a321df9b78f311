"""The command line and the Python functions are one interface: the same names, the same defaults."""

import inspect

import click
import pytest

import kerncast
import kerncast.inductor as ki
from kerncast.api.on_ray import spread_over
from kerncast.api.predict import picture
from kerncast.api.validate import validate
from kerncast.cli import VERBS, program
from kerncast.cli.options import in_options, keyword
from kerncast.data.importers.aiconfigurator.places import installed as installed_tables
from kerncast.inductor.shapes import Shapes, shapes_of
from kerncast.inductor.validation import Validation
from kerncast.op import Family
from kerncast.regenerating.shipping.building import build_shipped
from kerncast.selecting.search import search
from kerncast.serving import explore, serve, watched

# Of the command line alone: how a result is shown, and what its exit code is.
DISPLAY = {"json", "help", "strict_exit"}
# Verb → where its options are arguments. The first callable that has the argument counts.
HOMES = {
    "collect": [kerncast.collect],
    "compare": [kerncast.compare],
    "completion": [],
    "adapt": [kerncast.adapt],
    "devices": [kerncast.get_device],
    "doctor": [kerncast.doctor],
    "estimate": [kerncast.estimate],
    "evaluate": [kerncast.evaluate],
    "explore": [explore],
    "export": [kerncast.export],
    "families": [kerncast.get_family, Family.bindings],
    "export-data": [kerncast.Dataset.export],
    "import": [kerncast.read, kerncast.Dataset.guess_mapping],
    "inductor": [],
    "inductor report": [ki.report],
    "inductor shapes": [shapes_of, Shapes.save],
    "inductor validate": [validate],
    "inspect": [kerncast.Dataset.inspect],
    "merge": [kerncast.Dataset.merge],
    "models": [kerncast.Store.open],
    "models add": [kerncast.Store.add, kerncast.Store.open],
    "models check": [kerncast.Store.check, kerncast.Store.open],
    "models find": [kerncast.Store.find, kerncast.Store.open],
    "models remove": [kerncast.Store.remove, kerncast.Store.open],
    "models slim": [kerncast.Model.slimmed, kerncast.Store.open],
    "models show": [kerncast.Store.get, kerncast.Store.open],
    "models trust": [kerncast.Store.trust, kerncast.Store.open],
    "ops": [kerncast.get_op],
    "portfolio": [kerncast.Selector.portfolio],
    "predict": [kerncast.predict, kerncast.Model.predict, kerncast.Store.find, kerncast.Store.open, kerncast.Selector],
    "query": [kerncast.query],
    "quickstart": [kerncast.quickstart],
    "regenerate": [kerncast.regenerate, build_shipped],
    "search": [kerncast.Selector.search, search],
    "select": [kerncast.Selector, kerncast.Selector.rank, kerncast.Selector.measure],
    "serve": [serve],
    "sweep": [kerncast.sweep],
    "train": [kerncast.train],
    "update": [kerncast.update],
    "verify": [kerncast.verify],
}
# Where an option is something else in Python than an argument of the same name.
ELSEWHERE = {
    ("select", "explain"): kerncast.Selector.explain,
    ("select", "measure"): kerncast.Selector.measure,
    ("select", "top"): kerncast.Selector.rank,
    ("search", "measure"): kerncast.Selector.search,
    ("import", "guess"): kerncast.Dataset.guess_mapping,
    ("inspect", "top"): kerncast.Dataset.inspect,
    ("compare", "strict"): kerncast.compare,
    # A model of the store by its id: `Store.open(path).get(id).load()`.
    **{(verb, "store"): kerncast.Store.get for verb in ("adapt", "compare", "evaluate", "export", "portfolio")},
    **{(verb, "store"): kerncast.Store.get for verb in ("search", "select", "train")},
    ("select", "device"): kerncast.Model.on,
    ("regenerate", "installed"): installed_tables,
    **{("regenerate", name): spread_over for name in ("on", "address")},
    ("models slim", "out"): kerncast.Model.slimmed,
    ("predict", "picture"): picture,
    ("export-data", "out"): kerncast.Dataset.export,
    ("inductor shapes", "out"): Shapes.save,
    ("inductor validate", "worst"): Validation.worst,
    ("collect", "watch"): watched,
}


def commands():
    for verb in VERBS:
        command = program.get_command(click.Context(program), verb)
        yield verb, command
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                yield f"{verb} {name}", command.get_command(click.Context(command), name)


@pytest.mark.parametrize(("verb", "command"), list(commands()), ids=lambda item: item if isinstance(item, str) else "")
def test_every_option_is_an_argument_of_its_function(verb, command):
    """By the same name with the same default; a flag `--no-x` is the argument `x`, True unless it is given."""
    for option in (item for item in command.params if isinstance(item, click.Option)):
        name, negated = keyword(option)
        if name in DISPLAY or (verb, name) in ELSEWHERE:
            continue
        name = "path" if name == "store" and verb.startswith(("models", "predict")) else name
        found = [inspect.signature(home).parameters for home in HOMES[verb]]
        knobs = any(item.kind is item.VAR_KEYWORD for parameters in found for item in parameters.values())
        arguments = [parameters[name] for parameters in found if name in parameters]
        assert arguments or knobs, f"{verb} --{name} has no argument in {[home.__qualname__ for home in HOMES[verb]]}"
        if arguments and option.is_flag and not option.secondary_opts and option.opts != ["--no-folds"]:  # folds=0
            assert arguments[0].default is negated, f"{verb} --{name}"


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
    assert in_options("use `folds=3` or `pool=True`, see `kerncast ops` and `nothing`", train) == (
        "use --folds 3 or --pool, see `kerncast ops` and `nothing`"
    )
    assert in_options("leave out `verify=False`", collect) == "leave out --no-verify"
    assert in_options("`folds=3`", None) == "`folds=3`"

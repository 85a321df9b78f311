"""The command line: verbs, whose modules are loaded when they are called."""

from __future__ import annotations

import gc
import os
import sys
from contextvars import ContextVar
from importlib import import_module
from typing import Any

import click

import kerncast

# Polars' allocator keeps what is freed for half a second: on a million rows that is as much again as is in use. It reads this
# when polars is loaded, which is later.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")

# Objects between two looks for cycles. Modules make a hundred thousand that stay; with Python's 700, a tenth of the time of a
# short command is spent on looking at them again.
_OBJECTS_PER_LOOK = 50_000

json_printed: ContextVar[bool] = ContextVar("json_printed", default=False)
"""Whether a command has printed its result as JSON: standard output holds one JSON document, a result or an error."""

# verb → module in `verbs` (where it is called `<verb>_verb`), and the line that `--help` shows.
VERBS = {
    "collect": ("collect", "Measure kernels on this machine or a Ray cluster and write a dataset."),
    "compare": ("train", "Say whether a new model is safe to ship: BETTER, SAME, WORSE or AMBIGUOUS."),
    "doctor": ("list_", "Say what works on this machine, and what to install for the rest."),
    "estimate": ("networks", "Estimate a step of a whole model on a device, op by op, from its Hugging Face config."),
    "evaluate": ("train", "Score a model on problems it has not seen, next to the baselines; write a report."),
    "export": (
        "select",
        "Write a model as C99 with a C++ header, a file for a C runtime, JSON, CSV, or files for PyTorch's Inductor; a dataset "
        "for other tools; or show how few configs are enough.",
    ),
    "import": ("data", "Convert another tool's table of measurements into a dataset."),
    "inspect": ("data", "Show what a dataset holds and what is wrong with it; check any artefact whole."),
    "list": ("list_", "List ops, kernel families or devices, or show one with all that is declared of it."),
    "merge": ("data", "Join datasets into one; exact duplicates are kept once."),
    "models": ("models", "List the models in the store and those that ship; add, slim, trust, remove, find or check one."),
    "predict": ("predict", "Predict how long a problem takes, with an interval; no device is needed. Answer JSON requests."),
    "regenerate": ("regenerate", "Rerun sweep, collect, train and compare; continue a model; the quickstart of this machine."),
    "select": ("select", "Choose the config to run for a problem, in microseconds, or say why not; search all configs."),
    "serve": ("serve", "Answer questions over HTTP, or show models, datasets and running sweeps on a page in the browser."),
    "sweep": ("collect", "List what to measure: problems × configs, checked, sampled, sliced, written to disk."),
    "torch": ("networks", "torch.compile: the products of a model, and how well their kernels are chosen."),
    "train": ("train", "Train a model on measurements, continue one, or move it to another device; say how good it is."),
}
# Words that people try → the command that does it.
REPLACED = {
    "adapt": "kerncast train ROWS --base MODEL --device DEVICE --out MODELDIR",
    "completion": "_KERNCAST_COMPLETE=bash_source kerncast (or zsh_source, fish_source)",
    "devices": "kerncast list device",
    "explore": "kerncast serve PATH --open",
    "export-data": "kerncast export DATASET",
    "families": "kerncast list family",
    "inductor": "kerncast torch",
    "ops": "kerncast list op",
    "portfolio": "kerncast export MODEL --to portfolio",
    "query": "kerncast predict REQUEST",
    "quickstart": "kerncast regenerate quickstart",
    "search": "kerncast select MODEL --search",
    "update": "kerncast regenerate update MODEL DATASET --replace",
    "verify": "kerncast inspect PATH --verify",
}


class _LazyVerbs(click.Group):
    """Imports a verb's module only when that verb is used, so that --help stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"kerncast.app.cli.verbs.{VERBS[name][0]}"), f"{name}_verb")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, VERBS[name][1]) for name in sorted(VERBS)])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from kerncast.errors import NotFound

            if args[0] in REPLACED:
                raise NotFound(f"'{args[0]}' is no verb of its own: run `{REPLACED[args[0]]}`")
            raise NotFound.named("verb", args[0], VERBS, "kerncast --help")
        return super().resolve_command(ctx, args)


@click.command(
    cls=_LazyVerbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Results go to stdout (--json on every verb, errors included), progress to stderr. "
    "Exit codes: 0 ok, 1 verdict failed, 2 wrong usage or bad input, 3 partial.",
)
@click.version_option(kerncast.__version__, prog_name="kerncast")
def program() -> None:
    """Learned performance models for kernels and tensor ops.

    Measure a sample, learn the rest, choose in microseconds.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line. An expected error prints one sentence and exits with code 2, without a traceback.

    With `--json`, standard output holds the error as JSON, unless a result was printed before.
    """
    if args is None:  # a process of its own, not a call from a program
        gc.set_threshold(_OBJECTS_PER_LOOK, *gc.get_threshold()[1:])
    from kerncast.app.cli.signals import prompt_signals

    with prompt_signals():
        _run(args)


def _run(args: list[str] | None) -> None:
    from kerncast.errors import BadFile, CannotWrite, InvalidValue, KerncastError, NotFound

    given = sys.argv[1:] if args is None else args
    json_printed.set(False)
    try:
        code = program.main(args=args, prog_name="kerncast", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except KerncastError as error:
        from kerncast.app.cli.verb import called, in_options

        # What the caller can do about it, in one word for programs.
        kinds = {NotFound: "not_found", InvalidValue: "invalid_value", CannotWrite: "cannot_write", BadFile: "bad_file"}
        kind = next((name for each, name in kinds.items() if isinstance(error, each)), "error")
        _say_error(in_options(str(error), called(program, given)), kind, given)
        sys.exit(3 if error.partial else 2)
    except BrokenPipeError:  # `kerncast ... | head`
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        said = f"cannot use{where or ' a file'}: {error.strerror or error}; choose another place"
        _say_error(said, "cannot_use", given)
        sys.exit(2)
    except click.ClickException as error:
        from io import StringIO

        from kerncast.app.api.showing import echo
        from kerncast.core.io.terminal import line

        error.show(usage := StringIO())
        said = error.format_message()  # it may quote a name
        echo(*usage.getvalue().replace(said, line(said)).rstrip("\n").split("\n"), err=True)
        _say_error(said, "usage", given, shown=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        from kerncast.app.cli.signals import leave

        _say_error("stopped", "stopped", given)
        leave()


def _say_error(said: str, kind: str, args: list[str], shown: bool = False) -> None:
    """Print an error, on stderr unless it is `shown` there already, and with `--json` on stdout, too."""
    import json

    from kerncast.app.api.showing import echo, echo_exactly
    from kerncast.core.io.terminal import line

    if not shown:
        echo(f"kerncast: {said}", err=True)
    options = args[: args.index("--")] if "--" in args else args
    if "--json" in options and not json_printed.get():
        echo_exactly(json.dumps({"error": line(said), "kind": kind}, indent=2))  # it may quote a file

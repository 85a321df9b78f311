"""`kerncast query`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from kerncast.api.printing import echo_exactly
from kerncast.cli.views.output import print_json
from kerncast.errors import BadFile
from kerncast.files.foreign import JSON
from kerncast.writing.terminal import json_printable

REFUSED = 1


@click.command("query")
@click.argument("text", metavar="TEXT|FILE|-")
@click.option("--model", metavar="DIR|ID", multiple=True,
              help="A model to ask, or its id in the store; may be repeated. [default: all of the store]")  # fmt: skip
@click.option("--store", metavar="DIR", type=click.Path(path_type=Path), help="The store to look in. [default: your own]")
@click.option("--software", metavar="NAME",
              help="For requests that name none: vllm (the newest version there is), vllm==0.24.0, a commit.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse a request if no model was trained on the software that it names.")
@click.option("--no-compile", is_flag=True, help="Answer in Python even where there is a C compiler.")
@click.option("--json", "as_json", is_flag=True, help="Print the reply indented, over several lines.")
def command(
    text: str, model: tuple[str, ...], store: Path | None, software: str | None, strict: bool, no_compile: bool, as_json: bool
) -> None:  # fmt: skip
    """Answer JSON requests about how long an op takes. One object gives one answer, a list gives a list.

    The status of an answer is ok, out_of_range, unsupported, bad_input, no_model or corrupt; all but ok give a reason.
    Exit code 1 when any status is not ok. A model of your store that covers the request answers it, else a model that
    ships with kerncast, else the roofline; `basis` and `entry` in the reply say which. The first request to a model of
    your store compiles it, which takes a few seconds. After that, a list of 10,000 takes a few hundredths of a second,
    or a few tenths if several models of parts of an op answer it.

    \b
    kerncast query '{"op": "exp", "tensor": {"shape": [1, 1, 1024, 1024], "dtype": "bfloat16",
                     "memory": {"buffer": "L1"}}, "device": "wormhole_b0"}'
    kerncast query requests.json --model exp_model > replies.json
    """
    from kerncast.api.query import query
    from kerncast.cli.asking import steps

    data = _read(text)
    with steps() as progress:
        reply = query(
            data, model=model, store=store, software=software, strict=strict, compile=not no_compile, progress=progress
        )  # fmt: skip
    answers = json.loads(reply)
    if as_json:
        print_json(answers)
    else:
        echo_exactly(json_printable(reply.decode()))
    if any(answer["status"] != "ok" for answer in (answers if isinstance(answers, list) else [answers])):
        raise SystemExit(REFUSED)


def _read(text: str) -> bytes:
    """The requests themselves, or a file of them; `-` is stdin."""
    if text == "-":
        return JSON.taken(sys.stdin.buffer, "what was given on stdin")
    if text.lstrip()[:1] in ("{", "["):
        return os.fsencode(text)  # bytes that are not UTF-8 are refused by the parser
    try:
        return JSON.read(Path(text))
    except OSError as error:
        raise BadFile(f"'{text}' is neither JSON nor a readable file ({error.strerror}): JSON begins with {{ or [") from error

"""`kerncast estimate`."""

from __future__ import annotations

from kerncast.app.api.estimate import estimate
from kerncast.app.api.printing import echo
from kerncast.app.cli.options import in_options
from kerncast.app.cli.verb import Call, verb
from kerncast.app.cli.views.output import Json, draw, print_json


@verb("estimate", estimate)
def command(call: Call, *, as_json: Json = False) -> None:
    """Estimate a step of a whole model on a device, op by op, from its Hugging Face config.

    CONFIG is a config.json or the folder that holds it: a decoder, dense or with experts, with grouped or latent attention.
    Each op is predicted by a model of your store or one that ships, else by its roofline; the table says which. The time is
    that of the kernels: the last line says what is not in it.

    \b
    kerncast estimate Llama-3.1-70B --device h200 --tp 4 --batch 64 --context 4096
    kerncast estimate Llama-3.1-70B --device h200 --tp 4 --batch 4 --context 4096 --phase prefill --dtype fp8
    kerncast estimate DeepSeek-V3 --device b200 --tp 1 --ep 16 --batch 2048 --context 8192 --imbalance 1.2
    kerncast estimate config.json --device all --batch 16 --context 2048 --picture devices.svg
    """
    found = call()
    if as_json:
        print_json(found.as_json())
        return
    echo(found.title)
    draw(found.table)
    echo(*(in_options(text, command) for text in found.closing))

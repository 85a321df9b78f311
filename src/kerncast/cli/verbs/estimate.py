"""`kerncast estimate`."""

from __future__ import annotations

from pathlib import Path

import click

from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.options import in_options
from kerncast.cli.views.output import draw, json_option, print_json


@click.command("estimate")
@click.argument("config", metavar="CONFIG", type=click.Path(path_type=Path))
@click.option(
    "--device",
    required=True,
    metavar="NAME|FILE.toml|all",
    shell_complete=completing.devices,
    help="The device of which there are --tp (or --ep): a profile, your own profile, or all to compare every GPU.",
)
@click.option("--tp", default=1, show_default=True, metavar="N", help="GPUs that share each layer (tensor parallelism).")
@click.option(
    "--ep", type=int, metavar="N", help="GPUs that share the experts; above --tp, all but the experts is copied. [default: 1]"
)
@click.option("--batch", default=1, show_default=True, metavar="N", help="Sequences, on all GPUs together.")
@click.option("--context", required=True, type=int, metavar="N", help="Tokens of each sequence.")
@click.option(
    "--new-tokens",
    type=int,
    metavar="N",
    help="decode: tokens to generate [default: 1]; prefill: the last ones of the prompt, the rest is cached [default: all].",
)
@click.option("--phase", default="decode", show_default=True, metavar="prefill|decode", help="What the step does.")
@click.option(
    "--dtype", metavar="NAME", help="Format of weights: bf16, fp8, fp8_block, nvfp4, int4_wo … [default: the config's]"
)
@click.option("--kv-dtype", metavar="NAME", help="Element type of the cache: bf16, fp8 … [default: the config's]")
@click.option(
    "--imbalance",
    default=0.0,
    show_default=True,
    metavar="X",
    help="Exponent of the power law of the experts' loads: 1.2 is usual; 0: all have the same load.",
)
@click.option("--software", metavar="NAME", help="The server whose kernels are meant: vllm, vllm==0.24.0, trtllm, sglang.")
@click.option(
    "--graphs/--no-graphs", default=True, show_default=True, help="Whether a step is launched at once, or kernel by kernel."
)
@click.option(
    "--launch-us", type=float, metavar="US", help="With --no-graphs: microseconds between two launches. [default: 5.0]"
)
@click.option("--picture", type=click.Path(path_type=Path), metavar="FILE.svg", help="Also draw the shares, or the devices.")
@click.option("--store", metavar="DIR", type=click.Path(path_type=Path), help="The store of models. [default: your own]")
@json_option
def command(
    config: Path, device: str, tp: int, ep: int | None, batch: int, context: int, new_tokens: int | None, phase: str,
    dtype: str | None, kv_dtype: str | None, imbalance: float, software: str | None, graphs: bool, launch_us: float | None,
    picture: Path | None, store: Path | None, as_json: bool,
) -> None:  # fmt: skip
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
    from kerncast.api.estimate import estimate

    found = estimate(
        config, device=device, tp=tp, ep=ep, batch=batch, context=context, new_tokens=new_tokens, phase=phase, dtype=dtype,
        kv_dtype=kv_dtype, imbalance=imbalance, software=software, graphs=graphs, launch_us=launch_us, picture=picture,
        store=store,
    )  # fmt: skip
    if as_json:
        print_json(found.as_json())
        return
    echo(found.title)
    draw(found.table)
    echo(*(in_options(text, command) for text in found.closing))

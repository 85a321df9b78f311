"""Inductor's template lookup table (`torch._inductor.lookup_table`): the configs to time, by the operands of a product.

    "((torch.float16, [M, K], [K, 1]), (torch.float16, [K, N], [1, K]))+mm":
        [{"template_id": "triton::mm", "BLOCK_M": 64, …, "num_warps": 4}, {"template_id": "aten::mm"}]

Torch looks the key up with the name of the GPU in front (`NVIDIA A100-SXM4-80GB+…`), then without. What it finds replaces
its own configs, so a table with one config per key means no autotuning. Keys and arguments are those of torch 2.13.

A bias makes two keys. Torch asks for the library with the bias as it is, and for the templates with the bias spread over C.
A question that finds nothing is answered by torch's own configs. So a product with a bias always has a template in the table:
otherwise torch would time all of its own. ATen cannot be kept out of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from kerncast.answering.exporters import Exporter, OverridesOf, ProblemsOf
from kerncast.answering.exporters.json_csv import problems_of
from kerncast.answering.selector import Selector
from kerncast.core.io.arguments import Help
from kerncast.core.io.artefact import json_text
from kerncast.core.io.atomic import write_bytes
from kerncast.core.op import Family, Problem
from kerncast.core.progress import Progress
from kerncast.data.formats.inductor.choices import SCALARS
from kerncast.errors import InvalidValue
from kerncast.library.families import gemm_triton
from kerncast.models.model import Model
from kerncast.native.tiers.build import plain_tiers

FAMILY, CPU_FAMILY = "gemm/triton", "gemm/inductor_cpp"
DTYPES = {"fp64": "torch.float64", "fp32": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}
ACCUMULATORS = {"fp64": "tl.float64", "fp32": "tl.float32", "fp16": "tl.float32", "bf16": "tl.float32"}
# Arguments of a template that a config may have. EVEN_K and ACC_TYPE follow from the problem, and ALLOW_TF32 is a setting
# of the process: torch adds it itself, and refuses a config that has it too.
ARGUMENTS = (
    "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps", "waves_per_eu", "matrix_instr_nonkdim", "kpack",
    "EPILOGUE_SUBTILE",
)  # fmt: skip
# What Inductor's own heuristics give a template for which nothing else was measured.
USUAL = {"GROUP_M": 8, "USE_FAST_ACCUM": False}
# Values of `template` that mean the plain tiled product; the others by torch's names.
PLAIN = (None, "mm")
TEMPLATES = {ours: name for name, ours in gemm_triton.TEMPLATES.items() if name.startswith(("mm_", "blackwell_"))}

Config = Mapping[str, Any]
More = Callable[[Problem], Sequence[Config]]
"""Every config for a problem, best first."""


# Compiling a model takes as long as ranking about this many problems in Python.
WORTH_COMPILING = 500


@dataclass(frozen=True)
class LookupOptions:
    """The problems, how many configs each gets, and whose the keys are."""

    problems: ProblemsOf = None
    overrides: OverridesOf = None
    top_k: Annotated[int, Help("configs for each problem. [default: 1]", metavar="K", least=1)] = 1
    device_name: Annotated[
        str | None, Help("torch's name of the GPU, for every key. [default: keys for any device]", metavar="NAME")
    ] = None


class LookupTableExporter(Exporter):
    """A table of configs for Inductor."""

    name = "lookup-table"
    doc = "a lookup table for PyTorch's Inductor"
    options_type = LookupOptions

    def write(self, model: Model, out: Path, options: LookupOptions, progress: Progress) -> list[Path]:
        wanted = problems_of(model, options.problems)
        selector = Selector(
            model,
            tiers=plain_tiers(model),
            tier="full",
            overrides=options.overrides,
            compile=len(wanted) > WORTH_COMPILING,
            progress=progress,
        )
        problems = [selector.problem(item) for item in wanted]
        progress.stage(f"deciding {len(problems):,} problems")

        def best(problem: Problem, count: int) -> list[Config]:
            return [answer.config for answer in selector.rank(problem, count) if answer.ok and answer.config is not None]

        table = lookup_table(
            model.family, ((problem, best(problem, options.top_k)) for problem in problems),
            lambda problem: best(problem, len(selector.configs)), options.device_name,
        )  # fmt: skip
        write_lookup_table(out, table)
        for note in table.notes():
            progress.say(note)
        return [out]


@dataclass
class LookupTable:
    """The entries, and how many problems were left out, by reason."""

    entries: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    problems: int = 0
    """Problems that have entries."""

    def notes(self) -> list[str]:
        """What was left out, in sentences."""
        return [f"{count:,} problems are left out: {reason}" for reason, count in sorted(self.left_out.items())]


def lookup_table(
    family: Family,
    ranked: Iterable[tuple[Problem, Sequence[Config]]],
    more: More,
    device_name: str | None = None,
) -> LookupTable:
    """The table for some problems, each with its best configs in order (none: the model does not answer).

    Of two problems with the same key the first one counts; problems without TF32 come first, as a table must not lower the
    precision.
    """
    if family.id != FAMILY:
        raise InvalidValue(
            f"a lookup table of Inductor chooses configs of {FAMILY}, but the model is for {family.id}: give one of {FAMILY}"
            + (', or use this one with torch.compile(..., backend="kerncast")' if family.id == CPU_FAMILY else "")
        )
    if device_name is not None and (not device_name.strip() or len(device_name) > 200 or not device_name.isprintable()):
        raise InvalidValue(
            f"`device_name` is what torch.cuda.get_device_properties(0).gcnArchName says, in one line, got {device_name!r:.100}"
        )
    table = LookupTable()
    for problem, configs in sorted(ranked, key=lambda item: bool(item[0].get("tf32"))):
        reason = unsaid(problem) or (None if configs else "the model does not answer them (out of its range)")
        written = {} if reason is not None else _entries(problem, configs, more)
        if reason is None and not written:
            reason = "the chosen template has no entry in a table"
        keys = {_named(key, device_name): value for key, value in written.items()}
        if reason is None and any(key in table.entries for key in keys):
            reason = "another problem has the same key (Inductor's keys say neither TF32 nor the batch strides)"
        if reason is not None:
            table.left_out[reason] += 1
            continue
        table.entries |= keys
        table.problems += 1
    if not table.entries:
        raise InvalidValue(f"no problem has an entry in a lookup table: {'; '.join(table.notes()) or 'there is no problem'}")
    return table


def write_lookup_table(out: Path, table: LookupTable) -> None:
    """As JSON, one object: `json.load` gives what `torch._inductor.config.lookup_table.table` takes."""
    write_bytes(out, json_text(table.entries))


def unsaid(problem: Mapping[str, Any]) -> str | None:
    """Why Inductor's keys cannot name a problem; None: they can."""
    if problem["dtype"] not in DTYPES:
        return f"Inductor's mm has no {problem['dtype']}"
    if problem.get("activation") not in (None, "none"):
        return "a key does not say which activation is fused"
    if problem.get("ldc"):
        return "a key does not say how C is stored"
    if problem.get("bias") and problem["batch"] > 1:
        return "a batched product with a bias vector is not one op of Inductor"
    return None


def op_of(problem: Mapping[str, Any]) -> str:
    """Inductor's name of the op."""
    if problem["batch"] > 1:
        return "bmm"
    return "addmm" if problem.get("bias") else "mm"


def strides_of(problem: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The strides of A and B, the batch first if there is one."""
    found = []
    for stored, ld, rows, columns in (
        (problem["layout"][0], problem.get("lda"), problem["M"], problem["K"]),
        (problem["layout"][1], problem.get("ldb"), problem["K"], problem["N"]),
    ):
        leading = ld or (columns if stored == "r" else rows)
        whole = leading * (rows if stored == "r" else columns)
        found.append([*([whole] if problem["batch"] > 1 else []), *((leading, 1) if stored == "r" else (1, leading))])
    return found[0], found[1]


def key_of(problem: Mapping[str, Any], spread: bool = True) -> str:
    """The key without a device; `spread`: a bias as the templates get it, else as the library does."""
    m, n, k, batch = (int(problem[name]) for name in ("M", "N", "K", "batch"))
    dtype, first = DTYPES[problem["dtype"]], [batch] if batch > 1 else []
    operands = list(zip(([*first, m, k], [*first, k, n]), strides_of(problem), strict=True))
    op = op_of(problem)
    if op == "addmm":
        operands.insert(0, ([m, n], [0, 1]) if spread else ([n], [1]))
    inputs = ", ".join(f"({dtype}, {sizes}, {strides})" for sizes, strides in operands)
    return "+".join(part for part in (f"({inputs})", SCALARS if op == "addmm" else "", op) if part)


def _named(key: str, device_name: str | None) -> str:
    return key if device_name is None else f"{device_name}+{key}"


def _entries(problem: Problem, configs: Sequence[Config], more: More) -> dict[str, list[dict[str, Any]]]:
    """By key: the entries of one problem, in order."""
    op = op_of(problem)
    wanted = [entry for config in configs if (entry := entry_of(problem, config)) is not None]
    if op != "addmm":
        return {key_of(problem): wanted} if wanted else {}
    library = [entry for entry in wanted if entry["template_id"] == f"aten::{op}"]
    tiles = [entry for entry in wanted if entry not in library]
    if not tiles:
        every = (entry_of(problem, config) for config in more(problem))
        tiles = [entry for entry in every if entry is not None and entry not in library][:1]
    found = {key_of(problem): tiles, key_of(problem, spread=False): library}
    # The key of what was chosen comes first: a reader takes the order of the file for the order of preference.
    order = list(found)[::-1] if wanted and wanted[0] in library else list(found)
    return {key: found[key] for key in order if found[key]}


def entry_of(problem: Mapping[str, Any], config: Config) -> dict[str, Any] | None:
    """A config as an entry; None: torch has no such template."""
    op = op_of(problem)
    template = config.get("template")
    if config["kind"] == "library":
        return {"template_id": f"aten::{op}"} if template in PLAIN else None
    if template not in PLAIN and (template not in TEMPLATES or op == "bmm"):
        return None
    name = ("bmm" if op == "bmm" else "mm") if template in PLAIN else TEMPLATES[template]
    given = {name: config[name] for name in ARGUMENTS if config.get(name) is not None}
    dtype = problem["dtype"]
    derived = {"EVEN_K": problem["K"] % config["BLOCK_K"] == 0, "ACC_TYPE": ACCUMULATORS[dtype]}
    return {"template_id": f"triton::{name}", **USUAL, **given, **derived}

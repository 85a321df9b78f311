"""Render docs/results.md and docs/coverage.md, and the counts in docs/reliability.md, from the files that `make bench` writes.

`make results`, or `python benchmarks/render_results.py`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reporting import RESULTS, ROOT, TOPICS, Result, Row, aim, measured, read, span, verdict

PAGE = ROOT / "docs" / "results.md"
RELIABILITY = ROOT / "docs" / "reliability.md"
COVERAGE = ROOT / "docs" / "coverage.md"
# Its rows are promises, and have a page of their own.
PROMISES = "coverage.py"
# Where tables of some scripts belong in a page that people write.
BLOCK = re.compile(r"(<!-- results of: ([\w ]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
# Characters with a meaning in Markdown or HTML.
SPECIAL = re.compile(r"[\\`*_\[\]<>&|~#]")
URL = re.compile(r"https?://[^\s,;()]+")
FIRST = """\
The numbers that say most, each on problems that the model was not trained on. *Speed of the choice* is the best measured time
of a problem divided by the time of the config that the model chose. *Error* is the mean absolute percentage error of predicted
times (MAPE). The tables below explain each row and give its interval.
"""
INTRO = """\
A script in `benchmarks/` printed every number on this page, and wrote it to `benchmarks/results/`. `make bench` runs
all scripts. `make results` renders this page from their files. Tables marked *not rerun since* were copied from an older
README, which had the output of the script.

- An interval marked `95 %` is a bootstrap interval over whole problems. A range goes from the smallest to the largest of
  repeated runs.
- A model is scored only on problems that it was not trained on. *Split* says what was held out.
- Columns that are named after other systems, and *against*, have baselines of the same run. Figures that were not rerun are
  marked as such.
- *Load* is the load average when the run began: how many processes wanted a CPU. On a busy machine, times are longer.
- The commit is the last one that changed `src/` before the run. A `+` means that `src/` had uncommitted changes.
- An empty cell means that the script did not print this value.
"""


@dataclass(frozen=True)
class Headline:
    """A row for the first screen: where the number is, what a reader calls it, and whom it is beside."""

    script: str
    row: str
    says: str
    rivals: tuple[str, ...]
    data: str


HEADLINES = (
    Headline(
        "a100_mm.py",
        "A100 mm: speed of the choice ÷ best measured speed, mean",
        "speed of the choice, matrix products on an A100",
        ("PyTorch's shipped trees", "always the vendor's library", "plain LightGBM"),
        "PyTorch's AutoHeuristic data",
    ),
    Headline(
        "a100_mixed_mm.py",
        "A100 mixed_mm: speed of the choice ÷ best measured speed, mean",
        "speed of the choice, mixed-dtype products on an A100",
        ("best fixed config of the other folds", "always the vendor's library"),
        "PyTorch's AutoHeuristic data",
    ),
    Headline(
        "matmul_heuristics.py",
        "A100 mm, Triton's kernels: speed of the choice ÷ best measured speed, mean",
        "speed of the choice, Triton's kernels alone",
        ("nvidia-matmul-heuristics",),
        "PyTorch's AutoHeuristic data",
    ),
    Headline(
        "quickstart.py",
        "quickstart: speed of the choice ÷ best measured speed, mean",
        "speed of the choice, five minutes of measuring a CPU",
        ("best fixed kernel",),
        "measured on the machine itself",
    ),
    Headline(
        "inductor.py",
        "three networks end to end, speed, max-autotune's = 1: geometric mean",
        "speed of three networks under torch.compile, max-autotune = 1",
        (),
        "measured on an AVX2 CPU",
    ),
    Headline(
        "kernel_tuner_search.py",
        "convolution_A100: best found with the model (local) ÷ optimum, 218 + 218 measurements",
        "best config found with 436 measurements, of the optimum",
        ("random search with as many measurements",),
        "a space that Kernel Tuner measured in full",
    ),
    Headline(
        "h100_gemm.py",
        "H100 bf16 GEMM: error of predicted times, MAPE",
        "error, bf16 GEMM on an H100",
        ("plain LightGBM", "roofline"),
        "NVIDIA's AIConfigurator",
    ),
    Headline(
        "llm_ops.py",
        "gemm, vllm, pairs (N, K) unseen: MAPE",
        "error, GEMM of vLLM on ten GPUs",
        ("untuned LightGBM", "roofline"),
        "NVIDIA's AIConfigurator",
    ),
    Headline(
        "llm_ops.py",
        "attention_context, trtllm, heads unseen: MAPE",
        "error, attention of prompts in TensorRT-LLM",
        ("untuned LightGBM", "roofline"),
        "NVIDIA's AIConfigurator",
    ),
    Headline(
        "unseen_device.py",
        "GEMM, 200 rows of the GPU, MAPE of its worst GPU (l40s)",
        "error on a new GPU with 200 rows, worst of nine",
        ("a model of these rows alone",),
        "NVIDIA's AIConfigurator",
    ),
    Headline(
        "ttnn.py",
        "big_exp: MAPE, every measurement",
        "error, TTNN's exp on a Wormhole card",
        ("line in the tile count",),
        "tables of TTNN's op runtime predictor",
    ),
    Headline(
        "reshard_lines.py",
        "width-height: R²",
        "R², reshards between grids that were not measured",
        ("published MLP",),
        "lines of tt-metal's reshard sweep (the MLP: rows split at random)",
    ),
    Headline(
        "served_models.py",
        "median error",
        "error of a whole step, median of servers",
        (),
        "measured servers",
    ),
    Headline(
        "select_latency.py",
        "from C, the portfolio, p50 of the quickest round",
        "choosing among 4,608 kernels, in C",
        (),
        "made-up CK Tile measurements",
    ),
    Headline(
        "chaos.py",
        "rows with another status than the injected one",
        "wrong rows when kernels crash, hang and lie",
        (),
        "injected faults",
    ),
)


def text(words: str) -> str:
    """Words escaped for Markdown, also inside a table cell; addresses become links."""
    parts, at = [], 0
    for found in URL.finditer(words):
        parts += [_escaped(words[at : found.start()]), f"<{found.group()}>"]
        at = found.end()
    return "".join([*parts, _escaped(words[at:])])


def _escaped(words: str) -> str:
    return SPECIAL.sub(lambda found: f"\\{found.group()}", " ".join(words.split("\n")))


def code(words: str) -> str:
    """A span of code, with more backticks around it than inside it."""
    longest = max((len(run) for run in re.findall(r"`+", words)), default=0)
    fence, room = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{room}{words}{room}{fence}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "what": lambda row: row.what,
    "measured": lambda row: measured(row) + (f" ({span(row.interval, row.unit)})" if row.interval else ""),
    "target": lambda row: aim(row.target, row.unit) if row.target else "",
    "reached?": verdict,
    "against": lambda row: row.against,
    "n": lambda row: row.n,
    "split": lambda row: row.split,
    "note": lambda row: row.note,
}
ALWAYS = ("what", "measured", "n")
# A figure of another system in what a row is compared with: its name and the number.
FIGURE = re.compile(r"(\D.*?):? (-?\d[\d.,]*(?: (?:%|×|µs|ms|s))?)")
# So many systems have a column of their own, if most rows are compared with them.
MOST_RIVALS = 4
# Said once above a table if all of its rows say the same.
ONCE = ("n", "split", "note")


def table(rows: Sequence[Row]) -> list[str]:
    """The lines of a table, without columns that are empty in every row; what all rows say stands above it."""
    cells = {name: [text(say(row)) for row in rows] for name, say in COLUMNS.items()}
    figures = [dict(_figures(row)) for row in rows]
    rivals = _often(figures)
    cells["against"] = [
        text("; ".join(part for part, name in _parts(row) if name not in rivals or name is None)) for row in rows
    ]
    once = [name for name in ONCE if len(rows) > 1 and cells[name][0] and len(set(cells[name])) == 1]
    kept = {name: column for name, column in cells.items() if name not in once and (name in ALWAYS or any(column))}
    short = [row.reached is False for row in rows]
    if any(short):
        kept["reached?"] = [f"**{said}**" if bad else said for said, bad in zip(kept["reached?"], short, strict=True)]
    beside = {text(name): [text(found.get(name, "")) for found in figures] for name in rivals}
    places = [name for name in COLUMNS if name in kept]
    first = len([name for name in places if name in ("what", "measured", "target", "reached?")])
    columns = {name: kept[name] for name in places[:first]} | beside | {name: kept[name] for name in places[first:]}
    lines = [list(columns), ["---"] * len(columns), *map(list, zip(*columns.values(), strict=True))]
    above = [" ".join(f"*{name}* in all rows: {cells[name][0]}." for name in once), ""] if once else []
    return [*above, *(f"| {' | '.join(line)} |" for line in lines)]


def _parts(row: Row) -> Iterator[tuple[str, str | None]]:
    """What a row is compared with, one by one, and the name of those that are a name and a figure."""
    for part in re.split(r"; (?![^(]*\))", row.against) if row.against else ():
        found = FIGURE.fullmatch(part)
        yield part, found[1] if found else None


def _figures(row: Row) -> Iterator[tuple[str, str]]:
    for part, name in _parts(row):
        found = FIGURE.fullmatch(part)
        if name is not None and found is not None:
            yield name, found[2]


def _often(figures: Sequence[Mapping[str, str]]) -> list[str]:
    """The systems that most rows are compared with, each a column."""
    counts = Counter(name for row in figures for name in row)
    often = [name for name, count in counts.most_common() if count >= max(3, len(figures) / 2)]
    return often[:MOST_RIVALS]


def provenance(result: Result) -> str:
    """The command that printed the rows, its date, machine and version."""
    where = [result.date, result.machine, f"kerncast {result.version} ({result.commit})" if result.version else ""]
    if result.load is not None:
        where.append(f"load {result.load:g}")
    if result.seconds is not None:
        where.append(f"took {result.seconds:,.0f} s")
    told = f"{code(result.command)}: {text('; '.join(part for part in where if part))}."
    if result.printed:
        told += f" **Not rerun since** the README of commit {code(result.printed)}, which has these numbers."
    return told


def section(result: Result) -> list[str]:
    made = result.benchmark
    lines = [f"### {text(made.title)}", "", provenance(result), ""]
    if made.data:
        lines += [f"Data: {text(made.data)} (licence: {text(made.licence)}).", ""]
    if made.note:
        lines += [text(made.note), ""]
    return [*lines, *table(result.rows), ""]


def first_screen(results: Sequence[Result]) -> list[str]:
    """The table of headlines, as far as their rows were kept."""
    found = {(result.benchmark.script, row.what): row for result in reversed(results) for row in result.rows}
    lines = []
    for item in HEADLINES:
        row = found.get((item.script, item.row))
        if row is not None:
            others = "; ".join(f"{name} {beside(row.against, name)}" for name in item.rivals)
            cells = (item.says, measured(row), others, f"{item.data}, {row.n}" if row.n else item.data)
            lines.append(f"| {' | '.join(text(cell) for cell in cells)} |")
    head = ["| what | kerncast | others | data |", "| --- | --- | --- | --- |"]
    return [*FIRST.splitlines(), "", *head, *lines, ""] if lines else []


def beside(against: str, name: str) -> str:
    """The figure of one of the systems that a row is compared with."""
    plain = re.sub(r" \([^)]*\)", "", against)
    found = re.search(rf"(?:^|; |, ){re.escape(name)}[^;]*? (\d[\d.,]*(?: [%×µs]+)?)(?=$|[;,] )", plain)
    if found is None:
        raise ValueError(f"no figure of '{name}' in '{against}': name one of those")
    return found[1]


def summary(results: Sequence[Result]) -> list[str]:
    """The number of targets, and a list of those that are not reached."""
    aimed = [(result, row) for result in results for row in result.rows if row.target]
    short = [(result, row) for result, row in aimed if row.reached is False]
    old = sum(bool(result.printed) for result, _ in aimed)
    told = f"{len(aimed)} numbers have a target: {len(aimed) - len(short)} reach it, {len(short)} are short of it."
    lines = ["## Targets", "", f"{told} {old} of them were copied from an older README and not rerun since.", ""]
    lines += ["Short of target:", ""] if short else []
    for result, row in short:
        assert row.target is not None
        again = ", not rerun since" if result.printed else ""
        said = f"{row.what}: {measured(row)}, target {aim(row.target, row.unit)}{again}"
        lines.append(f"- {text(said)} ({code(result.benchmark.script)})")
    return [*lines, ""] if short else lines


def listed(makefile: Path) -> list[str]:
    """The benchmarks that `make bench` runs."""
    found = re.search(r"^BENCHMARKS := (.*)$", makefile.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"{makefile} has no line `BENCHMARKS := …`: add one that names the benchmarks")
    return found.group(1).split()


def never_run(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    known = {result.benchmark.script.removesuffix(".py") for result in results}
    missing = [name for name in names if name not in known]
    if not missing:
        return []
    lines = ["## Never run", "", "No results of these benchmarks have been kept:", ""]
    return [*lines, *(f"- {code(f'python benchmarks/{name}.py')}" for name in missing), ""]


def page(results: Sequence[Result], names: Sequence[str]) -> str:
    order = {f"{name}.py": place for place, name in enumerate(names)}
    ordered = sorted(results, key=lambda result: (order.get(result.benchmark.script, len(order)), result.command))
    numbers = [result for result in ordered if result.benchmark.script != PROMISES]
    lines = [
        "# Results",
        "",
        *first_screen(numbers),
        "## How to read this page",
        "",
        *INTRO.splitlines(),
        "",
        *summary(numbers),
    ]
    for topic in TOPICS:
        of_topic = [result for result in numbers if result.benchmark.topic == topic]
        if of_topic:
            lines += [f"## {text(topic)}", "", *(line for result in of_topic for line in section(result))]
    return "\n".join([*lines, *never_run(ordered, names)]).rstrip("\n") + "\n"


def with_counts(words: str, results: Sequence[Result]) -> str:
    """A page with what the scripts that its blocks name must reach; scripts without a result are left out."""

    def fill(found: re.Match[str]) -> str:
        lines = []
        for name in found[2].split():
            for result in results:
                if result.benchmark.script == f"{name}.py":
                    aimed = [row for row in result.rows if row.target]
                    lines += ["", f"**{text(result.benchmark.title)}**", "", *table(aimed)]
        return "\n".join([found[1].rstrip("\n"), *lines, "", found[3]])

    return BLOCK.sub(fill, words)


COVERAGE_INTRO = """\
# What users of other systems find here

Four systems do parts of what kerncast does: CK Tile's heuristics (AMD), torch-diode (PyTorch), the TTNN op runtime predictor
and the reshard models (Tenstorrent). Each table lists what users of one of them can do there, and how it is done here.
[Coming from another tool](coming-from.md) translates their commands.
"""
COVERAGE_PROOF = """\
`benchmarks/coverage.py` does each row with small made-up files and checks the results. "As far as possible without a card"
means that it was done up to where a card is needed.
"""


def coverage(results: Sequence[Result]) -> str:
    """The page of promises, a table for each system."""
    found = [result for result in results if result.benchmark.script == PROMISES]
    lines = COVERAGE_INTRO.splitlines()
    if not found:
        lines += [
            "",
            "No result has been kept yet: run `python benchmarks/coverage.py --json benchmarks/results/coverage.json`.",
        ]
    for result in found:
        right = [row for row in result.rows if row.reached]
        further = sum(bool(row.against) for row in right)
        told = f"{len(right)} of {len(result.rows)} rows are done, {further} of these as far as this machine allows."
        lines += ["", told, *COVERAGE_PROOF.splitlines(), "", f"Last run: {provenance(result)}"]
        for system in dict.fromkeys(row.split for row in result.rows):
            lines += ["", f"## {text(system)}", "", "| what you can do there | here | with |", "|---|---|---|"]
            rows = sorted((row for row in result.rows if row.split == system), key=lambda row: int(row.n.split("-")[0]))
            lines += [f"| {row.what} | {_state(row)} | {row.note} |" for row in rows]
    return "\n".join(lines) + "\n"


def _state(row: Row) -> str:
    """Whether a row is done, and what it would take to go on."""
    if row.reached:
        return f"as far as possible without {text(row.against)}" if row.against else "yes"
    return f"**no**: {row.against}" if row.against else "**no**"


def kept() -> list[Result]:
    return [read(file) for file in sorted(RESULTS.glob("*.json"))]


def rendered() -> str:
    return page(kept(), listed(ROOT / "Makefile"))


def rendered_coverage() -> str:
    return coverage(kept())


def rendered_reliability() -> str:
    return with_counts(RELIABILITY.read_text(encoding="utf-8"), kept())


def main() -> int:
    for file, words in ((PAGE, rendered()), (RELIABILITY, rendered_reliability()), (COVERAGE, rendered_coverage())):
        file.write_text(words, encoding="utf-8")
        print(f"wrote {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

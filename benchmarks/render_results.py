"""Render docs/results.md and docs/coverage.md, and the counts in docs/reliability.md, from the files that `make bench` writes.

`make results`, or `python benchmarks/render_results.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
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
INTRO = """\
Every number below was printed by a script in `benchmarks/`, which also wrote it to `benchmarks/results/`. `make bench` runs
all scripts. `make results` renders this page from their files. Tables marked *not rerun since* were copied from an older
README, which had the output of the script.

- An interval marked `95 %` is a bootstrap interval over whole problems. A range goes from the smallest to the largest of
  repeated runs.
- A model is scored only on problems that it was not trained on. *Split* says what was held out.
- *Against* lists baselines of the same run. Figures of other systems that were not rerun are marked as such.
- *Load* is the load average when the run began: how many processes wanted a CPU. On a busy machine, times are longer.
- The commit is the last one that changed `src/` before the run. A `+` means that `src/` had uncommitted changes.
- An empty cell means that the script did not print this value.
"""


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


def table(rows: Sequence[Row]) -> list[str]:
    """The lines of a table, without columns that are empty in every row."""
    cells = {name: [text(say(row)) for row in rows] for name, say in COLUMNS.items()}
    kept = {name: column for name, column in cells.items() if name in ALWAYS or any(column)}
    short = [row.reached is False for row in rows]
    kept |= (
        {"reached?": [f"**{said}**" if bad else said for said, bad in zip(kept["reached?"], short, strict=True)]}
        if any(short)
        else {}
    )
    lines = [list(kept), ["---"] * len(kept), *map(list, zip(*kept.values(), strict=True))]
    return [f"| {' | '.join(line)} |" for line in lines]


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


def summary(results: Sequence[Result]) -> list[str]:
    """The number of targets, and a list of those that are not reached."""
    aimed = [(result, row) for result in results for row in result.rows if row.target]
    short = [(result, row) for result, row in aimed if row.reached is False]
    old = sum(bool(result.printed) for result, _ in aimed)
    told = f"{len(aimed)} numbers have a target: {len(aimed) - len(short)} reach it, {len(short)} are short of it."
    lines = ["## At a glance", "", f"{told} {old} of them were copied from an older README and not rerun since.", ""]
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
    lines = ["# Results", "", *INTRO.splitlines(), "", *summary(numbers)]
    for topic in TOPICS:
        of_topic = [result for result in numbers if result.benchmark.topic == topic]
        if of_topic:
            lines += [f"## {text(topic)}", "", *(line for result in of_topic for line in section(result))]
    return "\n".join([*lines, *never_run(ordered, names)]).rstrip("\n") + "\n"


def with_counts(words: str, results: Sequence[Result]) -> str:
    """A page with the tables of the scripts that its blocks name; scripts without a result are left out."""

    def fill(found: re.Match[str]) -> str:
        lines = []
        for name in found[2].split():
            for result in results:
                if result.benchmark.script == f"{name}.py":
                    lines += ["", f"**{text(result.benchmark.title)}**", "", *table(result.rows)]
        return "\n".join([found[1].rstrip("\n"), *lines, "", found[3]])

    return BLOCK.sub(fill, words)


COVERAGE_INTRO = """\
# What users of other systems find here

Four systems do parts of what kerncast does: CK Tile's heuristics (AMD), torch-diode (PyTorch), the TTNN op runtime predictor
and the reshard models (Tenstorrent). This page lists what they promise their users. `python benchmarks/coverage.py` does each
of it with small made-up files, and `make results` writes this page from its result. [Coming from another
tool](coming-from.md) translates their commands.
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
        rows = result.rows
        right = [row for row in rows if row.reached]
        further = sum(bool(row.against) for row in right)
        told = (
            f"{len(right)} of {len(rows)} groups of promises are kept. {further} of these were done up to what is missing here."
        )
        lines += ["", f"{told} {provenance(result)}"]
        for system in dict.fromkeys(row.split for row in rows):
            lines += ["", f"## {text(system)}", "", "| # | promise | kept? | shown by |", "|---|---|---|---|"]
            for row in sorted((row for row in rows if row.split == system), key=lambda row: int(row.n.split("-")[0])):
                state = f"yes; to go further: {row.against}" if row.reached and row.against else "yes" if row.reached else "no"
                if not row.reached:
                    state = f"**no**: {text(row.against)}" if row.against else "**no**"
                shown = row.note if len(row.note) <= LONGEST_COMMAND else row.note[:LONGEST_COMMAND] + " …"
                lines.append(f"| {row.n} | {text(row.what)} | {text(state) if row.reached else state} | {_cell(shown)} |")
    return "\n".join(lines) + "\n"


LONGEST_COMMAND = 500


def _cell(command: str) -> str:
    """A command inside a table: a bar would end the cell, whatever stands around it."""
    return code(command.replace("|", "\\|")) if command else ""


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

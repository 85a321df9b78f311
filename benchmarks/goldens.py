"""Whether this checkout answers as another revision does, exactly: a net under changes that must not change an answer.

    python benchmarks/goldens.py REVISION            compare; answers of a revision are kept in KERNCAST_CACHE
    python benchmarks/goldens.py --answer QUESTIONS ANSWERS

The revision makes the questions and answers them with its own copy of this script, in a worktree of its own, on this machine;
then this checkout answers the same questions. Questions go to the shipped models (in one call for each device, and one by one
as a user asks), to six small models by tier in Python and C, to exported code and blobs, and to the JSON reader; beside them
stand the options of all verbs and digests of trainings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parent.parent
# Problems inside what a model has seen, and beyond it; how many of each are also asked one by one.
INSIDE, BEYOND, ALONE = 150, 50, 3
SMALL_PROBLEMS, C_PROBLEMS = 200, 2_000
SHIPPED_IN_C = ("gemm-trtllm@h100", "attention_context-vllm@h100", "moe-sglang@b200")
KNOBS: dict[str, dict[str, Any]] = {
    "gbdt": {"trees": 30, "leaves": 15, "bags": 2, "library_trees": 4}, "mlp": {"epochs": 10}, "deep": {"epochs": 4},
    "linear": {}, "roofline": {}, "ck": {"file_format": "ck", "trees": 30, "leaves": 15},
}  # fmt: skip
SHOWN = 5


class Question(NamedTuple):
    """Who is asked (`part`, `subject`) and what."""

    part: str
    subject: str
    asked: str


# -- questions ------------------------------------------------------------------------------------------------------------


def drawn_problem(ranges: Mapping[str, Any], rng: np.random.Generator, beyond: float) -> dict[str, Any]:
    """Values of each parameter within what a model has seen, or up to `beyond` times as large.

    Half of the problems have powers of two only, which fit the rules of most ops.
    """
    problem, powers = {}, rng.random() < 0.5
    for name, seen in ranges.items():
        if seen.labels:
            problem[name] = seen.labels[int(rng.integers(len(seen.labels)))]
            continue
        low, high = float(seen.low), float(seen.high) * beyond
        value = np.exp(rng.uniform(np.log(low + 1), np.log(high + 1))) - 1
        power = 2 ** round(float(np.log2(value))) if value >= 1 else 0
        problem[name] = int(min(max(power if powers else round(value), low), high))
    return problem


def questions_for(ranges: Mapping[str, Any], count: int, beyond: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    drawn = [drawn_problem(ranges, rng, 1.0) for _ in range(count)] + [drawn_problem(ranges, rng, 4.0) for _ in range(beyond)]
    return [json.dumps(problem) for problem in drawn]


def json_requests() -> list[str]:
    """Requests that stand in docs and tests, and what is left of each if a key is misspelt, left out or of another kind."""
    found: dict[str, None] = {}
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / "tests").rglob("test_*.py")]:
        for text in re.findall(r"(?<![\w\]])\{[^`]*?\}(?=[`'\n])", page.read_text(encoding="utf-8")):
            try:
                request = json.loads(text)
            except ValueError:
                continue
            if isinstance(request, dict) and {"op", "family", "problem", "tensor_spec"} & set(request):
                found |= dict.fromkeys([text, *(json.dumps(other) for other in variations(request))])
    return list(found)


def variations(request: Any) -> Iterator[Any]:
    """The request with one key left out, misspelt, null, or of another kind."""
    if not isinstance(request, dict):
        return
    for key, value in request.items():
        rest = {name: other for name, other in request.items() if name != key}
        yield rest
        yield {**rest, f"{key}x": value}
        for other in (None, "other", -1, 2.5, [value]):
            yield {**rest, key: other}
        for inner in variations(value):
            yield {**rest, key: inner}


def questions(folder: Path) -> list[Question]:
    import kerncast as kc
    from kerncast.models.store.entry import shipped_entries

    asked = []
    for number, entry in enumerate(sorted(shipped_entries(), key=lambda entry: entry.id)):
        model = kc.open(entry.id)
        name = entry.id.removeprefix("shipped/")
        for record in model.manifest.devices:
            ranges = (model.on(record.name) if len(model.manifest.devices) > 1 else model).manifest.hull
            problems = questions_for(ranges, INSIDE, BEYOND, number)
            asked += [Question("shipped", f"{name}@{record.name}", problem) for problem in problems]
            alone = problems[:ALONE] + problems[-ALONE:]
            asked += [Question("alone", f"{model.family.op.name}@{record.name}", problem) for problem in alone]
            if f"{name}@{record.name}" in SHIPPED_IN_C:
                more = questions_for(ranges, C_PROBLEMS * 3 // 4, C_PROBLEMS // 4, 7)
                asked += [Question("C", f"{name}@{record.name} {form}", item) for form in ("code", "blob") for item in more]
    for kind, model in small_models(folder).items():
        ranges = model.manifest.hull
        for tier in ("tree", "portfolio", "full"):
            few = questions_for(ranges, SMALL_PROBLEMS * 3 // 4, SMALL_PROBLEMS // 4, 3)
            asked += [Question("small", f"{kind} {tier} {way}", item) for way in ("Python", "C") for item in few]
        more = questions_for(ranges, C_PROBLEMS * 3 // 4, C_PROBLEMS // 4, 7)
        asked += [Question("C", f"{kind} {form}", item) for form in ("code", "blob") for item in more]
        asked.append(Question("training", kind, json.dumps(KNOBS[kind])))
    asked += [Question("json", "", request) for request in json_requests()]
    asked += [Question("verb", name, "") for name in verbs()]
    return asked


# -- answers --------------------------------------------------------------------------------------------------------------


def small_models(folder: Path) -> dict[str, Any]:
    """One of each kind; `deep` only where torch is installed."""
    import kerncast as kc
    from kerncast.library.registry import FAMILIES
    from kerncast.testing.models import synthetic_dataset, synthetic_rows

    made = {}
    if not folder.joinpath("tiles").exists():
        synthetic_dataset(folder / "triton", synthetic_rows(problems=36))
        synthetic_dataset(folder / "tiles", ck_tile_rows(), FAMILIES.get("gemm/ck_tile"))
    for kind, knobs in KNOBS.items():
        if kind == "deep" and not _is_installed("torch"):
            continue
        out = folder / kind
        if not out.exists():
            data, which = (folder / "tiles", {}) if kind == "ck" else (folder / "triton", {"kind": kind})
            kc.train(data, out=out, folds=2, threads=1, progress=False, **which, **knobs)
        made[kind] = kc.Model.load(out)
    return made


def ck_tile_rows() -> pl.DataFrame:
    """A dozen kernels of CK Tile on random shapes, with made-up times."""
    from kerncast.library import devices
    from kerncast.library.registry import FAMILIES

    rng, family = np.random.default_rng(0), FAMILIES.get("gemm/ck_tile")
    shapes = pl.DataFrame({f"problem.{name}": 64 * rng.integers(1, 64, 48) for name in "MNK"})
    kernels = family.config.sample(12, 0, family.bindings({"dtype": "fp16"}, devices.get("gfx942")))
    rows = shapes.join(kernels.rename(lambda name: f"config.{name}"), how="cross")
    area = pl.col("config.tile_m") * pl.col("config.tile_n")
    tiles = (pl.col("problem.M") / pl.col("config.tile_m")).ceil() * (pl.col("problem.N") / pl.col("config.tile_n")).ceil()
    time_ns = 2000 + (tiles / 228).ceil() * area * pl.col("problem.K") / 3e3 * (1 + 4000 / area)
    fixed = {"device": "gfx942", "status": "ok", "problem.dtype": "fp16", "problem.layout": "rcr"}
    noise = pl.Series(np.exp(0.01 * rng.standard_normal(rows.height)))
    return rows.with_columns(time_ns=time_ns * noise, **{name: pl.lit(value) for name, value in fixed.items()})


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def verbs() -> list[str]:
    from kerncast.app.cli import VERBS

    return sorted(VERBS)


def plain(answer: Any) -> dict[str, Any]:
    """What an answer says, of a model or a selector."""
    config = None if answer.config is None else answer.config.as_dict()
    fallback = None if answer.fallback is None else answer.fallback.as_dict()
    names = ("time_ns", "lower_ns", "upper_ns", "efficiency", "reason", "note", "label")
    return {
        "status": str(answer.status), "config": config, "fallback": fallback, **{name: getattr(answer, name) for name in names}
    }  # fmt: skip


def each(ask: Callable[[dict[str, Any]], Any], asked: Sequence[str]) -> Iterator[Any]:
    """The answer to each question, or the error."""
    from kerncast.errors import KerncastError

    for text in asked:
        try:
            yield ask(json.loads(text))
        except KerncastError as error:
            yield {"error": type(error).__name__, "says": str(error)}


def shipped_answers(subject: str, asked: Sequence[str], _: Path) -> Iterator[Any]:
    """All valid ones in one call; a call would be refused for one that is not."""
    import kerncast as kc

    name, _, device = subject.partition("@")
    model = kc.open(f"shipped/{name}")
    checked = list(each(lambda problem: model.problem(problem) and problem, asked))
    valid = [problem for problem in checked if "error" not in problem]
    answers = iter(model.predict(valid, device=device) if valid else [])
    for problem in checked:
        yield problem if "error" in problem else plain(next(answers))


def alone_answers(subject: str, asked: Sequence[str], _: Path) -> Iterator[Any]:
    import kerncast as kc

    op, _, device = subject.partition("@")
    return each(lambda problem: kc.predict(op, problem, device=device, progress=False).as_json(), asked)


def small_answers(subject: str, asked: Sequence[str], folder: Path) -> Iterator[Any]:
    import kerncast as kc

    kind, tier, way = subject.split()
    pick = kc.Selector(small_models(folder)[kind], compile=way == "C", progress=False)
    return each(lambda problem: plain(pick.select(problem, tier=tier)), asked)


def c_answers(subject: str, asked: Sequence[str], folder: Path) -> Iterator[Any]:
    """Status, config and the bits of all numbers, as exported code and as a blob give them."""
    import kerncast as kc

    name, _, form = subject.partition(" ")
    if "@" in name:
        model, device = kc.open(f"shipped/{name.partition('@')[0]}"), name.partition("@")[2]
    else:
        model, device = small_models(folder)[name], None
    made = folder / subject.replace(" ", "-")
    if form == "code":
        loaded = model.on(device) if device else model
        pick = kc.Selector(loaded, compile=True, progress=False)
        return each(lambda problem: plain(pick.select(problem)), asked)
    return blob_answers(kc.export(model, to="blob", out=made, device=device, progress=False), model, asked)


def blob_answers(exported: Any, model: Any, asked: Sequence[str]) -> Iterator[Any]:
    from kerncast.native import encode
    from kerncast.native.blob.runtime import BlobBinding, compiled_runtime

    library = compiled_runtime()
    assert library is not None, "there is no C compiler: install gcc"
    (blob,) = exported
    binding = BlobBinding(library, blob.read_bytes(), blob.name)

    def ask(values: dict[str, Any]) -> Any:
        return repr(binding.select(encode(model.family.problem, model.problem(values)), "full"))

    return each(ask, asked)


def json_answers(_: str, asked: Sequence[str], __: Path) -> Iterator[Any]:
    import kerncast as kc

    for request in asked:
        yield json.loads(kc.predict(request, progress=False))


def verb_answers(verb: str, asked: Sequence[str], _: Path) -> Iterator[Any]:
    from importlib import import_module

    from kerncast.app.cli import VERBS

    if verb not in VERBS:
        yield from ({"": "no verb of its own"} for _ in asked)
        return
    module = import_module(f"kerncast.app.cli.verbs.{VERBS[verb][0]}")
    command = getattr(module, f"{verb}_verb", None) or module.command
    inner = getattr(command, "commands", {})
    for _ in asked:
        yield {name: sorted(option for parameter in item.params for option in parameter.opts)
               for name, item in {"": command, **inner}.items()}  # fmt: skip


def training_answers(kind: str, asked: Sequence[str], folder: Path) -> Iterator[Any]:
    """Digests of what was learned: the same rows and seed give the same bytes."""
    model = small_models(folder)[kind]
    files = [file for file in sorted(model.path.rglob("*")) if file.suffix in (".npz", ".gz", ".lgbm", ".csv")]
    for _ in asked:
        yield {file.name: hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest() for file in files}


PARTS = {
    "shipped": shipped_answers, "alone": alone_answers, "small": small_answers, "C": c_answers, "json": json_answers,
    "verb": verb_answers, "training": training_answers,
}  # fmt: skip


def answer(asked: Sequence[Question], folder: Path) -> list[list[Any]]:
    """Each question with its answer."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for question in asked:
        groups[question.part, question.subject].append(question.asked)
    found, spent = [], Counter[str]()
    for (part, subject), texts in groups.items():
        began = time.perf_counter()
        found += [[part, subject, *pair] for pair in zip(texts, PARTS[part](subject, texts, folder), strict=True)]
        spent[part] += time.perf_counter() - began
    print("; ".join(f"{part} {seconds:.0f} s" for part, seconds in spent.items()), flush=True)
    return found


# -- comparing ------------------------------------------------------------------------------------------------------------


def run(script: Path, source: Path, *files: Path) -> None:
    """Answer with the copy of this script, and the package, of a checkout."""
    # A family that a checkout installs beside the package is that of the same checkout.
    paths = os.pathsep.join(map(str, (source, source.parent / "examples" / "softmax")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "KERNCAST_STORE": "/nonexistent"}
    subprocess.run([sys.executable, script, "--answer", *files], env=environment, check=True)


def reference(revision: str) -> Path:
    """The answers of a revision, and its questions; made once."""
    cache = Path(os.environ.get("KERNCAST_CACHE", Path.home() / ".cache" / "kerncast")) / "goldens"
    commit = subprocess.check_output(["git", "rev-parse", f"{revision}^{{commit}}"], cwd=ROOT, text=True).strip()
    file = cache / f"{commit}.json"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
            try:
                made = Path(folder) / "answers.json"
                run(tree / "benchmarks" / "goldens.py", tree / "src", Path(os.devnull), made)
                made.replace(file)
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    return file


def compare(revision: str) -> int:
    before = reference(revision)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(__file__), ROOT / "src", before, Path(folder) / "answers.json")
        old, new = (json.loads(file.read_text()) for file in (before, Path(folder) / "answers.json"))
    wrong: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for one, other in zip(old, new, strict=True):
        assert one[:3] == other[:3]
        if one[3] != other[3]:
            wrong[one[0]].append((one, other))
    for part, count in Counter(one[0] for one in old).items():
        print(f"{part:<10} {count:>7,} questions, {len(wrong[part]):,} answered otherwise")
        for one, other in wrong[part][:SHOWN]:
            print(
                f"  {one[1]} {one[2][:300]}\n    {revision}: {json.dumps(one[3])[:400]}\n    now: {json.dumps(other[3])[:400]}"
            )
    return int(any(wrong.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", help="a commit of this repository that has this script")
    parser.add_argument("--answer", nargs=2, type=Path, metavar=("QUESTIONS", "ANSWERS"), help="of this checkout alone")
    given = parser.parse_args()
    if given.answer is None:
        if given.revision is None:
            parser.error("name the revision to compare with")
        return compare(given.revision)
    asked, answers = given.answer
    with tempfile.TemporaryDirectory() as folder:
        text = asked.read_text()
        known = [Question(*item[:3]) for item in json.loads(text)] if text else questions(Path(folder))
        answers.write_text(json.dumps(answer(known, Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

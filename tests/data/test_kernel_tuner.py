import gzip
import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerncast.core.expr import Program, Symbol, symbol
from kerncast.core.op import Config, Problem
from kerncast.data import Dataset
from kerncast.data.dataset import merge
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.library.declared.diagram import alive, diagram_of, is_everything, points_of, read, written
from kerncast.testing import repeats
from kerncast.testing.importers import ImporterContract

HEADER = {
    "device_name": "Some GPU 9000",
    "kernel_name": "blur-kernel",
    "problem_size": [1024, 512],
    "tune_params_keys": ["block_size_x", "block_size_y", "tile_size_x", "mode", "fast"],
    "tune_params": {"block_size_x": [16, 32, 64]},
    "objective": "time",
}
ERRORS = {5: "InvalidConfig", 9: "CompilationFailedConfig", 13: "RuntimeFailedConfig"}


def attempts(least: int = 1) -> list[dict[str, Any]]:
    """Every combination of at most 128 threads, three of them failed; times in milliseconds, each launch kept."""
    found = []
    for x in (16, 32, 64):
        for y in (1, 2, 4, 8):
            for tile in (1, 2):
                for mode in ("plain", "fancy"):
                    if least <= x * y <= 128:
                        config = {"block_size_x": x, "block_size_y": y, "tile_size_x": tile, "mode": mode, "fast": tile == 2}
                        time = 1.0 + abs(math.log2(x * y) - 6) / 4 + 0.25 * (tile == 1) + 0.1 * (mode == "plain")
                        found.append({**config, "time": time * 1.01, "times": [time * 1.05, time, time * 0.99, time]})
    return [{**entry, "time": ERRORS[i], "times": []} if i in ERRORS else entry for i, entry in enumerate(found)]


def cache(entries: list[dict[str, Any]], **header: Any) -> str:
    """As Kernel Tuner writes it: one entry a line."""
    head = json.dumps({**HEADER, **header}, indent=0)[:-2]
    lines = ",\n".join(f'"{number}": {json.dumps(entry)}' for number, entry in enumerate(entries))
    return f'{head},\n"cache": {{\n{lines}}}\n}}'


def imported(folder: Path, content: str | bytes, name: str = "out", **options: Any) -> Dataset:
    source = folder / f"{name}.json"
    source.write_bytes(content.encode() if isinstance(content, str) else content)
    return import_files("kernel-tuner", [source], folder / name, ImportOptions(**options))


class TestKernelTuner(ImporterContract):
    format_name = "kernel-tuner"
    sample: ClassVar[bytes] = cache(attempts()[:15]).encode()
    options: ClassVar[ImportOptions] = ImportOptions()


def test_each_entry_becomes_a_row_with_its_status_and_the_statistics_of_its_launches(tmp_path):
    """Milliseconds become nanoseconds, the median is the label, the spread is kept, errors are statuses."""
    rows = imported(tmp_path, cache(attempts())).read()
    assert rows.height == len(attempts())
    assert rows["device"].unique().to_list() == ["some_gpu_9000"]
    first = rows.row(0, named=True)
    time = attempts()[0]["times"][1] * 1e6
    assert (first["time_ns"], first["samples"], first["source_line"]) == (
        time,
        4,
        cache(attempts()).split('"0":')[0].count("\n") + 1,
    )
    assert first["time_ns_min"] == pytest.approx(0.99 * time)
    assert first["time_ns_mad"] == pytest.approx(0.005 * time)
    assert {i: rows["status"][i] for i in ERRORS} == {5: "invalid", 9: "compile_error", 13: "launch_error"}
    assert (rows["status"] == "ok").sum() == rows.height - 3
    assert rows.select("problem.kernel", "problem.size_x", "problem.size_y").row(0) == ("blur-kernel", 1024, 512)


@pytest.mark.parametrize("at_once", [1, 65_536], ids=["a check for each parameter", "one check"])
def test_the_space_is_exactly_the_configs_of_the_file(at_once, tmp_path, monkeypatch):
    """Listing, counting, validating, sampling and projecting obey it, failures included, rules unknown."""
    monkeypatch.setattr("kerncast.library.declared.declaration.CHECKED_AT_ONCE", at_once)
    dataset = imported(tmp_path, cache(attempts()), values={"op": f"blur_{at_once}"})
    (family,) = dataset.families
    assert len(family.config.constraints) == (1 if at_once > 1 else len(HEADER["tune_params_keys"]))
    rows = dataset.read().select(pl.col("^config\\..*$").name.map(lambda name: name.removeprefix("config.")))
    assert set(pl.concat(family.config.frames()).rows()) == set(rows.rows())
    assert family.config.count() == rows.height
    assert set(family.config.sample(20, seed=1).rows()) <= set(rows.rows())
    wrong = {**rows.row(0, named=True), "block_size_x": 64, "block_size_y": 8}
    with pytest.raises(InvalidValue, match="no such config"):
        Config(family, wrong)
    nearest = family.config.project(wrong)
    assert tuple(nearest.values()) in set(rows.rows())
    assert Config(family, nearest).block_size_x * nearest["block_size_y"] <= 128


def test_features_are_drafted_from_names_and_values(tmp_path):
    """Each parameter that varies, products along an axis and over all of them, blocks; of devices their three numbers."""
    (family,) = imported(tmp_path, cache(attempts())).families
    program = family.feature_program
    numbers = {item.name: 1.0 for item in program.symbols if item.name.startswith("hw.")}
    assert set(numbers) == {"hw.num_cus", "hw.max_clock_mhz", "hw.memory_bandwidth_gb_s"}
    config = {"block_size_x": 32, "block_size_y": 4, "tile_size_x": 2, "mode": "fancy", "fast": True}
    problem = {"kernel": "blur-kernel", "size_x": 1000, "size_y": 512}
    values = program.scalar({**family.problem.qualified(problem), **family.config.qualified(config), **numbers})
    assert values["log2_along_x"] == pytest.approx(6.0)
    assert values["log2_all_block_size"] == pytest.approx(7.0)
    assert (values["blocks_x"], values["blocks_y"], values["fast"]) == (16, 128, 1)
    assert values["padding_x"] == pytest.approx(1.024)


def test_a_file_that_breaks_off_is_read_up_to_there(tmp_path):
    """Cut anywhere behind the first entry, plain or gzipped, whole entries are kept; a break before the end is damage."""
    text = cache(attempts())
    second = text.index('"1":')
    rng = random.Random(0)
    for number in range(40):
        cut = rng.randrange(second, len(text))
        whole = len(re.findall(r"\},\n", text[:cut])) + (text[:cut].rstrip(",\n").endswith("}"))
        kept = imported(tmp_path, text[:cut], f"cut{number}").rows
        assert kept in (whole, whole - 1), (cut, kept, whole)
        assert kept >= 1
    assert imported(tmp_path, text[: text.rindex("}\n}")] + ",\n", "open").rows == len(attempts())
    packed = gzip.compress(text.encode(), mtime=0)
    assert imported(tmp_path, packed, "packed").rows == len(attempts())
    assert 1 <= imported(tmp_path, packed[:-60], "packed-cut").rows < len(attempts())
    dataset = imported(tmp_path, text.replace('"1": {', '"1" {'), "damaged")
    assert (dataset.rows, dataset.skipped.rows) == (len(attempts()) - 1, 1)
    assert dataset.skipped.frame().select("source_line", "kind").row(0) == (
        text[:second].count("\n") + 1, "an entry must be whole JSON",
    )  # fmt: skip


def test_the_t4_form_holds_the_same_rows(tmp_path):
    """Same times and statuses; what it does not say (kernel, device) is asked for."""
    words = {"InvalidConfig": "constraints", "CompilationFailedConfig": "compile", "RuntimeFailedConfig": "runtime"}
    results = [
        {
            "configuration": {name: entry[name] for name in HEADER["tune_params_keys"]},
            "times": {"runtimes": entry["times"]},
            "invalidity": words.get(str(entry["time"]), "correct"),
        }
        for entry in attempts()
    ]
    t4 = json.dumps({"metadata": {"timeunit": "miliseconds"}, "results": results}, indent=1)
    with pytest.raises(InvalidValue, match="`constants` op=NAME"):
        imported(tmp_path, t4, device="a100")
    same = ["status", "time_ns", "time_ns_mad", "samples", "config.block_size_x", "config.mode"]
    read = imported(tmp_path, t4, "t4", device="a100", values={"op": "blur"}).read().select(same)
    assert read.equals(imported(tmp_path, cache(attempts()), "plain").read().select(same))


def test_a_draft_travels_with_its_dataset_to_another_process(tmp_path):
    """Nothing is registered: who opens the directory knows the op from it."""
    imported(tmp_path, cache(attempts()))
    code = (
        "import sys; from kerncast.data import Dataset; d = Dataset.open(sys.argv[1]); (f,) = d.families; "
        "print(f.id, f.config.count(), d.read().height, f.config.digest)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True, check=True)
    (family,) = Dataset.open(tmp_path / "out").families
    assert done.stdout.split() == ["blur_kernel/kernel_tuner", str(len(attempts())), str(len(attempts())), family.config.digest]


def test_two_drafts_of_a_kernel_are_joined_when_datasets_are_merged(tmp_path):
    """Values and configs of both, labels under their old codes; other parameters under one name are refused."""
    few = [entry for entry in attempts(33) if entry["block_size_x"] != 16]
    first = imported(tmp_path, cache(few), "few")
    second = imported(tmp_path, cache([e for e in attempts() if e["block_size_x"] == 16]), "other")
    with pytest.raises(InvalidValue, match="kerncast merge"):
        first.read(second.families[0])
    joined, dropped = merge([first.path, second.path], tmp_path / "joined")
    (family,) = joined.families
    assert (joined.rows, dropped) == (first.rows + second.rows, 0)
    assert family.config.count() == joined.rows
    assert first.read(family).height == first.rows
    stranger = [{**{n: e[n] for n in e if n != "fast"}, "slow": 1} for e in few]
    other = imported(tmp_path, cache(stranger, tune_params_keys=[*HEADER["tune_params_keys"][:-1], "slow"]), "stranger")
    with pytest.raises(InvalidValue, match="declared twice with different parameters"):
        merge([first.path, other.path], tmp_path / "never")


REFUSED = {
    "an installed op": ({"kernel_name": "gemm"}, {}, "'gemm' is installed here"),
    "no name": ({"kernel_name": ""}, {}, "`constants` op=NAME"),
    "no device": ({"device_name": " "}, {}, "add `device` NAME"),
    "no parameters": ({"tune_params_keys": []}, {}, "line 1: the file has no list `tune_params_keys`"),
    "names that are the same": ({"tune_params_keys": ["mode", "mode "]}, {"mode ": 1}, "cannot be told apart"),
    "an error nobody knows": ({}, {"time": "SulkingConfig"}, "the error 'SulkingConfig' is not known"),
    "a negative time": ({}, {"times": [1.0, -1.0]}, "a time must be a positive number"),
    "a list for a value": ({}, {"mode": [1]}, "'mode' must have a plain value"),
    "half a character": ({}, {"mode": "\ud800"}, "must be plain text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_understood_is_refused_by_line(case, tmp_path):
    """One sentence with the file, and no dataset."""
    header, changes, words = REFUSED[case]
    entries = [{**entry, **changes} for entry in attempts()[:3]]
    with pytest.raises(KerncastError, match=re.escape(words)) as refused:
        imported(tmp_path, cache(entries, **header))
    assert "out.json" in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_declaration_that_was_tampered_with_is_refused(tmp_path):
    """States that lead nowhere, names that are paths: a BadFile, not a crash."""
    path = imported(tmp_path, cache(attempts())).path / "dataset.json"
    good = path.read_text()
    states = json.loads(good)["declarations"][0]["configs"]
    for old, new in ((f'"{states[0][0]}"', '"7 8 9"'), (f'"{states[0][0]}"', '"0 x"'), ('"block_size_x"', '"../x"')):
        path.write_text(good.replace(old, new, 1))
        with pytest.raises(BadFile, match="import the data again"):
            Dataset.open(path.parent).read()


@settings(max_examples=repeats(60, 5_000))
@given(st.data())
def test_a_diagram_is_the_set_of_its_points(data):
    """Round trip through text, and the traced check holds for these points alone, prefix by prefix."""
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    every = [()]
    for size in sizes:
        every = [(*point, index) for point in every for index in range(size)]
    points = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    layers = diagram_of(points, sizes)
    assert list(points_of(layers)) == sorted(points)
    assert read(written(layers), sizes) == layers
    assert is_everything(layers) == (len(points) == len(every))
    names = [f"c.p{number}" for number in range(len(sizes))]
    checks = alive(layers, [symbol(Symbol(name)) for name in names])
    program = Program({str(number): check for number, check in enumerate(checks)})
    for point in every:
        held = program.scalar(dict(zip(names, map(float, point), strict=True)))
        for number in range(len(sizes)):
            assert bool(held[str(number)]) == any(other[: number + 1] == point[: number + 1] for other in points)


def test_a_problem_of_the_drafted_op_needs_only_its_sizes(tmp_path):
    """The kernel's name is known; sizes are not guessed."""
    (family,) = imported(tmp_path, cache(attempts())).families
    assert Problem(family, size_x=1024, size_y=512).kernel == "blur-kernel"
    with pytest.raises(InvalidValue, match="size_y"):
        Problem(family, size_x=1024)


def test_a_model_of_one_problem_has_no_tree_and_every_tier_answers(run, tmp_path):
    """One config is enough for one problem, so the portfolio answers for the tree: asked alone, judged, and by JSON."""
    imported(tmp_path, cache(attempts()), name="d")
    made = run("train", tmp_path / "d", "--out", tmp_path / "m", "--folds", 2, "--trees", 20, "--bags", 1, "--threads", 1)
    assert made[0] == 0, made[2]
    for tier, by in (("tree", "portfolio"), ("portfolio", "portfolio"), ("full", "full")):
        code, out, err = run("select", tmp_path / "m", "size_x=1024", "size_y=512", "--tier", tier, "--json")
        assert code == 0, err
        assert json.loads(out)["tier"] == by
    code, out, err = run("evaluate", tmp_path / "m", tmp_path / "d", "--include-seen", "--json")
    assert code == 0, err
    assert [(line["tier"], line["answers_itself"]) for line in json.loads(out)["tiers"]] == [("portfolio", 1.0), ("full", 1.0)]

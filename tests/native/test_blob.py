"""Models as one binary file: what is damaged, cut off or made to do harm is refused, and the runtime never reads beyond it."""

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kerncast.answering.exporters.golden import golden_vectors
from kerncast.core.expr import ConstantTable, Program, Symbol, lookup, symbol
from kerncast.core.expr import nodes as meaning
from kerncast.errors import BadFile, InvalidValue
from kerncast.native.blob import container
from kerncast.native.blob.container import OPERATIONS, Programs, places_of
from kerncast.native.blob.runtime import OPERANDS, BlobBinding, compiled_runtime, runtime_header, runtime_source
from kerncast.native.blob.sections import blob
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, build_tiers, tiers_named
from kerncast.testing import repeats
from kerncast.testing.exported import COMPILERS, SANITIZED, STRICT
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

DAMAGE = Path(__file__).with_name("blob_damage.c")
TINY = {"gbdt": {"trees": 3, "leaves": 4, "library_trees": 2}, "mlp": {"epochs": 2, "hidden": (3,)}}


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    """Small models of two kinds, with golden vectors."""
    folder, found = tmp_path_factory.mktemp("blobs"), {}
    data = synthetic_dataset(folder / "data", synthetic_rows(problems=12))
    for kind, knobs in TINY.items():
        model = train(data, folder / kind, Recipe(kind, knobs, folds=2))
        artefact = lower(model, build_tiers(model, TierOptions(samples=60)))
        found[kind] = folder / f"{kind}.kcb"
        found[kind].write_bytes(blob(artefact, golden_vectors(artefact, count=4)))
    return found


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runtime")
    (folder / "kerncast_runtime.c").write_text(runtime_source())
    (folder / "kerncast_runtime.h").write_text(runtime_header())
    return folder


@pytest.mark.needs("a C compiler")
def test_every_damage_is_refused_or_answered_without_harm(blobs, sources):
    """Flipped bits and cut files are refused; with the right checksum too, nothing is read outside, under sanitizers."""
    program = sources / "damage"
    command = [COMPILERS[0], *STRICT, "-O0", *SANITIZED, f"-I{sources}", str(DAMAGE), "-o", str(program), "-lm"]
    subprocess.run(command, check=True)
    for file in blobs.values():
        done = subprocess.run([program, file, str(repeats(997, 1)), str(repeats(29, 1))], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        refused, answered = (int(word) for word in done.stdout.split() if word.isdigit())
        assert refused > 20
        assert answered > 20


@pytest.mark.needs("clang")
def test_libfuzzer_finds_nothing_within_its_budget(blobs, sources, tmp_path):
    """Coverage-guided, from whole models, each input with its right checksum; the same runs every time."""
    program = tmp_path / "fuzz"
    flags = [*STRICT, "-O0", *SANITIZED, "-fsanitize=fuzzer", "-DFUZZ", "-Wno-unused-variable"]
    subprocess.run(["clang", *flags, f"-I{sources}", str(DAMAGE), "-o", str(program), "-lm"], check=True)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for kind, file in blobs.items():
        (corpus / kind).write_bytes(file.read_bytes())
    most = max(file.stat().st_size for file in blobs.values())
    limits = [f"-runs={repeats(300, 400_000)}", "-seed=1", f"-max_len={most}", "-timeout=60", "-rss_limit_mb=3000"]
    command = [program, *limits, "-verbosity=0", corpus]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("tiers", ["portfolio", "tree,portfolio", "full"])
def test_a_blob_of_some_tiers_is_loaded_and_answers_with_these(tiers, tmp_path):
    """Candidates that are in none of them have no band of problems, which is no damage."""
    data = synthetic_dataset(tmp_path / "data", synthetic_rows(problems=12))
    model = train(data, tmp_path / "model", Recipe("gbdt", TINY["gbdt"], folds=2))
    artefact = lower(model, *tiers_named(model, tiers, TierOptions(samples=60, most=3)))
    assert len(artefact.stored) < model.candidates.height or tiers == "full"
    binding = BlobBinding(compiled_runtime(), blob(artefact, golden_vectors(artefact, count=4)), "m.kcb")
    assert binding.self_test() == 4
    binding.close()


def test_python_reads_a_file_back_and_says_what_is_wrong_with_it(blobs):
    """Its tables; other magic, version, size, checksum and directory, each by name."""
    data = blobs["mlp"].read_bytes()
    tables = container.unpacked(data, "m.kcb")
    assert container.packed(tables) == data
    bad = {
        "not a model": b"KERNCASX" + data[8:],
        "format 9": container.sealed(data[:8] + struct.pack("<I", 9) + data[12:]),
        "bytes, and its header says": data[:-8],
        "checksum": data[:100] + bytes([data[100] ^ 1]) + data[101:],
        "more tables": container.sealed(data[:12] + struct.pack("<I", 2**31) + data[16:]),
        "is not one": container.sealed(data[:64] + struct.pack("<QQ", 8, 2**61) + data[80:]),
        "not a model that": b"",
    }
    for said, damaged in bad.items():
        with pytest.raises(BadFile, match=said):
            container.unpacked(damaged, "m.kcb")


def executed(tables, number, given):
    """A program in plain Python, as the runtime's comments define it."""
    constant, constants, first, inputs, step, steps, output, outputs = tables["program.numbers"].reshape(-1, 8)[number].tolist()
    registers = tables["program.constants"][constant : constant + constants].tolist()
    registers += [given[place] for place in tables["program.inputs"][first : first + inputs].tolist()]
    for operation, a, b, c in tables["program.code"].reshape(-1, 4)[step : step + steps].tolist():
        kind = OPERATIONS[operation]
        if kind == "index":
            value = min(max(np.floor(registers[a]), 0), int(tables["lookup.sizes"][b]) - 1)
        elif kind == "fetch":
            value = tables["lookup.values"][tables["lookup.first"][b] + int(registers[a])]
        else:
            operands = [registers[a], registers[b], registers[c]]
            value = meaning.OPERATIONS[kind](*operands[: OPERANDS.get(kind, 2)])
        registers.append(float(value))
    return [registers[place] for place in tables["program.outputs"][output : output + outputs].tolist()]


def test_bytecode_computes_what_expressions_compute():
    """Tables of two dimensions, shared parts, constants as outputs, programs after each other."""
    x, y = symbol(Symbol("p.x")), symbol(Symbol("p.y"))
    table = ConstantTable.of([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    first = {"a": lookup(table, x, y) * 2 + (x // 3), "b": lookup(table, y, x)}
    second = {"c": abs(x - y) % 7, "d": first["a"], "e": (x < y) * 0 + 1, "f": (x - x) + 5}
    programs = Programs()
    numbers = [programs.add(found.values(), places_of(["p.x", "p.y"])) for found in (first, second)]
    tables = programs.tables()
    for values in ((0, 0), (1, 2), (-5, 1e9), (1.5, 0.5), (70, 3)):
        given = {"p.x": float(values[0]), "p.y": float(values[1])}
        for number, outputs in zip(numbers, (first, second), strict=True):
            assert executed(tables, number, list(given.values())) == list(Program(outputs).scalar(given).values())


def test_a_formula_too_long_for_the_runtime_is_refused_by_name(monkeypatch):
    """Instead of a file that no runtime would load."""
    monkeypatch.setattr(container, "MOST_REGISTERS", 100)
    x = symbol(Symbol("p.x"))
    total = x
    for number in range(100):
        total = (total + number) * x if number % 2 else total - x
    with pytest.raises(InvalidValue, match="export it to C"):
        Programs().add([total], places_of(["p.x"]))

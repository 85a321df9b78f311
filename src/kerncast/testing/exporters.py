"""What every exported model must do. Subclass it in a test module, name the kind, let pytest collect it.

    class TestMine(ExporterContract):
        kind = "mine"
        knobs = {"epochs": 5}

A small model is trained on made-up data, its tiers are built, and the C is compiled by every installed compiler,
with warnings as errors and under sanitizers. It must agree with Python on golden vectors and on random problems.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from kerncast.answering.exporters.golden import golden_vectors
from kerncast.answering.exporters.project import write_project
from kerncast.answering.selector import Selector
from kerncast.core.op import Problem
from kerncast.errors import InvalidValue
from kerncast.models.answer import CHOOSING, Pin
from kerncast.native import MISSING, encode
from kerncast.native.binding import Binding
from kerncast.native.blob.runtime import BlobBinding, compiled_runtime
from kerncast.native.blob.sections import blob
from kerncast.native.c99 import c_source
from kerncast.native.header import c_header, schema_number
from kerncast.native.interpreter import Interpreter
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, build_tiers
from kerncast.testing import repeats
from kerncast.testing.exported import (
    COMPILERS,
    CPP_STRICT,
    EACH_COMPILER,
    LEVEL,
    OPTIMIZED,
    SANITIZED,
    STRICT,
    Exported,
    expected_choices,
    needs_compiler,
    random_problems,
    same_answers,
)
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

PIN_NUMBERS = {None: 0, Pin.DECIDED: 1, Pin.NOT_APPLIED: 2}


class ExporterContract:
    """The tests."""

    kind: ClassVar[str]
    knobs: ClassVar[dict[str, Any]] = {}
    tiers: ClassVar[tuple[str, ...]] = CHOOSING
    random_problems: ClassVar[int] = repeats(400, 100_000)
    rows: ClassVar[dict[str, Any]] = {}
    """How the data are made up, besides the defaults of `synthetic_rows`."""
    optimization: ClassVar[str] = OPTIMIZED
    """Of the object that is compared with Python."""

    @classmethod
    def dataset(cls, path: Path) -> Path:
        """What the model is trained on."""
        return synthetic_dataset(path, synthetic_rows(**cls.rows))

    @pytest.fixture(scope="class")
    @classmethod
    def exported(cls, tmp_path_factory: pytest.TempPathFactory) -> Exported:
        folder = tmp_path_factory.mktemp("export")
        data = cls.dataset(folder / "data")
        model = train(data, folder / "model", Recipe(cls.kind, cls.knobs, folds=2))
        artefact = lower(model, build_tiers(model, TierOptions(samples=300)), cls.tiers)
        write_project(artefact, folder / "picker", "picker")
        return Exported(model, artefact, folder / "picker", cls.optimization)

    @needs_compiler
    @pytest.mark.parametrize("compiler", EACH_COMPILER)
    def test_the_self_test_passes_without_warnings_and_under_sanitizers(self, exported: Exported, compiler: str) -> None:
        """C99, pedantic, warnings as errors; addresses and undefined behaviour watched."""
        program = exported.folder.parent / f"selftest-{compiler}"
        sources = [str(exported.folder / "selftest.c"), str(exported.sanitized(compiler))]
        subprocess.run([compiler, *STRICT, LEVEL, *SANITIZED, *sources, "-o", str(program), "-lm"], check=True)
        done = subprocess.run([program], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "0 differences" in done.stdout

    @needs_compiler
    def test_it_chooses_what_python_chooses_on_random_problems(self, exported: Exported) -> None:
        """Every choice, and the time of each to 1e-12."""
        binding, problems = exported.binding(), random_problems(exported.model, self.random_problems)
        numbers = np.array([encode(exported.model.family.problem, values) for values in problems], np.int64)
        answers = binding.select_many(numbers, "full")
        choices, times = expected_choices(exported.artefact, problems)
        assert (answers["status"] == 0).all()
        assert (answers["candidate"] == choices).all()
        np.testing.assert_allclose(answers["time_ns"], times, rtol=1e-12)

    @needs_compiler
    def test_the_quick_tiers_are_those_of_python(self, exported: Exported) -> None:
        """Tree and portfolio, config, tier and time: compiled and interpreted answers are the same."""
        binding = exported.binding()
        selector = Selector(exported.model, tiers=exported.artefact.tiers, compile=False)
        for values in random_problems(exported.model, 25, seed=1):
            problem = Problem.trusted(exported.model.family, values)
            for tier in self.tiers:
                numbers = encode(exported.model.family.problem, problem)
                ours, theirs = selector.select(problem, tier), binding.select(numbers, tier)
                assert (theirs.status, theirs.tier) == (ours.status, ours.tier)
                assert selector.configs[theirs.candidate] == ours.config
                if ours.time_ns is not None:
                    assert theirs.time_ns == pytest.approx(ours.time_ns, rel=1e-12)

    @needs_compiler
    def test_a_tree_alone_answers_as_in_python(self, exported: Exported) -> None:
        """Bit for bit, with the reason of a refusal and its fallback; nothing of the other tiers is in the object."""
        options = TierOptions(samples=300, alone=True)
        selector = Selector(exported.model, tiers="tree", options=options, compile=False)
        folder = exported.folder.parent / "alone"
        write_project(selector.artefact, folder, "picker")
        made, flags = folder / "artefact.so", [*STRICT, "-O1", "-fPIC", "-shared"]
        subprocess.run([COMPILERS[0], *flags, str(folder / "picker.c"), "-o", str(made), "-lm"], check=True)
        binding = Binding(made, exported.model.family, schema_number(selector.artefact), "picker")
        for values in [
            *random_problems(exported.model, 40, seed=7),
            {**random_problems(exported.model, 1)[0], "dtype": "bf16"},
        ]:
            problem = Problem.trusted(exported.model.family, values)
            ours, theirs = selector.select(problem), binding.select(encode(exported.model.family.problem, problem), "auto")
            chosen = ours.config if ours.config is not None else ours.fallback
            assert (theirs.status, theirs.message, theirs.time_ns) == (ours.status, ours.reason, -1.0), (theirs, ours)
            assert (None if theirs.candidate < 0 else selector.configs[theirs.candidate]) == chosen
        symbols = subprocess.run(["nm", str(made)], capture_output=True, text=True, check=True).stdout
        assert not [word for word in ("kc_portfolio", "kc_full", "kc_model_", "kc_small", "kc_features") if word in symbols]

    @needs_compiler
    def test_masks_and_pins_are_honoured_in_every_tier_as_in_python(self, exported: Exported) -> None:
        """Random masks down to one config, half of the portfolio or all of it missing: never a config that is not there."""
        binding, rng = exported.binding(), np.random.default_rng(5)
        selector = Selector(exported.model, tiers=exported.artefact.tiers, compile=False)
        count, portfolio = exported.artefact.candidates, exported.artefact.portfolio
        masks = [rng.random(count) < share for share in (0.5, 0.1)]
        masks.append(~np.isin(np.arange(count), portfolio))
        masks.append(np.arange(count) == count - 1)
        problems = random_problems(exported.model, 4, seed=6)
        for mask in (mask for mask in masks if mask.any()):
            pinned = int(rng.choice(np.flatnonzero(mask)))
            pins = [{"problem": {"M": problems[0]["M"]}, "candidate": pinned}]
            selector.override({"available": np.flatnonzero(mask).tolist(), "pin": pins})
            assert selector._python.decided is not None
            binding.override(selector._python.decided)
            for values in problems:
                problem = Problem.trusted(exported.model.family, values)
                numbers = encode(exported.model.family.problem, problem)
                for tier in self.tiers:
                    ours, theirs = selector.select(problem, tier), binding.select(numbers, tier)
                    assert (theirs.status, theirs.tier, theirs.pin) == (ours.status, ours.tier, PIN_NUMBERS[ours.pin])
                    assert theirs.candidate < 0 or mask[theirs.candidate]
                    assert ours.config is None or selector.configs[theirs.candidate] == ours.config
                ranked, listed = selector.rank(problem, 8, "portfolio"), binding.rank(numbers, "portfolio", 8)
                assert [(item.tier, item.pin) for item in listed] == [(item.tier, PIN_NUMBERS[item.pin]) for item in ranked]
                assert [selector.configs[item.candidate] for item in listed if item.candidate >= 0] == [
                    item.config for item in ranked if item.config is not None
                ]

    @needs_compiler
    def test_a_blob_gives_the_same_answers_bit_for_bit(self, exported: Exported) -> None:
        """Loaded by the runtime: every field of every tier's answer, rankings, predictions and features, and refusals."""
        if exported.artefact.lowered is None:
            with pytest.raises(InvalidValue, match="export to C"):
                blob(exported.artefact)
            return
        library = compiled_runtime()
        assert library is not None
        ours = BlobBinding(library, blob(exported.artefact, golden_vectors(exported.artefact)), "the model")
        assert ours.self_test() > 0
        same_answers(exported, exported.binding(), ours, self.tiers)

    @needs_compiler
    def test_features_are_those_that_it_was_trained_on(self, exported: Exported) -> None:
        """Bit for bit, logarithms and roots to the last place but one."""
        binding, model, interpreter = exported.binding(), exported.model, Interpreter(exported.artefact)
        for values in random_problems(model, 5, seed=2):
            every = np.arange(exported.artefact.candidates)
            for row, wanted in zip(every.tolist(), model.describe(interpreter.vectors(values, every)).features, strict=True):
                chosen = {name: model.candidates[f"config.{name}"][row] for name in model.family.config.parameters}
                config = encode(model.family.config, chosen) or [MISSING]
                got = binding.features(encode(model.family.problem, values), config, len(wanted))
                np.testing.assert_allclose(got, wanted, rtol=1e-15, atol=0.0)

    @needs_compiler
    def test_threads_with_a_context_each_do_not_disturb_each_other(self, exported: Exported) -> None:
        """Four threads ask the same problems at once; each gets the answers that one thread alone gets."""
        problems = random_problems(exported.model, 500, seed=3)
        numbers = np.array([encode(exported.model.family.problem, values) for values in problems], np.int64)
        alone = exported.binding().select_many(numbers, "full")["candidate"]
        bindings = [exported.binding() for _ in range(4)]
        with ThreadPoolExecutor(4) as executor:
            for answers in executor.map(lambda binding: binding.select_many(numbers, "full"), bindings):
                assert (answers["candidate"] == alone).all()

    @needs_compiler
    def test_a_header_of_another_export_and_damaged_tables_are_refused(self, exported: Exported) -> None:
        """By status, before anything is answered."""
        text = c_source(exported.artefact, "picker")
        folder = exported.folder.parent / "damaged"
        folder.mkdir(exist_ok=True)
        (folder / "picker.h").write_text(c_header(exported.artefact, "picker"))
        start = text.index("kc_configs[")
        digit = next(i for i in range(text.index("{", start), len(text)) if text[i].isdigit())
        (folder / "picker.c").write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])
        made = folder / "damaged.so"
        subprocess.run(
            [COMPILERS[0], *STRICT, "-fPIC", "-shared", str(folder / "picker.c"), "-o", str(made), "-lm"], check=True
        )
        assert _created(made, schema_number(exported.artefact)) == "corrupt"
        exported.binding()
        assert _created(exported.folder.parent / "artefact.so", schema_number(exported.artefact) ^ 1) == "mismatch"

    @pytest.mark.skipif(shutil.which("g++") is None or "gcc" not in COMPILERS, reason="needs g++")
    def test_the_cpp_header_answers_with_typed_problems_and_configs(self, exported: Exported) -> None:
        """C++20 without exceptions and RTTI, warnings as errors; the choice is that of C and Python, also with overrides."""
        values = random_problems(exported.model, 1, seed=4)[0]
        selector = Selector(exported.model, tiers=exported.artefact.tiers, compile=False)
        number = {config: row for row, config in enumerate(selector.configs)}
        ranked = [number[item.config] for item in selector.rank(values, len(number), "full") if item.config is not None]
        kept = ranked[-2:]
        program = exported.folder.parent / "cpp"
        source = program.with_suffix(".cpp")
        source.write_text(CPP.format(**values, count=len(number), kept=", ".join(map(str, kept)), last=ranked[-1]))
        library = exported.sanitized("gcc")
        flags = ["-std=c++20", "-fno-exceptions", "-fno-rtti", *CPP_STRICT, *SANITIZED, f"-I{exported.folder}"]
        subprocess.run(["g++", *flags, str(source), str(library), "-o", str(program), "-lm"], check=True)
        done = subprocess.run([program], capture_output=True, text=True, check=True)
        wanted = [self._chosen(selector, values, given) for given in (
            None, {"available": kept}, {"available": kept, "deny": kept[:1]},
            {"pin": [{"problem": {"M": values["M"]}, "candidate": ranked[-1]}]}, None, None,
        )]  # fmt: skip
        assert done.stdout.split("\n")[:-1] == [*wanted, "bad_input", "ok", "refused", wanted[0], "bad_input", str(len(number))]

    @staticmethod
    def _chosen(selector: Selector, problem: dict[str, Any], overrides: dict[str, Any] | None) -> str:
        """What a selector answers with overrides, as the C++ program prints it."""
        selector.override(overrides)
        answer = selector.select(problem, "full")
        assert answer.config is not None
        return f"ok {selector.configs.index(answer.config)} {PIN_NUMBERS[answer.pin]}"


CPP = """
#include "picker.hpp"
#include <cstdio>
static void choose(picker::Selector &selector, const picker::Problem &problem) {{
    const auto answer = selector.select(problem, picker::Tier::full);
    std::printf("%s %d %d\\n", answer ? "ok" : "not ok", static_cast<int>(answer.candidate), static_cast<int>(answer.pin));
}}
int main() {{
    auto made = picker::Selector::create();
    if (!made) return std::puts(made.message());
    picker::Selector selector = *std::move(made);
    picker::Problem problem, rows;
    problem.M = rows.M = {M};
    problem.N = {N};
    problem.K = {K};
    problem.dtype = picker::Problem::Dtype::{dtype};
    problem.layout = picker::Problem::Layout::{layout};
    choose(selector, problem);
    const auto answer = selector.select(problem, picker::Tier::full);
    const std::vector<int> kept = {{{kept}}};
    std::vector<bool> available({count}, false);
    for (const int candidate : kept) available[static_cast<std::size_t>(candidate)] = true;
    bool right = selector.set_available(available);
    choose(selector, problem);
    right = right && selector.deny(kept[0]);
    choose(selector, problem);
    selector.clear_overrides();
    right = right && selector.pin(rows, {last});
    choose(selector, problem);
    right = right && selector.pin(rows, -1);
    choose(selector, problem);
    right = right && selector.pin(rows, {last});
    selector.clear_overrides();
    choose(selector, problem);
    const auto again = picker::Selector::predict(problem, answer.config);
    const picker::Problem whole = problem;
    problem.M.reset();
    std::printf("%s\\n", selector.select(problem).status == picker::Status::bad_input ? "bad_input" : "something else");
    std::printf("%s\\n", again && again.time_ns && *again.time_ns > 0 ? "ok" : again.message.c_str());
    available.push_back(true);
    const bool wrong = selector.set_available(available) || selector.deny({count}) || selector.pin(rows, {count});
    std::printf("%s\\n", right && !wrong ? "refused" : "not refused");
    const auto two = selector.select_many({{whole, problem}}, picker::Tier::full);
    std::printf("%s %d %d\\n", two[0] ? "ok" : "not ok", static_cast<int>(two[0].candidate), static_cast<int>(two[0].pin));
    std::printf("%s\\n", picker::name(two[1].status));
    std::printf("%d\\n", static_cast<int>(picker::Selector::candidates().size()));
}}
"""


def _created(library: Path, schema: int) -> str:
    loaded, context = ctypes.CDLL(str(library)), ctypes.c_void_p()
    loaded.picker_create_checked.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    loaded.picker_status_name.restype = ctypes.c_char_p
    return str(loaded.picker_status_name(loaded.picker_create_checked(schema, ctypes.byref(context))).decode())

"""What the tests of torch.compile share: models with a given favourite, and a way to see which kernel was chosen."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))

TILE = re.compile(r"constexpr int64_t Mr = (\d+);.*?constexpr int64_t Nr = (\d+);", re.DOTALL)


@pytest.fixture(scope="session")
def inductor_cache(tmp_path_factory):
    """A folder for Inductor's cache in which it has found out what this CPU can do: that takes ten seconds in an empty one."""
    from kerncast.measuring.backends.inductor.build import cpu_software

    folder = tmp_path_factory.mktemp("inductor_cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        cpu_software()
    return folder


@pytest.fixture(scope="session")
def made_up(inductor_cache, tmp_path_factory):
    """`made_up((4, 16))`: a model to which that tile is fastest; trained once."""
    from made_up import made_up_model

    kept, folder = {}, tmp_path_factory.mktemp("made_up")

    def model(favourite, **options):
        key = (favourite, *sorted(options.items()))
        if key not in kept:
            kept[key] = made_up_model(folder / f"model{len(kept)}", favourite, **options)
        return kept[key]

    return model


@pytest.fixture(autouse=True)
def _asked_in_python(request, monkeypatch):
    """Models answer without being compiled to C, which takes seconds for each, unless a test is about real kernels."""
    from kerncast.answering.selector import Selector
    from kerncast.native.tiers.build import plain_tiers
    from kerncast.torch.chooser import Chooser

    if "compiling" in request.fixturenames:
        kept = {}

        def selector(chooser):
            if chooser.digest not in kept:
                kept[chooser.digest] = Selector(chooser.model, tier="full", tiers=plain_tiers(chooser.model), compile=False)
            return kept[chooser.digest]

        monkeypatch.setattr(Chooser, "selector", property(selector))


@pytest.fixture
def compiling(inductor_cache, monkeypatch):
    """`compiling(module, x)` compiles with max-autotune and says which kernels are in the code: `(4, 16)`, `aten`, ….

    Nothing is compiled by the C++ compiler nor timed, so results are not those of the module.
    """
    import torch._inductor.config as config
    from torch._inductor import async_compile, select_algorithm
    from torch._inductor.utils import fresh_cache, run_and_get_code

    import torch
    from kerncast.torch import hooks

    lists = []
    hooks.install()  # it comes before `untimed`

    def untimed(choices):
        # Instead of timing several, take the last, which is ATen's.
        lists.append(list(choices))
        return choices[-1:]

    monkeypatch.setattr(async_compile.AsyncCompile, "cpp_pybinding", lambda self, kinds, code: lambda *arguments: None)
    select_algorithm.add_preprocessing_fn(untimed)
    torch.set_num_threads(1)

    def compiled(module, x, **options):
        torch._dynamo.reset()
        del lists[:]
        given = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN", **options}
        with torch.no_grad(), config.patch(freezing=True):
            _, codes = run_and_get_code(torch.compile(module, options=given), x)
        code = "\n".join(codes)
        tiles = [(int(mr), int(nr)) for mr, nr in TILE.findall(code)]
        aten = len(re.findall(r"_mkl_linear\.default\(|_linear_pointwise\.default\(|extern_kernels\.(?:mm|addmm)\(", code))
        return SimpleNamespace(kernels=[*tiles, *["aten"] * aten], offered=[len(item) for item in lists], code=code)

    with fresh_cache():
        yield compiled
    select_algorithm.get_algorithm_selector_cache().preprocessing_fns.remove(untimed)
    torch._dynamo.reset()

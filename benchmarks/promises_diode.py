"""What users of torch-diode expect: its data and models, and choosing inside torch.compile."""

from __future__ import annotations

import json
import random
from pathlib import Path

from promises import Work, promise

DATA, COMPILE = "torch-diode: data and models", "torch-diode: torch.compile"
GPU = "an NVIDIA or AMD GPU to run Triton kernels"
BLOCKS = [(m, n, k, warps) for m in (16, 64, 128) for n in (32, 128) for k in (32, 64) for warps in (4, 8)]


def dataset(seed: int, shapes: int) -> dict[str, object]:
    """A dataset in torch-diode's JSON: hardware, operation, problem, timed configs. Times are made up, in milliseconds."""
    drawn, found = random.Random(seed), {}
    for _ in range(shapes):
        m, n, k = (16 * drawn.randint(1, 200) for _ in range(3))
        timed = []
        for bm, bn, bk, warps in BLOCKS:
            waste = -(-m // bm) * bm * -(-n // bn) * bn / (m * n)
            time = 0.004 + 2e-11 * m * n * k * waste * (1.2 if warps == 8 and bm == 16 else 1.0) * drawn.uniform(1, 1.02)
            config = {"name": "mm", "grid": 1, "block_m": bm, "block_n": bn, "block_k": bk, "group_m": 8, "num_stages": 3,
                      "num_warps": warps, "EVEN_K": k % bk == 0, "ALLOW_TF32": False, "USE_FAST_ACCUM": False,
                      "ACC_TYPE": "tl.float32"}  # fmt: skip
            timed.append({"config": config, "time": time})
        problem = {"B": 1, "M": m, "N": n, "K": k, "M_dtype": "float16", "K_dtype": "float16", "out_dtype": "float16",
                   "out_size": [1, m, n], "out_stride": [m * n, n, 1]}  # fmt: skip
        found[json.dumps(problem)] = {"timed_configs": timed}
    return {"hardware": {"NVIDIA H100": {"operation": {"mm": {"solution": found}}}}}


@promise("99", DATA, "Train on its datasets, in msgpack and JSON", "`kerncast import diode FILE`")
def trained_on_theirs(work: Work) -> None:
    work.write("train.json", dataset(0, 40))
    work.write("validation.json", dataset(1, 8))
    work.python(
        "import json, msgspec\nopen('train.msgpack', 'wb').write(msgspec.msgpack.encode(json.load(open('train.json'))))"
    )
    work("kerncast import diode train.json --device h100 --out as-json")
    work("kerncast import diode train.msgpack --device h100 --out data")
    work("kerncast import diode validation.json --device h100 --out held_out")
    work("kerncast train data --trees 60 --folds 3 --out model")


@promise("95", DATA, "Draw shapes from a log-normal distribution, with a seed", "`--problems lognormal:100 --seed 42`")
def shapes_drawn(work: Work) -> None:
    told = work.json("kerncast sweep gemm/triton --problems lognormal:100 --vary dtype=fp16 --vary layout=rcr "
                     "--configs sample:1 --device h100 --seed 42 --out vectors")  # fmt: skip
    assert told["problems"] == 100, told


@promise(
    "96", DATA, "Choose Inductor's default or exhaustive search space", "`--configs inductor`, `--configs inductor:exhaustive`"
)
def spaces(work: Work) -> None:
    for name in ("inductor", "inductor:exhaustive"):
        work(f"kerncast sweep gemm/triton --problems lognormal:3 --vary dtype=fp16 --vary layout=rcr --configs {name} "
             f"--device h100 --out {name.replace(':', '-')}")  # fmt: skip


@promise("97", DATA, "Collect `mm` and `bmm`", "`gemm/triton`, with `batch`")
def batches(work: Work) -> None:
    work("kerncast sweep gemm/triton --problems 'grid:M=64;N=64;K=64;batch=1,8' --vary dtype=fp16 --vary layout=rcr "
         "--configs sample:2 --device h100 --out vectors")  # fmt: skip


@promise("98", DATA, "Collect `addmm`", "`gemm/triton`, with `--vary bias=true`")
def bias(work: Work) -> None:
    work("kerncast list op addmm")
    work("kerncast sweep gemm/triton --problems 'grid:M=64;N=64;K=64' --vary bias=true --vary dtype=fp16 --vary layout=rcr "
         "--configs sample:2 --device h100 --out vectors")  # fmt: skip


@promise("100", DATA, "Collect over a shape set", "`--problems 'shapeset:FILE;op=mm'`")
def shapeset(work: Work) -> None:
    shape = {"B": 1, "M": 64, "N": 128, "K": 256, "M_dtype": "float16", "K_dtype": "float16", "out_dtype": "float16",
             "out_size": [1, 64, 128], "out_stride": [8192, 128, 1]}  # fmt: skip
    work.write("shapes.json", {"operations": {"mm": {"shapes": [shape]}}})
    work("kerncast sweep gemm/triton --problems 'shapeset:shapes.json;op=mm' --vary layout=rcr --configs sample:4 "
         "--device h100 --out vectors")  # fmt: skip
    work.needs(GPU)


@promise(
    "101-104",
    DATA,
    "See statistics of a dataset, train a deep model on several files, validate on another",
    "`kerncast train --kind deep`",
    after=trained_on_theirs,
)
def deep_trained(work: Work) -> None:
    work("kerncast inspect data")
    work("kerncast train data as-json --kind deep --epochs 5 --batch-size 256 --lr 0.001 --folds 2 --out deep")
    work("kerncast evaluate deep held_out")


@promise(
    "105", DATA, "Report MSE, RMSE and exp(RMSE) of the log time", "`kerncast evaluate MODEL DATA`", after=trained_on_theirs
)
def log_errors(work: Work) -> None:
    work("kerncast evaluate model held_out", says="RMSE")


@promise("106", DATA, "List the worst predictions", "`kerncast evaluate --worst 5`", after=trained_on_theirs)
def worst_predictions(work: Work) -> None:
    work("kerncast evaluate model held_out --worst 5", says="prediction")


@promise(
    "107-111",
    DATA,
    "Compare with what max-autotune chose, for several top-N, by op, on new hardware",
    "`kerncast evaluate --against FILE`",
    after=trained_on_theirs,
)
def against_max_autotune(work: Work) -> None:
    work("kerncast evaluate model held_out --against validation.json")


@promise("112", DATA, "Merge data of several contributors", "`kerncast merge A B --out C`", after=trained_on_theirs)
def contributed(work: Work) -> None:
    work("kerncast merge data held_out --out merged")
    work("kerncast export merged --to csv --out merged.csv")
    heights = work.python(
        "import kerncast as kc, polars as pl\n"
        "print([kc.Dataset.open(name).read().height for name in ('data', 'held_out', 'merged')],"
        " pl.read_csv('merged.csv', infer_schema_length=None).height)"
    )
    *parts, both, written = json.loads("[" + heights.replace("[", "").replace("]", ",") + "]")
    assert sum(parts) == both == written, heights


@promise("113", DATA, "Install a release with pip", "`pip install`, of a wheel that was built here")
def installed(work: Work) -> None:
    source = Path(__file__).resolve().parent.parent
    work(f"python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist {source}")
    (wheel,) = (work.folder / "dist").glob("kerncast-*.whl")
    work(f"python -m pip install --quiet --no-deps --target installed {wheel}")
    work.python("import sys; sys.path.insert(0, 'installed'); import kerncast; print(kerncast.__file__)", says="installed")
    work.needs("a place on a public package registry")


@promise(
    "114-117",
    COMPILE,
    "Record every choice that Inductor times, over many shapes, also from logs",
    "[Measuring the kernels of torch.compile](torch.md#measuring-the-kernels-of-torchcompile)",
)
def observed(work: Work) -> None:
    work.python(OBSERVE)


OBSERVE = """
import torch, torch._inductor.config as config
import kerncast as kc, kerncast.torch
config.freezing = True
layer = torch.nn.Linear(64, 96).eval()
with torch.no_grad(), kerncast.torch.observe("listened", again=True):
    torch.compile(layer, options={"max_autotune": True})(torch.randn(32, 64))
print(kc.Dataset.open("listened").read().height)
"""


@promise(
    "118-123",
    COMPILE,
    "Let a model choose inside `torch.compile`: one kernel or the best k, with the library kept and a way to abstain",
    "[torch.compile](torch.md)",
)
def chosen(work: Work) -> None:
    work("kerncast collect gemm/inductor_cpp --problems 'grid:M=8,16,32;N=64,96,128;K=64,128' --vary dtype=fp32 "
         "--vary layout=rcr --configs sample:4 --samples 2 --out data")  # fmt: skip
    work("kerncast train data --trees 40 --folds 2 --out model")
    work.python(CHOOSE, says="chosen")


CHOOSE = """
import torch, torch._inductor.config as config
import kerncast.torch
config.freezing = True
layer = torch.nn.Linear(64, 96).eval()
x = torch.randn(16, 64)
with torch.no_grad():
    got = torch.compile(layer, backend="kerncast", options={"model": "model"})(x)
    assert torch.allclose(got, layer(x), atol=1e-4)
print(kerncast.torch.report())
"""


@promise("124", COMPILE, "A pretrained model", "")
def pretrained(work: Work) -> None:
    work.cannot("measuring one needs a GPU, and the public tables of A100 state no licence")


@promise(
    "125-131",
    COMPILE,
    "Find the model by hardware, keep caches of models apart, report what was decided, prove it against max-autotune",
    "`kerncast torch validate`, `kerncast export --to lookup-table`",
    after=chosen,
)
def proven(work: Work) -> None:
    work("kerncast models add model")
    work.python(CHOOSE.replace(', options={"model": "model"}', ""), says="chosen")
    work("kerncast torch validate model --shapes 'grid:M=16;N=96;K=64' --vary dtype=fp32 --vary layout=rcr --json")

"""TTNN ops: how requests write their tensors, which problems they mean, and what features see of them."""

import json

import pytest

from kerncast.answering.request import JsonRefused, RequestReader
from kerncast.core.expr import Namespace
from kerncast.core.op import Op, Problem
from kerncast.core.parameters import Categorical, Int, JsonField
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.registry import FAMILIES, OPS

TTNN = ["concatenate_heads", "create_qkv_heads", "eltwise_unary", "matmul_sharded", "paged_sdpa_decode"]
BF16 = {"dtype": "bfloat16", "memory": {"buffer": "DRAM"}}


def problem(op, request):
    """The problem that a request means."""
    family = FAMILIES.get(f"{op}/single")
    reader = RequestReader(family, ("wormhole_b0",))
    asked = reader.read(json.loads(json.dumps(request)))
    return Problem(family, {name: value for name, value in asked.values.items() if value is not None})


def serialised(shape, dtype=0, buffer=0, sharding=0, layout=1):
    """A tensor as TTNN writes it."""
    shards = {"grid": [{"start": {"x": 0, "y": 0}, "end": {"x": 7, "y": 7}}], "shape": [32, 32]} if sharding else None
    memory = {"buffer_type": buffer, "created_with_nd_shard_spec": False, "memory_layout": sharding, "shard_spec": shards,
              "nd_shard_spec": None}  # fmt: skip
    page = {"config": {"index": layout, "value": {"tile": {"face_shape": [16, 16], "num_faces": 4, "tile_shape": [32, 32]}}}}
    inner = {"alignment": {"value": [1, 1, 32, 32]}, "dtype": dtype, "memory_config": memory, "page_config": page}
    return {"tensor_spec": {"logical_shape": shape, "tensor_layout": inner}, "storage": {"index": 1, "value": {}}}


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_one_tensor_is_one_problem_whatever_its_rank_and_form(rank):
    """Short, serialised under a key or at the top, with names or numbers, or flat: right-aligned and padded with 1."""
    shape = [1, 1, 64, 96][-rank:]
    short = {"shape": shape, "dtype": "DataType.BFLOAT8_B", "memory": {"buffer": "l1", "sharding": "HEIGHT_SHARDED"}}
    flat = {"func": "exp", "dim2": 64, "dim3": 96, "dtype": "bfp8", "buffer": "l1", "sharding": "height"}
    wanted = Problem(OPS.get("exp"), flat)
    theirs = serialised(shape, dtype=3, buffer=1, sharding=2)
    requests = [{"tensor": short}, {"tensor": theirs}, theirs, {"problem": {"tensor": short, "func": "exp"}}, flat]
    for request in requests:
        named = request if "func" in str(request) else {"op": "exp", **request}
        assert problem("eltwise_unary", named) == wanted


def test_an_output_that_lies_like_the_input_is_written_in_one_way():
    """Said or not said, it is the same problem; by hand, the other way of writing it is refused with the right one."""
    asked = {"op": "relu", "tensor": {"shape": [64, 64], "dtype": "bfloat16", "memory": {"buffer": "L1"}}}
    plain = problem("eltwise_unary", asked)
    said = problem("eltwise_unary", {**asked, "output_memory_config": {"buffer_type": 1, "memory_layout": 0}})
    assert plain == said
    assert (plain.out_buffer, plain.func) == ("input", "relu")
    memory = {"buffer_type": 1, "memory_layout": 0, "shard_spec": None, "nd_shard_spec": None}
    for left_out in ({"output_memory_config": memory}, {"output_memory_config": None}, {"output": None}):
        assert problem("eltwise_unary", {**asked, **left_out}) == plain
    moved = problem("eltwise_unary", {"output": {"memory": {"buffer": "DRAM"}}, **asked})
    assert moved.out_buffer == "dram"
    with pytest.raises(InvalidValue, match="write out_buffer=input"):
        Problem(OPS.get("relu"), {**plain, "out_buffer": "l1"})


def test_heads_are_read_from_shapes_and_arguments():
    """concatenate_heads by its shape; create_qkv_heads with as many key heads as query heads in one way."""
    joined = problem("concatenate_heads", {"tensor": serialised([2, 32, 128, 64]), "output_memory_config": {"buffer_type": 1}})
    assert (joined.heads, joined.head_dim, joined.tiles, joined.out_buffer) == (32, 64, 2 * 32 * 4 * 2, "l1")
    tensor = {"shape": [1, 1, 512, (32 + 2 * 4) * 64], **BF16}
    cut = problem("create_qkv_heads", {"tensor": tensor, "num_heads": 32, "num_kv_heads": 4, "transpose_k_heads": True})
    assert (cut.kv_heads, cut.head_dim, cut.transpose_k) == (4, 64, True)
    equal = {"tensor": {"shape": [512, 96 * 64], **BF16}, "num_heads": 32}
    assert problem("create_qkv_heads", equal) == problem("create_qkv_heads", {**equal, "num_kv_heads": 32})
    assert problem("create_qkv_heads", equal) == problem("create_qkv_heads", {**equal, "num_kv_heads": None})
    with pytest.raises(InvalidValue, match="hidden must be a multiple of heads"):
        problem("create_qkv_heads", {**equal, "num_kv_heads": 5})


ATTENTION = {
    "op": "paged_scaled_dot_product_attention_decode",
    "q": {"shape": [1, 8, 32, 128], **BF16},
    "k": {"shape": [64, 8, 64, 128], "dtype": 0},
    "v": serialised([64, 8, 64, 128]),
    "page_table": {"shape": [8, 16], "dtype": "uint16"},
    "scale": 0.0884,
    "is_causal": True,
}


def test_optional_tensors_and_configs_of_attention_apply_only_where_they_are_given():
    """cur_pos and mask by their presence, null for absence; what a config would say is null without it."""
    plain = problem("paged_sdpa_decode", ATTENTION)
    assert (plain.kv_len, plain.cur_pos, plain.mask, plain.mask_len, plain.k_chunk) == (16 * 64, False, False, None, None)
    given = {"cur_pos": {"shape": [8]}, "attn_mask": None, "program_config": {"q_chunk_size": 32, "k_chunk_size": 64}}
    given["program_config"]["compute_with_storage_grid_size"] = {"x": 8, "y": 8}
    chosen = problem("paged_sdpa_decode", {**ATTENTION, **given})
    assert (chosen.cur_pos, chosen.mask, chosen.k_chunk, chosen.exp_approx, chosen.math_fidelity) == (
        True,
        False,
        64,
        False,
        None,
    )
    masked = {**ATTENTION, "is_causal": False, "attn_mask": {"shape": [8, 1, 32, 1024]}}
    assert problem("paged_sdpa_decode", masked).mask_len == 1024
    compute = {
        "math_fidelity": "MathFidelity.HiFi2",
        "math_approx_mode": True,
        "fp32_dest_acc_en": True,
        "packer_l1_acc": False,
    }
    assert problem("paged_sdpa_decode", {**ATTENTION, "compute_config": compute}).math_fidelity == "hifi2"
    with pytest.raises(InvalidValue, match="a mask needs is_causal=false"):
        problem("paged_sdpa_decode", {**masked, "is_causal": True})


def test_ones_before_the_rank_of_a_page_table_and_of_positions_mean_nothing():
    """Rank 2 and rank 4 of one tensor are one problem there too; another first dimension is a contradiction."""
    plain = {**ATTENTION, "cur_pos": {"shape": [8]}}
    padded = {**plain, "page_table": {"shape": [1, 1, 8, 16]}, "cur_pos": {"shape": [1, 8]}}
    assert problem("paged_sdpa_decode", plain) == problem("paged_sdpa_decode", padded)
    with pytest.raises(JsonRefused, match="contradicts"):
        problem("paged_sdpa_decode", {**plain, "page_table": {"shape": [2, 1, 8, 16]}})


def test_tensors_that_contradict_each_other_are_refused():
    """Values of another shape than the keys; a page table for another batch; B with another K than A."""
    for wrong in ({"v": {"shape": [64, 8, 32, 128]}}, {"page_table": {"shape": [4, 16]}}):
        with pytest.raises(JsonRefused, match="contradicts what is given elsewhere"):
            problem("paged_sdpa_decode", {**ATTENTION, **wrong})
    product = {"a": {"shape": [640, 32]}, "b": {"shape": [1, 1, 32, 96]}, "num_cores": 10}
    assert problem("matmul_sharded", product).N == 96
    with pytest.raises(JsonRefused, match="contradicts"):
        problem("matmul_sharded", {**product, "b": {"shape": [64, 96]}})


@pytest.mark.parametrize("name", TTNN)
def test_features_of_the_card_are_known(name):
    """Nothing is left out on the device that these ops run on."""
    family = FAMILIES.get(f"{name}/single")
    assert not family.features_on(devices.get("wormhole_b0"), ["bf16"]).left_out
    assert not family.config.parameters


def test_every_function_is_an_alias_that_listings_find(run):
    """`exp` and `ttnn.exp` name eltwise_unary wherever an op is named; codes that models hold are never renumbered."""
    op = OPS.get("eltwise_unary")
    labels = [label for label, _ in op.parameters["func"].codes]
    names = [f"{prefix}{label}" for prefix in ("", "ttnn.") for label in labels]
    assert [(name, dict(preset)) for name, preset in op.aliases.items()] == [
        (name, {"func": name.removeprefix("ttnn.")}) for name in names
    ]
    assert [code for _, code in op.parameters["func"].codes] == list(range(len(labels)))
    assert labels[:16] == "exp relu gelu sqrt sigmoid tanh log sin cos abs neg square rsqrt reciprocal silu erf".split()
    assert (labels[16], labels[41], labels[72], len(labels)) == ("acos", "i0", "trunc", 73)
    assert OPS.get("gelu") is OPS.get("ttnn.gelu") is op
    assert run("list", "op", "exp")[1].startswith("eltwise_unary")
    assert "[ttnn.]exp (func=exp), [ttnn.]relu" in run("list", "op", "ttnn.exp")[1]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ttnn.transformer.concatenate_heads", "concatenate_heads"),
        ("ttnn.experimental.create_qkv_heads", "create_qkv_heads"),
        ("ttnn.transformer.paged_scaled_dot_product_attention_decode", "paged_sdpa_decode"),
        ("ttnn.reshard", "reshard"),
    ],
)
def test_ops_have_ttnns_names_as_written(name, op):
    """The names that TTNN's users write."""
    assert OPS.get(name).name == op


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (JsonField(("a",), ("nothing",)), "names 'nothing', which is not a parameter"),
        (JsonField(("a",), ("dtype",), (("x", "fp99"),)), "means 'fp99', which is not a label"),
        (JsonField(("a",), ("n", "dtype"), (("x", "fp16"),)), "must name one parameter"),
        (JsonField(("a",), ("n",), same=("m", 0)), "names 'm'"),
    ],
)
def test_a_json_declaration_must_name_what_is_declared(declared, why):
    """Said when the op is made, not when the first request comes."""

    class Odd(Op):
        name = "odd"
        parameters = {"n": Int(1, 4), "dtype": Categorical({"fp16": 2})}
        split_group = ("n",)
        json = (declared,)

        def features(self, p: Namespace, hw: Namespace):
            return {}

    with pytest.raises(InvalidValue, match=why):
        Odd()


HEADS_TABLE = "\n".join([
    "input_shape_1,input_shape_2,input_shape_3,input_shape_4,bfloat8,bfloat16,input_DRAM,input_L1,output_DRAM,output_L1,"
    "kernel_duration",
    "1,32,128,64,0,1,1,0,1,0,9000",
    "1,32,128,64,0,1,1,0,0,1,8000",
])  # fmt: skip


def test_a_table_of_concatenate_heads_is_known_by_its_output_columns(tmp_path):
    """Its shape by name; an output where the input lies is written as such."""
    (tmp_path / "heads.csv").write_text(HEADS_TABLE)
    rows = import_files("ttnn-csv", [tmp_path / "heads.csv"], tmp_path / "d", ImportOptions(device="n150")).read()
    assert rows["problem.out_buffer"].to_list() == ["input", "l1"]
    assert rows.row(0, named=True)["problem.heads"] == 32

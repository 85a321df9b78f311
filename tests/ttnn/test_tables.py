"""The op runtime predictor's tables of heads and attention, and what stays as it was when functions are added."""

import pytest

from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.registry import FAMILIES, family_named

QKV = """input_shape_1,input_shape_2,input_shape_3,input_shape_4,bfloat8,bfloat16,num_heads,num_kv_heads,transpose_k_heads,kernel_duration
1,1,32,3072,0,1,16,16,0,5000
2,1,64,2304,1,0,16,1,1,9000
2,1,64,2304,1,0,16,17,1,9000
2,1,64,2304,1,0,16,1,2,9000
"""  # noqa: E501
HEAD = ",".join([
    *(f"{name}_shape_{place}" for name in ("q", "k", "v") for place in range(1, 5)), "page_table_shape_1,page_table_shape_2",
    *(f"attn_mask_shape_{place}" for place in range(1, 5)), "cur_pos_shape_1,bfloat8,bfloat16,input_DRAM",
    "input_L1_height_sharded,output_DRAM,output_L1_height_sharded,is_causal,scale,q_chunk_size,k_chunk_size,exp_approx_mode",
    "use_sdpa_program_config,math_fidelity,math_approx_mode,fp32_dest_acc_en,packer_l1_acc,use_device_compute_kernel_config",
    "kernel_duration",
])  # fmt: skip
PAGED = f"""{HEAD}
1,8,40,128,8,8,64,128,8,8,64,128,8,2,8,1,40,128,8,0,1,1,0,1,0,0,11.3,32,32,1,1,2,1,1,1,1,40000
1,1,32,64,1,8,64,64,1,8,64,64,1,2,0,0,0,0,1,1,0,0,1,0,1,1,8.0,-1,-1,-1,0,-1,-1,-1,-1,0,20000
1,1,32,64,1,8,64,64,1,8,64,64,1,2,0,0,0,0,1,1,0,1,0,0,1,1,8.0,-1,-1,-1,0,-1,-1,-1,-1,0,20000
1,1,32,64,1,8,64,64,1,8,32,64,1,2,0,0,0,0,1,1,0,0,1,0,1,1,8.0,-1,-1,-1,0,-1,-1,-1,-1,0,20000
1,8,40,128,8,8,64,128,8,8,64,128,8,2,8,1,40,128,8,0,1,1,0,1,0,0,11.3,32,32,1,1,9,1,1,1,1,40000
1,8,40,128,8,8,64,128,8,8,64,128,8,2,8,1,40,128,8,0,1,1,0,1,0,0,11.3,32,32,1,1,2,1,1,1,1,41000
"""


def imported(tmp_path, text):
    (tmp_path / "table.csv").write_text(text)
    return import_files("ttnn-csv", [tmp_path / "table.csv"], tmp_path / "out", ImportOptions(device="n150"), lambda _: None)


def test_a_table_of_heads_is_known_by_its_columns(tmp_path):
    """As many key heads as query heads are 0; the memory is the one that the op has; bad rows are skipped by name."""
    dataset = imported(tmp_path, QKV)
    rows = dataset.read("create_qkv_heads/single")
    names = ("hidden", "heads", "kv_heads", "transpose_k", "dtype", "buffer", "sharding", "out_buffer", "out_sharding")
    assert rows.select(f"problem.{name}" for name in names).rows() == [
        (3072, 16, 0, False, "bf16", "l1", "block", "input", "height"),
        (2304, 16, 1, True, "bfp8", "l1", "block", "input", "height"),
    ]
    told = [kind.example for kind in dataset.skipped.kinds]
    assert "line 4: num_kv_heads must be from 1 to num_heads, got '17'" in told
    assert "line 5: transpose_k_heads must be 0 or 1, got '2'" in told


def test_a_table_of_attention_leaves_out_what_does_not_apply(tmp_path):
    """-1 is None; a query that the sweep had moved, other values than keys and an unknown fidelity are skipped by name."""
    dataset = imported(tmp_path, PAGED)
    rows = dataset.read("paged_sdpa_decode/single")
    names = ("mask_len", "q_chunk", "exp_approx", "math_fidelity", "packer_l1", "buffer", "sharding", "out_sharding", "cur_pos")
    assert rows.select(f"problem.{name}" for name in names).rows() == [
        (128, 32, True, "hifi2", True, "dram", "interleaved", "input", True),
        (None, None, None, None, None, "l1", "height", "input", True),
        (128, 32, True, "hifi2", True, "dram", "interleaved", "input", True),
    ]
    told = "\n".join(kind.example for kind in dataset.skipped.kinds)
    for why in ("is not measured as the table says", "v_shape_3 must be as in k_shape_3", "math_fidelity must be from 1 to 4"):
        assert why in told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (QKV.replace("num_kv_heads", "kv"), "there is no column 'num_kv_heads'"),
        (PAGED.replace("packer_l1_acc", "packer"), "there is no column 'packer_l1_acc'"),
    ],
)
def test_a_table_without_a_column_is_refused_by_its_name(tmp_path, text, why):
    """Before any row is read."""
    with pytest.raises(BadFile, match=why):
        imported(tmp_path, text)


def test_an_ops_name_stands_for_its_only_family():
    """With what an alias sets; an op with several families must say which."""
    assert family_named("ttnn.gelu") == (FAMILIES.get("eltwise_unary/single"), {"func": "gelu"})
    with pytest.raises(InvalidValue, match=r"ttnn.reshard has several families: name one of reshard/cpu, reshard/single"):
        family_named("ttnn.reshard")

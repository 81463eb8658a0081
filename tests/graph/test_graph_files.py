import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgrad import ConvError, FileFormatError, GraphError
from convgrad.graph import Graph, LogicalTensor, Op, dumps, load, loads, save
from convgrad.graph.reader import LARGEST_FILE
from graph.builders import KINDS, graph_of, inputs_of, op_of

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "graphs"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="oneDNN's graph files are not beside the checkout")
UNKNOWN = -(2**63)


def changed(path: str, value):
    """The text of a graph of one convolution with one entry replaced, or removed by Ellipsis."""
    document = json.loads(dumps(graph_of(op_of("ConvolutionBackwardData"))))
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place = document
    for step in steps:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document)


def op_read(text):
    (op,) = loads(text).ops
    return op


ORIGINAL = graph_of(op_of("ConvolutionBackwardData")).ops[0]

extents = st.integers(0, 2**12)  # four of them stay below what memory can be addressed with
tensor_shapes = st.none() | st.lists(st.none() | extents, max_size=4).map(tuple)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='"\\'), max_size=8)

integers = st.integers(-(2**63), 2**63 - 1)
attribute_values = st.booleans() | st.integers(-9, 9) | st.floats(-1e6, 1e6, width=32) | names | st.just((1, 2))


@st.composite
def logical_tensors(draw, id):
    shape = draw(tensor_shapes)
    known = shape is not None and None not in shape
    strides = draw(st.none() | st.tuples(*[st.integers(0, 99)] * len(shape))) if known else None
    dtype = draw(st.sampled_from(["f32", "f16", "bf16", "s8", "undef", "s4", "boolean"]))
    layout = draw(st.sampled_from(["strided", "any", "undef", "opaque"]))
    return LogicalTensor(id, dtype, shape, layout, strides, draw(st.sampled_from(["undef", "variable", "constant"])))


@st.composite
def graphs(draw):
    graph = Graph(
        draw(st.sampled_from(["cpu", "gpu", "any"])),
        fpmath_mode=draw(st.sampled_from(["strict", "bf16", "tf32"])),
        fpmath_mode_apply_to_int=draw(st.booleans()),
    )
    axes = st.lists(st.integers(1, 5), min_size=1, max_size=3)
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from([*KINDS, "ReLU", "End"]))
        ids = [10 * number + i for i in range(3)]
        tensors = [draw(logical_tensors(id)) for id in ids]
        attrs: dict = {}
        if kind == "ReLU":
            values = st.booleans() | st.integers(-9, 9) | st.floats(-1e6, 1e6, width=32) | names | st.tuples(integers)
            attrs = draw(st.dictionaries(names.filter(lambda name: name not in ("partition_id", "backend")), values))
        elif kind in KINDS:
            attrs = {"data_format": draw(st.sampled_from(["NCX", "nxc"]))}
            if kind != "BiasAddBackward":
                attrs |= {
                    "strides": draw(axes),
                    "dilations": draw(axes),
                    "auto_pad": draw(st.sampled_from(["none", "VALID"])),
                }
            if kind == "ConvTransposeBackwardData":
                attrs["output_padding"] = draw(axes)
        count = 1 if kind in ("BiasAddBackward", "End", "ReLU") else 2
        outputs = [] if kind == "End" else [tensors[2]]
        graph.add_op(Op(number, kind, draw(names), attrs, tensors[:count], outputs))
    return graph


@given(graphs())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_written_graph_is_read_again_equal(graph):
    text = dumps(graph)
    again = loads(text)
    assert again == graph
    assert dumps(again) == text


def test_a_file_is_read_again_equal(tmp_path):
    graph = graph_of(op_of("ConvTranspose"))
    save(graph, tmp_path / "graph.json")
    assert load(tmp_path / "graph.json") == graph


def test_the_text_is_what_benchdnn_reads():
    document = json.loads(dumps(graph_of(op_of("ConvolutionBackwardData"))))
    assert list(document) == [
        "version", "engine_kind", "fpmath_mode", "fpmath_mode_apply_to_int", "input_ports", "output_ports", "graph",
    ]  # fmt: skip
    assert document["fpmath_mode_apply_to_int"] == "false"
    assert (document["input_ports"], document["output_ports"]) == ([0, 1], [2])
    (op,) = document["graph"]
    assert all(list(attribute) == ["type", "value"] for attribute in op["attrs"].values())
    assert op["attrs"]["auto_pad"] == {"type": "string", "value": "None"}
    assert op["attrs"]["output_padding"] == {"type": "s64[]", "value": [0] * 12}
    assert op["attrs"]["groups"] == {"type": "s64", "value": 1}
    assert op["attrs"]["data_format"] == {"type": "string", "value": "NCX"}
    assert op["attrs"]["weights_format"] == {"type": "string", "value": "OIX"}


def test_pads_are_written_even_where_auto_pad_replaces_them_and_no_attribute_that_onednn_refuses():
    op = op_of("ConvTransposeBackwardData")
    del op.attrs["pads_begin"], op.attrs["pads_end"]
    op.set_attr("auto_pad", "SAME_LOWER")
    (written,) = json.loads(dumps(graph_of(op)))["graph"]
    assert written["attrs"]["pads_begin"]["value"] == [0, 0]
    assert "output_padding" not in written["attrs"]


def test_ports_are_told_once_for_each_reading():
    tensor = LogicalTensor(0, "f32", (2, 3, 4))
    twice = graph_of(*[Op(i, "BiasAddBackward", "", {}, [tensor], [LogicalTensor(i)]) for i in (1, 2)])
    assert json.loads(dumps(twice))["input_ports"] == [0, 0]


@pytest.mark.parametrize("name", ['a "name"', "back\\slash", "line\nbreak", "\ud800"])
def test_a_name_that_needs_escapes_is_not_written(name):
    op = op_of("Convolution")
    op.name = name
    with pytest.raises(GraphError, match="cannot be written"):
        dumps(graph_of(op))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("comment", {"anything": [1, {}]}),
        ("version", ...),
        ("engine_kind", ...),
        ("engine_kind", "CPU"),
        ("fpmath_mode", ...),
        ("fpmath_mode_apply_to_int", False),
        ("fpmath_mode_apply_to_int", ...),
        ("input_ports", ...),
        ("output_ports", ...),
        ("graph.0.note", "x"),
        ("graph.0.kind", "ConvolutionBackpropData"),
        ("graph.0.kind", "convolutionbackwarddata"),
        ("graph.0.attrs.partition_id", {"type": "string", "value": "3"}),
        ("graph.0.attrs.backend", {"type": "string", "value": "dnnl_backend"}),
        ("graph.0.attrs.zps", {"type": "s64[]", "value": [1]}),
        ("graph.0.attrs.groups", ...),
        ("graph.0.attrs.output_padding", {"type": "s64[]", "value": [0]}),
        ("graph.0.attrs.output_padding", ...),
        ("graph.0.attrs.auto_pad", {"type": "string", "value": "none"}),
        ("graph.0.attrs.data_format", {"value": "ncx", "type": "string"}),
        ("graph.0.inputs.0.note", None),
        ("graph.0.inputs.0.stride", ...),
        ("graph.0.inputs.0.layout_type", "STRIDED"),
        ("graph.0.inputs.0.layout_type", ...),
        ("graph.0.inputs.0.property_type", ...),
    ],
)
def test_what_others_write_or_leave_out_is_understood(path, value):
    assert op_read(changed(path, value)) == ORIGINAL


def test_unknown_shapes_and_strides_are_lists_of_the_least_integer():
    assert op_read(changed("graph.0.outputs.0.shape", [UNKNOWN])).outputs[0].shape is None
    assert op_read(changed("graph.0.outputs.0.shape", [2, 3, UNKNOWN, -1])).outputs[0].shape == (2, 3, None, None)
    assert op_read(changed("graph.0.outputs.0.stride", [UNKNOWN])).outputs[0] == ORIGINAL.outputs[0]
    assert op_read(changed("graph.0.outputs.0.layout_type", "any")).outputs[0].strides is None


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("graph", ..., "the file has no 'graph'"),
        ("graph", [], "graph: the list of operations is empty"),
        ("graph", {}, "graph is an object; it must be a list"),
        ("graph.0", 3, r"graph\[0\] is 3; it must be an object"),
        ("graph.0.id", ..., r"graph\[0\]: an operation needs 'id'"),
        ("graph.0.id", -1, r"graph\[0\]: an operation id is -1"),
        ("graph.0.id", 1.5, r"graph\[0\].id is 1.5; it must be an integer"),
        ("graph.0.id", True, r"graph\[0\].id is true"),
        ("graph.0.kind", 5, r"graph\[0\].kind is 5; it must be a string"),
        ("graph.0.kind", "", r"graph\[0\]: op 7: kind is ''"),
        ("graph.0.name", [], r"graph\[0\].name is a list"),
        ("graph.0.attrs", [], r"graph\[0\].attrs is a list; it must be an object"),
        ("graph.0.attrs.groups", 1, r"graph\[0\].attrs.groups is 1; it must be an object"),
        ("graph.0.attrs.groups", {"type": "s64"}, r"graph\[0\].attrs.groups: an attribute needs a 'value'"),
        ("graph.0.attrs.groups", {"type": "int", "value": 1}, r'graph\[0\].attrs.groups.type is "int"; it must be'),
        ("graph.0.attrs.groups", {"type": [], "value": 1}, r"graph\[0\].attrs.groups.type is a list"),
        ("graph.0.attrs.groups", {"type": "s64", "value": "1"}, r'graph\[0\].attrs.groups.value is "1"; it must be'),
        ("graph.0.attrs.groups", {"type": "s64", "value": 0}, r"graph\[0\]: op 7 .*groups holds 0"),
        ("graph.0.attrs.strides", {"type": "s64[]", "value": [1, None]}, r"graph\[0\].attrs.strides.value\[1\] is"),
        ("graph.0.attrs.strides", {"type": "f32[]", "value": [1, 1e300]}, r"graph\[0\].attrs.strides.value\[1\] is 1e"),
        ("graph.0.attrs.strides", {"type": "f32[]", "value": [1, 1]}, r"graph\[0\]: op 7 .*strides"),
        ("graph.0.attrs.strides", ..., r"graph\[0\]: op 7 .*the required attribute strides is missing"),
        ("graph.0.inputs", [], r"graph\[0\]: op 7 .*0 inputs"),
        ("graph.0.inputs.1", [], r"graph\[0\].inputs\[1\] is a list; it must be an object"),
        ("graph.0.inputs.1.id", ..., r"graph\[0\].inputs\[1\]: a tensor needs an 'id'"),
        ("graph.0.inputs.1.dtype", "float", r'graph\[0\].inputs\[1\].dtype is "float"; it must be one of f32'),
        ("graph.0.inputs.1.shape", "2x3", r'graph\[0\].inputs\[1\].shape is "2x3"; it must be a list'),
        ("graph.0.inputs.1.shape", [2, "3"], r'graph\[0\].inputs\[1\].shape\[1\] is "3"; it must be an integer'),
        ("graph.0.inputs.1.shape", [10**30], r"graph\[0\].inputs\[1\].shape\[0\] is an integer of 100 bits"),
        ("graph.0.inputs.1.shape", [2**62, 2**62, 1, 1], r"graph\[0\].inputs\[1\]: tensor 1 .* than any memory"),
        ("graph.0.inputs.1.shape", [1] * 13, r"graph\[0\].inputs\[1\]: tensor 1: more than 12 extents"),
        ("graph.0.inputs.1.stride", [1], r"graph\[0\].inputs\[1\]: tensor 1: 1 strides for 4 axes"),
        ("graph.0.inputs.1.stride", [27, 9, 3, -1], r"graph\[0\].inputs\[1\]: tensor 1: a stride is -1"),
        ("graph.0.outputs.0.layout_type", "blocked", r'graph\[0\].outputs\[0\].layout_type is "blocked"'),
        ("graph.0.outputs.0.property_type", 1, r"graph\[0\].outputs\[0\].property_type is 1; it must be a string"),
        ("engine_kind", "tpu", r'engine_kind is "tpu"; it must be one of cpu'),
        ("fpmath_mode", 3, r"fpmath_mode is 3; it must be a string"),
        ("fpmath_mode_apply_to_int", "maybe", r'fpmath_mode_apply_to_int is "maybe"; it must be true or false'),
        ("engine_kind", "x" * 500, r'engine_kind is "x{59}\.\.\.; it must'),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_told_with_its_place(path, value, place):
    with pytest.raises(ConvError, match="^" + place):
        loads(changed(path, value))


def test_two_operations_of_one_id_are_told():
    document = json.loads(dumps(graph_of(op_of("Convolution"))))
    document["graph"] *= 2
    with pytest.raises(FileFormatError, match=r"graph\[1\].id: 7 is the id of graph\[0\] already"):
        loads(json.dumps(document))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: line 1, column 1"),
        ("{", "not JSON: line 1, column 2"),
        (b"\xff\xfe\x00", "byte 0 is not UTF-8"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        ('{"graph":' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply|must be"),
        ("[]", "the file is a list; it must be an object"),
        ("1" * 5000, "not a graph: an integer of thousands of digits|the file is"),
        ('{"graph": [NaN]}', "NaN is not a number of JSON"),
        ('{"graph": [-Infinity]}', "-Infinity is not a number of JSON"),
    ],
)
def test_what_is_no_graph_file_at_all_is_told(text, message):
    with pytest.raises(FileFormatError, match=message):
        loads(text)


def test_every_truncation_of_a_file_is_told(tmp_path):
    text = dumps(graph_of(op_of("BiasAddBackward")))
    assert loads("\ufeff".encode() + text.encode()) == loads(text)
    for length in range(len(text.rstrip())):
        with pytest.raises(FileFormatError, match="not JSON"):
            loads(text[:length])


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(FileFormatError, match=r"huge.json: 16777217 bytes; a graph file has at most 16777216"):
        load(path)
    path.write_text("{")
    with pytest.raises(FileFormatError, match=r"huge.json: not JSON"):
        load(path)


def test_dtype_can_be_changed_for_a_whole_graph():
    graph = loads(dumps(graph_of(op_of("Convolution")))).with_dtype("bf16")
    assert {tensor.dtype for op in graph.ops for tensor in (*op.inputs, *op.outputs)} == {"bf16"}
    with pytest.raises(GraphError, match="dtype is 's8'"):
        graph.with_dtype("s8")


@needs_shared
@pytest.mark.parametrize("name", ["biasadd_bwd", "conv_2d", "conv_bwd_d_2d", "deconv_bwd_w"])
def test_files_of_onednn_are_read_written_and_run(name):
    graph = load(SHARED / f"{name}.json")
    assert loads(dumps(graph)) == graph
    (result,) = graph.compile().execute(inputs_of(graph)).values()
    assert np.all(np.isfinite(result))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.json")), ids=lambda path: path.stem)
def test_examples_are_as_this_version_writes_them(path):
    assert dumps(load(path)) == path.read_text()

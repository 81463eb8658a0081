import json

import numpy as np
import pytest

from convgrad import GraphError
from convgrad.graph import Graph, LogicalTensor, Op, dumps
from graph.builders import CONV, KINDS, graph_of, op_of


def chain(*ids):
    """BiasAddBackward-like wildcards joined one after the other in the order of the ids."""
    tensors = [LogicalTensor(i, "f32", (2, 3)) for i in range(len(ids) + 1)]
    return [Op(id, "Wildcard", "", {}, [tensors[i]], [tensors[i + 1]]) for i, id in enumerate(ids)]


def test_defaults_are_filled_in_and_spelled_one_way():
    attrs = {"strides": [1], "dilations": [1], "auto_pad": "same_upper", "dst_shape": [0] * 12, "weights_format": "xio"}
    graph = graph_of(
        Op(0, "convolutionbackwarddata", "", attrs, [LogicalTensor(0), LogicalTensor(1)], [LogicalTensor(2)])
    )
    (op,) = graph.ops
    assert op.kind == "ConvolutionBackwardData"
    assert op.attrs == {
        "strides": (1,),
        "dilations": (1,),
        "pads_begin": (0,),
        "pads_end": (0,),
        "auto_pad": "SAME_UPPER",
        "groups": 1,
        "data_format": "NXC",
        "weights_format": "XIO",
    }


def test_the_graph_keeps_a_copy():
    op = op_of("Convolution")
    graph = graph_of(op)
    op.set_attr("groups", 3)
    op.add_input(LogicalTensor(9))
    assert graph.ops == (graph_of(op_of("Convolution")).ops[0],)


def test_a_second_operation_of_the_same_id_is_ignored():
    graph = graph_of(op_of("Convolution", id=3), op_of("BiasAddBackward", id=3))
    assert [op.kind for op in graph.ops] == ["Convolution"]


def test_names_of_2022_are_understood_with_their_defaults():
    tensors = [LogicalTensor(i) for i in range(3)]
    attrs = {"strides": [1], "dilations": [1], "filter_shape": [3, 4, 5]}
    graph = graph_of(Op(0, "ConvTransposeBackpropFilters", "", attrs, tensors[:2], tensors[2:]))
    (op,) = graph.ops
    assert (op.kind, op.attrs["weights_shape"], op.attrs["weights_format"]) == (
        "ConvTransposeBackwardWeights", (3, 4, 5), "XIO",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strides": None}, r"op 7 'convolution' \(Convolution\): .*strides"),
        ({"strides": [0, 1]}, r"strides holds 0, but must be at least 1"),
        ({"pads_begin": [-1, 0]}, r"pads_begin holds -1"),
        ({"groups": "two"}, r"groups holds 'two'"),
        ({"auto_pad": "SAME"}, r"auto_pad is 'SAME'"),
        ({"dst_shape": [1, 2, 3, 4]}, r"there is no attribute 'dst_shape'"),
    ],
)
def test_an_operation_that_breaks_its_schema_is_refused(change, message):
    op = op_of("Convolution")
    for name, value in change.items():
        op.set_attr(name, value)
    with pytest.raises(GraphError, match=message):
        graph_of(op)


def test_a_missing_required_attribute_is_named():
    op = op_of("Convolution")
    del op.attrs["strides"]
    with pytest.raises(
        GraphError, match=r"op 7 'convolution' \(Convolution\): the required attribute strides is missing"
    ):
        graph_of(op)


def test_counts_of_inputs_and_outputs_are_checked():
    a, b, c, d = (LogicalTensor(i) for i in range(4))
    with pytest.raises(GraphError, match=r"1 inputs; it takes src, weights and, if you like, bias"):
        graph_of(Op(0, "Convolution", "", CONV, [a], [b]))
    with pytest.raises(GraphError, match=r"3 inputs; it takes diff_dst, weights$"):
        graph_of(Op(0, "ConvTransposeBackwardData", "", CONV, [a, b, c], [d]))
    with pytest.raises(GraphError, match=r"2 outputs; it has one, diff_bias"):
        graph_of(Op(0, "BiasAddBackward", "", {}, [a], [b, c]))


@pytest.mark.parametrize("bad", [-1, "0", 1.0, True, 2**64])
def test_ids_of_operations_are_natural_numbers(bad):
    with pytest.raises(GraphError, match="an operation id is"):
        Op(bad, "Convolution")


def test_partitions_come_in_topological_order_whatever_the_order_of_adding():
    first, second, third = chain(5, 3, 4)
    graph = graph_of(third, second, first)
    graph.finalize()
    assert [partition.ops[0].id for partition in graph.get_partitions()] == [5, 3, 4]
    assert [partition.id for partition in graph.get_partitions("debug")] == [0, 1, 2]


def test_a_chain_of_thousands_is_sorted_without_recursion():
    graph = graph_of(*reversed(chain(*range(5000))))
    graph.finalize()
    assert [partition.ops[0].id for partition in graph.get_partitions()] == list(range(5000))


def test_ports_are_what_nobody_makes_and_what_nobody_reads():
    data, weights = op_of("ConvolutionBackwardData"), op_of("BiasAddBackward", id=8, first=2)
    graph = graph_of(data, weights)
    graph.finalize()
    assert [port.id for port in graph.get_input_ports()] == [0, 1]
    assert [port.id for port in graph.get_output_ports()] == [3]
    graph = graph_of(data, weights, Op(9, "End", "", {}, [data.outputs[0]]))
    graph.finalize()
    assert [port.id for port in graph.get_output_ports()] == [2, 3]
    assert [partition.ops[0].id for partition in graph.get_partitions()] == [7, 8]


def test_a_cycle_is_told():
    a, b = LogicalTensor(0), LogicalTensor(1)
    graph = graph_of(Op(1, "Wildcard", "", {}, [a], [b]), Op(2, "Wildcard", "back", {}, [b], [a]))
    with pytest.raises(GraphError, match=r"cycle through or before op 1 \(Wildcard\), op 2 'back' \(Wildcard\)"):
        graph.finalize()


def test_two_descriptions_of_one_tensor_are_told():
    changed = op_of("BiasAddBackward", id=8, first=2, dtype="bf16")
    graph = graph_of(op_of("ConvolutionBackwardData"), changed)
    with pytest.raises(GraphError, match=r"tensor 2 is described in two ways: .* f32 .* in op 7 .* bf16 .* in op 8"):
        graph.finalize()


def test_two_makers_of_one_tensor_are_told():
    a, b = LogicalTensor(0), LogicalTensor(1)
    graph = graph_of(Op(1, "Wildcard", "", {}, [a], [b]), Op(2, "Wildcard", "", {}, [a], [b]))
    with pytest.raises(GraphError, match=r"tensor 1 is made twice, by op 1 \(Wildcard\) and by op 2 \(Wildcard\)"):
        graph.finalize()


def test_a_finalized_graph_takes_no_changes():
    graph = graph_of(op_of("Convolution"))
    with pytest.raises(GraphError, match=r"get_partitions: the graph is not finalized; call finalize\(\) first"):
        graph.get_partitions()
    graph.finalize()
    graph.finalize()
    with pytest.raises(GraphError, match="add_op: the graph is finalized"):
        graph.add_op(op_of("Convolution", id=9))
    with pytest.raises(GraphError, match="set_fpmath_mode: the graph is finalized"):
        graph.set_fpmath_mode("bf16")


def test_modes_are_words_of_onednn():
    with pytest.raises(GraphError, match="engine_kind is 'tpu'; it must be one of cpu, gpu, any"):
        Graph("tpu")
    with pytest.raises(GraphError, match="fpmath_mode is 'fast'"):
        Graph(fpmath_mode="fast")
    with pytest.raises(GraphError, match="policy is 'all'"):
        Graph().get_partitions("all")
    assert Graph(fpmath_mode="bf16") != Graph()


@pytest.mark.parametrize("kind", KINDS)
def test_all_seven_kinds_are_supported(kind):
    graph = graph_of(op_of(kind))
    graph.finalize()
    (partition,) = graph.get_partitions()
    assert partition.is_supported()
    assert partition.reason is None


def tensors(dtype="f32", **changes):
    return [LogicalTensor(0, dtype, (1, 1, 5), **changes), LogicalTensor(1, "f32", (1, 1, 3)), LogicalTensor(2, "f32")]


ONE_AXIS = {"strides": [1], "dilations": [1], "data_format": "NCX", "weights_format": "OIX"}


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (
            Op(1, "ReLU", "r", {}, [LogicalTensor(0)], [LogicalTensor(1)]),
            r"op 1 'r' \(ReLU\): convgrad runs .*, not ReLU",
        ),
        (Op(1, "Convolution", "", ONE_AXIS, tensors(layout_type="opaque")[:2], tensors()[2:]), "is opaque, a layout"),
        (
            Op(1, "Convolution", "", ONE_AXIS, tensors("s8")[:2], tensors()[2:]),
            r"\(s8 1x1x5\); convgrad computes on f32",
        ),
        (
            Op(1, "Convolution", "", ONE_AXIS, tensors("bf16")[:2], tensors()[2:]),
            "tensor 1 .* and tensor 0 .* differ in",
        ),
        (Op(1, "Convolution", "", ONE_AXIS, tensors()[:2], [LogicalTensor(2, "bf16")]), "cannot be made of f32"),
        (
            Op(
                1,
                "ConvolutionBackwardData",
                "",
                ONE_AXIS,
                [*tensors()[:2], LogicalTensor(3, "s64", (3,))],
                tensors()[2:],
            ),
            "a tensor that tells a shape is s32",
        ),
    ],
)
def test_what_cannot_be_run_says_why(op, reason):
    graph = graph_of(op)
    graph.finalize()
    (partition,) = graph.get_partitions()
    assert not partition.is_supported()
    with pytest.raises(GraphError, match=reason):
        partition.compile()
    with pytest.raises(GraphError, match="the graph cannot be run: .*" + reason):
        graph.compile()


def test_a_gpu_is_not_supported():
    graph = Graph("gpu")
    graph.add_op(op_of("Convolution"))
    graph.finalize()
    assert "engine_kind is gpu" in graph.get_partitions()[0].reason


def test_text_names_operations_and_tensors():
    graph = graph_of(op_of("BiasAddBackward"))
    assert str(graph).splitlines() == [
        "graph of 1 operations, fpmath_mode strict",
        "op 7 'biasaddbackward' (BiasAddBackward): tensor 0 (f32 2x3x9x8) -> tensor 1 (f32 3)",
    ]


def test_an_integer_that_no_file_can_hold_is_refused():
    with pytest.raises(
        GraphError, match=r"axis is \[1, 9223372036854775808\], which no file can hold; integers have 64"
    ):
        Graph().add_op(Op(0, "Softmax", "s", {"axis": [1, 2**63]}, [], []))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: Op(0, "End", "", ["strides"]), r"op 0 \(End\): attrs is \['strides'\]; give values by the names"),
        (lambda: Op(0, "End", "", {}, [1]), r"op 0 \(End\): its inputs are given 1; give a list of LogicalTensor"),
        (lambda: Op(0, "End", "", {}, None), r"its inputs are given None; give a list"),
        (lambda: Op(0, "End").add_output(7), r"its outputs are given 7; give a list"),
        (lambda: Graph().add_op("End"), r"add_op got 'End'; it takes an Op"),
        (lambda: Graph().add_op(Op(0, "Softmax", "", {"axis": float("nan")})), r"axis is nan, which no file can hold"),
        (lambda: Graph().add_op(Op(0, "Softmax", "", {"axis": {}})), r"axis is {}, which no file can hold"),
        (lambda: Graph(np.ones(2)), r"engine_kind is array\(\[1., 1.\]\); it must be one of cpu"),
        (
            lambda: Graph().compile([(2, (1, 2))]),
            r"extents are given by the ids of their tensors; got \[\(2, \(1, 2\)\)\]",
        ),
        (
            lambda: Graph().compile().execute([1]),
            r"the graph: arrays and extents are given by the ids of .*; got \[1\]",
        ),
        (lambda: Op(10**5000, "End"), r"an operation id is an integer of 16610 bits; it must be"),
    ],
)
def test_things_of_the_wrong_kind_are_told(mistake, message):
    with pytest.raises(GraphError, match=message):
        mistake()


def test_integers_of_numpy_are_integers():
    numbers = np.arange(4)
    tensor = LogicalTensor(numbers[1], "f32", numbers[2:], strides=numbers[3:0:-2])
    assert tensor == LogicalTensor(1, "f32", (2, 3), strides=(3, 1))
    assert (
        json.loads(dumps(graph_of(Op(numbers[3], "Softmax", "", {"axis": numbers[1]}, [tensor]))))["graph"][0]["id"]
        == 3
    )

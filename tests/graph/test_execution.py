import threading

import numpy as np
import pytest

from convgrad import ArrayError, ConvError, GraphError
from convgrad.dtypes import numpy_dtype
from convgrad.graph import LogicalTensor, Op, empty
from convgrad.spec.definition import define
from convgrad.spec.resolve import resolve
from graph.builders import CONV, DECONV, IMAGE, KINDS, WEIGHTS, WINDOW, graph_of, inputs_of, op_of, whole_numbers


def defined(op: Op, inputs: dict[int, np.ndarray]) -> np.ndarray:
    """What the definition says of an operation with a known result."""
    arrays = [inputs[tensor.id] for tensor in op.inputs if tensor.dtype != "s32"]
    resolved = resolve(op.kind, op.attrs, [a.shape for a in arrays], output_shape=op.outputs[0].known_shape)
    return define(resolved, arrays)


def compiled(op: Op, **arguments):
    graph = graph_of(op)
    graph.finalize()
    return graph.get_partitions()[0].compile(**arguments)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_computes_what_is_defined(kind, dtype):
    op = op_of(kind, dtype=dtype)
    inputs = {tensor.id: whole_numbers(tensor) for tensor in op.inputs}
    results = compiled(op).execute(inputs)
    (id,) = results
    assert id == op.outputs[0].id
    np.testing.assert_array_equal(results[id], defined(op, inputs).astype(numpy_dtype(dtype)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_shape_of_a_result_is_inferred(kind):
    op = op_of(kind, known_output=False)
    partition = compiled(op)
    final = partition.query_logical_tensor(op.outputs[0].id)
    assert final.shape == KINDS[kind][2]
    assert final == op_of(kind).outputs[0]


def test_a_16_bit_operation_can_give_f32():
    op = op_of("ConvTransposeBackwardWeights", dtype="bf16")
    op.outputs = (LogicalTensor(2, "f32", WEIGHTS),)
    inputs = {tensor.id: whole_numbers(tensor) for tensor in op.inputs}
    result = compiled(op).execute(inputs)[2]
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, defined(op, inputs))


def test_strides_of_every_tensor_are_those_of_the_graph():
    """Channels last in memory under NCX dims, padded rows of weights, and a result with gaps."""
    image = LogicalTensor(0, "f32", IMAGE, strides=(216, 1, 24, 3))
    weights = LogicalTensor(1, "f32", WEIGHTS, strides=(40, 13, 4, 1))
    result = LogicalTensor(2, "f32", WINDOW, strides=(200, 2, 40, 8))
    op = Op(1, "Convolution", "", CONV, [image, weights], [result])
    partition = compiled(op)
    inputs = {0: whole_numbers(image), 1: whole_numbers(weights)}
    given = {0: empty(image), 1: empty(weights)}
    for id, array in given.items():
        array[...] = inputs[id]
    out = empty(result)
    expected = defined(op, inputs)
    for source in (inputs, given):  # arrays that lie otherwise are copied
        out[...] = np.nan
        results = partition.execute(source, {2: out})
        assert results[2] is out
        np.testing.assert_array_equal(out, expected)
    assert partition.execute(inputs)[2].strides == (800, 8, 160, 32)


def test_tensors_given_to_compile_replace_the_ports():
    op = op_of("ConvTransposeBackwardData", known_output=False)
    unknown = [LogicalTensor(tensor.id, "f32", None) for tensor in op.inputs]
    graph = graph_of(Op(7, op.kind, "", op.attrs, unknown, op.outputs))
    graph.finalize()
    (partition,) = graph.get_partitions()
    with pytest.raises(GraphError, match=r"input tensor 0 \(f32 unknown rank\): its shape must be known to compile"):
        partition.compile()
    wanted = LogicalTensor(2, "f32", None, "any")
    made = partition.compile(reversed(op.inputs), [wanted])
    assert made.query_logical_tensor(2).shape == WINDOW
    with pytest.raises(GraphError, match=r"one tensor for each input port, ids \[0, 1\]; got \[0, 2\]"):
        partition.compile([op.inputs[0], LogicalTensor(2)], [wanted])
    with pytest.raises(GraphError, match="the types of its elements differ"):
        partition.compile([op.inputs[0], LogicalTensor(1, "bf16", WEIGHTS)], [wanted])
    with pytest.raises(GraphError, match=r"tensor 2 .*, but inputs and attributes make it \[2, 4, 4, 5\]"):
        partition.compile(op.inputs, [LogicalTensor(2, "f32", (2, None, 4, 6))])
    with pytest.raises(GraphError, match="no tensor 3; its tensors are"):
        made.query_logical_tensor(3)


def shape_tensor_op(kind, attrs, id=3, output=None):
    op = op_of(kind, known_output=False)
    return Op(7, kind, "", attrs, [*op.inputs, LogicalTensor(id, "s32", (4,))], [output or LogicalTensor(2, "f32")])


SHAPED = {"ConvolutionBackwardData": CONV, "ConvolutionBackwardWeights": CONV, "ConvTransposeBackwardWeights": DECONV}


@pytest.mark.parametrize("kind", SHAPED)
def test_a_shape_tensor_tells_the_shape_when_it_comes(kind):
    op = shape_tensor_op(kind, SHAPED[kind])
    shape = KINDS[kind][2]
    inputs = {tensor.id: whole_numbers(tensor) for tensor in op.inputs[:2]}
    expected = defined(op_of(kind), inputs)
    inputs[3] = np.array(shape, np.int32)

    partition = compiled(op)
    assert partition.is_deferred
    assert partition.query_logical_tensor(2).shape is None
    np.testing.assert_array_equal(partition.execute(inputs)[2], expected)

    partition = compiled(op, constants={3: shape})
    assert partition.query_logical_tensor(2).shape == shape
    np.testing.assert_array_equal(partition.execute(inputs)[2], expected)

    graph = graph_of(op).compile()
    assert graph.is_deferred
    np.testing.assert_array_equal(graph.execute(inputs)[2], expected)


@pytest.mark.parametrize("told_by", ["output", "attribute"])
def test_a_shape_tensor_is_compared_with_a_shape_that_was_known(told_by):
    attrs = CONV | ({"dst_shape": IMAGE} if told_by == "attribute" else {})
    output = LogicalTensor(2, "f32", IMAGE) if told_by == "output" else None
    op = shape_tensor_op("ConvolutionBackwardData", attrs, output=output)
    inputs = {tensor.id: whole_numbers(tensor) for tensor in op.inputs[:2]}
    partition = compiled(op)
    assert not partition.is_deferred
    np.testing.assert_array_equal(
        partition.execute(inputs | {3: np.array(IMAGE, np.int32)})[2], defined(op_of("ConvolutionBackwardData"), inputs)
    )
    with pytest.raises(ConvError, match=r"op 7.*10"):
        partition.execute(inputs | {3: np.array([2, 3, 10, 8], np.int32)})
    with pytest.raises(ArrayError, match="must hold extents"):
        partition.execute(inputs | {3: np.array(IMAGE, np.float32)})


def two_layers(known=True):
    """Both gradients of two convolutions, the second before the first, joined by diff_src of the second."""
    shape = (lambda *s: s) if known else (lambda *s: None)
    last = {"strides": [1, 1], "dilations": [1, 1], "data_format": "NCX", "weights_format": "OIX"}
    x, w1, h, w2 = (LogicalTensor(i, "f32", s) for i, s in enumerate([IMAGE, WEIGHTS, WINDOW, (5, 4, 2, 2)]))
    dy = LogicalTensor(4, "f32", (2, 5, 3, 4))
    dh = LogicalTensor(5, "f32", shape(*WINDOW))
    dw2, dw1, dx = (
        LogicalTensor(i, "f32", shape(*s)) for i, s in [(6, (5, 4, 2, 2)), (7, WEIGHTS), (8, IMAGE)]
    )  # fmt: skip
    return graph_of(
        Op(0, "ConvolutionBackwardWeights", "dw1", CONV | {"weights_shape": WEIGHTS}, [x, dh], [dw1]),
        Op(1, "ConvolutionBackwardData", "dx", CONV | {"dst_shape": IMAGE}, [dh, w1], [dx]),
        Op(2, "ConvolutionBackwardData", "dh", last | {"dst_shape": WINDOW}, [dy, w2], [dh]),
        Op(3, "ConvolutionBackwardWeights", "dw2", last | {"weights_shape": (5, 4, 2, 2)}, [h, dy], [dw2]),
    )


@pytest.mark.parametrize("known", [True, False], ids=["shapes known", "shapes flow"])
def test_a_graph_of_several_operations_runs_whole(known):
    graph = two_layers(known)
    inputs = inputs_of(graph)
    whole = graph.compile()
    results = whole.execute(inputs)
    assert sorted(results) == [6, 7, 8]
    everything = inputs | whole.execute(inputs, keep_all=True)
    for op in two_layers().ops:
        np.testing.assert_array_equal(everything[op.outputs[0].id], defined(op, everything))
    assert whole.query_logical_tensor(5).shape == WINDOW
    with pytest.raises(GraphError, match="no compiled partition has a tensor 99"):
        whole.query_logical_tensor(99)


def test_a_shape_tensor_in_the_middle_of_a_graph_waits_for_execute():
    """dy -> dh, whose shape a tensor tells -> diff_bias, whose shape follows."""
    first = shape_tensor_op("ConvolutionBackwardData", CONV)
    second = Op(8, "BiasAddBackward", "", {"data_format": "NCX"}, [LogicalTensor(2, "f32")], [LogicalTensor(4, "f32")])
    whole = graph_of(second, first).compile()
    assert whole.is_deferred
    inputs = {tensor.id: whole_numbers(tensor) for tensor in first.inputs[:2]}
    dh = defined(op_of("ConvolutionBackwardData"), inputs)
    for _ in range(2):
        results = whole.execute(inputs | {3: np.array(IMAGE, np.int32)})
        np.testing.assert_array_equal(results[4], dh.sum(axis=(0, 2, 3)))


def test_steps_are_told_in_order():
    graph = two_layers()
    seen = []
    graph.compile().execute(inputs_of(graph), on_step=lambda partition, seconds: seen.append(partition.op.name))
    assert seen == ["dh", "dw1", "dx", "dw2"]


def test_results_can_be_written_into_given_arrays():
    graph = two_layers()
    inputs = inputs_of(graph)
    whole = graph.compile()
    out = np.full(IMAGE, np.nan, np.float32)
    results = whole.execute(inputs, {8: out})
    assert results[8] is out
    np.testing.assert_array_equal(out, whole.execute(inputs)[8])


def broken_calls():
    image = np.zeros(IMAGE, np.float32)
    read_only = image.copy()
    read_only.flags.writeable = False
    yield "missing input", {0: None}, {}, GraphError, "needs an array for tensor 0"
    yield "no array", {0: "text"}, {}, ArrayError, r"tensor 0 .* needs an array; got str"
    yield "other type", {0: np.zeros(IMAGE)}, {}, ArrayError, r"cannot be an array of float64"
    yield "other shape", {0: np.zeros((2, 3), np.float32)}, {}, ArrayError, r"with shape \(2, 3\)"
    yield "other byte order", {0: np.zeros(IMAGE, ">f4")}, {}, ArrayError, r"cannot be an array of >f4"
    yield "read-only", {}, {8: read_only}, ArrayError, "the array for the result is read-only"
    yield "other strides", {}, {8: np.zeros(IMAGE[::-1], np.float32).T}, ArrayError, "was compiled for"
    yield "overlap with an input", {0: image}, {8: image}, ArrayError, "overlaps another of the call"
    part = image.reshape(-1)[:160].reshape(WINDOW)
    yield "overlap of results", {}, {8: image, 5: part}, ArrayError, "overlaps another"
    yield "nobody makes it", {}, {99: image}, GraphError, "for tensor 99, which no operation makes"


BROKEN = {name: rest for name, *rest in broken_calls()}


@pytest.mark.parametrize(("changes", "outputs", "kind", "message"), BROKEN.values(), ids=BROKEN)
def test_a_wrong_array_is_refused_before_anything_is_written(changes, outputs, kind, message):
    graph = two_layers()
    inputs = {id: array for id, array in (inputs_of(graph) | changes).items() if array is not None}
    first = np.full(WINDOW, 7, np.float32)
    with pytest.raises(kind, match=message):
        graph.compile().execute(inputs, {5: first} | outputs)
    assert np.all(first == 7)


def test_results_that_would_overlap_themselves_are_refused():
    op = op_of("ConvTransposeBackwardData")
    for strides in [(0, 20, 5, 1), (80, 20, 4, 1)]:
        op.outputs = (LogicalTensor(2, "f32", WINDOW, strides=strides),)
        with pytest.raises(GraphError, match="make elements of the result overlap"):
            compiled(op)


def test_an_input_may_repeat_itself_by_a_stride_of_zero():
    op = op_of("ConvTransposeBackwardData")
    op.inputs = (LogicalTensor(0, "f32", IMAGE, strides=(0, 72, 8, 1)), op.inputs[1])
    partition = compiled(op)
    one = whole_numbers(LogicalTensor(0, "f32", IMAGE[1:]))
    inputs = {0: np.broadcast_to(one, IMAGE), 1: whole_numbers(op.inputs[1])}
    expected = defined(op_of("ConvTransposeBackwardData"), inputs)
    np.testing.assert_array_equal(partition.execute(inputs)[2], expected)
    np.testing.assert_array_equal(partition.execute(inputs | {0: inputs[0].copy()})[2], expected)
    with pytest.raises(ArrayError, match="differs along that axis"):
        partition.execute(inputs | {0: whole_numbers(op.inputs[0])})


def test_tensors_larger_than_the_machine_are_refused_before_memory_is_asked_for():
    op = op_of("BiasAddBackward")
    op.inputs = (LogicalTensor(0, "f32", (2**40, 3, 8, 8)),)
    with pytest.raises(GraphError, match=r"GiB of memory, tensor 0 most of it"):
        compiled(op)


def test_an_empty_batch_gives_zero_gradients_and_empty_data():
    image, window = (LogicalTensor(i, "f32", (0, *s[1:])) for i, s in enumerate([IMAGE, WINDOW]))
    weights, diff = LogicalTensor(2, "f32", WEIGHTS), LogicalTensor(3, "f32")
    arrays = {tensor.id: np.zeros(tensor.known_shape, np.float32) for tensor in (image, window, weights)}
    op = Op(0, "ConvolutionBackwardWeights", "", CONV | {"weights_shape": WEIGHTS}, [image, window], [diff])
    np.testing.assert_array_equal(compiled(op).execute(arrays)[3], np.zeros(WEIGHTS))
    op = Op(0, "ConvolutionBackwardData", "", CONV | {"dst_shape": image.shape}, [window, weights], [diff])
    assert compiled(op).execute(arrays)[3].shape == image.shape


def test_inputs_of_other_libraries_come_through_dlpack():
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **arguments):
            if self.array is None:
                raise BufferError("it lies on another device")
            return self.array.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return np.zeros(1).__dlpack_device__()

    op = op_of("BiasAddBackward")
    array = whole_numbers(op.inputs[0])
    result = compiled(op).execute({0: Foreign(array)})[1]
    np.testing.assert_array_equal(result, array.sum(axis=(0, 2, 3)))
    with pytest.raises(ArrayError, match="cannot be exported through DLPack: it lies on another device"):
        compiled(op).execute({0: Foreign(None)})


def test_tensors_of_pytorch_are_inputs_in_every_type():
    torch = pytest.importorskip("torch")
    op = op_of("BiasAddBackward")
    graph = graph_of(op)
    graph.finalize()
    values = whole_numbers(op.inputs[0])
    for dtype, kind in {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}.items():
        run = graph.with_dtype(dtype).compile()
        result = run.execute({0: torch.from_numpy(values).to(kind)})[1]
        np.testing.assert_array_equal(result.astype(np.float32), values.sum(axis=(0, 2, 3)))
    negative = torch.imag(torch.complex(torch.zeros(values.shape), torch.from_numpy(values)).conj())
    with pytest.raises(ArrayError, match=r"is the negative of what its memory holds"):
        graph.compile().execute({0: negative})


def test_one_compiled_graph_serves_several_threads_at_once():
    graph = two_layers()
    whole = graph.compile()
    inputs = [inputs_of(graph, seed) for seed in range(4)]
    expected = [whole.execute(given) for given in inputs]
    failures = []

    def work(given, right):
        for _ in range(25):
            results = whole.execute(given)
            failures.extend(id for id in right if not np.array_equal(results[id], right[id]))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures

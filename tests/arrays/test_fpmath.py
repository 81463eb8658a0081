"""How far products may be rounded: said by a keyword, by what surrounds a call, by a graph, or by the environment."""

import threading

import numpy as np
import pytest

import convgrad
from convgrad.graph import Graph
from convgrad.graph.operations import Op
from convgrad.graph.tensors import LogicalTensor
from convgrad.operations import _convolution

RNG = np.random.default_rng(0)
SRC = RNG.integers(-3, 4, (1, 8, 9, 9)).astype(np.float32)
WEIGHTS = RNG.integers(-3, 4, (5, 8, 3, 3)).astype(np.float32)
FORMATS = {"data_format": "NCX", "weights_format": "OIX"}


@pytest.fixture
def modes(monkeypatch):
    """The modes of the problems that were compiled, as they come."""
    seen = []
    from convgrad.arrays import record

    def noting(problem):
        seen.append(problem.fpmath_mode)
        return kernel_for(problem)

    kernel_for = record.kernel_for
    monkeypatch.setattr(record, "kernel_for", noting)
    monkeypatch.setattr(_convolution, "records", {})
    monkeypatch.delenv("CONVGRAD_FPMATH_MODE", raising=False)
    return seen


def convolve(**others):
    return convgrad.convolution(SRC, WEIGHTS, **FORMATS, **others)


def test_the_mode_is_strict_if_nobody_says_anything(modes):
    convolve()
    assert modes == ["strict"]


def test_a_keyword_comes_before_what_surrounds_the_call_and_that_before_the_environment(modes, monkeypatch):
    monkeypatch.setenv("CONVGRAD_FPMATH_MODE", "any")
    convolve()
    with convgrad.fpmath_mode("tf32"):
        convolve()
        convolve(fpmath_mode="bf16")
        with convgrad.fpmath_mode("strict"):
            convolve()
    convolve(strides=[2, 2])
    assert modes == ["any", "tf32", "bf16", "strict", "any"]


def test_a_mode_holds_in_its_own_thread_only(modes):
    with convgrad.fpmath_mode("bf16"):
        other = threading.Thread(target=convolve)
        other.start()
        other.join()
    assert modes == ["strict"]


def test_modes_have_records_of_their_own(modes):
    for mode in ("strict", "bf16", "strict", "bf16"):
        convolve(fpmath_mode=mode)
    assert modes == ["strict", "bf16"]


def test_types_that_are_never_split_have_no_modes(modes):
    convgrad.convolution(SRC.astype(np.float64), WEIGHTS.astype(np.float64), **FORMATS, fpmath_mode="bf16")
    assert modes == ["strict"]


def test_every_operation_takes_a_mode():
    dst = convolve(fpmath_mode="any")
    convgrad.convolution_backward_data(dst, WEIGHTS, [9, 9], **FORMATS, fpmath_mode="any")
    both = convgrad.convolution_backward_weights(SRC, dst, WEIGHTS.shape, **FORMATS, fpmath_mode="any", diff_bias=True)
    assert len(both) == 2
    formats = {"data_format": "NCX", "weights_format": "OIX"}
    wide = convgrad.conv_transpose(dst, WEIGHTS.transpose(1, 0, 2, 3).copy(), **formats, fpmath_mode="any")
    convgrad.conv_transpose_backward_data(wide, WEIGHTS.transpose(1, 0, 2, 3).copy(), **formats, fpmath_mode="any")
    convgrad.conv_transpose_backward_weights(dst, wide, (8, 5, 3, 3), **formats, fpmath_mode="any")
    convgrad.conv_transpose_backprop_filters(
        dst, wide, (8, 5, 3, 3), data_format="NCX", filter_format="OIX", fpmath_mode="any"
    )


def test_an_unknown_mode_is_refused():
    with pytest.raises(
        convgrad.AttributeRuleError, match="Convolution: fpmath_mode is 'fast'; it must be one of strict"
    ):
        convolve(fpmath_mode="fast")
    with (
        pytest.raises(convgrad.SettingError, match="fpmath_mode is 'fast'; it takes one of strict, tf32"),
        convgrad.fpmath_mode("fast"),
    ):
        pass


def test_a_graph_has_a_mode_and_a_strict_one_leaves_it_to_its_surroundings():
    def compiled(mode):
        graph = Graph(fpmath_mode=mode)
        tensors = (LogicalTensor(n, "f32", shape, "strided") for n, shape in enumerate((SRC.shape, WEIGHTS.shape)))
        attributes = dict(strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1], **FORMATS)
        graph.add_op(Op(0, "Convolution", "c", attributes, list(tensors), [LogicalTensor(2, "f32", None, "any")]))
        return graph.compile().partitions[0].code.problem.fpmath_mode

    assert compiled("tf32") == "tf32"
    assert compiled("strict") == "strict"
    with convgrad.fpmath_mode("bf16"):
        assert (compiled("tf32"), compiled("strict")) == ("tf32", "bf16")

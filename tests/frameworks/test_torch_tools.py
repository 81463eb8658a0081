"""What PyTorch's own tools see of layers and operators: graphs of torch.fx, and counts of operations."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import convgrad.torch as ct  # noqa: E402

LAYERS = {
    "Conv1d": (lambda nn: nn.Conv1d(4, 6, 5, stride=2, padding=1), (2, 4, 13)),
    "Conv2d": (lambda nn: nn.Conv2d(4, 6, 3, padding="same", groups=2, padding_mode="reflect"), (2, 4, 9, 7)),
    "Conv3d": (lambda nn: nn.Conv3d(2, 4, 3, dilation=2, padding="valid", bias=False), (1, 2, 7, 6, 5)),
    "ConvTranspose1d": (lambda nn: nn.ConvTranspose1d(4, 6, 4, stride=3, output_padding=1), (2, 4, 5)),
    "ConvTranspose2d": (lambda nn: nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, groups=2), (2, 4, 5, 6)),
    "ConvTranspose3d": (lambda nn: nn.ConvTranspose3d(2, 3, 2, stride=2), (1, 2, 3, 4, 2)),
}
layers = pytest.mark.parametrize("name", LAYERS)


def model_of(name):
    """A layer of PyTorch's, followed by something else, and an input."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    return torch.nn.Sequential(make(torch.nn), torch.nn.ReLU()), torch.randn(shape)


@layers
def test_a_converted_layer_is_one_node_of_a_traced_graph(name):
    model, src = model_of(name)
    ct.convert(model)
    traced = torch.fx.symbolic_trace(model)
    called = [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"]
    assert called == ["conv_transpose" if "Transpose" in name else "convolution"]
    assert torch.equal(traced(src), model(src))
    assert torch.equal(traced(src[0]), model(src[0]))


def test_a_traced_graph_takes_a_size_of_the_output():
    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = ct.nn.ConvTranspose2d(3, 2, 3, stride=2)

        def forward(self, src):
            return self.up(src, output_size=(10, 9))

    model, src = Decoder(), torch.randn(1, 3, 4, 4)
    traced = torch.fx.symbolic_trace(model)
    assert traced(src).shape == (1, 2, 10, 9)
    assert torch.equal(traced(src), model(src))


@layers
def test_operations_are_counted_as_those_of_pytorch(name):
    model, src = model_of(name)
    grouped = model[0].groups > 1

    def counted():
        with FlopCounterMode(display=False) as counter:
            dst = model(src.requires_grad_())
            forward = counter.get_total_flops()
            dst.sum().backward()
        return forward, counter.get_total_flops()

    theirs = counted()
    ct.convert(model)
    ours = counted()
    assert ours[0] == theirs[0] > 0
    assert ours[1] == 3 * ours[0]
    if not grouped:  # PyTorch counts weights of groups as if every group met every other
        assert ours == theirs


def test_each_operator_has_a_count_of_its_own():
    src, weights = torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3)
    dst = ct.convolution(src, weights)
    with FlopCounterMode(display=False) as counter:
        ct.convolution_backward_data(dst, weights, src.shape)
        ct.convolution_backward_weights(src, dst, weights.shape)
        ct.conv_transpose(dst, weights)
        ct.conv_transpose_backward_data(src, weights)
        ct.conv_transpose_backward_weights(dst, src, weights.shape)
    counts = {str(op): count for op, count in counter.get_flop_counts()["Global"].items()}
    each = 2 * 2 * 6 * 6 * 4 * 3 * 3 * 3
    assert len(counts) == 5
    assert set(counts.values()) == {each}

"""Write the graph files of this folder: python examples/write_examples.py"""

from __future__ import annotations

from pathlib import Path

from convgrad.graph import Graph, LogicalTensor, Op, save

HERE = Path(__file__).parent
BATCH = 4
DCGAN = [  # (channels in, channels out, extent in, stride, pad) of kernels of 4 x 4; Radford et al., arXiv:1511.06434
    (100, 1024, 1, 1, 0),
    (1024, 512, 4, 2, 1),
    (512, 256, 8, 2, 1),
    (256, 128, 16, 2, 1),
    (128, 3, 32, 2, 1),
]


def dcgan_generator_backward() -> Graph:
    """The gradients of every transposed convolution of the generator, from the image back to the noise.

    Normalization and activation functions are left out. Tensor 10 + i is the input of layer i, 20 + i its weights,
    30 + i and 40 + i are the gradients of those; the gradient of the generated image comes in as tensor 35.
    """
    graph = Graph()
    for layer, (channels_in, channels_out, extent, stride, pad) in reversed(list(enumerate(DCGAN))):
        extent_out = (extent - 1) * stride + 4 - 2 * pad
        src = LogicalTensor(10 + layer, "f32", (BATCH, channels_in, extent, extent))
        weights = LogicalTensor(20 + layer, "f32", (channels_in, channels_out, 4, 4))
        diff_src = LogicalTensor(30 + layer, "f32", (BATCH, channels_in, extent, extent))
        diff_dst = LogicalTensor(31 + layer, "f32", (BATCH, channels_out, extent_out, extent_out))
        diff_weights = LogicalTensor(40 + layer, "f32", (channels_in, channels_out, 4, 4))
        attrs = {
            "strides": [stride, stride],
            "pads_begin": [pad, pad],
            "pads_end": [pad, pad],
            "dilations": [1, 1],
            "groups": 1,
            "data_format": "NCX",
            "weights_format": "IOX",
        }
        of_weights = attrs | {"weights_shape": [channels_in, channels_out, 4, 4]}
        ops = [
            Op(2 * layer, "ConvTransposeBackwardData", f"layer{layer}_data", attrs, [diff_dst, weights], [diff_src]),
            Op(2 * layer + 1, "ConvTransposeBackwardWeights", f"layer{layer}_weights", of_weights, [src, diff_dst],
               [diff_weights]),
        ]  # fmt: skip
        for op in ops:
            graph.add_op(op)
    return graph


def mixed_nxc_bf16() -> Graph:
    """All three gradients of one biased convolution, channels last, in bf16; diff_dst is read three times."""
    src = LogicalTensor(0, "bf16", (2, 56, 56, 64))
    weights = LogicalTensor(1, "bf16", (3, 3, 64, 128))
    diff_dst = LogicalTensor(2, "bf16", (2, 28, 28, 128))
    diff_src = LogicalTensor(3, "bf16", (2, 56, 56, 64))
    diff_weights = LogicalTensor(4, "bf16", (3, 3, 64, 128))
    diff_bias = LogicalTensor(5, "bf16", (128,))
    attrs = {
        "strides": [2, 2],
        "pads_begin": [0, 0],  # auto_pad replaces them
        "pads_end": [0, 0],
        "dilations": [1, 1],
        "auto_pad": "SAME_UPPER",
        "data_format": "NXC",
        "weights_format": "XIO",
    }
    data = attrs | {"dst_shape": diff_src.shape}
    of_weights = attrs | {"weights_shape": weights.shape}
    graph = Graph()
    graph.add_op(Op(0, "ConvolutionBackwardData", "data", data, [diff_dst, weights], [diff_src]))
    graph.add_op(Op(1, "ConvolutionBackwardWeights", "weights", of_weights, [src, diff_dst], [diff_weights]))
    graph.add_op(Op(2, "BiasAddBackward", "bias", {"data_format": "NXC"}, [diff_dst], [diff_bias]))
    return graph


def write(folder: Path) -> None:
    """Write every example."""
    save(dcgan_generator_backward(), folder / "dcgan_generator_backward.json")
    save(mixed_nxc_bf16(), folder / "mixed_nxc_bf16.json")


if __name__ == "__main__":
    write(HERE)

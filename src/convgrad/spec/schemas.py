"""The operations of the family as a table: inputs, output, attributes, and the names they had in 2022.

Source: the operation pages of the oneDNN Graph specification, where the pages and the library differ as
`docs/semantics.md` says.
"""

from __future__ import annotations

from typing import NamedTuple

from convgrad.errors import AttributeRuleError

DATA_FORMATS = ("NCX", "NXC")
WEIGHTS_FORMATS = ("OIX", "XIO", "IOX", "XOI")
AUTO_PADS = ("NONE", "SAME_UPPER", "SAME_LOWER", "VALID")


class Attribute(NamedTuple):
    """One attribute of an operation."""

    name: str
    kind: str  # "ints": a list with one entry per spatial axis; "shape": a list of extents; "int"; "string"
    required: bool = False
    default: object = None
    least: int = 0  # of every entry
    values: tuple[str, ...] = ()  # of a string, in any letter case


class Schema(NamedTuple):
    """One operation: which tensors it takes and gives, and which attributes."""

    op: str
    family: str  # "convolution", "transposed" or "bias"
    inputs: tuple[str, ...]  # the required ones
    output: str
    attributes: tuple[Attribute, ...]
    optional: str | None = None  # a last input that may be left out: "bias", or a shape of integers

    @property
    def shape_attribute(self) -> str | None:
        """Name of the input, and of the attribute, that tells the shape of the output; None where it is inferred."""
        return self.optional if self.optional in ("dst_shape", "weights_shape") else None

    def attribute(self, name: str) -> Attribute | None:
        """The attribute of this name; None if the operation has none."""
        return next((attribute for attribute in self.attributes if attribute.name == name), None)


_GEOMETRY = (
    Attribute(name="strides", kind="ints", required=True, least=1),
    Attribute(name="pads_begin", kind="ints"),  # the pages require the pads, and ignore them under auto_pad
    Attribute(name="pads_end", kind="ints"),
    Attribute(name="dilations", kind="ints", required=True, least=1),
    Attribute(name="auto_pad", kind="string", default="NONE", values=AUTO_PADS),
    Attribute(name="groups", kind="int", default=1, least=1),
)
_DATA_FORMAT = Attribute(name="data_format", kind="string", default="NXC", values=DATA_FORMATS)
_OUTPUT_PADDING = Attribute(name="output_padding", kind="ints")


def _weights_format(default: str) -> Attribute:
    return Attribute(name="weights_format", kind="string", default=default, values=WEIGHTS_FORMATS)


def _convolution(op, inputs, optional, output, *extra):
    attributes = (*_GEOMETRY, _DATA_FORMAT, _weights_format("XIO"), *extra)
    return Schema(op=op, family="convolution", inputs=inputs, optional=optional, output=output, attributes=attributes)


def _transposed(op, inputs, optional, output, *extra):
    attributes = (*_GEOMETRY, _DATA_FORMAT, _weights_format("XOI"), _OUTPUT_PADDING, *extra)
    return Schema(op=op, family="transposed", inputs=inputs, optional=optional, output=output, attributes=attributes)


_DST_SHAPE = Attribute(name="dst_shape", kind="shape")
_WEIGHTS_SHAPE = Attribute(name="weights_shape", kind="shape")

SCHEMAS: dict[str, Schema] = {
    schema.op: schema
    for schema in (
        _convolution("Convolution", ("src", "weights"), "bias", "dst"),
        _convolution(
            "ConvolutionBackwardData", ("diff_dst", "weights"), "dst_shape", "diff_src", _OUTPUT_PADDING, _DST_SHAPE
        ),
        _convolution(
            "ConvolutionBackwardWeights", ("src", "diff_dst"), "weights_shape", "diff_weights", _WEIGHTS_SHAPE
        ),
        _transposed("ConvTranspose", ("src", "weights"), "bias", "dst"),
        _transposed("ConvTransposeBackwardData", ("diff_dst", "weights"), None, "diff_src"),
        _transposed(
            "ConvTransposeBackwardWeights", ("src", "diff_dst"), "weights_shape", "diff_weights", _WEIGHTS_SHAPE
        ),
        Schema(
            op="BiasAddBackward", family="bias", inputs=("diff_dst",), output="diff_bias", attributes=(_DATA_FORMAT,)
        ),
    )
}

SIDES = {  # names of the tensors on the image side and on the window side; docs/semantics.md
    "Convolution": ("src", "dst"),
    "ConvolutionBackwardData": ("diff_src", "diff_dst"),
    "ConvolutionBackwardWeights": ("src", "diff_dst"),
    "ConvTranspose": ("dst", "src"),
    "ConvTransposeBackwardData": ("diff_dst", "diff_src"),
    "ConvTransposeBackwardWeights": ("diff_dst", "src"),
}

OP_ALIASES = {  # the names of the 2022 specification
    "ConvolutionBackpropData": "ConvolutionBackwardData",
    "ConvolutionBackpropFilters": "ConvolutionBackwardWeights",
    "ConvTransposeBackpropData": "ConvTransposeBackwardData",
    "ConvTransposeBackpropFilters": "ConvTransposeBackwardWeights",
    "BiasAddBackprop": "BiasAddBackward",
}
ATTRIBUTE_ALIASES = {
    "filter_format": "weights_format",
    "filter_shape": "weights_shape",
    "output_shape": "dst_shape",
}
# The 2022 pages of the transposed operations give XIO as the default; read by its letters it is (K, IC, OC/G).
DEFAULTS_OF_ALIASES: dict[str, dict[str, object]] = {
    "ConvTransposeBackpropData": {"weights_format": "XIO"},
    "ConvTransposeBackpropFilters": {"weights_format": "XIO"},
}


def schema_of(op: str) -> Schema:
    """The schema of an operation, called by its present name or by that of 2022."""
    schema = SCHEMAS.get(OP_ALIASES.get(op, op))
    if schema is None:
        raise AttributeRuleError(f"{op}: no such operation; the operations are {', '.join(SCHEMAS)}")
    return schema

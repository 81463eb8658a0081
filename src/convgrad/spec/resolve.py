"""From an operation, its attributes and the shapes of its inputs to every number that its definition needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from convgrad.errors import AttributeRuleError, ShapeError, shown
from convgrad.spec.attributes import LARGEST, integers, parse_attributes
from convgrad.spec.axes import resolve_axes
from convgrad.spec.schemas import SIDES, Schema, schema_of
from convgrad.spec.weights import resolve_channels, split_weights_shape

Ints = tuple[int, ...]

AUTO_PAD_RULES = ("code", "page")


class Resolved(NamedTuple):
    """An operation on tensors of known shape. Channels count all groups; spatial tuples run from the outermost axis."""

    op: str
    rank: int  # number of spatial axes
    batch: int
    groups: int
    image_channels: int
    window_channels: int
    image_extent: Ints
    window_extent: Ints
    kernel: Ints
    strides: Ints
    dilations: Ints
    pads_begin: Ints  # after auto_pad
    pads_end: Ints
    output_padding: Ints  # as given; zeros if it was not, even where the extents imply one
    data_format: str
    weights_format: str
    weights_convention: str  # "library" or "documented", see spec/weights.py
    input_shapes: tuple[Ints, ...]  # in the axis order of the user, like output_shape
    output_shape: Ints


def resolve(
    op: str,
    attrs: Mapping[str, Any],
    input_shapes: Sequence[Sequence[int]],
    *,
    shape_input: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    auto_pad_rule: str = "code",
) -> Resolved:
    """Check an operation and infer what was not given; every mistake is a ConvError that says how to mend it.

    `input_shapes` holds the required inputs in order, then that of the bias if there is one. `shape_input` is the
    value of the dst_shape or weights_shape input, `output_shape` the shape of an output that exists already. For the
    shape of the output the input counts first, then the attribute, then the output that exists.
    """
    schema = schema_of(op)
    attributes = parse_attributes(op, attrs)
    shapes = _check_inputs(schema, input_shapes)
    _check_options(schema, shape_input, auto_pad_rule)
    if schema.family == "bias":
        resolved = _resolve_bias(schema, attributes, shapes)
    else:
        told = _told_shape(schema, attributes, shape_input, output_shape)
        resolved = _resolve_convolution(schema, attributes, shapes, told, page=auto_pad_rule == "page")
    if output_shape is not None and tuple(output_shape) != resolved.output_shape:
        raise ShapeError(
            f"{schema.op}: {schema.output} is given with shape {list(output_shape)}, but the inputs and attributes "
            f"make it {list(resolved.output_shape)}; give an output of that shape"
        )
    for name, shape in zip((schema.output, *schema.inputs), (resolved.output_shape, *shapes), strict=False):
        if prod(max(extent, 1) for extent in shape) > LARGEST:
            raise ShapeError(f"{schema.op}: {name} {list(shape)} would have more than 2**62 elements; make it smaller")
    return resolved


def _check_inputs(schema: Schema, input_shapes: Sequence[Sequence[int]]) -> tuple[Ints, ...]:
    shapes = tuple(tuple(shape) for shape in input_shapes)
    names = (*schema.inputs, "bias") if schema.optional == "bias" else schema.inputs
    if not len(schema.inputs) <= len(shapes) <= len(names):
        raise ShapeError(f"{schema.op}: {len(shapes)} inputs are given, but the operation takes {', '.join(names)}")
    for name, shape in zip(names, shapes, strict=False):
        if any(not 0 <= extent < LARGEST for extent in shape):
            raise ShapeError(
                f"{schema.op}: {name} has the shape {list(shape)}; every extent must be known, at least 0 and less "
                "than 2**62"
            )
    return shapes


def _check_options(schema: Schema, shape_input: Sequence[int] | None, auto_pad_rule: str) -> None:
    if not isinstance(auto_pad_rule, str) or auto_pad_rule not in AUTO_PAD_RULES:
        raise AttributeRuleError(
            f"{schema.op}: auto_pad_rule is {shown(auto_pad_rule)}, but must be one of {', '.join(AUTO_PAD_RULES)}"
        )
    if auto_pad_rule == "page" and schema.op != "ConvolutionBackwardData":
        raise AttributeRuleError(
            f"{schema.op}: auto_pad_rule = page is the reading of the page of ConvolutionBackwardData, the only one "
            "that has formulas; use code"
        )
    if shape_input is not None and schema.shape_attribute is None:
        raise AttributeRuleError(f"{schema.op}: the operation takes no input that tells a shape; leave it out")


def _told_shape(schema, attributes, shape_input, output_shape) -> tuple[str, Ints] | None:
    """The shape of the output as the caller tells it, and where it was told; None where it is inferred."""
    name = schema.shape_attribute
    if name is None:
        return None
    if shape_input is not None:
        return f"the input {name}", integers(schema.op, name, shape_input)
    if attributes[name] is not None:
        return f"the attribute {name}", attributes[name]
    if output_shape is not None:
        return f"the given {schema.output}", tuple(output_shape)
    raise ShapeError(
        f"{schema.op}: the shape of {schema.output} cannot be inferred; give {name} as an input or as an attribute"
    )


def _resolve_bias(schema: Schema, attributes: dict[str, Any], shapes: tuple[Ints, ...]) -> Resolved:
    (shape,) = shapes
    if len(shape) < 2:
        raise ShapeError(f"{schema.op}: diff_dst {list(shape)} has {len(shape)} axes, but needs a batch and channels")
    batch, channels, extent = _split_activations(attributes["data_format"], shape)
    zeros, ones = (0,) * len(extent), (1,) * len(extent)
    return Resolved(
        op=schema.op,
        rank=len(extent),
        batch=batch,
        groups=1,
        image_channels=1,
        window_channels=channels,
        image_extent=extent,
        window_extent=extent,
        kernel=ones,
        strides=ones,
        dilations=ones,
        pads_begin=zeros,
        pads_end=zeros,
        output_padding=zeros,
        data_format=attributes["data_format"],
        weights_format="OIX",
        weights_convention="library",
        input_shapes=shapes,
        output_shape=(channels,),
    )


def _resolve_convolution(schema, attributes, shapes, told, *, page: bool) -> Resolved:
    op, rank = schema.op, _common_rank(schema, shapes)
    data_format, weights_format, groups = (attributes[n] for n in ("data_format", "weights_format", "groups"))
    tensors = dict(zip(schema.inputs, shapes, strict=False))
    weights_name = "weights" if "weights" in tensors else schema.output
    weights = tensors.get("weights") or _told_weights(schema, told, rank)
    *_, kernel = split_weights_shape(weights_format, weights)
    if 0 in kernel:
        raise ShapeError(f"{op}: {weights_name} {list(weights)} in {weights_format} has no taps; give extents above 0")

    sides = {name: _split_activations(data_format, tensors[name]) for name in SIDES[op] if name in tensors}
    batch = _common_batch(op, sides)
    image, window = (sides.get(name) for name in SIDES[op])
    image_channels, window_channels, convention = resolve_channels(
        op,
        schema.family,
        weights=(weights_name, weights_format, weights),
        groups=groups,
        image=image and (SIDES[op][0], image[1]),
        window=window and (SIDES[op][1], window[1]),
    )
    if op == "ConvolutionBackwardData":
        image = _told_image(schema, told, data_format, rank, batch, image_channels)
    geometry = resolve_axes(schema, attributes, kernel, image and image[2], window and window[2], page=page)
    if schema.output in SIDES[op]:
        of_image = schema.output == SIDES[op][0]
        channels = image_channels if of_image else window_channels
        extent = geometry["image_extent" if of_image else "window_extent"]
        output_shape = (batch, channels, *extent) if data_format == "NCX" else (batch, *extent, channels)
        _check_bias(op, shapes, channels)
    else:
        output_shape = weights
    return Resolved(
        op=op,
        rank=rank,
        batch=batch,
        groups=groups,
        image_channels=image_channels,
        window_channels=window_channels,
        kernel=kernel,
        data_format=data_format,
        weights_format=weights_format,
        weights_convention=convention,
        input_shapes=shapes,
        output_shape=output_shape,
        **geometry,
    )


def _split_activations(data_format: str, shape: Ints) -> tuple[int, int, Ints]:
    """Batch, channels and spatial extents."""
    return (shape[0], shape[1], shape[2:]) if data_format == "NCX" else (shape[0], shape[-1], shape[1:-1])


def _common_rank(schema: Schema, shapes: tuple[Ints, ...]) -> int:
    """Number of spatial axes of the first two inputs."""
    (first, second), (one, two) = schema.inputs, shapes[:2]
    if len(one) < 3:
        raise ShapeError(
            f"{schema.op}: {first} {list(one)} has {len(one)} axes, but needs a batch, channels and at least one "
            "spatial axis"
        )
    if len(one) != len(two):
        raise ShapeError(
            f"{schema.op}: {first} {list(one)} has {len(one)} axes, but {second} {list(two)} has {len(two)}; give "
            "both the same number of spatial axes"
        )
    return len(one) - 2


def _common_batch(op: str, sides: dict[str, tuple[int, int, Ints]]) -> int:
    batches = {name: side[0] for name, side in sides.items()}
    if len(set(batches.values())) > 1:
        (one, n), (two, m) = batches.items()
        raise ShapeError(f"{op}: the batch of {one} is {n}, but that of {two} is {m}; give both the same batch")
    return next(iter(batches.values()))


def _told_weights(schema: Schema, told: tuple[str, Ints], rank: int) -> Ints:
    source, shape = told
    if len(shape) != rank + 2:
        raise ShapeError(
            f"{schema.op}: {source} {list(shape)} has {len(shape)} entries, but weights with {rank} spatial axes have "
            f"{rank + 2}; give the full shape in the order of weights_format"
        )
    return shape


def _told_image(schema, told, data_format, rank, batch, channels) -> tuple[int, int, Ints]:
    """Batch, channels and extents of diff_src; a list of the spatial extents alone is taken too."""
    source, shape = told
    if len(shape) == rank:
        return batch, channels, shape
    if len(shape) != rank + 2:
        raise ShapeError(
            f"{schema.op}: {source} {list(shape)} has {len(shape)} entries, but {schema.output} with {rank} spatial "
            f"axes has {rank + 2}; give the full shape in the order of data_format"
        )
    told_batch, told_channels, extent = _split_activations(data_format, shape)
    if told_batch != batch:
        raise ShapeError(
            f"{schema.op}: {source} {list(shape)} has batch {told_batch}, but diff_dst has batch {batch}; give both "
            "the same batch"
        )
    if told_channels != channels:
        raise ShapeError(
            f"{schema.op}: {source} {list(shape)} in {data_format} has {told_channels} channels, but the weights make "
            f"them {channels}; check data_format, weights_format and groups"
        )
    return told_batch, told_channels, extent


def _check_bias(op: str, shapes: tuple[Ints, ...], channels: int) -> None:
    if len(shapes) == 3 and shapes[2] != (channels,):
        raise ShapeError(
            f"{op}: bias has the shape {list(shapes[2])}, but dst has {channels} channels; give a bias of shape "
            f"[{channels}]"
        )

"""Whatever a file holds, reading it gives a graph or a ConvError, and so does compiling what was read."""

import copy
import json
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from convgrad import ConvError
from convgrad.graph import dumps, loads
from graph.builders import KINDS, graph_of, op_of

DOCUMENTS = [json.loads(dumps(graph_of(op_of(kind)))) for kind in KINDS]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.integers()
    | st.sampled_from([2**31, 2**40, 2**62, 2**63 - 1, 2**63, -(2**63), 10**40])
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["f32", "bf16", "s8", "any", "opaque", "NXC", "OIX", "SAME_UPPER", "Convolution", "End", "graph"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def places(node, path=()):
    """Paths of every entry of a document."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in entries:
        yield (*path, key)
        yield from places(child, (*path, key))


def graph_or_mistake(text):
    """The graph that a text holds, or None if it is refused with a message of reasonable length."""
    try:
        return loads(text)
    except ConvError as error:
        message = str(error)
    assert 0 < len(message) < 2000
    return None


@given(st.data())
@settings(max_examples=600, deadline=None, derandomize=True)
def test_a_file_with_wrong_entries(data):
    document = copy.deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(document))))
        node = document
        for step in path[:-1]:
            node = node[step]
        match data.draw(st.sampled_from(["replace", "remove", "double"])):
            case "replace":
                node[path[-1]] = data.draw(values)
            case "remove":
                del node[path[-1]]
            case "double" if isinstance(node, list):
                node.append(copy.deepcopy(node[path[-1]]))
        if not document:
            break
    graph = graph_or_mistake(json.dumps(document))
    if graph is None:
        return
    with suppress(ConvError):  # names that need escapes
        assert loads(dumps(graph)) == graph
    with suppress(ConvError):
        graph.compile()


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_bytes(content):
    assert graph_or_mistake(content) is None


@given(st.sampled_from(DOCUMENTS), st.data())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_file_with_wrong_bytes(document, data):
    content = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    graph_or_mistake(bytes(content))


@given(values)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_json(value):
    assert graph_or_mistake(json.dumps(value)) is None
    assert graph_or_mistake(json.dumps({"graph": value})) is None
    assert graph_or_mistake(json.dumps({"graph": [value]})) is None

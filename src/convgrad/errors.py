"""The one family of exceptions that a caller's mistake can raise, and how their messages show what was given."""


class ConvError(ValueError):
    """A call, graph or file that cannot be carried out; the message names op, rule, numbers and repair."""


class AttributeRuleError(ConvError):
    """An attribute of an operation is missing, unknown, of the wrong type or out of its range."""


class ShapeError(ConvError):
    """Shapes, layouts or attributes of an operation contradict each other."""


class DtypeError(ConvError):
    """Data types that an operation does not take, or does not take together."""


class ArrayError(ConvError):
    """An array that cannot be used as it is: not an array, read-only, overlapping, or on another device."""


class GraphError(ConvError):
    """A graph that is not well formed, or is used out of turn."""


class FileFormatError(ConvError):
    """A file that is not what it should be."""


class SettingError(ConvError):
    """An environment variable or option with a value that means nothing."""


MOST_SHOWN = 200  # characters


def shown(value: object) -> str:
    """What was given, for a message: in one short line, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write out thousands of digits
        return f"an integer of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # in a class of the caller, or an integer inside a list
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."

"""The one family of exceptions that a caller's mistake can raise."""


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

"""An operation that counts the calls of Python, and calls of it, for the tests of the inline cache."""

import numpy as np

from convgrad.arrays.call import Operation
from convgrad.operations import _GEOMETRY

X = np.arange(14, dtype=np.float32).reshape(1, 7, 2) % 5
W = np.ones((3, 2, 4), np.float32)
PLAIN = (None, None, None, None, "none", 1, "NXC", "XIO", None)


class Counted(Operation):
    """An operation that says how many of its calls took the way through Python."""

    def __init__(self, op="Convolution", names=_GEOMETRY):
        super().__init__(op, *names)
        self.slow_calls = 0
        self.plain = self.call

    def __call__(self, *arguments, **named):
        self.slow_calls += 1
        return super().__call__(*arguments, **named)

    def took_python(self, *arguments):
        before = self.slow_calls
        result = self.call(*arguments)
        return self.slow_calls > before, result


def attributes(**changed):
    values = list(PLAIN)
    for name, value in changed.items():
        values[_GEOMETRY.index(name)] = value
    return tuple(values)


def arguments(x=X, w=W, bias=None, given=PLAIN, out=None, out_dtype=None, accumulate=False):
    return x, w, bias, given, None, out, out_dtype, accumulate

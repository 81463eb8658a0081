"""A kernel, what it is given and the numbers that are right for it, also where they are not finite."""

import numpy as np

from codegen.buffers import StridedArray
from codegen.emitted import load_here, run_here
from codegen.random_problems import rebuilding, solve
from convgrad.codegen.lower import lower
from convgrad.dtypes import numpy_dtype


class Case:
    """A compiled plan and its arrays, filled with small whole numbers."""

    def __init__(self, problem, plan, machine):
        self.problem, self.plan, self.machine = problem, plan, machine
        self.module = lower(plan)
        self.loaded = load_here(self.module, machine)
        self.unknown = problem.unknown.value
        self.arrays = {
            name: StridedArray(
                shape, problem.strides[name], numpy_dtype(problem.out_dtype if name == self.unknown else problem.dtype)
            )
            for name, shape in problem.shapes.items()
        }
        self.given = {name: array.view for name, array in self.arrays.items() if name != self.unknown}
        self.bias = None
        if problem.bias or problem.bias_gradient:
            dtype = numpy_dtype(problem.out_dtype if problem.bias_gradient else problem.dtype)
            self.bias = StridedArray((problem.bias_length,), (problem.bias_stride,), dtype)

    def fill(self, rng):
        for view in self.given.values():
            view[...] = rng.integers(-1, 3, view.shape)

    def check(self):
        """Run it; whether the fallback did."""
        p, result = self.problem, self.arrays[self.unknown].view
        with np.errstate(invalid="ignore"):  # infinities that meet
            return self._check(p, result)

    def _check(self, p, result):
        wanted = solve(p, **({"x": None, "w": None, "y": None} | self.float64()))
        if p.bias:
            self.bias.view[...] = 1
            wanted = wanted + 1
        if p.accumulate:
            result[...] = 2
            wanted = wanted + 2
            if p.bias_gradient:
                self.bias.view[...] = 2
        ran = run_here(
            self.module, self.machine, [*(self.arrays[name] for name in "xwy"), self.bias], loaded=self.loaded
        )
        wanted = wanted.astype(np.float32).astype(result.dtype)
        try:
            np.testing.assert_array_equal(result.astype(np.float64), wanted.astype(np.float64))
            if p.bias_gradient:
                sums = self.float64()[p.bias_gradient].sum((0, *range(3, p.rank + 3))).reshape(-1) + 2 * p.accumulate
                np.testing.assert_array_equal(self.bias.view.astype(np.float64), sums)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{rebuilding(p)}\n{self.plan}\n{ran}") from None
        assert self.arrays[self.unknown].only_elements_changed()
        return any(symbol.startswith("again.") for symbol in ran)

    def with_infinities(self, steps):
        """Checks with an infinity in every so many-th number of an operand; how often the fallback ran."""
        again = 0
        for name, step in steps.items():
            self.fill(np.random.default_rng(3))
            numbers = self.given[name]
            for place in list(np.ndindex(numbers.shape))[::step]:
                was, numbers[place] = numbers[place], np.inf
                again += self.check()
                numbers[place] = was
        return again

    def float64(self):
        return {name: view.astype(np.float64) for name, view in self.given.items()}

"""Problems with kernels whose data may be beyond them, on the instruction sets of this machine that have such."""

import numpy as np
import pytest

from codegen.buffers import StridedArray
from codegen.dense_problems import W, X, Y, problem_of
from convgrad.codegen.lower import lower
from convgrad.dtypes import numpy_dtype
from convgrad.plan.choose import variants
from convgrad.plan.few_channels.window_lanes import WindowLanesPlan
from convgrad.plan.general.data import DataPlan
from convgrad.plan.machine import available_isas, machine_for, why_not
from convgrad.runtime.kernel import build, kernel_of_variant

KINDS = [("amx_emulated", "f32"), ("amx_emulated", "bf16"), ("avx512_bf16_emulated", "bf16"), ("avx512_bf16", "bf16")]
HERE = [kind for kind in KINDS if why_not(kind[0]) is None]
missing = pytest.mark.skipif(not HERE, reason="no instruction set of this machine computes in pieces")
each_kind = pytest.mark.parametrize(("isa", "dtype"), HERE or KINDS[:1])
each_unknown = pytest.mark.parametrize("unknown", [X, W, Y], ids=["x", "w", "y"])


def has_fallback(plan):
    return getattr(plan, "fallback", None) is not None


class Problem:
    """A problem with a kernel that has a fallback, its arrays, and what it has to give for data that need that."""

    def __init__(self, unknown, isa, dtype, *, image=(6, 18), channels=(33, 20), wanted=has_fallback, **others):
        self.machine = machine_for(isa)
        self.problem = p = problem_of(
            unknown, image, image, (3, 3), channels=channels, low=1, dtype=dtype, out_dtype="f32", **others
        )
        plans = list(variants(p, self.machine))
        self.variant = next(n for n, plan in enumerate(plans) if wanted(plan))
        self.plan = plans[self.variant]
        self.written_first = unknown is not W or self.plan.own_sums  # before the verdict
        self.unknown = p.unknown.value
        rng = np.random.default_rng(3)
        self.arrays = {
            name: StridedArray(shape, p.strides[name], numpy_dtype(p.out_dtype if name == self.unknown else p.dtype))
            for name, shape in p.shapes.items()
        }
        for name, array in self.arrays.items():
            if name != self.unknown:
                array.view[...] = rng.standard_normal(array.view.shape)
        self.given = next(array.view for name, array in self.arrays.items() if name != self.unknown)
        self.result = self.arrays[self.unknown].view
        self.addresses = [self.arrays[name].address for name in "xwy"]

    @classmethod
    def of_vectors(cls, unknown, **others):
        """Solving for W, of a kind that multiplies what surrounds an image."""
        kind = WindowLanesPlan if unknown is W else DataPlan
        return cls(unknown, available_isas()[-1], "f32", wanted=lambda plan: type(plan) is kind, **others)

    def kernel(self):
        return kernel_of_variant(self.problem, self.machine, self.variant)

    def spoil(self, value=2.0**-130):
        """Put in a number that pieces cannot stand for."""
        self.given.flat[self.given.size // 2] = value

    def bits(self, call):
        self.result[...] = 7
        call(*self.addresses)
        return self.result.tobytes()

    def bits_of_vectors(self):
        """Of the plan that the fallback is to be, by a kernel of its own."""
        name = f"vectors of {self.problem}"
        return self.bits(build(name, self.machine, lower=lambda *_: lower(self.plan.fallback)))

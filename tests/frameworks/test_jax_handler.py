"""The way from XLA into a kernel: no Python in it, buffers checked, workspace handed on, targets that last.

Only a fallback that was never needed before is made by Python.
"""

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import convgrad
import jax_cases as cases
from codegen.dense_problems import problem_of
from convgrad.dtypes import numpy_dtype
from convgrad.errors import FileFormatError
from convgrad.jax import handler, targets
from convgrad.plan.choose import variants
from convgrad.plan.machine import machine_for, why_not
from convgrad.problem.conv import ConvProblem, Unknown
from convgrad.runtime import jit
from convgrad.runtime.kernel import kernel_of_variant
from convgrad.runtime.threads import team

jax, jnp, cj = cases.jax, cases.jnp, cases.cj

PROBLEM = ConvProblem(
    unknown=Unknown.Y, batch=2, groups=1, x_channels=3, y_channels=4, x_extent=(7,), y_extent=(5,), taps=(3,),
    stride=(1,), dilation=(1,), pad_low=(0,), x_strides=(21, 3, 1, 3), w_strides=(4, 1, 4, 12), y_strides=(20, 4, 1, 4),
)  # fmt: skip
X, W, Y = (2, 7, 3), (3, 3, 4), (2, 5, 4)


def test_compiled_programs_call_no_python(rng):
    x, w, b = (cases.integers(rng, shape) for shape in ((2, 7, 6, 4), (3, 2, 4, 6), (6,)))
    loss = jax.jit(jax.value_and_grad(lambda x, w, b: (cj.convolution(x, w, b) ** 2).sum(), (0, 1, 2)))
    lowered = loss.lower(x, w, b)
    assert lowered.as_text().count("stablehlo.custom_call @convgrad_") == 3  # w and bias together
    compiled = lowered.compile().as_text()
    calls = [line for line in compiled.splitlines() if " custom-call(" in line]
    assert len(calls) == 3
    assert all('custom_call_target="convgrad_' in line and "API_VERSION_TYPED_FFI" in line for line in calls)
    for text in (lowered.as_text(), compiled):
        assert "callback" not in text


def test_equal_problems_share_a_target_with_a_name_that_lasts():
    assert targets.name_of(PROBLEM) == targets.name_of(replace(PROBLEM)) == targets.target_of(PROBLEM)
    assert targets.name_of(PROBLEM) != targets.name_of(replace(PROBLEM, dtype="bf16"))
    program = (
        f"from convgrad.jax import targets\nprint(targets.name_of(targets.problem_of('{targets.text_of(PROBLEM)}')))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == targets.name_of(PROBLEM)


def called(*inputs, result=(Y, jnp.float32)):
    """The target of PROBLEM, called as somebody might who writes the call by hand."""
    shape, dtype = result
    return jax.ffi.ffi_call(targets.target_of(PROBLEM), jax.ShapeDtypeStruct(shape, dtype))(*inputs)


def test_a_target_can_be_called_by_hand(rng):
    x, w = cases.integers(rng, X), cases.integers(rng, W)
    np.testing.assert_array_equal(called(x, w), convgrad.convolution(np.asarray(x), np.asarray(w)))


def test_buffers_that_a_kernel_was_not_made_for_are_refused():
    x, w, name = jnp.zeros(X), jnp.zeros(W), targets.name_of(PROBLEM)
    wrong = [
        (
            (x,),
            {},
            r" takes x f32\[2, 7, 3\], w f32\[3, 3, 4\] and gives y f32\[2, 5, 4\], but the program has another",
        ),
        ((x, w, w), {}, "the program has another number of buffers"),
        ((x.astype(jnp.bfloat16), w), {}, r"input 0 is not x f32\[2, 7, 3\], which the target was compiled for"),
        ((x[:, :6], w), {}, r"input 0 is not x f32\[2, 7, 3\]"),
        ((x, w[..., None]), {}, r"input 1 is not w f32\[3, 3, 4\]"),
        ((x, w), {"result": ((2, 5, 5), jnp.float32)}, r"result 0 is not y f32\[2, 5, 4\]"),
        ((x, w), {"result": (Y, jnp.float16)}, r"result 0 is not y f32\[2, 5, 4\]"),
    ]
    for inputs, keywords, words in wrong:
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: {name}.*{words}"):
            called(*inputs, **keywords)


class Frame:
    """A call frame as XLA makes it, in memory of our own."""

    def __init__(self, buffers, stage=3):
        self.errors = []
        self._held = []
        create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self._error)
        api = self.words(*[0] * 4, 0, 0, ctypes.cast(create, ctypes.c_void_p).value)
        self._held.append(create)
        made = [self.words(0, 0, code, address, len(shape), self.words(*shape)) for address, shape, code in buffers]
        kinds = self.words(0x0000000100000001, 0x0000000100000001)  # four times XLA_FFI_ArgType_BUFFER
        inputs = (40, 0, len(made) - 1, kinds, self.words(*made[:-1]))
        results = (40, 0, 1, kinds, self.words(made[-1]))
        self.address = self.words(160, 0, api, 0, stage, *inputs, *results)

    def words(self, *values):
        held = (ctypes.c_int64 * max(1, len(values)))(*values)
        self._held.append(held)
        return ctypes.addressof(held)

    def _error(self, arguments):
        size, _, message, code = (ctypes.c_int64 * 4).from_address(arguments)
        assert size == 28
        self.errors.append((code, ctypes.string_at(message).decode()))
        return 0xE


def entered(x, w, y, misalign=0, stage=3):
    """What the handler of PROBLEM returns for arrays of NumPy, and the errors that it made."""
    address = targets._handlers[targets.target_of(PROBLEM)].address
    frame = Frame([(a.ctypes.data + misalign, a.shape, handler.XLA_DTYPES["f32"]) for a in (x, w, y)], stage)
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(frame.address), frame.errors


@pytest.fixture
def arrays(rng):
    x, w = (np.asarray(cases.integers(rng, shape)) for shape in (X, W))
    return x, w, np.full(Y, np.nan, np.float32)


def test_the_handler_computes_in_the_stage_of_execution_alone(arrays):
    for stage in range(3):
        assert entered(*arrays, stage=stage) == (None, [])
        assert np.isnan(arrays[2]).all()
    assert entered(*arrays) == (None, [])
    np.testing.assert_array_equal(arrays[2], convgrad.convolution(*arrays[:2]))


def test_an_address_between_elements_is_refused(arrays):
    returned, errors = entered(*arrays, misalign=2)
    assert returned == 0xE
    assert errors == [
        (3, f"{targets.name_of(PROBLEM)}: input 0, x f32[2, 7, 3], does not begin at a multiple of 4 bytes")
    ]
    assert np.isnan(arrays[2]).all()


def test_memory_that_is_not_there_is_an_error(arrays):
    """A kernel that asks for more than there are addresses: nothing is run, and XLA is told."""
    from convgrad.runtime import kernel_for

    class Greedy:
        """The kernel, but for its sizes."""

        def __getattr__(self, name):
            return 1 << 62 if name == "shared_bytes" else getattr(kernel_for(PROBLEM), name)

    made = targets._handlers[targets.target_of(PROBLEM)]
    buffers = [handler.Buffer(name=n, shape=s, dtype="f32") for n, s in zip("xwy", (X, W, Y), strict=True)]
    targets._handlers["greedy"] = handler.Handler("greedy", Greedy(), buffers[:2], buffers[2:])
    frame = Frame([(a.ctypes.data, a.shape, 11) for a in arrays])
    address = targets._handlers.pop("greedy").address
    assert made.address != address
    assert ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(frame.address) == 0xE
    ((code, message),) = frame.errors
    assert code == 8
    assert message.startswith(f"greedy: there is no memory for a workspace of {1 << 62} bytes and ")
    assert np.isnan(arrays[2]).all()


def isa_with_fallbacks():
    """An instruction set that computes in pieces, if this machine has one."""
    isas = [isa for isa in ("avx512_bf16", "avx512_bf16_emulated") if why_not(isa) is None]
    return isas[0] if isas else pytest.skip("no instruction set of this machine computes in pieces")


@pytest.fixture
def with_fallback():
    """A handler of a kernel that needs another one for some data, its arrays, and what that other one gives."""
    isa = isa_with_fallbacks()
    problem = problem_of(
        Unknown.Y, (6, 18), (6, 18), (3, 3), channels=(33, 20), low=1, layout="NXC", dtype="bf16", out_dtype="f32"
    )
    plans = list(variants(problem, machine_for(isa)))
    variant = [getattr(plan, "fallback", None) is not None for plan in plans].index(True)
    kernel = kernel_of_variant(problem, machine_for(isa), variant)
    shapes, rng = ((6, 18, 33), (3, 3, 33, 20), (6, 18, 20)), np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(numpy_dtype("bf16")) for shape in shapes[:2])
    x[3, 9, 20] = np.inf
    arrays, codes = (x, w, np.full(shapes[2], np.nan, np.float32)), ("bf16", "bf16", "f32")
    buffers = [handler.Buffer(name=n, shape=s, dtype=d) for n, s, d in zip("xwy", shapes, codes, strict=True)]
    made = handler.Handler("with fallback", kernel, buffers[:2], buffers[2:])
    frame = Frame([(a.ctypes.data, a.shape, handler.XLA_DTYPES[d]) for a, d in zip(arrays, codes, strict=True)])
    wanted = np.empty(shapes[2], np.float32)
    apart = kernel_of_variant(problem, machine_for(isa), variant).prepare()
    apart(x.ctypes.data, w.ctypes.data, wanted.ctypes.data)
    enter = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(made.address)
    frame.arrays = arrays  # which nobody else holds
    return lambda: enter(frame.address), frame.errors, arrays[2], wanted


def test_a_fallback_is_made_when_a_program_first_needs_it(with_fallback):
    enter, errors, result, wanted = with_fallback
    assert np.isfinite(wanted).any()
    assert not np.isfinite(wanted).all()
    for _ in range(2):
        result[...] = np.nan
        assert (enter(), errors) == (None, [])
        np.testing.assert_array_equal(result, wanted)


def test_a_fallback_that_cannot_be_made_is_an_error(with_fallback, monkeypatch, capfd):
    enter, errors, result, wanted = with_fallback
    held = len(blocks_held())
    with monkeypatch.context() as broken:
        broken.setenv("CONVGRAD_CACHE_DIR", "off")
        broken.setattr(jit, "compile_ir", lambda *_: 1 / 0)
        broken.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # that of pytest makes a warning of it
        assert enter() == 0xE
    ((code, message),) = errors
    assert code == 13
    assert message.startswith(
        "with fallback: the code for numbers that need another kernel, such as infinities, could not be made"
    )
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert len(blocks_held()) >= held
    assert enter() is None
    np.testing.assert_array_equal(result, wanted)


def test_programs_make_fallbacks_on_the_threads_of_xla():
    program = """
import numpy as np, jax, jax.numpy as jnp
import convgrad.jax as cj
from convgrad.runtime import jit
texts, plain = [], jit.compile_ir
jit.compile_ir = lambda ir, *target: texts.append(ir) or plain(ir, *target)
rng = np.random.default_rng(0)
x, w = (jnp.asarray(rng.standard_normal(s), jnp.bfloat16) for s in ((2, 9, 9, 40), (3, 3, 40, 24)))
f = jax.jit(lambda x, w: sum(cj.convolution(x + n, w) for n in range(3)))
f(x, w).block_until_ready()
before = len(texts)
bad = f(x.at[1, 4, 4, 20].set(jnp.inf), w).block_until_ready()
print(before > 0, len(texts) - before, int(np.isfinite(np.asarray(bad, np.float32)).sum()))
"""
    env = os.environ | {"CONVGRAD_ISA": isa_with_fallbacks(), "CONVGRAD_CACHE_DIR": "off"}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    assert found.stdout.split() == ["True", "1", str(2 * 7 * 7 * 24 - 9 * 24)]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_infinite_weights_reach_no_result_by_way_of_the_padding(dtype, rng):
    """bf16 may take two more kernels for that, which are made one after the other."""
    x, w = np.ones((1, 8, 9, 20), numpy_dtype(dtype)), np.ones((3, 3, 20, 24), numpy_dtype(dtype))
    w[0, 1, 4, 5] = np.inf
    program = jax.jit(lambda x, w: cj.convolution(x, w, pads_begin=[1, 1], pads_end=[1, 1]))
    for _ in range(2):
        found = np.asarray(program(x, w), np.float32)
        assert not np.isnan(found).any()
        wanted = np.zeros(found.shape, bool)
        wanted[:, 1:, :, 5] = True
        np.testing.assert_array_equal(np.isinf(found), wanted)


def blocks_held():
    """Those that no call uses, of kernels of either kind."""
    return {word for words in (False, True) for word in handler._blocks(words) if word}


def test_workspace_is_used_again(rng):
    """A few blocks serve any number of calls, and are given back between them."""
    x, w = cases.integers(rng, (2, 40, 40, 32)), cases.integers(rng, (3, 3, 32, 32))
    program = jax.jit(lambda x, w: cj.convolution(x, w))
    program(x, w).block_until_ready()
    held = blocks_held()
    assert held
    for _ in range(20):
        program(x, w).block_until_ready()
    assert blocks_held() == held


def test_calls_side_by_side_give_back_all_their_blocks(rng):
    x, w = cases.integers(rng, (4, 60, 60, 32)), cases.integers(rng, (3, 3, 32, 32))
    program = jax.jit(lambda x, w: cj.convolution(x, w))
    wanted = np.asarray(program(x, w))

    def work():
        for _ in range(30):
            np.testing.assert_array_equal(program(x, w), wanted)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work) for _ in range(4)]:
            done.result()
    assert 2 <= len(blocks_held()) <= 4 + 2 * os.cpu_count()


def test_handlers_read_the_number_of_threads_where_it_is_published():
    count = convgrad.num_threads()
    try:
        for threads in (3, 1, 2):
            convgrad.set_num_threads(threads)
            assert list(team.published) == [threads, team.parallel, team.limit]
    finally:
        convgrad.set_num_threads(count)


def test_results_do_not_depend_on_the_number_of_threads(rng):
    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 33, 31, 24), (3, 3, 24, 40)))
    program = jax.jit(jax.grad(lambda x, w: (cj.convolution(x, w) ** 2).sum(), (0, 1)))
    count, found = convgrad.num_threads(), []
    try:
        for threads in (1, 2, 5):
            convgrad.set_num_threads(threads)
            found.append([np.asarray(g) for g in program(x, w)])
    finally:
        convgrad.set_num_threads(count)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


IMPORTER = """
import sys, numpy as np, jax, jax.export
import convgrad.jax
exported = jax.export.deserialize(open(sys.argv[1], "rb").read())
print(*convgrad.jax.register_targets(exported))
x, w = (np.arange(np.prod(s), dtype=np.float32).reshape(s) % 5 for s in ((2, 7, 3), (3, 3, 4)))
print(np.asarray(jax.jit(exported.call)(x, w)).sum())
"""


def test_an_exported_program_runs_in_another_process(tmp_path):
    pytest.importorskip("flatbuffers", reason="jax.export needs flatbuffers to write a program")
    x, w = (np.arange(np.prod(s), dtype=np.float32).reshape(s) % 5 for s in (X, W))
    name = targets.name_of(PROBLEM)
    allowed = [jax.export.DisabledSafetyCheck.custom_call(name)]
    exported = jax.export.export(jax.jit(lambda x, w: cj.convolution(x, w)), disabled_checks=allowed)(x, w)
    (tmp_path / "program").write_bytes(exported.serialize())
    found = subprocess.run(
        [sys.executable, "-c", IMPORTER, str(tmp_path / "program")], capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == [name, str(convgrad.convolution(x, w).sum())], found.stderr


def test_a_program_that_was_altered_is_refused():
    text = jax.jit(lambda x, w: cj.convolution(x, w)).lower(jnp.zeros(X), jnp.zeros(W)).as_text()
    assert cj.register_targets(text) == (targets.name_of(PROBLEM),)
    with pytest.raises(
        FileFormatError, match=r"the program calls convgrad_y_f32_.*, but its problem belongs to convgrad_y"
    ):
        cj.register_targets(text.replace("\\22batch\\22:2", "\\22batch\\22:1"))
    with pytest.raises(FileFormatError, match=r"carries a problem that this version does not read .*sides"):
        cj.register_targets(text.replace("\\22batch\\22", "\\22sides\\22"))

"""The way from XLA into a kernel: no Python in it, buffers checked, workspace handed on, targets that last."""

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
from convgrad.errors import FileFormatError
from convgrad.jax import handler, targets
from convgrad.problem.conv import ConvProblem, Unknown
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


def test_workspace_is_used_again(rng):
    """A few blocks serve any number of calls, and are given back between them."""
    x, w = cases.integers(rng, (2, 40, 40, 32)), cases.integers(rng, (3, 3, 32, 32))
    program = jax.jit(lambda x, w: cj.convolution(x, w))
    program(x, w).block_until_ready()
    held = {word for word in handler._blocks() if word}
    assert held
    for _ in range(20):
        program(x, w).block_until_ready()
    assert {word for word in handler._blocks() if word} == held


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
    assert 2 <= sum(word != 0 for word in handler._blocks()) <= 4 + 2 * os.cpu_count()


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

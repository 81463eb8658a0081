"""PyTorch's matrix products while convgrad computes them: results, derivatives, when they are taken, and when not."""

import re
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import convgrad  # noqa: E402
import convgrad.torch as ct  # noqa: E402
from convgrad.errors import ArrayError  # noqa: E402
from convgrad.plan import machine  # noqa: E402
from convgrad.torch import products  # noqa: E402
from frameworks.takeover_tensors import integers  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_stays")
PRODUCT = products.PRODUCT
COMPARED = products.LEVELS
YOUNG = "a product that has not come often enough to be compiled"


@pytest.fixture
def anew(monkeypatch):
    """No geometry has been met, none has to come more than once, however small, and any level takes it."""
    for plans in products.PLANS:
        plans._found.clear()
    monkeypatch.setattr(products, "FEWEST_PRODUCTS", 8)
    monkeypatch.setattr(products, "WORTH_COMPILING", 1)
    monkeypatch.setattr(products, "LEVELS", tuple(machine.LEVELS))
    yield
    for plans in products.PLANS:
        plans._found.clear()


def laid(tensor, way):
    """The same numbers in another order in memory, or some of them again and again."""
    if way == "columns":
        return tensor.t().contiguous().t()
    if way == "apart":
        return torch.stack([tensor, tensor + 1], -1)[..., 0]
    if way == "one row":
        return tensor[:1].expand(tensor.shape)
    return tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("ways", [("rows", "columns"), ("columns", "rows"), ("apart", "one row"), ("rows", "rows")])
@pytest.mark.parametrize("shape", [(33, 21, 40), (2, 70, 5), (17, 2, 2)])
@pytest.mark.usefixtures("anew")
def test_results_are_those_of_pytorch(shape, ways, dtype, monkeypatch):
    monkeypatch.setattr(products, "BF16_LEVELS", ())  # else bf16 is PyTorch's on some processors
    rows, depth, columns = shape
    first, second = laid(integers(rows, depth, dtype=dtype), ways[0]), laid(integers(depth, columns), ways[1]).to(dtype)
    bias = integers(columns, dtype=dtype, seed=3)
    expected = first @ second, torch.addmm(bias, first, second)
    with ct.enabled():
        results = first @ second, torch.addmm(bias, first, second)
        assert ct.taken() == ct.Taken({PRODUCT: 2}, {})
    for result, other in zip(results, expected, strict=True):
        assert torch.equal(result, other)
        assert result.stride() == other.stride()


def derivatives(layer, src):
    """Of a linear layer, up to the second order."""
    src = src.clone().requires_grad_()
    parameters = list(layer.parameters())
    dst = layer(src)
    first = torch.autograd.grad(dst.square().sum(), [src, *parameters], create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), [src, *parameters])
    return [dst, *first, *second]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("axes", [(30,), (3, 10), (2, 5, 3)], ids=len)
@pytest.mark.usefixtures("anew")
def test_linear_layers_and_their_derivatives_agree_to_the_bit(axes, bias):
    layer = torch.nn.Linear(7, 11, bias=bias).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((parameter * 8).round())
    src = integers(*axes, 7, dtype=torch.float64)
    expected = derivatives(layer, src)
    with ct.enabled():
        results = derivatives(layer, src)
        taken = ct.taken()
    assert set(taken.operations) == {PRODUCT}
    assert taken.operations[PRODUCT] >= 6
    assert all(map(torch.equal, results, expected))


@pytest.mark.usefixtures("anew")
def test_transforms_autocast_and_inference_mode():
    layer, src = torch.nn.Linear(9, 5), integers(4, 6, 9)
    with torch.no_grad():
        layer.weight.copy_((layer.weight * 8).round())
        layer.bias.copy_((layer.bias * 8).round())

    def compute():
        each = torch.func.vmap(torch.func.grad(lambda w, x: (x @ w.t()).square().sum()), (None, 0))(layer.weight, src)
        with torch.autocast("cpu", torch.float16):
            halves = layer(src)
        with torch.inference_mode():
            return (
                each,
                halves,
                layer(src),
                torch.func.jvp(lambda w: src[0] @ w.t(), (layer.weight,), (layer.weight,))[1],
            )

    expected = compute()
    with ct.enabled():
        results = compute()
        assert ct.taken().operations[PRODUCT] >= 3
    assert all(map(torch.equal, results, expected))


def test_a_geometry_is_compiled_once_it_has_come_often_enough(anew, monkeypatch):
    first, second = integers(20, 30), integers(30, 10)
    expected = first @ second
    monkeypatch.setattr(products, "WORTH_COMPILING", 3 * 20 * 30 * 10)
    made, job = [], products._job
    monkeypatch.setattr(products, "_job", lambda *tensors: made.append(1) or job(*tensors))
    with ct.enabled():
        for number in range(1, 6):
            assert torch.equal(first @ second, expected)
            assert len(made) == (number >= 3)
        assert ct.taken() == ct.Taken({PRODUCT: 3}, {}, {("mm", YOUNG): 2})
        assert str(ct.taken()) == f"3 x {PRODUCT}"
        assert torch.equal(first[:19] @ second, expected[:19])
        assert len(made) == 1
    with ct.enabled():
        assert torch.equal(first @ second, expected)
        assert ct.taken() == ct.Taken({PRODUCT: 1}, {})


LEFT = {  # how the reason begins, and what PyTorch computes itself
    "integers": ("type torch.int64", lambda: integers(9, 9, dtype=torch.int64) @ integers(9, 9, dtype=torch.int64)),
    "conjugates": (
        "type torch.complex64",
        lambda: torch.complex(integers(9, 9), integers(9, 9)).conj() @ torch.complex(integers(9, 9), integers(9, 9)),
    ),
    "few": ("a small product", lambda: integers(1, 9) @ integers(9, 9)),
    "none": ("a small product", lambda: integers(9, 0) @ integers(0, 9)),
    "scaled": ("something added", lambda: torch.addmm(integers(9), integers(9, 9), integers(9, 9), alpha=2)),
    "scaled bias": ("something added", lambda: torch.addmm(integers(9), integers(9, 9), integers(9, 9), beta=0)),
    "matrix": ("something added", lambda: torch.addmm(integers(9, 9), integers(9, 9), integers(9, 9))),
    "broadcast": ("something added", lambda: torch.addmm(integers(1), integers(9, 9), integers(9, 9))),
}


@pytest.mark.parametrize(("why", "compute"), LEFT.values(), ids=LEFT)
@pytest.mark.usefixtures("anew")
def test_what_is_not_taken_is_computed_by_pytorch(why, compute):
    expected = compute()
    with ct.enabled():
        result = compute()
        (left,) = ct.taken().left_products
        assert ct.taken().operations == {}
    assert left[1].startswith(why)
    assert torch.equal(result, expected)


@pytest.mark.usefixtures("anew")
def test_scaled_products_are_told_apart_from_plain_ones():
    bias, first, second = integers(8), integers(9, 7), integers(7, 8, seed=2)
    with ct.enabled():
        for beta, alpha in ((1, 1), (1, 2), (0, 1), (1, 1)):
            expected = beta * bias + alpha * (first.double() @ second.double())
            assert torch.equal(torch.addmm(bias, first, second, beta=beta, alpha=alpha).double(), expected)


MISTAKES = {
    "shapes": lambda: integers(2, 3) @ integers(4, 5),
    "axes": lambda: torch.mm(integers(2, 3, 3), integers(3, 3)),
    "types": lambda: torch.mm(integers(2, 3), integers(3, 3).double()),
    "bias": lambda: torch.addmm(integers(4), integers(2, 3), integers(3, 3)),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
@pytest.mark.usefixtures("anew")
def test_mistakes_are_told_in_the_words_of_pytorch(mistake):
    with pytest.raises(RuntimeError) as error:
        mistake()
    with ct.enabled(), pytest.raises(RuntimeError, match=re.escape(str(error.value))):
        mistake()


@pytest.mark.usefixtures("anew")
def test_views_that_are_negative_and_numbers_across_their_addresses():
    parts = torch.complex(integers(9, 9), integers(9, 9, seed=2)).conj()
    memory = bytearray(4 * 81 + 1)
    across = torch.frombuffer(memory, dtype=torch.float32, count=81, offset=1).view(9, 9)
    across.copy_(integers(9, 9, seed=4))
    second = integers(9, 9, seed=3)
    expected = parts.imag @ second, across @ second
    with ct.enabled():
        assert torch.equal(parts.imag @ second, expected[0])
        assert torch.equal(across @ second, expected[1])
        assert ct.taken().left_products == {("mm", "not aligned to its elements"): 1}


@pytest.mark.usefixtures("anew")
def test_what_cannot_be_compiled_stays_with_pytorch(monkeypatch):
    def refuse(*tensors):
        raise ArrayError("Convolution: no, since this is a test")

    monkeypatch.setattr(products, "_job", refuse)
    first = integers(9, 9)
    expected = first @ first
    with ct.enabled():
        for _ in range(2):
            assert torch.equal(first @ first, expected)
        assert ct.taken().left_products["mm", "Convolution: no, since this is a test"] == 2


@pytest.mark.parametrize("isa", ["portable", "neon"])
@pytest.mark.usefixtures("anew")
def test_instruction_sets_that_were_not_compared_take_none(isa, monkeypatch):
    triple = "aarch64-unknown-linux-gnu" if isa == "neon" else None
    monkeypatch.setattr(products, "LEVELS", COMPARED)
    monkeypatch.setattr(products, "current_machine", lambda: machine.machine_for(isa, triple=triple))
    with ct.enabled():
        integers(9, 9) @ integers(9, 9)
        assert ct.taken().left_products == {("mm", f"a product on {isa}"): 1}


@pytest.mark.parametrize("has_instructions", [True, False])
@pytest.mark.usefixtures("anew")
def test_bf16_is_left_where_pytorch_has_instructions_for_it(has_instructions, monkeypatch):
    monkeypatch.setattr(products, "why_not", lambda level: None if has_instructions else "the CPU does not offer it")
    with ct.enabled():
        integers(9, 9, dtype=torch.bfloat16) @ integers(9, 9, dtype=torch.bfloat16)
        assert ct.taken().operations == ({} if has_instructions else {PRODUCT: 1})


@pytest.mark.usefixtures("anew")
def test_linear_layers_stay_with_pytorch_if_told():
    before = torch._C._dispatch_dump("aten::mm")
    with ct.enabled(linear=False):
        assert torch._C._dispatch_dump("aten::mm") == before
        integers(9, 9) @ integers(9, 9)
        assert ct.taken() == ct.Taken({}, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ct.enabled():
            assert torch._C._dispatch_dump("aten::mm") != before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("anew")
def test_programs_traced_meanwhile_hold_operators_of_pytorch():
    layer, src = torch.nn.Linear(5, 6), integers(8, 5)
    with ct.enabled():
        expected = layer(src)
        traced = torch.jit.trace(layer, src)
        assert torch.equal(traced(src), expected)
    torch.testing.assert_close(traced(integers(3, 5)), layer(integers(3, 5)))


@pytest.mark.usefixtures("anew")
def test_modes_of_pytorch_and_of_the_surroundings_reach_the_kernels(monkeypatch):
    from convgrad.arrays import record

    seen, kernel_for = [], record.kernel_for
    monkeypatch.setattr(record, "kernel_for", lambda problem: seen.append(problem.fpmath_mode) or kernel_for(problem))
    monkeypatch.delenv("CONVGRAD_FPMATH_MODE", raising=False)
    first, second = integers(13, 9), integers(9, 12)
    with ct.enabled():
        first @ second
        with convgrad.fpmath_mode("tf32"):
            first @ second
        if hasattr(torch.backends.mkldnn, "matmul"):
            told = torch.backends.mkldnn.matmul
            before = told.fp32_precision
            try:
                told.fp32_precision = "bf16"
                first @ second
            finally:
                told.fp32_precision = before
            assert seen.pop() == "bf16"
    assert seen == ["strict", "tf32"]

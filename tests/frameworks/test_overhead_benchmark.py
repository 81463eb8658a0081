"""The benchmark of calls: its ways all compute the same layer, by the means that their names say."""

import sys

import pytest

from frameworks.benchmark_modules import benchmark_modules

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
(overhead,) = benchmark_modules("overhead")

import convgrad  # noqa: E402
import convgrad.torch as ct  # noqa: E402


@pytest.fixture(autouse=True)
def threads():
    """A measurement sets them for the whole process."""
    before = torch.get_num_threads(), convgrad.num_threads()
    yield
    torch.set_num_threads(before[0])
    convgrad.set_num_threads(before[1])


def integers(*shape):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(len(shape))).float()


X, W, B = integers(1, 8, 8, 8), integers(8, 8, 3, 3), integers(8)
GRADIENT = overhead.WITH_GRADIENT


def test_all_ways_compute_the_layer():
    expected = torch.conv2d(X, W, B, 1, 1)
    for name, call in overhead.ways(X, W, B).items():
        assert torch.equal(call(), expected), name
        assert call().requires_grad == name.endswith(GRADIENT), name


def test_the_kernel_writes_what_is_returned():
    x = X.clone()
    call = overhead.ways(x, W, B)[overhead.KERNEL]
    x.zero_()  # what an address leads to
    assert torch.equal(call(), B.reshape(1, -1, 1, 1).expand(X.shape))


def test_only_ways_that_say_so_are_taken_over(monkeypatch):
    enabled = []
    monkeypatch.setattr(overhead, "CALLS", 1)
    monkeypatch.setattr(
        overhead,
        "ways",
        lambda *tensors: dict.fromkeys(
            (overhead.KERNEL, overhead.TAKEN, overhead.TAKEN + GRADIENT, overhead.STOCK),
            lambda: enabled.append(ct.is_enabled()),
        ),
    )
    overhead.measure(1)
    assert enabled == [False] * 2 + [True] * 4 + [False] * 2  # each is called once before it is timed


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(overhead, "CALLS", 3)


def test_the_fastest_round_counts(short, monkeypatch):
    spent = {"one": iter((5e-3, 3e-3, 4e-3)), "other": iter((2e-3, 9e-3, 7e-3))}  # for a call, round by round
    now, calls = [0.0], [0]

    def takes(name):
        def call():
            if calls[0] % 4 == 0:  # the call before those that are timed
                pace[name] = next(spent[name])
            calls[0] += 1
            now[0] += pace[name]

        return call

    pace = {}
    monkeypatch.setattr(overhead, "perf_counter", lambda: now[0])
    monkeypatch.setattr(overhead, "ways", lambda *tensors: {name: takes(name) for name in spent})
    assert overhead.measure(3) == pytest.approx({"one": 3000, "other": 2000})


def test_what_is_printed_is_the_difference_to_the_kernel(short, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["overhead.py", "--rounds", "1"])
    overhead.main()
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["us", "a", "call", "above", "the", "kernel"]
    table = {line[30:]: (float(line[:10]), float(line[10:28])) for line in lines}
    assert list(table) == list(overhead.ways(X, W, B))
    kernel, nothing = table[overhead.KERNEL]
    assert nothing == 0
    for name, (whole, above) in table.items():
        assert whole > 0
        assert above == pytest.approx(whole - kernel, abs=0.16), name  # of three numbers one digit is printed

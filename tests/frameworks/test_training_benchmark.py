"""The benchmark of whole training steps: its networks are the published ones, it counts right, and it is not fooled."""

import json
from types import SimpleNamespace

import pytest

from frameworks.benchmark_modules import BENCHMARKS, benchmark_modules

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
layers, models, report, training, trainings = benchmark_modules("layers", "models", "report", "training", "trainings")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import convgrad.torch  # noqa: E402
from convgrad.cli.problem_string import parse  # noqa: E402


@pytest.fixture(autouse=True)
def no_garbage(monkeypatch):
    """A run collects it before each step, for the sake of timings; that takes longer the more tests came before."""
    monkeypatch.setattr(training, "gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture(autouse=True)
def as_before():
    """Nothing here is worth a second thread; a run sets their number, and what is kept, for the whole process."""
    before = torch.get_num_threads(), convgrad.num_threads()
    torch.set_num_threads(1)
    convgrad.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    convgrad.set_num_threads(before[1])
    convgrad.torch.keep_results(0)


def count(network, without=()):
    left_out = {
        id(weights) for layer in network.modules() if isinstance(layer, without) for weights in layer.parameters()
    }
    return sum(weights.numel() for weights in network.parameters() if id(weights) not in left_out)


def test_networks_have_as_many_weights_as_published():
    with torch.device("meta"):
        check_numbers_of_weights()


def check_numbers_of_weights():
    assert count(models.resnet50()) == 25_557_032
    assert count(models.convnext_tiny()) == 28_589_128
    assert count(models.UNet(colours=1, classes=2)) == 31_030_658
    assert count(models.UNet3d(), without=nn.BatchNorm3d) == 19_069_955  # section 2 of the paper
    magnitudes = sum(
        weights.numel() for name, weights in models.HiFiGANGenerator().named_parameters() if "original0" in name
    )
    assert round((count(models.HiFiGANGenerator()) - magnitudes) / 1e6, 2) == 13.93  # 13.92 M in table 1, of variant V1


@pytest.mark.parametrize(
    ("network", "given", "made"),
    [
        (lambda: models.dcgan_generator(width=4), (2, 100, 1, 1), (2, 3, 64, 64)),
        (lambda: models.dcgan_discriminator(width=4), (2, 3, 64, 64), (2, 1, 1, 1)),
        (lambda: models.UNet(width=4), (1, 1, 32, 48), (1, 2, 32, 48)),
        (lambda: models.UNet3d(width=2), (1, 3, 8, 16, 24), (1, 3, 8, 16, 24)),
        (lambda: models.resnet50(classes=7), (2, 3, 64, 64), (2, 7)),
        (lambda: models.HiFiGANGenerator(width=32), (1, 80, 3), (1, 1, 3 * 256)),
        (lambda: models.convnext_tiny(5, (8, 16, 24, 32), (1, 1, 2, 1)), (1, 3, 64, 64), (1, 5)),
    ],
)
def test_shapes(network, given, made):
    with torch.no_grad():
        assert network()(torch.randn(given)).shape == made


class Tiny(trainings.Supervised):
    """Every kind of layer that the recorder tells apart, in an instant."""

    def __init__(self, layout, dtype):
        super().__init__(
            layout,
            dtype,
            network=lambda: nn.Sequential(
                nn.Conv2d(3, 8, 3, 2, 1),
                nn.Conv2d(8, 8, (3, 1), padding=(2, 0), dilation=(2, 1), groups=4, bias=False),
                nn.ConvTranspose2d(8, 2, 4, 2, 1),
            ),
            inputs=lambda: torch.randn(2, 3, 10, 12),
            targets=lambda: torch.randn(2, 2, 10, 12),
            loss=F.mse_loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        )  # fmt: skip


TINY = trainings.Case("a few small layers", Tiny)


def test_the_recorder_finds_every_convolution_of_a_step():
    with layers.Recorder() as recorder:
        TINY.train("channels_last", "f32").step(0)
    found = {(layer.op, layer.problem): number for layer, number in recorder.layers.items()}
    first = "mb2_ic3ih10iw12_oc8oh5ow6_kh3kw3_sh2sw2_ph1pw1"
    second = "g4_mb2_ic8ih5iw6_oc8oh5ow6_kh3kw1_sh1sw1_ph2pw0_dh1dw0"
    last = "mb2_ic8ih5iw6_oc2oh10ow12_kh4kw4_sh2sw2_ph1pw1"
    assert found == {
        ("Convolution", first): 1,
        ("ConvolutionBackwardWeights", first): 1,  # nobody asks for the gradient in pictures
        **{(op, second): 1 for op in ("Convolution", "ConvolutionBackwardData", "ConvolutionBackwardWeights")},
        **{(op, last): 1 for op in ("ConvTranspose", "ConvTransposeBackwardData", "ConvTransposeBackwardWeights")},
    }
    for layer in recorder.layers:
        problem = parse(layer.problem, transposed=layer.transposed)
        assert problem.each("pad_begin") == layer.padding
        assert problem.each("dilation") == layer.dilation
        assert problem.each("dst") == layer.result[0][2:]
        assert layer.layout == "NXC"
    flops = {layer.problem: layer.flops for layer in recorder.layers}
    assert flops[first] == 2 * 2 * (5 * 6) * (3 * 3) * 3 * 8
    assert flops[second] == 2 * 2 * (5 * 6) * 3 * 8 * 2
    assert flops[last] == 2 * 2 * (5 * 6) * (4 * 4) * 8 * 2


def test_layers_are_recorded_in_the_type_of_autocast():
    with layers.Recorder() as recorder:
        TINY.train("contiguous", "bf16").step(0)
    assert {layer.dtype for layer in recorder.layers} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", trainings.DTYPES)
def test_copies_train_alike(dtype):
    found = training.compare(TINY, dtype, layout=None, steps=4, control=True)
    assert found["layout"] == min(found["seconds_in_layouts"], key=found["seconds_in_layouts"].get)
    stock, ours = found["losses"]["stock"], found["losses"]["convgrad"]
    assert len(stock) == len(ours) == 5
    assert len(set(stock)) == 5  # it does learn
    assert found["loss_difference"] < (1e-5 if dtype == "f32" else 2e-2)
    assert found["control_difference"] < (1e-5 if dtype == "f32" else 2e-2)
    assert not found["left"]
    assert sum(found["taken"].values()) == 8  # two gradients come together with that of a bias
    assert found["ratio_best"] == found["seconds"]["stock"]["best"] / found["seconds"]["convgrad"]["best"]


def test_equal_trainings_begin_equal():
    one, other = (TINY.train("contiguous", "f32", seed=3) for _ in "12")
    assert [one.step(number) for number in range(3)] == [other.step(number) for number in range(3)]
    assert TINY.train("contiguous", "f32", seed=4).step(0) != one.step(3)


def test_the_control_begins_a_bit_apart():
    plain, moved = TINY.train("contiguous", "f32"), training.in_last_bit(TINY.train("contiguous", "f32"))
    for one, other in zip(plain.network.parameters(), moved.network.parameters(), strict=True):
        assert torch.equal(torch.nextafter(one, torch.tensor(torch.inf)), other)


def test_the_faster_layout_is_that_of_the_fastest_step(monkeypatch):
    seconds = {"contiguous": [9.0, 3.0, 1.9, 3.0], "channels_last": [0.1, 2.0, 2.0, 2.0]}  # the first does not count
    order = []

    def timed_step(which, number, *, by):
        assert by == training.STOCK
        order.append(which)
        return seconds[which][number], 0.0

    monkeypatch.setattr(training, "timed_step", timed_step)
    case = trainings.Case("layouts by name", lambda layout, dtype: layout)
    assert training.faster_layout(case, "f32") == ("contiguous", {"contiguous": 1.9, "channels_last": 2.0})
    assert order == ["contiguous", "channels_last"] * 4  # in turns
    alone = trainings.Case("one layout", lambda layout, dtype: layout, ("contiguous",))
    assert training.faster_layout(alone, "f32") == ("contiguous", {})


def test_losses_that_are_no_numbers_do_not_agree():
    assert training.difference([1.0, 20.0], [1.0, 20.2]) == pytest.approx(0.01)
    assert training.difference([0.5], [0.25]) == pytest.approx(0.25)  # of small losses the absolute difference
    broken = training.difference([1.0, float("nan"), 1.0], [1.0, 1.0, 1.0])
    assert not report.agrees({"loss_difference": broken, "tolerance": 1e9})


@pytest.fixture
def tiny(monkeypatch):
    for module in (training, trainings):
        monkeypatch.setattr(module, "CASES", {"tiny": TINY, "flat": trainings.Case("1-D", Tiny, ("contiguous",))})


def test_a_run_keeps_results_and_writes_the_page(tiny, tmp_path, capsys):
    kept, page = tmp_path / "results.json", tmp_path / "page.md"
    elsewhere = {"machine": {"instruction set": "another"}, "steps": {}}
    kept.write_text(json.dumps({"another": elsewhere}))
    page.write_text(f"# Title\n\n{report.BEGIN}old table\n{report.END}\n\nThe end.\n")
    words = ["--models", "tiny", "--steps", "2", "--threads", "1", "--json", str(kept)]
    assert training.main([*words, "--dtypes", "bf16"]) == 0
    assert training.main([*words, "--dtypes", "f32", "--page", str(page)]) == 0
    assert training.main([*words, "--dtypes", "f32", "--profile", "--budget", "0.002"]) == 0
    printed = capsys.readouterr().out
    assert "geometric mean f32: " in printed
    assert "Convolution                     2 calls" in printed
    assert "ConvTransposeBackwardData NCX f32 mb2_ic8ih5iw6_oc2oh10ow12_kh4kw4_sh2sw2_ph1pw1" in printed or (
        "ConvTransposeBackwardData NXC f32 mb2_ic8ih5iw6_oc2oh10ow12_kh4kw4_sh2sw2_ph1pw1" in printed
    )
    every = json.loads(kept.read_text())
    assert every.pop("another") == elsewhere
    (results,) = every.values()
    assert results["steps"].keys() == {"tiny bf16 1", "tiny f32 1"}  # of two runs
    assert results["profiles"].keys() == {"tiny f32 1"}
    assert results["machine"]["torch"] == torch.__version__
    text = page.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("The end.\n")
    assert "old table" not in text
    ratio = results["steps"]["tiny f32 1"]["ratio_best"]
    assert f"| **geometric mean** | f32 | | | | | **{ratio:.2f}** | | |" in text
    training.main([*words, "--dtypes", "f32", "--page", str(page)])  # the marks are still there
    assert "of a step that are convolutions" in page.read_text()


def test_a_run_fails_if_losses_disagree(tiny, monkeypatch, capsys):
    monkeypatch.setattr(training, "TOLERANCE", {"f32": -1.0})
    assert (
        training.main(
            ["--models", "tiny", "--dtypes", "f32", "--steps", "1", "--threads", "1", "--layout", "contiguous"]
        )
        == 1
    )
    assert "MORE THAN -1e+00" in capsys.readouterr().out


def test_a_layout_that_does_not_exist_is_said(tiny, capsys):
    assert training.main(["--models", "flat", "--dtypes", "f32", "--layout", "channels_last"]) == 0
    assert "flat f32: PyTorch has no channels_last for one spatial axis" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "--steps and --threads take numbers of at least 1"),
        (["--page", "page.md"], "--page writes what --json keeps; give both"),
        (["--models", "alexnet"], "invalid choice: 'alexnet'"),
    ],
)
def test_wrong_words(words, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        training.main(words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_geometric_means():
    steps = {
        str(number): {"dtype": dtype, "ratio_best": ratio}
        for number, (dtype, ratio) in enumerate([("f32", 1.0), ("f32", 4.0), ("bf16", 3.0)])
    }
    assert report.geometric_means(steps) == pytest.approx({"f32": 2.0, "bf16": 3.0})


def test_a_page_without_marks_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="are expected once, found 0 times"):
        report.write(page, {})
    assert page.read_text() == "nothing\n"


def test_what_the_page_shows_are_twenty_steps_of_every_network_whose_losses_agree():
    every = json.loads((BENCHMARKS / "results.json").read_text())
    for isa, kept in every.items():
        assert kept["machine"]["instruction set"] == isa
        check_steps(kept)
    page = (BENCHMARKS.parent / "docs" / "training.md").read_text(encoding="utf-8")
    assert report.tables(every).strip() in page


def check_steps(kept):
    assert kept["steps"].keys() == {f"{model} {dtype} 2" for model in trainings.CASES for dtype in trainings.DTYPES}
    for name, found in kept["steps"].items():
        stock, ours = found["losses"]["stock"], found["losses"]["convgrad"]
        assert len(stock) == len(ours) == 21, name  # the first step compiles, and is not timed
        assert training.difference(stock, ours) == found["loss_difference"] <= training.TOLERANCE[found["dtype"]], name
        assert len(set(stock)) == 21, name  # it does learn
        assert not found["left"], name

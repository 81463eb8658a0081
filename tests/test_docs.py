"""The site: its code runs and prints what the pages say, its pictures and links are there, and it builds."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from convgrad.cli import _parser
from convgrad.spec.schemas import SCHEMAS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REPAIR = "run `python docs/regenerate.py`, and read what changed"
QUICK = {"draw", "verify", "explain", "doctor"}  # commands of the pages that are run, besides those of run


def _regenerate():
    spec = importlib.util.spec_from_file_location("regenerate", DOCS / "regenerate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = _regenerate()
PAGES = site.pages()
pages = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(DOCS)) for page in PAGES])


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A place that looks like the repository, and may be written to."""
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pages
def test_code_runs_and_prints_what_the_page_says(page, checkout):
    text = page.read_text(encoding="utf-8")
    assert site.with_output(text) == text, f"{page.name}: {REPAIR}"
    for words in site.drawn(text):
        for name in words[1:]:
            if name.startswith("docs/pictures/"):
                assert (checkout / name).read_text() == (ROOT / name).read_text(), f"{name}: {REPAIR}"


def test_the_architecture_names_every_module_of_the_compiler():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    _, section = text.split("## Inside the compiler\n")
    section, _ = section.split("\n## ", 1)
    named = {name.removesuffix(".py").split("/")[-1] for name in re.findall(r"`([\w/.]+)`", section)}
    there = {path.stem for part in ("plan", "codegen") for path in (ROOT / "src/convgrad" / part).rglob("*.py")}
    there -= {"__init__", "avx2", "avx512", "neon", "portable"}  # instruction sets tell themselves
    assert {name.removeprefix("choose_") for name in there} - named == set()


def test_every_picture_has_its_command():
    made = {word for page in PAGES for words in site.drawn(page.read_text(encoding="utf-8")) for word in words}
    assert {f"docs/pictures/{path.name}" for path in (DOCS / "pictures").iterdir()} <= made


@pages
def test_commands_are_understood(page):
    for words in site.commands(page.read_text(encoding="utf-8")):
        _parser().parse_args(words)


@pages
def test_quick_commands_succeed(page, checkout, capsys):
    for words in site.commands(page.read_text(encoding="utf-8")):
        if words[0] in QUICK - {"draw"} or (words[0] == "run" and Path(words[1]).exists()):
            assert site.convgrad(words) == 0, words
    capsys.readouterr()


@pages
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in _anchors(file), f"{page.name}: {target}"


@pytest.mark.parametrize("op", SCHEMAS)
def test_the_attributes_of_a_page_are_those_of_the_schema(op):
    slug = re.sub(r"(?<!^)(?=[A-Z])", "_", op).lower()
    text = (DOCS / "operations" / f"{slug}.md").read_text(encoding="utf-8")
    table = re.search(r"^## Attributes\n\n\|.*\n\|.*\n((?:\|.*\n)+)", text, re.M)[1]
    rows = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in table.splitlines()]
    assert [row[0] for row in rows] == [attribute.name for attribute in SCHEMAS[op].attributes]
    for row, attribute in zip(rows, SCHEMAS[op].attributes, strict=True):
        if attribute.default is not None:
            assert row[1] == str(attribute.default)
        else:
            assert (row[1] == "required") == attribute.required
    for tensor in (*SCHEMAS[op].inputs, SCHEMAS[op].output):
        assert f"| {tensor} |" in text


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    here = {page.relative_to(DOCS).as_posix() for page in PAGES}
    assert named == here, "mkdocs.yml names the pages of docs/, each once"


def test_the_site_builds_without_warnings(tmp_path):
    if not all(importlib.util.find_spec(name) for name in ("mkdocs", "material")):
        pytest.skip("mkdocs is not installed: pip install 'convgrad[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # advertising of the theme
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert not built.stderr.strip()
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)  # one more, for what is not found
    for page in pages:
        fetched = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?:[^\"\s>]+)", page.read_text())
        assert not fetched, page
    shutil.rmtree(tmp_path / "site")


def test_what_is_said_of_pytorch(rng):
    """The table of docs/differences.md."""
    torch = pytest.importorskip("torch")
    import convgrad

    x, y = torch.randn(2, 4, 9, 8), torch.randn(2, 6, 5, 4)
    w = torch.randn(6, 2, 3, 3)
    theirs = dict(stride=2, padding=1, groups=2)
    ours = dict(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], groups=2, data_format="NCX")
    close = dict(rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        convgrad.convolution(x, w, weights_format="OIX", **ours), torch.conv2d(x, w, **theirs), **close
    )
    torch.testing.assert_close(
        convgrad.convolution_backward_data(y, w, tuple(x.shape), weights_format="OIX", **ours),
        torch.nn.grad.conv2d_input(x.shape, w, y, **theirs),
        **close,
    )
    torch.testing.assert_close(
        convgrad.convolution_backward_weights(x, y, tuple(w.shape), weights_format="OIX", **ours),
        torch.nn.grad.conv2d_weight(x, w.shape, y, **theirs),
        **close,
    )
    torch.testing.assert_close(
        convgrad.conv_transpose(y, w, output_padding=[1, 1], weights_format="IOX", **ours),
        torch.conv_transpose2d(y, w, output_padding=1, **theirs),
        **close,
    )
    torch.testing.assert_close(
        convgrad.convolution(x, w, auto_pad="same_upper", groups=2, data_format="NCX", weights_format="OIX"),
        torch.conv2d(x, w, padding="same", groups=2),
        **close,
    )
    torch.testing.assert_close(convgrad.bias_add_backward(y, data_format="NCX"), y.sum((0, 2, 3)), **close)


def _anchors(file):
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}

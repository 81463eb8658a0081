"""The blocks of Python in the README run, and its commands are those that exist. The site has tests/test_docs.py."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from convgrad.cli import _parser

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list:
    found = []
    for number, text in enumerate(re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)):
        found.append(pytest.param(text, id=f"README-{number}"))
    return found


@pytest.mark.parametrize("text", blocks("python"))
def test_python_runs(text, monkeypatch):
    if "import torch" in text:
        pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    exec(compile(text, "document", "exec"), {})


def test_commands_of_the_readme_are_understood():
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S) for line in block.splitlines()]
    commands = [words[1:] for line in lines if (words := shlex.split(line, comments=True)) and words[0] == "convgrad"]
    assert [words[0] for words in commands] == ["run", "verify", "explain", "draw", "bench", "doctor"]
    for words in commands:
        _parser().parse_args(words)


def test_the_two_commands_are_what_ci_runs():
    script = (ROOT / ".ci" / "run").read_text()
    for command in ("python3 set_up.py --test", "python3 set_up.py "):
        assert command in README
    assert "exec python3 set_up.py --test" in script
    text = subprocess.run(
        [sys.executable, ROOT / "set_up.py", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "--test" in text


def test_the_run_of_the_readme_is_that_of_set_up():
    assert '"run", str(EXAMPLE)' in (ROOT / "set_up.py").read_text()
    assert (ROOT / "examples" / "dcgan_generator_backward.json").exists()


def test_examples_are_what_their_script_writes(tmp_path):
    names = {"__name__": "write_examples", "__file__": str(ROOT / "examples" / "write_examples.py")}
    exec((ROOT / "examples" / "write_examples.py").read_text(), names)
    names["write"](tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in (ROOT / "examples").glob("*.json")}


def test_links_of_documents_lead_somewhere():
    dead = [
        f"{path.name}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert not dead


def test_versions_that_are_installed_are_pinned():
    pins = (ROOT / "constraints.txt").read_text()
    for name in ("numpy", "ml_dtypes", "llvmlite", "pytest", "hypothesis", "ruff", "pyright", "rich", "hatchling"):
        assert re.search(rf"^{name}==[\d.]+$", pins, re.M), name

"""The examples that each command shows in its help are commands, and those that are quick succeed."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from convgrad.cli import _parser

ROOT = Path(__file__).parents[2]
COMMANDS = ("run", "verify", "explain", "draw", "bench", "roofline", "tune", "repro", "cache", "doctor")
SLOW = ("graph.json", "in.npz", "--engine", "dcgan")  # or in want of files of somebody's own, or of other libraries


def examples(command):
    """The arguments of every example, pipes and redirections left out."""
    text = importlib.import_module(f"convgrad.cli.{command}").EXAMPLES
    lines = re.findall(r"^  convgrad (.*)$", text.partition("\n\n")[0], re.M)
    return [shlex.split(re.split(r" [|>] ", line)[0]) for line in lines]


EXAMPLES = [words for command in COMMANDS for words in examples(command)]
QUICK = [words for words in EXAMPLES if words[0] in ("run", "verify", "explain", "draw", "repro", "cache", "doctor")]
QUICK = [words for words in QUICK if not set(words) & set(SLOW)]


def test_every_command_has_examples():
    assert {words[0] for words in EXAMPLES} == set(COMMANDS)
    assert len(QUICK) > 15


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_an_example_is_understood(words):
    _parser().parse_args(words)


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_an_example_succeeds(convgrad, words, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONVGRAD_CACHE_DIR", str(tmp_path / "cache"))
    status, out, err = convgrad(*words)
    assert (status, err) == (0, "")
    assert out
    assert "\x1b" not in out

"""Where PyTorch and JAX are not installed, their tests are skipped with a word, and others are found."""

import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
WHERE = ("frameworks", "arrays", "sharding", "stress", "test_imports.py", "test_docs.py", "test_readme.py")
HIDDEN = """
import sys
sys.modules |= dict.fromkeys(("torch", "jax", "jaxlib"))  # to import them says that there are no such modules
import pytest
sys.exit(pytest.main(["--collect-only", "-q", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_tests_of_what_is_not_installed_are_skipped_and_say_so():
    command = [sys.executable, "-c", HIDDEN, *(TESTS / name for name in WHERE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout
    said = dict(re.findall(r"^SKIPPED \[\d+\] (\S+?):\d+: (.*)$", done.stdout, re.M))
    assert "tests/frameworks/test_torch_operators.py" in said
    without = {file: word for file, word in said.items() if "frameworks/" in file or file.endswith("jax_cases.py")}
    assert all(re.match("(PyTorch|JAX) is not installed", word) for word in without.values()), without
    kept = set(re.findall(r"^(tests/\S+?\.py)::?", done.stdout, re.M))
    assert {"tests/frameworks/test_examples.py", "tests/test_imports.py"} <= kept
    assert not {file for file in kept if re.search("test_(torch|jax)_", file)}

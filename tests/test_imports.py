"""Who may import whom: stages lie in a row, and each sees only those before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import convgrad

SOURCE = Path(convgrad.__file__).parent
ROW = ("spec", "problem", "plan", "codegen", "runtime", "arrays", "operations")
ANYWHERE = {"errors", "dtypes", "settings", "values"}
TOP = {
    "graph": {*ROW, "graph"},
    "engines": {*ROW, "engines"},
    "drawing": {*ROW, "drawing"},
    "jax": {*ROW, "jax"},
    "sharding": {"spec", "problem", "plan", "runtime", "sharding"},
    "torch": {*ROW, "sharding", "torch"},
    "cli": {*ROW, "graph", "engines", "drawing", "cli"},
    "__main__": {"cli"},
    "__init__": {"operations", "runtime"},  # of the runtime, how many threads
}
KINDS = {"general", "in_place", "few_channels", "groups", "depthwise", "by_dots", "by_matrix"}
CHOOSING = ("choose", "choose_data", "choose_weights")
HEAVY = ("llvmlite", "ml_dtypes", "torch", "jax", "rich")
MODULES = sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The folder or module directly below the package."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path: Path):
    """Parts of the package that a module imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            names = [
                f"{node.module}.{alias.name}" if node.module == "convgrad" else node.module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "convgrad" and rest:
                yield rest.partition(".")[0], node.lineno


def allowed(part: str) -> set[str]:
    if part in ANYWHERE:
        return ANYWHERE
    if part in TOP:
        return ANYWHERE | TOP[part]
    return ANYWHERE | set(ROW[: ROW.index(part) + 1])


def test_every_part_of_the_package_has_its_place():
    assert {part_of(path) for path in MODULES} <= {*ROW, *ANYWHERE, *TOP}


def test_imports_point_one_way():
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} imports {name}"
        for path in MODULES
        for name, line in imported_parts(path)
        if name not in allowed(part_of(path)) | {"__version__"}
    ]
    assert not wrong


def compiler_modules(path: Path):
    """Modules of the compiler that one imports to run it, each as its part, folder and name."""
    for node in ast.parse(path.read_text()).body:
        names = (getattr(node, "module", None) or "").split(".")
        if isinstance(node, ast.ImportFrom) and names[0] == "convgrad" and names[1:2] in (["plan"], ["codegen"]):
            yield names[1:]


@pytest.mark.parametrize("part", ["plan", "codegen"])
def test_the_compiler_imports_its_kinds_of_plans_last(part):
    """Folders of kinds are seen by each other and by what chooses; `general` sees none of the others."""
    tools = {path.parent.name for path in (SOURCE / "codegen").glob("*/*.py")} - KINDS
    for path in (SOURCE / part).glob("*/*.py"):
        folder = path.parent.name
        seen = {names[1] for names in compiler_modules(path) if names[0] == part and len(names) == 3}
        if folder in tools:
            assert not seen & KINDS, path
        elif folder == "general":
            assert seen & KINDS <= {"general"}, path
        assert not {("plan", name) for name in CHOOSING} & {tuple(names) for names in compiler_modules(path)}, path


def test_only_the_settings_read_the_environment():
    readers = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert readers <= {"settings.py"}


def loaded_after(statement: str, names=HEAVY) -> set[str]:
    """Which of these packages a fresh interpreter has loaded after a statement."""
    program = f"import sys; {statement}; print(*[name for name in {names} if name in sys.modules])"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import convgrad") == set()


def test_importing_the_package_loads_nothing_that_only_writing_to_the_cache_needs():
    slow = ["tempfile", "pathlib", "hashlib"]
    assert loaded_after("import convgrad", slow) == loaded_after("import numpy", slow)


@pytest.mark.parametrize("solves", ["y", "w"])
def test_a_first_call_loads_the_compiler_of_its_own_kind_of_plan(solves):
    data, weights = ["plan.choose_data", "codegen.general.data"], ["plan.choose_weights", "codegen.general.weights"]
    own, others = (data, weights) if solves == "y" else (weights, data)
    others += [
        "plan.depthwise",
        "plan.groups",
        "plan.by_dots",
        "plan.by_matrix",
        "codegen.by_dots",
        "codegen.by_matrix",
        "codegen.depthwise.plane_data",
    ]
    call = "convolution(a, a" if solves == "y" else "convolution_backward_weights(a, a, (1, 1, 8, 8)"
    program = (
        "import os, numpy, convgrad; os.environ.update(CONVGRAD_ISA='portable', CONVGRAD_CACHE_DIR='off'); "
        f"a = numpy.ones((1, 8, 8, 8), 'f4'); convgrad.{call}, strides=(1, 1), dilations=(1, 1))"
    )
    loaded = loaded_after(program, ["convgrad." + name for name in [*own, *others]])
    assert loaded == {"convgrad." + name for name in own}


def test_looking_at_an_array_loads_no_masked_arrays():
    looking = "import numpy; from convgrad.arrays.view import view; view('op', 'src', numpy.zeros(3))"
    assert loaded_after(looking, ["numpy.ma"]) == loaded_after("import numpy", ["numpy.ma"])


def test_the_command_line_starts_without_the_compiler():
    assert loaded_after("import convgrad.cli; convgrad.cli._parser()") == set()


@pytest.mark.parametrize(("name", "library", "called"), [("torch", "torch", "PyTorch"), ("jax", "jax", "JAX")])
def test_a_library_that_is_missing_is_named_with_its_repair(name, library, called):
    program = f"import sys; sys.modules[{library!r}] = None; import convgrad.{name}"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = found.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: convgrad.{name} needs {called} (")
    assert last.endswith(f"): pip install 'convgrad[{name}]'")

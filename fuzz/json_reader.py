"""A coverage-guided fuzzer of the reader of graph files, by atheris (pip install "convgrad[fuzz]").

    python fuzz/json_reader.py --seconds 300

Whatever the bytes are, reading them gives a graph or a ConvError with a message of reasonable length. A graph that was
read can be written and read again, and is the same; compiling it, up to where a kernel would be made, gives a plan of
calls or a ConvError. The corpus begins with files by our own writer; what reaches new branches joins it.

Half of the mutations are of bytes. The others know JSON: an entry is replaced, removed, doubled or moved elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))  # for graphs of every operation

LONGEST_MESSAGE = 2000
VALUES = [
    *(None, True, False, 0, 1, -1, 2, 3, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, -(2**63), 10**40, 0.5, -0.0, 1e308),
    *("", "f32", "bf16", "s8", "s32", "any", "opaque", "strided", "undef", "NXC", "NCX", "OIX", "XIO", "SAME_UPPER"),
    *("VALID", "Convolution", "ConvTranspose", "End", "Wildcard", "s64", "s64[]", "f32[]", "string", "bool", "é\0"),
    *([], {}, [1], [0, 0], [-1], [1] * 7, {"type": "s64", "value": 1}, {"type": "s64[]", "value": [2, 2]}),
]


def seeds() -> list[bytes]:
    """Files by our own writer: each operation alone, with and without known shapes, and all of them in one."""
    from convgrad.graph import dumps
    from graph.builders import KINDS, graph_of, op_of

    single = [graph_of(op_of(kind, known_output=known)) for kind in KINDS for known in (True, False)]
    several = graph_of(*(op_of(kind, id=i, first=10 * i) for i, kind in enumerate(KINDS)))
    return [json.dumps(json.loads(dumps(graph))).encode() for graph in (*single, several)]


def check(content: bytes) -> bool:
    """Whether the bytes are a graph. Anything but a graph or a ConvError is raised on."""
    from convgrad import ConvError
    from convgrad.graph import dumps, loads

    try:
        graph = loads(content)
    except ConvError as error:
        _look_at(str(error))
        return False
    try:
        text = dumps(graph)
    except ConvError:  # names that no file can hold
        text = None
    assert text is None or loads(text) == graph, "what was written is read as another graph"
    try:
        graph.compile()
    except ConvError as error:
        _look_at(str(error))
    return True


def _look_at(message: str) -> None:
    assert 0 < len(message) < LONGEST_MESSAGE, f"a message of {len(message)} characters"


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    """Change some entries of a document; bytes that are none come back as they are."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return content
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(document))
        if not places:
            break
        owner, key = rng.choice(places)
        match rng.randrange(5):
            case 0 | 1:
                owner[key] = json.loads(json.dumps(rng.choice(VALUES)))
            case 2:
                del owner[key]
            case 3 if isinstance(owner, list):
                owner.insert(key, json.loads(json.dumps(owner[key])))
            case _:
                other, place = rng.choice(places)
                owner[key] = json.loads(json.dumps(other[place]))
    return json.dumps(document).encode()


def _places(node, owner=None, key=None):
    """(owner, key) of every entry."""
    if owner is not None:
        yield owner, key
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for inner, child in list(entries):
        yield from _places(child, node, inner)


class Counts:
    """What was read so far."""

    def __init__(self) -> None:
        self.inputs, self.graphs, self.start = 0, 0, time.perf_counter()

    def __str__(self) -> str:
        spent = time.perf_counter() - self.start
        return f"{self.inputs} inputs, {self.graphs} of them graphs, 0 wrong, in {spent:.0f} s"


def fuzz(seconds: int, seed: int, corpus: Path, *, keep: bool) -> None:
    """Hand over to libFuzzer, which ends the process when the time is over or an input fails."""
    import atheris

    with atheris.instrument_imports(include=["convgrad.graph", "convgrad.spec", "convgrad.problem"]):
        import convgrad.graph.compiled
        import convgrad.graph.reader
        import convgrad.graph.writer
    import convgrad.runtime

    convgrad.runtime.kernel_for = lambda problem: None  # shapes of any size: nothing is compiled for them
    for number, content in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(content)
    counts = Counts()

    def one(content: bytes) -> None:
        counts.inputs += 1
        counts.graphs += check(content)
        if time.perf_counter() - counts.start > seconds:
            print(counts, f"with a corpus of {len(list(corpus.iterdir()))} files", flush=True)
            if not keep:
                shutil.rmtree(corpus)
            os._exit(0)

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return atheris.Mutate(content, most)
        return mutate_json(content, rng)[:most]

    options = [f"-seed={seed or 1}", "-max_len=20000", "-len_control=0", "-verbosity=0", "-timeout=20"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="when to stop (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="a folder to keep what reaches new branches (default: a new one)")
    parser.add_argument("--file", type=Path, help="only check this file, such as a crash-... that libFuzzer left")
    args = parser.parse_args()
    if args.file:
        print("a graph" if check(args.file.read_bytes()) else "refused")
        return 0
    try:
        import atheris  # noqa: F401
    except ImportError:
        print('atheris is not installed; pip install "convgrad[fuzz]"', file=sys.stderr)
        return 3
    if args.corpus:
        args.corpus.mkdir(parents=True, exist_ok=True)
    corpus = args.corpus or Path(tempfile.mkdtemp(prefix="convgrad-corpus-"))
    fuzz(args.seconds, args.seed, corpus, keep=args.corpus is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())

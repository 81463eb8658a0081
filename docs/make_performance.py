"""Measure, and write docs/performance: speed beside other engines, errors in units of the bound, bits on threads.

    python docs/make_performance.py [speed] [accuracy] [determinism]

Figures are those of the machine that this runs on; nothing else should run there. Engines that are not installed are
left out, and so are pictures where matplotlib is not. `--budget 0.01 --to /tmp/pages` shows soon what it will be.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

from convgrad import __version__
from convgrad.cli import main as convgrad
from convgrad.dtypes import FLOATING

HERE = Path(__file__).parent / "performance"
NETWORKS = ("dcgan", "unet")
ENGINES = ("convgrad", "torch", "onednn", "jax")
PROBLEMS = {  # one of each kind, small enough to be compared whole
    "3x3": (False, "mb2_ic64ih28oc64oh28kh3ph1"),
    "3x3, stride 2, dilation 2": (False, "mb2_ic32ih29oc48kh3sh2ph1dh1"),
    "1x1": (False, "mb2_ic256ih14oc64oh14kh1"),
    "depthwise 5x5": (False, "g96mb2_ic96ih28oc96oh28kh5ph2"),
    "1-D, 7 taps": (False, "mb4_ic32iw512oc32ow512kw7pw3"),
    "transposed 4x4, stride 2": (True, "mb2_ic64ih16oc32oh32kh4sh2ph1"),
}
DIRECTIONS = ("FWD_D", "BWD_D", "BWD_W")


def report(*words: str) -> dict[str, Any]:
    """What a command says in JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        convgrad([*words, "--json"])
    return json.loads(printed.getvalue())


def head(title: str, command: str, versions: dict[str, str] | None = None) -> list[str]:
    """How every page begins."""
    machine = report("doctor")["machine"]
    about = ", ".join(f"{name} {version}" for name, version in (versions or {"convgrad": __version__}).items())
    return [
        f"# {title}",
        "",
        f"Written by `{command}` on {date.today()}: {machine['instruction set']}, {machine['caches planned for']}; "
        f"{about}.",
        "",
    ]


def speed(network: str, folder: Path, budget: float) -> str:
    """The gradients of a network, on one thread; draws them, too."""
    picture = folder / f"{network}.svg"
    drawn = importlib.util.find_spec("matplotlib") is not None
    plot = ["--plot", str(picture)] if drawn else []
    found = report("bench", network, "--budget", str(budget), "--threads", "1", *plot)
    engines = [engine for engine in ENGINES if engine in found["versions"]]
    lines = head(f"Speed: {network}", "python docs/make_performance.py speed", found["versions"])
    lines += [
        f"GF/s of the fastest sample on one thread, f32, NCX, batch 4 (`convgrad bench {network}`). Ratio: time of the "
        f"fastest other engine over that of convgrad. The load of the machine was {found['load_average']:.1f} when "
        "this was measured; where nothing else runs it is near 0, and only then are small differences real.",
        "",
    ]
    lines += [f"![A mark for each engine before a bar as long as the machine allows]({picture.name})", ""] * drawn
    summaries = [row for row in found["summary"] if row["compared"]]
    lines += [
        f"* {row['operation']}: {row['ratio']:.2f} times as fast as the fastest other engine (geometric mean), ahead "
        f"in {row['ahead']} of {row['compared']}"
        for row in summaries
    ]
    lines += [""] * bool(summaries)
    lines += [
        f"| layer | operation | {' | '.join(engines)} | ratio |",
        f"|---|---|{'---:|' * (len(engines) + 1)}",
    ]
    for result in found["results"]:
        rates = [_rate(result["engines"].get(engine, {})) for engine in engines]
        ratio = f"{result['ratio']:.2f}" if result.get("ratio") else ""
        lines.append(f"| {result['layer']} | {result['operation']} | {' | '.join(rates)} | {ratio} |")
    return "\n".join(lines) + "\n"


def _rate(engine: dict[str, Any]) -> str:
    return f"{engine['gflops']:.1f}" if engine.get("gflops") else str(engine.get("status", ""))


def accuracy() -> str:
    """The largest error of each kind of problem, in units of the bound."""
    lines = head("Accuracy", "python docs/make_performance.py accuracy")
    lines += [
        "The largest error of any element, in units of what rounding can explain (`convgrad verify`); 1 is the limit.",
        "Inputs are normally distributed.",
        "",
        f"| problem | operation | {' | '.join(FLOATING)} |",
        f"|---|---|{'---:|' * len(FLOATING)}",
    ]
    for name, (transposed, problem) in PROBLEMS.items():
        for direction in DIRECTIONS:
            cells, kind = [], ""
            for dtype in FLOATING:
                family = "--deconv" if transposed else "--conv"
                found = report("verify", family, "--dir", direction, "--dtype", dtype, problem)
                operation = found["problems"][0]["operations"][0]
                kind = operation["kind"]
                assert operation["check"]["passed"]
                cells.append(f"{operation['check']['error_in_bounds']:.2g}")
            lines.append(f"| {name} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def determinism() -> str:
    """Checksums on several numbers of threads."""
    threads = (1, 2, 3, 7)
    lines = head("Determinism", "python docs/make_performance.py determinism")
    lines += [
        "Checksums of results on several numbers of threads (`convgrad repro`), two calls of each, f32 on normally "
        "distributed inputs: one checksum means equal bits in all of them.",
        "",
        f"| problem | operation | checksum on {', '.join(map(str, threads))} threads |",
        "|---|---|---|",
    ]
    for name, (transposed, problem) in PROBLEMS.items():
        family = "--deconv" if transposed else "--conv"
        found = report(
            "repro", family, "--dir", ",".join(DIRECTIONS), "--threads", ",".join(map(str, threads)), problem
        )
        for result in found["results"]:
            sums = sorted(_checksums(result))
            lines.append(f"| {name} | {result['operation']} | {', '.join(f'`{one}`' for one in sums)} |")
    return "\n".join(lines) + "\n"


def _checksums(result: dict[str, Any]) -> set[str]:
    return {one for hashes in result["sha256"].values() for one in hashes}


def main() -> int:
    """Write the pages that are asked for, or all."""
    pages = ("speed", "accuracy", "determinism")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(pages)}; all if none is given")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds per engine and layer (default: %(default)s)")
    parser.add_argument("--to", type=Path, default=HERE, metavar="DIR", help="where to write (default: %(default)s)")
    args = parser.parse_args()
    asked = args.pages or pages
    if unknown := [page for page in asked if page not in pages]:
        parser.error(f"there is no page {unknown[0]!r}; the pages are {', '.join(pages)}")
    args.to.mkdir(parents=True, exist_ok=True)
    if "accuracy" in asked:
        (args.to / "accuracy.md").write_text(accuracy(), encoding="utf-8")
    if "determinism" in asked:
        (args.to / "determinism.md").write_text(determinism(), encoding="utf-8")
    for network in NETWORKS if "speed" in asked else ():
        (args.to / f"{network}.md").write_text(speed(network, args.to, args.budget), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`convgrad cache`: the compiled kernels on disk."""

from __future__ import annotations

import argparse

from convgrad.cli.display import Table, show
from convgrad.cli.roofs import size as in_words

EXAMPLES = """\
examples:
  convgrad cache size
  convgrad cache list
  convgrad cache list --json
  convgrad cache clear

CONVGRAD_CACHE_DIR says where the cache is, or `off`; convgrad doctor says why it is not used.
"""
ACTIONS = ("list", "size", "clear")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("action", choices=ACTIONS, help="list the kernels, tell their size, or delete them all")


def command(args: argparse.Namespace) -> int:
    """List, size or clear the kernels that are kept on disk."""
    from convgrad.runtime import cache

    state = cache.state()
    if state.folder is None:
        report = {"directory": None, "refusal": state.refusal, "kernels": 0, "bytes": 0}
        show(report, as_json=args.json, text=[f"no cache is in use: {state.refusal}"])
        return 0
    count, total = cache.size()
    report = {"directory": state.folder, "kernels": count, "bytes": total, "limit": cache.LIMIT_BYTES}
    where = f"{_kernels(count)}, {in_words(total)} of at most {in_words(cache.LIMIT_BYTES)}, in {state.folder}"
    text: list[str | Table] = [where]
    if args.action == "list":
        listed = report["entries"] = cache.entries()
        rows = [[str(one.get("what", "")), str(one.get("isa", "")), f"{one['bytes']}"] for one in listed]
        text = [Table(["kernel", "instruction set", "bytes"], rows, numbers=["bytes"], folded=["kernel"])] * bool(
            rows
        ) + text
    elif args.action == "clear":
        report["deleted"] = cache.clear()
        report["kernels"], report["bytes"] = cache.size()
        text = [f"deleted {_kernels(report['deleted'])}, {in_words(total)}, from {state.folder}"]
    show(report, as_json=args.json, text=text)
    return 0


def _kernels(count: int) -> str:
    return "1 kernel" if count == 1 else f"{count} kernels"

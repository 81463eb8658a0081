"""Mutants that only calls from several threads at once show."""

from __future__ import annotations

from defects import Mutant, wrap

import convgrad.codegen.stages as stages
import convgrad.runtime.memory as memory
import convgrad.runtime.pool_ir as pool_ir
from convgrad.arrays import call as calls


def _pool_that_does_not_wait() -> None:
    text = "%empty = icmp eq i64 %w, 0"
    assert text in pool_ir._IR
    pool_ir._IR = pool_ir._IR.replace(text, "%empty = icmp eq i64 0, 0")


def _pool_for_two_callers() -> None:
    text = "%ours = extractvalue { i32, i1 } %take, 1"
    assert text in pool_ir._IR
    pool_ir._IR = pool_ir._IR.replace(text, "%ours = icmp eq i32 0, 0")


def _claims_without_atomics(plain, self, type_, text):
    if text.startswith("atomicrmw add") and text.endswith("monotonic"):
        place = text.split("add ")[1].split(",")[0]
        old = plain(self, type_, f"load volatile i64, {place}")
        self.do(f"store volatile i64 {plain(self, type_, f'add {old}, 1').text}, {place}")
        return old
    return plain(self, type_, text)


def _block_for_two_calls(plain, size, words=False):
    block = plain(size, words)
    memory._free[words].append(block)
    return block


THREAD_DEFECTS = {
    "attributes left out": Mutant(
        "calls that differ in attributes share a record", lambda: setattr(calls, "dumps", lambda *_: b""), threads=True
    ),
    "shared scratch": Mutant(
        "all threads work in one slice of scratch",
        wrap(stages, "_emit_claims", lambda plain, m, name, tasks, _, **how: plain(m, name, tasks, 0, **how)),
        threads=True,
    ),
    "claims without atomics": Mutant(
        "two threads may claim one task", wrap(stages.Builder, "emit", _claims_without_atomics), threads=True
    ),
    "workspace used twice": Mutant(
        "a block that is in use is given to another call", wrap(memory, "acquire", _block_for_two_calls), threads=True
    ),
    "no wait": Mutant("a call returns while its helpers still work", _pool_that_does_not_wait, threads=True),
    "two callers in the pool": Mutant("a job begins while another runs", _pool_for_two_callers, threads=True),
}  # fmt: skip

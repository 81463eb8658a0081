"""The way into a kernel: one compiled function that runs all stages of a call, so that Python makes one foreign call.

It is added to the module of every kernel and compiled with it. Beyond the fields that stages see, its record says how
to go parallel; see `RECORD_FIELDS`.

A kernel with a fallback asks for the verdict on its data. If that is bad, it enters the fallback, with the same record,
by way of a cell that holds the address of that other kernel's own entry. While the cell is empty it can only say so:
by what it returns and, where that gets lost, by the counter of tasks of the record.
"""

from __future__ import annotations

import struct

from convgrad.codegen.module import CALL_FIELDS, VERDICT, KernelModule, Stage

ENTRY = "convgrad_run"  # `int convgrad_run(record)`
DONE, LACKING = 0, -1  # what it returns: all is computed; or the fallback is needed and the cell is empty
MOST_FALLBACKS = 2  # of a kernel: one that it falls back to, and one that that falls back to
CELL_OF = "convgrad_fallback"  # `void *convgrad_fallback(void)`: where the cell is, in kernels that have one
RECORD_FIELDS = (
    *CALL_FIELDS,
    "parallel",  # address of `void parallel(void (*task)(void *), void *data, unsigned threads, unsigned flags)`,
    # which runs task(data) on at most that many threads and returns when all are done: the signature of
    # GOMP_parallel. Fewer threads than asked for do no harm: tasks are claimed one by one.
    "limit",  # address of `int limit(void)`, which may allow fewer threads, such as omp_get_max_threads; 0 if none
    "threads",  # how many may take part, 1 or more
)
RECORD = struct.Struct(f"={len(RECORD_FIELDS)}q")
RECORD_BYTES = (RECORD.size + 63) // 64 * 64
pack_into = RECORD.pack_into


def is_lacking(record: memoryview) -> bool:
    """Whether the call that this record was for needs a fallback which was not there."""
    return RECORD.unpack_from(record)[RECORD_FIELDS.index("tasks")] == LACKING


def with_driver(module: KernelModule, triple: str) -> str:
    """The IR of a kernel with its driver."""
    stages = [stage for stage in module.stages if stage.tasks > 0]
    parallel = any(stage.tasks > 1 for stage in stages)
    lines = ["", *_clean_calls(sorted({stage.symbol for stage in stages}), triple)]
    lines += _CELL if module.fallback else []
    lines += [f"define i32 @{ENTRY}(ptr %call) nounwind {{", "start:", *_pointers()]
    lines += ["  %answer = alloca i64"] if module.fallback else []
    lines += _allowed_threads() if parallel else []
    verdict_at = module.fallback.after if module.fallback else None
    for number, stage in enumerate((*module.stages, None)):
        lines += _VERDICT if number == verdict_at else []
        lines += _run(number, stage) if stage and stage.tasks else []
    return module.ir + "\n".join([*lines, f"  ret i32 {DONE}", "}", ""])


_CELL = [
    "@fallback = hidden global ptr null, align 8",
    f"define ptr @{CELL_OF}() nounwind {{",
    "  ret ptr @fallback",
    "}",
]
_VERDICT = [
    f"  call void @{VERDICT}(ptr %call, ptr %answer)",
    "  %found = load i64, ptr %answer",
    "  %good = icmp eq i64 %found, 0",
    "  br i1 %good, label %go.on, label %fall.back",
    "fall.back:",
    "  %other = load atomic ptr, ptr @fallback acquire, align 8",
    "  %lacking = icmp eq ptr %other, null",
    "  br i1 %lacking, label %say.so, label %enter",
    "say.so:",
    f"  store i64 {LACKING}, ptr %tasks.at",
    f"  ret i32 {LACKING}",
    "enter:",
    "  %status = call i32 %other(ptr %call)",
    "  ret i32 %status",
    "go.on:",
]


_SET_X86 = """
  %mode = alloca i32
  %plain = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %mode)
  store i32 8064, ptr %plain
  call void @llvm.x86.sse.ldmxcsr(ptr %plain)
  CALL
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)"""
_SET_AARCH64 = """
  %mode = call i64 @llvm.aarch64.get.fpcr()
  call void @llvm.aarch64.set.fpcr(i64 0)
  CALL
  call void @llvm.aarch64.set.fpcr(i64 %mode)"""
_MODES = {"x86_64": _SET_X86, "aarch64": _SET_AARCH64, "arm64": _SET_AARCH64}  # elsewhere the mode stays as it is


def _clean_calls(symbols: list[str], triple: str) -> list[str]:
    """Stages under the floating-point mode of IEEE 754: round to nearest, denormals kept, no traps.

    Any library may have changed the mode of some threads (-ffast-math does when it is linked), and results must not
    depend on which thread took a task. `noinline` keeps arithmetic from moving out of the part where the mode holds.
    """
    body = _MODES.get(triple.split("-")[0], "\n  CALL")
    return [
        f"define internal void @clean.{symbol}(ptr %call) nounwind {{"
        + body.replace("CALL", f"call void @{symbol}(ptr %call) noinline")
        + "\n  ret void\n}"
        for symbol in symbols
    ]


def _field(name: str) -> int:
    return 8 * RECORD_FIELDS.index(name)


def _pointers() -> list[str]:
    return [f"  %{name}.at = getelementptr i8, ptr %call, i64 {_field(name)}" for name in RECORD_FIELDS[6:]]


def _allowed_threads() -> list[str]:
    return [
        "  %asked = load i64, ptr %threads.at",
        "  %limit = load ptr, ptr %limit.at",
        "  %parallel = load ptr, ptr %parallel.at",
        "  %unlimited = icmp eq ptr %limit, null",
        "  %alone = icmp ule i64 %asked, 1",
        "  %settled = or i1 %unlimited, %alone",
        "  br i1 %settled, label %ready, label %ask",
        "ask:",
        "  %most.32 = call i32 %limit()",
        "  %most = zext i32 %most.32 to i64",
        "  %less = call i64 @llvm.umin.i64(i64 %asked, i64 %most)",
        "  br label %ready",
        "ready:",
        "  %threads = phi i64 [ %asked, %start ], [ %less, %ask ]",
    ]


def _run(number: int, stage: Stage) -> list[str]:
    reset = [f"  store i64 0, ptr %{counter}.at" for counter in ("tasks", "slots", "others")]
    serial = f"  call void @clean.{stage.symbol}(ptr %call)"
    if stage.tasks == 1:
        return [*reset, serial]
    return [
        *reset,
        f"  %n.{number} = call i64 @llvm.umin.i64(i64 %threads, i64 {stage.tasks})",
        f"  %one.{number} = icmp ule i64 %n.{number}, 1",
        f"  br i1 %one.{number}, label %serial.{number}, label %share.{number}",
        f"serial.{number}:",
        serial,
        f"  br label %done.{number}",
        f"share.{number}:",
        f"  %team.{number} = trunc i64 %n.{number} to i32",
        f"  call void %parallel(ptr @clean.{stage.symbol}, ptr %call, i32 %team.{number}, i32 0)",
        f"  br label %done.{number}",
        f"done.{number}:",
    ]

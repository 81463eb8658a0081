"""Jobs that are over before a worker that sleeps could help, as LLVM IR.

To rouse workers costs a caller ten microseconds under a hypervisor, and they arrive after some more. So a caller that
finds them asleep notes how long a job takes, and does one that was short alone the next time. If more and more of these
follow each other, it rouses them after all.
"""

from __future__ import annotations

import time

SHORT = 40_000  # nanoseconds of a job, of all threads together, that nobody is roused for
SOON = 200_000  # nanoseconds from one job to the next that follows it
MANY = 4  # such jobs, after which workers are roused: a call has up to three
JOBS = 256  # functions whose time is kept, a power of two

_IR = """
; of a job: its function, and the time that it took, of all threads together
@jobs = internal global [$jobs x { i64, i64 }] zeroinitializer, align 64
@alone = internal global i64 0 ; when the last job ended that nobody was roused for
@in.turn = internal global i64 0 ; how many of these followed each other

declare i32 @clock_gettime(i32, ptr)

define internal i64 @now() nounwind {
  %t = alloca { i64, i64 }
  %failed = call i32 @clock_gettime(i32 $clock, ptr %t)
  %s = load i64, ptr %t
  %rest.at = getelementptr { i64, i64 }, ptr %t, i64 0, i32 1
  %rest = load i64, ptr %rest.at
  %ns = mul i64 %s, 1000000000
  %sum = add i64 %ns, %rest
  ret i64 %sum
}

define internal ptr @job_place(ptr %task) nounwind {
  %number = ptrtoint ptr %task to i64
  %high = lshr i64 %number, 4 ; functions begin at multiples of 16 bytes
  %n = and i64 %high, $last
  %place = getelementptr { i64, i64 }, ptr @jobs, i64 %n
  ret ptr %place
}

define internal i1 @is_short(ptr %task, i64 %now) nounwind {
  %place = call ptr @job_place(ptr %task)
  %number = ptrtoint ptr %task to i64
  %noted = load i64, ptr %place
  %known = icmp eq i64 %noted, %number
  %took.at = getelementptr { i64, i64 }, ptr %place, i64 0, i32 1
  %took = load i64, ptr %took.at
  %quick = icmp slt i64 %took, $short
  %before = load i64, ptr @alone
  %gap = sub i64 %now, %before
  %apart = icmp sgt i64 %gap, $soon
  %so.far = load i64, ptr @in.turn
  %in.turn = select i1 %apart, i64 0, i64 %so.far
  store i64 %in.turn, ptr @in.turn
  %few = icmp slt i64 %in.turn, $many
  %short = and i1 %known, %quick
  %answer = and i1 %short, %few
  ret i1 %answer
}

define internal void @note_job(ptr %task, i64 %took, i64 %end, i1 %alone) nounwind {
start:
  %place = call ptr @job_place(ptr %task)
  %number = ptrtoint ptr %task to i64
  store i64 %number, ptr %place
  %took.at = getelementptr { i64, i64 }, ptr %place, i64 0, i32 1
  store i64 %took, ptr %took.at
  br i1 %alone, label %note, label %done
note:
  store i64 %end, ptr @alone
  %so.far = load i64, ptr @in.turn
  %in.turn = add i64 %so.far, 1
  store i64 %in.turn, ptr @in.turn
  br label %done
done:
  ret void
}
"""


def short_ir() -> str:
    """The functions that the pool calls; of two jobs that share a place the one that came last is known."""
    sizes = {
        "$jobs": JOBS,
        "$last": JOBS - 1,
        "$short": SHORT,
        "$soon": SOON,
        "$many": MANY,
        "$clock": time.CLOCK_MONOTONIC,
    }
    text = _IR
    for name, size in sizes.items():
        text = text.replace(name, str(size))
    return text

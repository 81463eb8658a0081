"""The compiled part of the pool of threads, as LLVM IR.

How it works. `word` holds two numbers: below, how many more workers may join the current job; above, how many are
inside. A worker joins by one compare-and-swap (one fewer may join, one more is inside), so it can never enter a job
that has been closed; the caller closes by clearing the lower half and returns when the upper one is zero. `generation`
only tells workers that there is something to look at. A worker spins on it for a while and then sleeps on a condition;
`pool_apart_ir` sees to it that it wakes up on a processor of its own, `pool_short_ir` decides whether it is woken.
"""

from __future__ import annotations

from convgrad.runtime.pool_apart_ir import apart_ir
from convgrad.runtime.pool_short_ir import short_ir

SYMBOLS = (
    "convgrad_pool_reset",
    "convgrad_pool_worker",
    "convgrad_pool_parallel",
    "convgrad_pool_pause",
    "convgrad_pool_spin",
)

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),  # yield
}

# Offsets into the state; what different threads write is kept on cache lines of its own.
_IR = """
@state = internal global [640 x i8] zeroinitializer, align 128
@word = internal alias i64, ptr @state
@generation = internal alias i64, getelementptr (i8, ptr @state, i64 64)
@task = internal alias ptr, getelementptr (i8, ptr @state, i64 128)
@data = internal alias ptr, getelementptr (i8, ptr @state, i64 136)
@busy = internal alias i32, getelementptr (i8, ptr @state, i64 192)
@sleepers = internal alias i32, getelementptr (i8, ptr @state, i64 256)
@spins = internal alias i64, getelementptr (i8, ptr @state, i64 320)
@mutex = internal alias [128 x i8], getelementptr (i8, ptr @state, i64 384)
@wake = internal alias [128 x i8], getelementptr (i8, ptr @state, i64 512)

declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
$declare_pause

define void @convgrad_pool_spin(i64 %spins) nounwind {
  store i64 %spins, ptr @spins
  ret void
}

define void @convgrad_pool_reset(i64 %unused) nounwind {
  store i64 0, ptr @word
  store i64 0, ptr @generation
  store i32 0, ptr @busy
  store i32 0, ptr @sleepers
  call void @forget_members()
  %m = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %w = call i32 @pthread_cond_init(ptr @wake, ptr null)
  ret void
}

define void @convgrad_pool_pause(i64 %times) nounwind {
start:
  br label %pause
pause:
  %left = phi i64 [ %times, %start ], [ %left.1, %pause ]
  $pause
  %g = load atomic i64, ptr @generation acquire, align 8
  %left.1 = sub i64 %left, 1
  %more = icmp sgt i64 %left.1, 0
  br i1 %more, label %pause, label %done
done:
  ret void
}

define ptr @convgrad_pool_worker(ptr %unused) nounwind {
start:
  %member = call ptr @join_members()
  br label %idle
idle:
  %seen = phi i64 [ 0, %start ], [ %now, %join ], [ %now, %finish ]
  %patience = load i64, ptr @spins
  br label %look
look:
  %left = phi i64 [ %patience, %idle ], [ %left.1, %pause ]
  %g = load atomic i64, ptr @generation acquire, align 8
  %news = icmp ne i64 %g, %seen
  br i1 %news, label %found, label %count
count:
  %left.1 = sub i64 %left, 1
  %tired = icmp slt i64 %left, 1
  br i1 %tired, label %sleep, label %pause
pause:
  $pause
  br label %look
sleep:
  %l = call i32 @pthread_mutex_lock(ptr @mutex)
  %in = atomicrmw add ptr @sleepers, i32 1 seq_cst
  call void @note_sleep(ptr %member, i64 1)
  br label %check
check:
  %h = load atomic i64, ptr @generation seq_cst, align 8
  %woken = icmp ne i64 %h, %seen
  br i1 %woken, label %awake, label %wait
wait:
  %c = call i32 @pthread_cond_wait(ptr @wake, ptr @mutex)
  br label %check
awake:
  %out = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  call void @note_sleep(ptr %member, i64 0)
  %u = call i32 @pthread_mutex_unlock(ptr @mutex)
  call void @go_anywhere(ptr %member)
  br label %found
found:
  %now = phi i64 [ %g, %look ], [ %h, %awake ]
  %first = load atomic i64, ptr @word monotonic, align 8
  br label %join
join:
  %old = phi i64 [ %first, %found ], [ %current, %try ]
  %places = and i64 %old, 4294967295
  %full = icmp eq i64 %places, 0
  br i1 %full, label %idle, label %try
try:
  %new = add i64 %old, 4294967295
  %swap = cmpxchg ptr @word, i64 %old, i64 %new acquire monotonic
  %current = extractvalue { i64, i1 } %swap, 0
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %join
run:
  %task = load ptr, ptr @task
  %data = load ptr, ptr @data
  call void %task(ptr %data)
  br label %finish
finish:
  %gone = atomicrmw sub ptr @word, i64 4294967296 release
  br label %idle
}

define void @convgrad_pool_parallel(ptr %task, ptr %data, i32 %threads, i32 %flags) nounwind {
start:
  %take = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %ours = extractvalue { i32, i1 } %take, 1
  br i1 %ours, label %open, label %alone
alone:
  call void %task(ptr %data)
  ret void
open:
  store ptr %task, ptr @task
  store ptr %data, ptr @data
  %others.32 = sub i32 %threads, 1
  %others = zext i32 %others.32 to i64
  store atomic i64 %others, ptr @word release, align 8
  %g = atomicrmw add ptr @generation, i64 1 seq_cst
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %quiet = icmp eq i32 %asleep, 0
  br i1 %quiet, label %work, label %decide
decide:
  %opened = call i64 @now()
  %short = call i1 @is_short(ptr %task, i64 %opened)
  br i1 %short, label %timed, label %rouse
rouse:
  %l = call i32 @pthread_mutex_lock(ptr @mutex)
  %patient = load i64, ptr @spins
  %cores = icmp ne i64 %patient, 0 ; enough of them for all threads
  br i1 %cores, label %apart, label %broadcast
apart:
  call void @keep_members_apart()
  br label %broadcast
broadcast:
  %b = call i32 @pthread_cond_broadcast(ptr @wake)
  %u = call i32 @pthread_mutex_unlock(ptr @mutex)
  %roused = call i64 @now()
  br label %timed
timed:
  %begun = phi i64 [ %opened, %decide ], [ %roused, %broadcast ]
  call void %task(ptr %data)
  %ended = call i64 @now()
  %closed = atomicrmw and ptr @word, i64 -4294967296 acquire
  %unused = and i64 %closed, 4294967295
  %joined = sub i64 %others, %unused
  %all = add i64 %joined, 1
  %own = sub i64 %ended, %begun
  %took = mul i64 %own, %all
  call void @note_job(ptr %task, i64 %took, i64 %ended, i1 %short)
  br label %close
work:
  call void %task(ptr %data)
  %closed.too = atomicrmw and ptr @word, i64 -4294967296 acquire
  br label %close
close:
  %patience = load i64, ptr @spins
  br label %look
look:
  %left = phi i64 [ %patience, %close ], [ %left.1, %pause ], [ 0, %yield ]
  %w = load atomic i64, ptr @word acquire, align 8
  %empty = icmp eq i64 %w, 0
  br i1 %empty, label %done, label %count
count:
  %left.1 = sub i64 %left, 1
  %tired = icmp slt i64 %left, 1
  br i1 %tired, label %yield, label %pause
pause:
  $pause
  br label %look
yield:
  %y = call i32 @sched_yield()
  br label %look
done:
  store atomic i32 0, ptr @busy release, align 4
  ret void
}
"""


def pool_ir(triple: str) -> str:
    """The pool for a target."""
    declare, pause = _PAUSE.get(triple.split("-")[0].replace("arm64", "aarch64"), ("", ""))
    return _IR.replace("$declare_pause", declare).replace("$pause", pause) + apart_ir(triple) + short_ir()

"""Where a worker that sleeps wakes up: not on the processor of the caller that rouses it, as LLVM IR.

A system that wakes a thread may put it on the processor of whoever wakes it, which here goes on computing. Where the
scheduler does not look for one that is idle, as under some hypervisors, the worker then waits until loads are balanced,
for milliseconds, after every pause. So a caller takes its own processor out of the affinity of workers that it rouses,
unless nothing were left of it, and a worker that is awake puts it back at once.
"""

from __future__ import annotations

MEMBERS = 8  # workers that are looked after: two system calls each, and machines of more find idle processors

_EVERYWHERE = """
; of a worker: its thread, whether it sleeps, the processor, and one, that it is kept from, and its affinity before
%member = type { i64, i64, i64, [128 x i8] }
@members = internal global [$room x %member] zeroinitializer, align 64
@joined = internal global i64 0

define internal ptr @join_members() nounwind {
  %n = atomicrmw add ptr @joined, i64 1 monotonic
  %own = call i64 @llvm.umin.i64(i64 %n, i64 $members) ; the last place is that of all others
  %place = getelementptr %member, ptr @members, i64 %own
  %thread = call i64 @pthread_self()
  store i64 %thread, ptr %place
  ret ptr %place
}

define internal void @forget_members() nounwind {
  store i64 0, ptr @joined
  %end = getelementptr %member, ptr null, i64 $room
  %bytes = ptrtoint ptr %end to i64
  call void @llvm.memset.p0.i64(ptr @members, i8 0, i64 %bytes, i1 false)
  ret void
}

define internal void @note_sleep(ptr %place, i64 %asleep) nounwind {
  %at = getelementptr %member, ptr %place, i64 0, i32 1
  store i64 %asleep, ptr %at
  ret void
}

declare i64 @pthread_self()
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
"""

_LINUX = """
declare i32 @sched_getcpu()
declare i32 @pthread_getaffinity_np(i64, i64, ptr)
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.vector.reduce.or.v16i64(<16 x i64>)

define internal void @keep_members_apart() nounwind {
start:
  %number = call i32 @sched_getcpu()
  %known = icmp ult i32 %number, 1024
  %cpu = zext i32 %number to i64
  %joined = load atomic i64, ptr @joined monotonic, align 8
  %some = call i64 @llvm.umin.i64(i64 %joined, i64 $members)
  br i1 %known, label %look, label %done
look:
  %n = phi i64 [ 0, %start ], [ %n.1, %next ]
  %left = icmp ult i64 %n, %some
  br i1 %left, label %ask, label %done
ask:
  %place = getelementptr %member, ptr @members, i64 %n
  %at = getelementptr %member, ptr %place, i64 0, i32 1
  %asleep = load i64, ptr %at
  %sleeps = icmp ne i64 %asleep, 0
  br i1 %sleeps, label %keep, label %next
keep:
  call void @keep_apart(ptr %place, i64 %cpu)
  br label %next
next:
  %n.1 = add i64 %n, 1
  br label %look
done:
  ret void
}

define internal void @keep_apart(ptr %place, i64 %cpu) nounwind noinline {
start:
  %mask = alloca [16 x i64], align 16
  %thread = load i64, ptr %place
  %at = getelementptr %member, ptr %place, i64 0, i32 2
  %before = getelementptr %member, ptr %place, i64 0, i32 3
  %kept = load i64, ptr %at
  %again = icmp ne i64 %kept, 0 ; roused before, and not awake yet
  br i1 %again, label %narrow, label %ask
ask:
  %failed = call i32 @pthread_getaffinity_np(i64 %thread, i64 128, ptr %before)
  %known = icmp eq i32 %failed, 0
  br i1 %known, label %narrow, label %done
narrow:
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr %before, i64 128, i1 false)
  %word = lshr i64 %cpu, 6
  %word.at = getelementptr i64, ptr %mask, i64 %word
  %bits = load i64, ptr %word.at
  %place.of = and i64 %cpu, 63
  %here = shl i64 1, %place.of
  %beside = xor i64 %here, -1
  %fewer.bits = and i64 %bits, %beside
  store i64 %fewer.bits, ptr %word.at
  %rest = load <16 x i64>, ptr %mask, align 8
  %rest.any = call i64 @llvm.vector.reduce.or.v16i64(<16 x i64> %rest)
  %and.one = add i64 %cpu, 1
  %some = icmp ne i64 %rest.any, 0
  %fewer = icmp ne i64 %fewer.bits, %bits
  %other = icmp ne i64 %kept, %and.one
  %good = and i1 %some, %fewer
  %change = and i1 %good, %other
  br i1 %change, label %set, label %done
set:
  %failed.too = call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %mask)
  store i64 %and.one, ptr %at
  br label %done
done:
  ret void
}

define internal void @go_anywhere(ptr %place) nounwind {
start:
  %at = getelementptr %member, ptr %place, i64 0, i32 2
  %kept = load i64, ptr %at
  %apart = icmp ne i64 %kept, 0
  br i1 %apart, label %widen, label %done
widen:
  store i64 0, ptr %at
  %thread = load i64, ptr %place
  %before = getelementptr %member, ptr %place, i64 0, i32 3
  %set = call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %before)
  br label %done
done:
  ret void
}
"""

_ELSEWHERE = """
define internal void @keep_members_apart() nounwind {
  ret void
}

define internal void @go_anywhere(ptr %place) nounwind {
  ret void
}
"""


def apart_ir(triple: str) -> str:
    """The functions that the pool calls, for a target; they do nothing where threads have no such affinity."""
    affine = "linux" in triple and "android" not in triple
    text = _EVERYWHERE + (_LINUX if affine else _ELSEWHERE)
    return text.replace("$members", str(MEMBERS)).replace("$room", str(MEMBERS + 1))

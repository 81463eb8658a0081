"""The compiled part of the inline cache of calls, as LLVM IR: a function of the interpreter's own calling convention.

`convgrad_call` is a METH_FASTCALL function: self, the addresses of the arguments, their number. Self is a NumPy array
of the words TABLE. Its list of entries is walked for one whose patterns all match the arguments; that entry's kernel is
run, without the interpreter lock. From the match on its owner is kept: any step of the interpreter, such as making a
result, may let another thread drop the entry. Whatever is not as an entry has it goes to the Python
function `slow`, with the same arguments, so nothing is decided here but that a call is like one that was checked.
COMMON are words of all operations: functions of the interpreter, types, the team of threads, and a workspace for either
kind of kernels, of which an entry names one.
"""

from __future__ import annotations

from convgrad.arrays.patterns import SAME_IR, WRITEABLE, offsets
from convgrad.runtime import driver

FUNCTION = "convgrad_call"
MOST_ARGUMENTS = 9

TABLE = ("entries", "slow", "common")
COMMON = (
    "save", "restore", "call", "keep", "drop", "as_int", "array_type", "int_type", "list_type", "tuple_type", "none",
    "team", "workspace", "workspace_of_words",
)  # fmt: skip
ENTRY = (
    "next", "least", *(f"pattern_{n}" for n in range(MOST_ARGUMENTS)), "kernel", "most_tasks", "workspace", "shared",
    "scratch", "new", "fall_back", "owner", "out_mask", "out_field", "first_field", "second_field",
    *(f"{given}_{word}" for given in ("first", "second", "bias") for word in ("mask", "low", "high")),
)  # fmt: skip


def inline_cache_ir() -> str:
    """For the interpreter of this process."""
    record = {f"{name}_at": 8 * i for i, name in enumerate(driver.RECORD_FIELDS)}
    words = {
        f"{kind}_{name}": 8 * i
        for kind, names in (("table", TABLE), ("common", COMMON), ("entry", ENTRY))
        for i, name in enumerate(names)
    }
    sizes = {"record_bytes": driver.RECORD_BYTES, "writeable": WRITEABLE}
    text = SAME_IR + _IR
    for word, value in {**record, **words, **sizes, **offsets()}.items():
        text = text.replace(f"${word}$", str(value))
    return text


_IR = """
define internal i1 @fits(i64 %address, ptr %bounds, i64 %out) nounwind {
  %mask = load i64, ptr %bounds
  %low.at = getelementptr i8, ptr %bounds, i64 8
  %low = load i64, ptr %low.at
  %high.at = getelementptr i8, ptr %bounds, i64 16
  %high = load i64, ptr %high.at
  %odd = and i64 %address, %mask
  %even = icmp eq i64 %odd, 0
  %from.out = sub i64 %address, %out
  %before = icmp sle i64 %from.out, %low
  %after = icmp sge i64 %from.out, %high
  %apart = or i1 %before, %after
  %good = and i1 %even, %apart
  ret i1 %good
}

define ptr @convgrad_call(ptr %self, ptr %args, i64 %count) nounwind {
start:
  %record = alloca [$record_bytes$ x i8], align 64
  %arrays = alloca [4 x ptr], align 16
  %words.at = getelementptr i8, ptr %self, i64 $array_data$
  %words = load ptr, ptr %words.at
  %common.at = getelementptr i8, ptr %words, i64 $table_common$
  %common = load ptr, ptr %common.at
  %entries.at = getelementptr i8, ptr %words, i64 $table_entries$
  %entries = load ptr, ptr %entries.at
  %call.at = getelementptr i8, ptr %common, i64 $common_call$
  %call = load ptr, ptr %call.at
  %drop.at = getelementptr i8, ptr %common, i64 $common_drop$
  %drop = load ptr, ptr %drop.at
  br label %look

look:
  %entry = phi ptr [ %entries, %start ], [ %next, %another ]
  %end = icmp eq ptr %entry, null
  br i1 %end, label %slowly, label %counted
counted:
  %least.at = getelementptr i8, ptr %entry, i64 $entry_least$
  %least = load i64, ptr %least.at
  %beyond = sub i64 %count, %least
  %enough = icmp ule i64 %beyond, 1
  br i1 %enough, label %argument, label %another
another:
  %next = load ptr, ptr %entry
  br label %look
argument:
  %n = phi i64 [ 0, %counted ], [ %n.next, %matched ]
  %open = icmp ult i64 %n, %count
  br i1 %open, label %compare, label %found
compare:
  %argument.at = getelementptr ptr, ptr %args, i64 %n
  %given = load ptr, ptr %argument.at
  %patterns = getelementptr i8, ptr %entry, i64 $entry_pattern_0$
  %pattern.at = getelementptr ptr, ptr %patterns, i64 %n
  %pattern = load ptr, ptr %pattern.at
  %matches = call i1 @same(ptr %given, ptr %pattern, ptr %common)
  br i1 %matches, label %matched, label %another
matched:
  %n.next = add i64 %n, 1
  br label %argument

slowly:
  %slow.at = getelementptr i8, ptr %words, i64 $table_slow$
  %slow = load ptr, ptr %slow.at
  %answer = call ptr %call(ptr %slow, ptr %args, i64 %count, ptr null)
  ret ptr %answer

found:
  %owner.at = getelementptr i8, ptr %entry, i64 $entry_owner$
  %owner = load ptr, ptr %owner.at
  %keep.at = getelementptr i8, ptr %common, i64 $common_keep$
  %keep = load ptr, ptr %keep.at
  call void %keep(ptr %owner)
  call void @llvm.memset.p0.i64(ptr align 64 %record, i8 0, i64 $record_bytes$, i1 false)
  %first.object = load ptr, ptr %args
  %second.object.at = getelementptr i8, ptr %args, i64 8
  %second.object = load ptr, ptr %second.object.at
  %bias.object.at = getelementptr i8, ptr %args, i64 16
  %bias.object = load ptr, ptr %bias.object.at
  %out.object.at = getelementptr i8, ptr %args, i64 40
  %out.object = load ptr, ptr %out.object.at
  %none.at = getelementptr i8, ptr %common, i64 $common_none$
  %none = load ptr, ptr %none.at
  %no.out = icmp eq ptr %out.object, %none
  br i1 %no.out, label %make, label %writeable
make:
  %new.at = getelementptr i8, ptr %entry, i64 $entry_new$
  %new = load ptr, ptr %new.at
  %made = call ptr %call(ptr %new, ptr null, i64 0, ptr null)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %give.up, label %addresses
give.up:
  call void %drop(ptr %owner)
  ret ptr null
writeable:
  %flags.at = getelementptr i8, ptr %out.object, i64 $array_flags$
  %flags = load i32, ptr %flags.at
  %flag = and i32 %flags, $writeable$
  %locked = icmp eq i32 %flag, 0
  br i1 %locked, label %let.go, label %keep.out
keep.out:
  call void %keep(ptr %out.object)
  br label %addresses

addresses:
  %result = phi ptr [ %made, %make ], [ %out.object, %keep.out ]
  %out.data.at = getelementptr i8, ptr %result, i64 $array_data$
  %out = load i64, ptr %out.data.at
  %out.mask.at = getelementptr i8, ptr %entry, i64 $entry_out_mask$
  %out.mask = load i64, ptr %out.mask.at
  %out.odd = and i64 %out, %out.mask
  %out.even = icmp eq i64 %out.odd, 0
  %first.data.at = getelementptr i8, ptr %first.object, i64 $array_data$
  %first = load i64, ptr %first.data.at
  %first.bounds = getelementptr i8, ptr %entry, i64 $entry_first_mask$
  %first.good = call i1 @fits(i64 %first, ptr %first.bounds, i64 %out)
  %second.data.at = getelementptr i8, ptr %second.object, i64 $array_data$
  %second = load i64, ptr %second.data.at
  %second.bounds = getelementptr i8, ptr %entry, i64 $entry_second_mask$
  %second.good = call i1 @fits(i64 %second, ptr %second.bounds, i64 %out)
  %inputs.good = and i1 %first.good, %second.good
  %all.good = and i1 %inputs.good, %out.even
  br i1 %all.good, label %look.at.bias, label %not.so
look.at.bias:
  %no.bias = icmp eq ptr %bias.object, %none
  br i1 %no.bias, label %good, label %with.bias
with.bias:
  %bias.data.at = getelementptr i8, ptr %bias.object, i64 $array_data$
  %bias.given = load i64, ptr %bias.data.at
  %bias.bounds = getelementptr i8, ptr %entry, i64 $entry_bias_mask$
  %bias.good = call i1 @fits(i64 %bias.given, ptr %bias.bounds, i64 %out)
  br i1 %bias.good, label %good, label %not.so
not.so:
  call void %drop(ptr %result)
  br label %let.go
let.go:
  call void %drop(ptr %owner)
  br label %slowly

good:
  %bias = phi i64 [ 0, %look.at.bias ], [ %bias.given, %with.bias ]
  %first.field.at = getelementptr i8, ptr %entry, i64 $entry_first_field$
  %first.field = load i64, ptr %first.field.at
  %first.place = getelementptr i8, ptr %record, i64 %first.field
  store i64 %first, ptr %first.place
  %second.field.at = getelementptr i8, ptr %entry, i64 $entry_second_field$
  %second.field = load i64, ptr %second.field.at
  %second.place = getelementptr i8, ptr %record, i64 %second.field
  store i64 %second, ptr %second.place
  %out.field.at = getelementptr i8, ptr %entry, i64 $entry_out_field$
  %out.field = load i64, ptr %out.field.at
  %out.place = getelementptr i8, ptr %record, i64 %out.field
  store i64 %out, ptr %out.place
  %bias.place = getelementptr i8, ptr %record, i64 $bias_at$
  store i64 %bias, ptr %bias.place

  %most.at = getelementptr i8, ptr %entry, i64 $entry_most_tasks$
  %most = load i64, ptr %most.at
  %team.at = getelementptr i8, ptr %common, i64 $common_team$
  %team = load ptr, ptr %team.at
  %team.count = load i64, ptr %team
  %team.parallel.at = getelementptr i8, ptr %team, i64 8
  %team.parallel = load i64, ptr %team.parallel.at
  %team.limit.at = getelementptr i8, ptr %team, i64 16
  %team.limit = load i64, ptr %team.limit.at
  %threads = call i64 @llvm.umin.i64(i64 %team.count, i64 %most)
  %single = icmp ule i64 %most, 1
  %taking.part = select i1 %single, i64 1, i64 %threads
  %nobody = icmp eq i64 %taking.part, 0
  br i1 %nobody, label %not.so, label %room
room:
  %parallel.place = getelementptr i8, ptr %record, i64 $parallel_at$
  store i64 %team.parallel, ptr %parallel.place
  %limit.place = getelementptr i8, ptr %record, i64 $limit_at$
  store i64 %team.limit, ptr %limit.place
  %threads.place = getelementptr i8, ptr %record, i64 $threads_at$
  store i64 %taking.part, ptr %threads.place
  %workspace.named = getelementptr i8, ptr %entry, i64 $entry_workspace$
  %workspace.place = load i64, ptr %workspace.named
  %workspace.at = getelementptr i8, ptr %common, i64 %workspace.place
  %workspace = load i64, ptr %workspace.at
  %taken = icmp eq i64 %workspace, 0
  br i1 %taken, label %not.so, label %run
run:
  store i64 0, ptr %workspace.at
  %shared.at = getelementptr i8, ptr %entry, i64 $entry_shared$
  %shared = load i64, ptr %shared.at
  %scratch = add i64 %workspace, %shared
  %shared.place = getelementptr i8, ptr %record, i64 $shared_at$
  store i64 %workspace, ptr %shared.place
  %scratch.place = getelementptr i8, ptr %record, i64 $scratch_at$
  store i64 %scratch, ptr %scratch.place
  %save.at = getelementptr i8, ptr %common, i64 $common_save$
  %save = load ptr, ptr %save.at
  %restore.at = getelementptr i8, ptr %common, i64 $common_restore$
  %restore = load ptr, ptr %restore.at
  %kernel.at = getelementptr i8, ptr %entry, i64 $entry_kernel$
  %kernel = load ptr, ptr %kernel.at
  %fall.back.at = getelementptr i8, ptr %entry, i64 $entry_fall_back$
  %fall.back = load ptr, ptr %fall.back.at
  %thread = call ptr %save()
  %status = call i32 %kernel(ptr %record)
  call void %restore(ptr %thread)
  store i64 %workspace, ptr %workspace.at
  %computed = icmp eq i32 %status, 0
  br i1 %computed, label %return, label %otherwise
return:
  call void %drop(ptr %owner)
  ret ptr %result

otherwise:
  store ptr %first.object, ptr %arrays
  %second.slot = getelementptr i8, ptr %arrays, i64 8
  store ptr %second.object, ptr %second.slot
  %bias.slot = getelementptr i8, ptr %arrays, i64 16
  store ptr %bias.object, ptr %bias.slot
  %out.slot = getelementptr i8, ptr %arrays, i64 24
  store ptr %result, ptr %out.slot
  %done = call ptr %call(ptr %fall.back, ptr %arrays, i64 4, ptr null)
  call void %drop(ptr %owner)
  %raised = icmp eq ptr %done, null
  br i1 %raised, label %pass.on, label %fallen.back
pass.on:
  call void %drop(ptr %result)
  ret ptr null
fallen.back:
  call void %drop(ptr %done)
  ret ptr %result
}

declare i64 @llvm.umin.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

"""The handler of XLA's calls, as LLVM IR.

The structures are those of `xla/ffi/api/c_api.h`, which jaxlib ships; the part used here is the same from version 0.1
to 0.3 of that interface. XLA_FFI_CallFrame has its extensions at byte 8, the interface at 16, the stage at 32, the
arguments at 40 and the results at 80, where number, kinds and buffers follow at 16, 24 and 32. XLA_FFI_Buffer has its
type at 16, address at 24, rank at 32, extents at 40. The interface has its version at 32 and 36 and
XLA_FFI_Error_Create at 48.

Workspace: each word of `blocks` is null or the address of a block that nobody uses. A call takes one by exchanging the
word for null, and puts it back into a word that is null, so no lock is needed. A block begins with its size; its
pages and those behind it are written to once, as of `runtime.memory.Workspace`.

A kernel that needs a fallback which is not there returns another number than zero. Then `prepare` is called, the only
way into Python, and the kernel again; and once more, if the fallback turns out to need one.
"""

from __future__ import annotations

import mmap

from convgrad.runtime import driver
from convgrad.runtime.memory import ALIGNMENT, BEHIND, KEEP_BLOCKS, KEEP_BYTES

HANDLER, WORDS_OF = "convgrad_xla_call", "convgrad_xla_words"
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, INTERNAL = 3, 8, 13  # XLA_FFI_Error_Code
MINOR = 3  # of the newest version of the interface that was looked at; the runtime's own is reported if it is older

# Variables of a loaded handler: these words, then for each buffer, inputs before results, those of BUFFER_WORDS.
TARGET_WORDS = (
    "kernel", "team", "blocks", "most_tasks", "shared", "scratch", "inputs", "results", "wrong_count", "no_memory",
    "prepare", "no_fallback",
)  # fmt: skip
BUFFER_WORDS = ("dtype", "rank", "extents", "misaligned", "field", "wrong_buffer", "wrong_address")
MOST_BUFFERS = 4  # two inputs, a bias or its gradient, the result


def handler_ir() -> str:
    """The handler for this process's memory rules; addresses come later."""
    record = {f"{name}_at": str(8 * i) for i, name in enumerate(driver.RECORD_FIELDS)}
    target = {f"{name}_word": str(8 * i) for i, name in enumerate(TARGET_WORDS)}
    buffer = {f"{name}_of": str(8 * i) for i, name in enumerate(BUFFER_WORDS)}
    sizes = {
        "words": len(TARGET_WORDS) + MOST_BUFFERS * len(BUFFER_WORDS),
        "target_bytes": 8 * len(TARGET_WORDS),
        "buffer_bytes": 8 * len(BUFFER_WORDS),
        "record_bytes": driver.RECORD_BYTES,
        "slots": KEEP_BLOCKS,
        "keep": KEEP_BYTES,
        "most_fallbacks": driver.MOST_FALLBACKS,
        "page": mmap.PAGESIZE,
        "room": ALIGNMENT + 16 + BEHIND,  # before the aligned part of a block: its size
        "align_up": ALIGNMENT + 15,
        "align_mask": -ALIGNMENT,
        "minor": MINOR,
        "invalid": INVALID_ARGUMENT,
        "exhausted": RESOURCE_EXHAUSTED,
        "internal": INTERNAL,
    }
    text = _IR
    for word, value in {**record, **target, **buffer, **sizes}.items():
        text = text.replace(f"${word}$", str(value))
    return text


_IR = """
@words = hidden global [$words$ x i64] zeroinitializer, align 64

declare ptr @calloc(i64, i64)
declare void @free(ptr)
declare i64 @llvm.umin.i64(i64, i64)
declare i32 @llvm.umin.i32(i32, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define ptr @convgrad_xla_words() nounwind {
  ret ptr @words
}

define ptr @convgrad_xla_call(ptr %frame) nounwind {
start:
  %record = alloca [$record_bytes$ x i8], align 64
  %error = alloca [32 x i8], align 8
  %api.at = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %api.at
  %extension.at = getelementptr i8, ptr %frame, i64 8
  %extension = load ptr, ptr %extension.at
  %plain = icmp eq ptr %extension, null
  br i1 %plain, label %stage, label %extended
extended:
  %kind.at = getelementptr i8, ptr %extension, i64 8
  %kind = load i32, ptr %kind.at
  %asks = icmp eq i32 %kind, 1
  br i1 %asks, label %metadata, label %stage

metadata:
  %metadata.at = getelementptr i8, ptr %extension, i64 24
  %answer = load ptr, ptr %metadata.at
  %minor.at = getelementptr i8, ptr %api, i64 36
  %theirs = load i32, ptr %minor.at
  %minor = call i32 @llvm.umin.i32(i32 %theirs, i32 $minor$)
  %answer.major = getelementptr i8, ptr %answer, i64 24
  %answer.minor = getelementptr i8, ptr %answer, i64 28
  %answer.traits = getelementptr i8, ptr %answer, i64 32
  store i32 0, ptr %answer.major
  store i32 %minor, ptr %answer.minor
  store i32 0, ptr %answer.traits
  ret ptr null

stage:
  %stage.at = getelementptr i8, ptr %frame, i64 32
  %now = load i32, ptr %stage.at
  %execute = icmp eq i32 %now, 3
  br i1 %execute, label %count, label %nothing
nothing:
  ret ptr null

count:
  %inputs.at = getelementptr i8, ptr @words, i64 $inputs_word$
  %inputs = load i64, ptr %inputs.at
  %given.at = getelementptr i8, ptr %frame, i64 56
  %given = load i64, ptr %given.at
  %made.at = getelementptr i8, ptr %frame, i64 96
  %made = load i64, ptr %made.at
  %as.many = icmp eq i64 %given, %inputs
  %results.at = getelementptr i8, ptr @words, i64 $results_word$
  %results = load i64, ptr %results.at
  %made.as.many = icmp eq i64 %made, %results
  %counted = and i1 %as.many, %made.as.many
  %all = add i64 %inputs, %results
  %wrong.count.at = getelementptr i8, ptr @words, i64 $wrong_count_word$
  call void @llvm.memset.p0.i64(ptr align 64 %record, i8 0, i64 $record_bytes$, i1 false)
  br i1 %counted, label %buffer, label %fail.invalid

buffer:
  %i = phi i64 [ 0, %count ], [ %i.next, %aligned ]
  %is.result = icmp uge i64 %i, %inputs
  %among.results = sub i64 %i, %inputs
  %list = select i1 %is.result, i64 80, i64 40
  %place = select i1 %is.result, i64 %among.results, i64 %i
  %list.at = getelementptr i8, ptr %frame, i64 %list
  %kinds.at = getelementptr i8, ptr %list.at, i64 24
  %kinds = load ptr, ptr %kinds.at
  %buffers.at = getelementptr i8, ptr %list.at, i64 32
  %buffers = load ptr, ptr %buffers.at
  %kind.of.at = getelementptr i32, ptr %kinds, i64 %place
  %kind.of = load i32, ptr %kind.of.at
  %is.buffer = icmp eq i32 %kind.of, 1
  %offset = mul i64 %i, $buffer_bytes$
  %specs = getelementptr i8, ptr @words, i64 $target_bytes$
  %spec = getelementptr i8, ptr %specs, i64 %offset
  %wrong.buffer.at = getelementptr i8, ptr %spec, i64 $wrong_buffer_of$
  br i1 %is.buffer, label %typed, label %fail.invalid

typed:
  %buffer.at = getelementptr ptr, ptr %buffers, i64 %place
  %b = load ptr, ptr %buffer.at
  %dtype.at = getelementptr i8, ptr %b, i64 16
  %dtype.32 = load i32, ptr %dtype.at
  %dtype = zext i32 %dtype.32 to i64
  %rank.at = getelementptr i8, ptr %b, i64 32
  %rank = load i64, ptr %rank.at
  %asked.dtype.at = getelementptr i8, ptr %spec, i64 $dtype_of$
  %asked.dtype = load i64, ptr %asked.dtype.at
  %asked.rank.at = getelementptr i8, ptr %spec, i64 $rank_of$
  %asked.rank = load i64, ptr %asked.rank.at
  %same.dtype = icmp eq i64 %dtype, %asked.dtype
  %same.rank = icmp eq i64 %rank, %asked.rank
  %same = and i1 %same.dtype, %same.rank
  %extents.at = getelementptr i8, ptr %b, i64 40
  %extents = load ptr, ptr %extents.at
  %asked.extents.at = getelementptr i8, ptr %spec, i64 $extents_of$
  %asked.extents = load ptr, ptr %asked.extents.at
  br i1 %same, label %axis, label %fail.invalid

axis:
  %a = phi i64 [ 0, %typed ], [ %a.next, %extent ]
  %more = icmp ult i64 %a, %rank
  br i1 %more, label %extent, label %shaped
extent:
  %extent.at = getelementptr i64, ptr %extents, i64 %a
  %has = load i64, ptr %extent.at
  %asked.extent.at = getelementptr i64, ptr %asked.extents, i64 %a
  %asked.extent = load i64, ptr %asked.extent.at
  %a.next = add i64 %a, 1
  %fits = icmp eq i64 %has, %asked.extent
  br i1 %fits, label %axis, label %fail.invalid

shaped:
  %data.at = getelementptr i8, ptr %b, i64 24
  %data = load i64, ptr %data.at
  %low.at = getelementptr i8, ptr %spec, i64 $misaligned_of$
  %low = load i64, ptr %low.at
  %odd = and i64 %data, %low
  %even = icmp eq i64 %odd, 0
  %wrong.address.at = getelementptr i8, ptr %spec, i64 $wrong_address_of$
  br i1 %even, label %aligned, label %fail.invalid
aligned:
  %field.of.at = getelementptr i8, ptr %spec, i64 $field_of$
  %field = load i64, ptr %field.of.at
  %field.at = getelementptr i8, ptr %record, i64 %field
  store i64 %data, ptr %field.at
  %i.next = add i64 %i, 1
  %complete = icmp eq i64 %i.next, %all
  br i1 %complete, label %threads, label %buffer

threads:
  %team.at = getelementptr i8, ptr @words, i64 $team_word$
  %team = load ptr, ptr %team.at
  %team.count = load atomic i64, ptr %team acquire, align 8
  %team.parallel.at = getelementptr i8, ptr %team, i64 8
  %team.parallel = load atomic i64, ptr %team.parallel.at monotonic, align 8
  %team.limit.at = getelementptr i8, ptr %team, i64 16
  %team.limit = load atomic i64, ptr %team.limit.at monotonic, align 8
  %most.at = getelementptr i8, ptr @words, i64 $most_tasks_word$
  %most = load i64, ptr %most.at
  %useful = call i64 @llvm.umin.i64(i64 %team.count, i64 %most)
  %nobody = icmp eq i64 %team.parallel, 0
  %none = icmp eq i64 %useful, 0
  %alone = or i1 %nobody, %none
  %taking.part = select i1 %alone, i64 1, i64 %useful
  %parallel.at = getelementptr i8, ptr %record, i64 $parallel_at$
  store i64 %team.parallel, ptr %parallel.at
  %limit.at = getelementptr i8, ptr %record, i64 $limit_at$
  store i64 %team.limit, ptr %limit.at
  %threads.at = getelementptr i8, ptr %record, i64 $threads_at$
  store i64 %taking.part, ptr %threads.at
  %shared.word = getelementptr i8, ptr @words, i64 $shared_word$
  %shared = load i64, ptr %shared.word
  %scratch.word = getelementptr i8, ptr @words, i64 $scratch_word$
  %scratch = load i64, ptr %scratch.word
  %all.scratch = mul i64 %scratch, %taking.part
  %size = add i64 %shared, %all.scratch
  %kernel.at = getelementptr i8, ptr @words, i64 $kernel_word$
  %kernel = load ptr, ptr %kernel.at
  %blocks.at = getelementptr i8, ptr @words, i64 $blocks_word$
  %blocks = load ptr, ptr %blocks.at
  %bare = icmp eq i64 %size, 0
  br i1 %bare, label %run.bare, label %take
run.bare:
  br label %enter

take:
  %t = phi i64 [ 0, %threads ], [ %t.next, %take.next ]
  %take.at = getelementptr ptr, ptr %blocks, i64 %t
  %seen = load atomic i64, ptr %take.at monotonic, align 8
  %vacant = icmp eq i64 %seen, 0
  br i1 %vacant, label %take.next, label %exchange
exchange:
  %taken.word = atomicrmw xchg ptr %take.at, i64 0 acquire
  %lost = icmp eq i64 %taken.word, 0
  br i1 %lost, label %take.next, label %taken
take.next:
  %t.next = add i64 %t, 1
  %again = icmp ult i64 %t.next, $slots$
  br i1 %again, label %take, label %allocate
taken:
  %taken.block = inttoptr i64 %taken.word to ptr
  %capacity = load i64, ptr %taken.block
  %enough = icmp uge i64 %capacity, %size
  br i1 %enough, label %work, label %drop
drop:
  call void @free(ptr %taken.block)
  br label %allocate
allocate:
  %bytes = add i64 %size, $room$
  %fresh = call ptr @calloc(i64 1, i64 %bytes)
  %refused = icmp eq ptr %fresh, null
  br i1 %refused, label %fail.memory, label %mark
mark:
  store i64 %size, ptr %fresh
  %end = getelementptr i8, ptr %fresh, i64 %bytes
  %last = getelementptr i8, ptr %end, i64 -1
  store volatile i8 0, ptr %last
  br label %page
page:
  %touched = phi i64 [ 8, %mark ], [ %touched.next, %page ] ; the size comes before
  %page.at = getelementptr i8, ptr %fresh, i64 %touched
  store volatile i8 0, ptr %page.at
  %touched.next = add i64 %touched, $page$
  %pages.left = icmp ult i64 %touched.next, %bytes
  br i1 %pages.left, label %page, label %work

work:
  %block = phi ptr [ %taken.block, %taken ], [ %fresh, %page ]
  %block.word = ptrtoint ptr %block to i64
  %beyond = add i64 %block.word, $align_up$
  %workspace = and i64 %beyond, $align_mask$
  %slices = add i64 %workspace, %shared
  %shared.at = getelementptr i8, ptr %record, i64 $shared_at$
  store i64 %workspace, ptr %shared.at
  %scratch.at = getelementptr i8, ptr %record, i64 $scratch_at$
  store i64 %slices, ptr %scratch.at
  br label %enter

enter:
  %mine = phi ptr [ null, %run.bare ], [ %block, %work ]
  %mine.word = ptrtoint ptr %mine to i64
  br label %attempt
attempt:
  %prepared = phi i64 [ 0, %enter ], [ %prepared.next, %ask ]
  %status = call i32 %kernel(ptr %record)
  %computed = icmp eq i32 %status, 0
  %all.prepared = icmp eq i64 %prepared, $most_fallbacks$
  %settled = or i1 %computed, %all.prepared
  br i1 %settled, label %leave, label %ask
ask:
  %prepare.at = getelementptr i8, ptr @words, i64 $prepare_word$
  %prepare = load ptr, ptr %prepare.at
  call void %prepare()
  %prepared.next = add i64 %prepared, 1
  br label %attempt
leave:
  br i1 %bare, label %say, label %give.back
give.back:
  %held = load i64, ptr %mine
  %huge = icmp ugt i64 %held, $keep$
  br i1 %huge, label %discard, label %put
put:
  %p = phi i64 [ 0, %give.back ], [ %p.next, %put.next ]
  %put.at = getelementptr i64, ptr %blocks, i64 %p
  %in = cmpxchg ptr %put.at, i64 0, i64 %mine.word release monotonic
  %done = extractvalue { i64, i1 } %in, 1
  br i1 %done, label %say, label %put.next
put.next:
  %p.next = add i64 %p, 1
  %room = icmp ult i64 %p.next, $slots$
  br i1 %room, label %put, label %discard
discard:
  call void @free(ptr %mine)
  br label %say
say:
  br i1 %computed, label %nothing, label %fail.internal

fail.invalid:
  %reason = phi ptr [ %wrong.count.at, %count ],
    [ %wrong.buffer.at, %buffer ], [ %wrong.buffer.at, %typed ], [ %wrong.buffer.at, %extent ],
    [ %wrong.address.at, %shaped ]
  br label %fail
fail.memory:
  %no.memory.at = getelementptr i8, ptr @words, i64 $no_memory_word$
  br label %fail
fail.internal:
  %no.fallback.at = getelementptr i8, ptr @words, i64 $no_fallback_word$
  br label %fail
fail:
  %message.at = phi ptr [ %reason, %fail.invalid ], [ %no.memory.at, %fail.memory ],
    [ %no.fallback.at, %fail.internal ]
  %code = phi i32 [ $invalid$, %fail.invalid ], [ $exhausted$, %fail.memory ], [ $internal$, %fail.internal ]
  %message = load ptr, ptr %message.at
  call void @llvm.memset.p0.i64(ptr align 8 %error, i8 0, i64 32, i1 false)
  store i64 28, ptr %error
  %error.message = getelementptr i8, ptr %error, i64 16
  store ptr %message, ptr %error.message
  %error.code = getelementptr i8, ptr %error, i64 24
  store i32 %code, ptr %error.code
  %create.at = getelementptr i8, ptr %api, i64 48
  %create = load ptr, ptr %create.at
  %failure = call ptr %create(ptr %error)
  ret ptr %failure
}
"""

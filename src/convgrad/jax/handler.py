"""The function that XLA calls: between its foreign-function interface and a kernel.

XLA hands over a call frame with the buffers of the program. The handler checks each buffer against what the target was
made for, finds workspace, fills the record of `runtime/driver.py` on its own stack, and enters the kernel. Nothing of
it is Python, so it runs on XLA's threads, any number of calls at once; only the first call whose data need the fallback
of a kernel waits for Python to make that.

There is one piece of code for all problems, compiled once. It is loaded anew for each target, and so has variables of
its own each time: the words that say which kernel and which buffers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from convgrad.dtypes import SIZES
from convgrad.jax.handler_ir import BUFFER_WORDS, HANDLER, TARGET_WORDS, WORDS_OF, handler_ir
from convgrad.runtime import Kernel, driver, jit
from convgrad.runtime.memory import KEEP_BLOCKS
from convgrad.runtime.support import support_code
from convgrad.runtime.threads import team
from convgrad.values import frozen

XLA_DTYPES = {"f16": 10, "f32": 11, "f64": 12, "bf16": 16}  # XLA_FFI_DataType


@frozen(kw_only=True)
class Buffer:
    """An input or the result of a target: dense, the last axis fastest."""

    name: str  # of its field in the record of a call: x, w, y or bias
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


class Handler:
    """A loaded handler. Nothing of it may go while XLA knows the target, which is for good."""

    def __init__(self, name: str, kernel: Kernel, inputs: Sequence[Buffer], results: Sequence[Buffer]) -> None:
        """Load the code and fill in its variables; `name` is that of the target, for messages."""
        team.start()
        addresses, code = jit.load(_objects(), (HANDLER, WORDS_OF))
        self.address = addresses[HANDLER]
        prepare = ctypes.CFUNCTYPE(None)(kernel.prepare_next)  # what it raises is printed
        self._held: list[object] = [kernel, code, _blocks(kernel.words), team.published, prepare]
        places = [f"input {n}" for n in range(len(inputs))] + [f"result {n}" for n in range(len(results))]
        buffers = (*inputs, *results)
        takes, gives = (", ".join(map(str, part)) for part in (inputs, results))
        words = {
            "kernel": kernel.address,
            "team": ctypes.addressof(team.published),
            "blocks": ctypes.addressof(_blocks(kernel.words)),
            "most_tasks": kernel.most_tasks,
            "shared": kernel.shared_bytes,
            "scratch": kernel.scratch_bytes,
            "inputs": len(inputs),
            "results": len(results),
            "wrong_count": self._text(
                f"{name} takes {takes} and gives {gives}, but the program has another number of buffers"
            ),
            "prepare": ctypes.cast(prepare, ctypes.c_void_p).value or 0,
            "no_fallback": self._text(
                f"{name}: the code for numbers that need another kernel, such as infinities, could not be made; the "
                "reason was printed to the standard error"
            ),
            "no_memory": self._text(
                f"{name}: there is no memory for a workspace of {kernel.shared_bytes} bytes and {kernel.scratch_bytes} "
                "for each thread"
            ),
        }
        numbers = [words[word] for word in TARGET_WORDS]
        for place, buffer in zip(places, buffers, strict=True):
            numbers += self._words_of(name, buffer, place)
        variables = ctypes.CFUNCTYPE(ctypes.c_void_p)(addresses[WORDS_OF])()
        (ctypes.c_int64 * len(numbers)).from_address(variables)[:] = numbers
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._held))

    def _words_of(self, name: str, buffer: Buffer, place: str) -> list[int]:
        extents = (ctypes.c_int64 * len(buffer.shape))(*buffer.shape)
        self._held.append(extents)
        size = SIZES[buffer.dtype]
        words = {
            "dtype": XLA_DTYPES[buffer.dtype],
            "rank": len(buffer.shape),
            "extents": ctypes.addressof(extents),
            "misaligned": size - 1,  # these bits of an address are zero
            "field": 8 * driver.RECORD_FIELDS.index(buffer.name),
            "wrong_buffer": self._text(f"{name}: {place} is not {buffer}, which the target was compiled for"),
            "wrong_address": self._text(f"{name}: {place}, {buffer}, does not begin at a multiple of {size} bytes"),
        }
        return [words[word] for word in BUFFER_WORDS]

    def _text(self, message: str) -> int:
        held = ctypes.create_string_buffer(message.encode())
        self._held.append(held)
        return ctypes.addressof(held)


@cache
def _blocks(words: bool) -> ctypes.Array:
    """Workspace that no call uses, one word for each block: of all handlers whose kernels leave words, or none."""
    return (ctypes.c_int64 * KEEP_BLOCKS)()


@cache
def _objects() -> bytes:
    """The compiled handler, from disk where it was compiled before."""
    return support_code("handler of XLA's calls", handler_ir())

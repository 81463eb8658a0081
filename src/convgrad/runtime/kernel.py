"""From a problem to something that can be called with addresses."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from convgrad.codegen.module import Fallback, KernelModule, Stage
from convgrad.plan.machine import Machine, current_machine
from convgrad.problem.conv import ConvProblem
from convgrad.runtime import cache, decisions, driver, jit, memory
from convgrad.runtime.threads import team

KEEP_KERNELS = 4096  # the oldest is dropped then, and lives on for whoever still holds it

_kernels: dict[tuple[ConvProblem, Machine], Kernel] = {}


class Kernel:
    """A compiled problem. Calls may come from any number of threads at once."""

    __slots__ = (
        "_cell",
        "_code",
        "_fallback",
        "_idle",
        "_make_fallback",
        "_most_tasks",
        "_replaced",
        "_run",
        "address",
        "compile_seconds",
        "from_disk",
        "problem",
        "scratch_bytes",
        "shared_bytes",
        "stages",
        "weights",
        "words",
    )

    def __init__(
        self, problem: Any, module: KernelModule, objects: bytes, *, seconds: float, from_disk: bool,
        make_fallback: Callable[[], Kernel] | None = None,
    ) -> None:  # fmt: skip
        """Load the object code of a module; the IR of the module is not looked at."""
        self.problem = problem
        self.stages: tuple[Stage, ...] = module.stages
        self.shared_bytes = module.all_shared_bytes
        self.scratch_bytes = module.all_scratch_bytes
        self.weights = module.all_weights
        self.compile_seconds = seconds
        self.from_disk = from_disk
        symbols = (driver.ENTRY, driver.CELL_OF) if module.fallback else (driver.ENTRY,)
        addresses, self._code = jit.load(objects, symbols)
        self.address = addresses[driver.ENTRY]  # of `int convgrad_run(record)`, for callers that are compiled, too
        self._run = ctypes.CFUNCTYPE(ctypes.c_int)(self.address)
        self._most_tasks = module.most_tasks
        self.words = module.words
        self._idle: list[tuple[Any, ctypes.c_void_p]] = []  # records of calls; as many as were ever in flight at once
        self._fallback: Kernel | None = None
        self._make_fallback = make_fallback if module.fallback else None
        self._cell: int = ctypes.CFUNCTYPE(ctypes.c_void_p)(addresses[driver.CELL_OF])() if module.fallback else 0
        self._replaced = module.fallback is not None and module.fallback.replaces

    @property
    def most_tasks(self) -> int:
        """The most threads that find work."""
        return self._most_tasks

    def workspace_bytes(self, threads: int) -> int:
        """Memory that a call on so many threads works in, besides its arguments."""
        return self.shared_bytes + max(1, min(threads, self._most_tasks)) * self.scratch_bytes

    def weights_bytes(self, threads: int) -> int:
        """Of that, packed weights."""
        shared, own = self.weights
        return shared + max(1, min(threads, self._most_tasks)) * own

    def __call__(self, x: int, w: int, y: int, bias: int = 0) -> None:
        """Solve for the unknown; arguments are addresses of the elements with all indices zero."""
        threads = self._most_tasks
        if threads > 1:  # else workers need not be there
            count = team.count or team.start()
            if count < threads:
                threads = count
        size = self.shared_bytes + threads * self.scratch_bytes
        block = memory.acquire(size, self.words) if size else memory.NOTHING
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = _new_record()
        shared = block.address
        scratch = shared + self.shared_bytes
        driver.pack_into(frame[0], 0, x, w, y, bias, shared, scratch, 0, 0, 0, team.parallel, team.limit, threads)
        try:
            status = self._run(frame[1])
        except KeyboardInterrupt:  # that came while the kernel ran, and took the place of the status
            if self._replaced and driver.is_lacking(frame[0]):
                self.fall_back(x, w, y, bias)
            raise
        finally:
            self._idle.append(frame)
            if size:
                memory.release(block, self.words)
        if status:
            self.fall_back(x, w, y, bias)

    def prepare(self) -> Kernel:
        """The fallback: from disk, else compiled, once. From then on calls find it."""
        if self._fallback is None:
            with jit.LOCK:
                if self._fallback is None:
                    assert self._make_fallback is not None
                    made = self._make_fallback()
                    ctypes.c_void_p.from_address(self._cell).value = made.address  # last: whoever reads it may call
                    self._fallback = made
        return self._fallback

    def prepare_next(self) -> None:
        """For a compiled caller that was told LACKING: the fallback or, if that is there, the one that it has."""
        made = self._fallback
        if made is None:
            self.prepare()
        elif made._make_fallback is not None:
            made.prepare()

    def fall_back(self, x: int, w: int, y: int, bias: int) -> None:
        """What this kernel could not compute, by the fallback that was not there.

        A result that holds something already is not left with that: an interrupt waits until it is whole, and after a
        failure it is NaN.
        """
        if not self._replaced:
            self.prepare()(x, w, y, bias)
            return
        p, unknown = self.problem, self.problem.solved
        try:
            self.prepare()(x, w, y, bias)
        except KeyboardInterrupt:
            self.fall_back(x, w, y, bias)
            raise
        except BaseException:
            result = {"x": x, "w": w, "y": y}[unknown]
            memory.spoil(result, p.shapes[unknown], p.strides[unknown], p.out_dtype)
            raise

    def __repr__(self) -> str:
        """One line."""
        origin = "from disk" if self.from_disk else "compiled"
        return f"<Kernel {self.problem}: {len(self.stages)} stages, {origin} in {self.compile_seconds * 1e3:.1f} ms>"


def kernel_for(problem: ConvProblem, machine: Machine | None = None) -> Kernel:
    """The kernel of a problem: from memory, from disk, else compiled, once, however many threads ask."""
    key = problem, machine or current_machine()
    kernel = _kernels.get(key)
    if kernel is None:
        with jit.LOCK:
            kernel = _kernels.get(key)
            if kernel is None:
                kernel = _kernels[key] = kernel_of_variant(*key, decisions.variant_of(*key))
                if len(_kernels) > KEEP_KERNELS:
                    del _kernels[next(iter(_kernels))]
    return kernel


def kernel_of_variant(problem: ConvProblem, machine: Machine, variant: int) -> Kernel:
    """The kernel of one of the variants of a plan: from disk, else compiled; not kept in memory."""
    lower = partial(_lower, variant=variant) if variant else _lower
    return build(problem, machine, lower=lower, variant=variant)


def forget(problem: ConvProblem | None = None, machine: Machine | None = None) -> None:
    """Drop the kernel of a problem, or all that memory holds, so that the next call looks on disk."""
    with jit.LOCK:
        if problem is None:
            _kernels.clear()
            decisions.forget_in_memory()
        else:
            _kernels.pop((problem, machine or current_machine()), None)


def build(problem: Any, machine: Machine, *, lower: Callable[[Any, Machine], KernelModule], variant: int = 0) -> Kernel:
    """A kernel from the disk cache, else by way of `lower` and LLVM; `variant` tells kernels of one problem apart."""
    return _build("kernel", problem, machine, partial(lower, problem, machine), variant)


def _build(kind: str, problem: Any, machine: Machine, lower: Callable[[], KernelModule], variant: int) -> Kernel:
    start = time.perf_counter()
    team.look_again()
    key = cache.key_of(f"{kind} {variant}" if variant else kind, problem, machine)
    entry = cache.read(key)
    module = _module_of(entry, lower) if entry else None
    from_disk = entry is not None and module is not None
    if entry is None or module is None:
        module = lower()
        objects = jit.compile_ir(driver.with_driver(module, machine.triple), machine)
        what = str(problem) if kind == "kernel" else f"{kind} of: {problem}"
        entry = cache.Entry(objects, _notes(what, machine, module))
    other = "fallback" if kind == "kernel" else f"fallback of {kind}"
    again = partial(_build, other, problem, machine, module.fallback.lower, variant) if module.fallback else None
    kernel = Kernel(
        problem, module, entry.objects, seconds=time.perf_counter() - start, from_disk=from_disk, make_fallback=again
    )
    if not from_disk:
        cache.write(key, entry)
    if module.fallback and module.fallback.at_once:
        kernel.prepare()
    return kernel


def _lower(problem: ConvProblem, machine: Machine, variant: int = 0) -> KernelModule:
    from convgrad.codegen.lower import lower  # here, since a process whose kernels are all on disk needs neither
    from convgrad.plan.choose import choose, variants

    plan = next(islice(variants(problem, machine), variant, None), None)  # None if there are not so many
    return lower(plan or choose(problem, machine))


def _notes(what: str, machine: Machine, module: KernelModule) -> dict[str, Any]:
    fallback = module.fallback
    return {
        "what": what,
        "isa": machine.isa,
        "stages": [[stage.symbol, stage.tasks] for stage in module.stages],
        "shared_bytes": module.shared_bytes,
        "scratch_bytes": module.scratch_bytes,
        "weights": module.weights,
        "words": module.words,
        "fallback": fallback and {name: getattr(fallback, name) for name in _OF_FALLBACK},
    }


_OF_FALLBACK = ("after", "replaces", "at_once", "most_tasks", "shared_bytes", "scratch_bytes", "weights")


def _module_of(entry: cache.Entry, lower: Callable[[], KernelModule]) -> KernelModule | None:
    """What is known of a kernel whose IR was not kept; `lower` would write it again, for the sake of its fallback."""

    def lower_fallback() -> KernelModule:
        module = lower()
        assert module.fallback is not None
        return module.fallback.lower()

    try:
        told = entry.notes["fallback"]
        fallback = told and Fallback(lower=lower_fallback, **{name: told[name] for name in _OF_FALLBACK})
        return KernelModule(
            ir="",
            stages=tuple(Stage(symbol=symbol, tasks=tasks) for symbol, tasks in entry.notes["stages"]),
            shared_bytes=entry.notes["shared_bytes"],
            scratch_bytes=entry.notes["scratch_bytes"],
            weights=tuple(entry.notes["weights"]),
            fallback=fallback,
            words=bool(entry.notes["words"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _new_record() -> tuple[memoryview, ctypes.c_void_p]:
    """A record on cache lines of its own, and the argument that passes it."""
    raw = ctypes.create_string_buffer(driver.RECORD_BYTES + 64)
    start = -ctypes.addressof(raw) % 64
    return memoryview(raw)[start:].cast("B"), ctypes.c_void_p(ctypes.addressof(raw) + start)

"""Many threads calling many shapes for a long time, with forks and interrupts in the middle, and a cache in trouble.

    python fuzz/soak.py --seconds 600

Every result is compared bit by bit with one that was found right by the float64 definition before. Meanwhile

* kernels are dropped and made again: memory keeps fewer than there are shapes, and files vanish from the cache on disk;
* the process forks: the child calls kernels that it inherited and compiles one of its own;
* the main thread is interrupted, as by Ctrl-C, in its calls and compilations, and goes on;
* memory is measured. After a tenth of the time it must not grow by more than --slack MiB.

Before that, processes use a cache directory that is shared by eight of them starting at once, full, read-only, damaged,
or writable by others. `--torch` imports PyTorch first, whose OpenMP threads then run the kernels.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
from problems import call, forget, guarded_inputs, resolved_of
from random_cases import Case, random_case

from convgrad import ConvError
from convgrad.arrays import call as calls
from convgrad.dtypes import numpy_dtype
from convgrad.runtime import cache, kernel, set_num_threads
from convgrad.spec.definition import define

SEED = 600
PROGRAM_CASES = 6  # that a process with a cache in trouble computes
LONGEST_CHILD = 120  # seconds


@dataclass(frozen=True)
class Job:
    """A case with its inputs and the bytes of its result."""

    case: Case
    inputs: list  # guarded arrays
    shape: tuple[int, ...]
    wanted: bytes

    def run(self, *, into: bool = False) -> bool:
        """Whether a call gives the right bytes; `into` an array of the caller."""
        dtype = numpy_dtype(self.case.out_dtype or self.case.dtype)
        out = np.full(self.shape, np.nan, dtype) if into else None
        return call(self.case, [one.array for one in self.inputs], out).tobytes() == self.wanted


def make_jobs(most: int, first: int = 0) -> list[Job]:
    """So many cases that are no mistakes."""
    jobs = []
    for number in count(first):
        case = replace(random_case(SEED, number), isa=None, out=None, accumulate=False, tell=True)
        resolved = resolved_of(case)
        if isinstance(resolved, ConvError):
            continue
        inputs, _, _ = guarded_inputs(case, resolved)
        exact = define(resolved, [one.array for one in inputs])
        with np.errstate(over="ignore"):
            wanted = exact.astype(numpy_dtype(case.out_dtype or case.dtype))
        # Zeros of either sign are right, and which it is must not change: so the bytes are those of the first call.
        result = call(case, [one.array for one in inputs], None)
        np.testing.assert_array_equal(result.astype(np.float64), wanted.astype(np.float64), case.line())
        jobs.append(Job(case, inputs, wanted.shape, result.tobytes()))
        if len(jobs) == most:
            return jobs
    raise AssertionError("unreachable")


class Soak:
    """The threads, and what they found."""

    def __init__(self, jobs: list[Job]) -> None:
        """All threads call all jobs."""
        self.jobs = jobs
        self.stop = threading.Event()
        self.wrong: list[str] = []
        self.compiled = self.loaded = self.forks = self.interrupts = 0
        self._counts: dict[int, int] = {}

    def caller(self, number: int) -> None:
        """Call until the end."""
        rng = random.Random(number)
        for done in count(1):
            if self.stop.is_set():
                return
            self._must(rng.choice(self.jobs), into=rng.random() < 0.5)
            self._counts[number] = done

    def remover(self) -> None:
        """Delete files of the cache, so that kernels are compiled again."""
        rng = random.Random(0)
        while not self.stop.wait(0.5):
            folder = cache.state().folder
            files = sorted(path for _, _, path in cache.files(folder)) if folder else []
            for path in rng.sample(files, min(2, len(files))):
                cache.remove(path)

    @contextmanager
    def churn(self):
        """Keep few kernels, and count those that are made again."""
        plain = kernel.build, kernel.KEEP_KERNELS, calls.MOST_RECORDS

        def build(*args, **keywords):
            made = plain[0](*args, **keywords)
            self.loaded += made.from_disk
            self.compiled += not made.from_disk
            return made

        kernel.build, kernel.KEEP_KERNELS, calls.MOST_RECORDS = build, len(self.jobs) * 9 // 10, len(self.jobs) // 8
        try:
            yield
        finally:
            kernel.build, kernel.KEEP_KERNELS, calls.MOST_RECORDS = plain

    def _must(self, job: Job, *, into: bool = False) -> None:
        try:
            if not job.run(into=into):
                self.wrong.append(f"a wrong result: {job.case.line()}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.wrong.append(f"{type(error).__name__}: {error}: {job.case.line()}")
        if self.wrong:
            self.stop.set()

    def fork(self, rng: random.Random) -> None:
        """A child that computes, with kernels of its parent and with its own."""
        child = os.fork()
        if child == 0:
            signal.alarm(LONGEST_CHILD)
            right = False
            try:
                right = all(job.run() for job in rng.sample(self.jobs, 5))
                forget()
                right = right and all(job.run() for job in rng.sample(self.jobs, 2))
            finally:
                os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        self.forks += 1
        if status:
            self.wrong.append(f"a forked child ended with status {status}")
            self.stop.set()

    def interrupt(self, rng: random.Random) -> None:
        """The main thread, in the middle of calls; then it calls on.

        Python drops an interrupt that comes while an object is being deleted, so another one may be needed.
        """
        timer = threading.Timer(rng.random() * 0.2, os.kill, (os.getpid(), signal.SIGINT))
        end = time.perf_counter() + 5
        try:
            timer.start()
            while True:
                if time.perf_counter() > end:
                    signal.raise_signal(signal.SIGINT)
                if rng.random() < 0.02:
                    forget()
                rng.choice(self.jobs).run()
        except KeyboardInterrupt:
            self.interrupts += 1
        timer.join()
        for job in rng.sample(self.jobs, 5):
            self._must(job)

    def run(self, seconds: float, threads: int, slack: float) -> bool:
        """Everything at once; returns whether all was right."""
        workers = [threading.Thread(target=self.caller, args=(n,)) for n in range(1, threads)]
        workers.append(threading.Thread(target=self.remover))
        for worker in workers:
            worker.start()
        start, rng, next_line = time.perf_counter(), random.Random(SEED), 0.0
        warm, samples = None, []
        try:
            while (spent := time.perf_counter() - start) < seconds and not self.stop.is_set():
                self.fork(rng)
                self.interrupt(rng)
                samples.append(resident_mib())
                if warm is None and spent > seconds / 10:
                    warm, samples = samples[-1], samples[-1:]
                if spent >= next_line:
                    print(self._line(spent), flush=True)
                    next_line += seconds / 10
        finally:
            self.stop.set()
            for worker in workers:
                worker.join()
        print(self._line(time.perf_counter() - start), flush=True)
        for text in self.wrong[:5]:
            print(text, flush=True)
        tenth = max(1, len(samples) // 10)
        early, late = (float(np.median(part)) for part in (samples[:tenth], samples[-tenth:]))
        print(
            f"memory: {early:.1f} MiB after warming up, {late:.1f} at the end, {max(samples):.1f} at most", flush=True
        )
        if late - early > slack:
            print(f"memory grew by {late - early:.1f} MiB, more than {slack}")
        return not self.wrong and late - early <= slack

    def _line(self, spent: float) -> str:
        return (
            f"{spent:4.0f} s: {sum(self._counts.values())} calls, {self.compiled} kernels compiled, {self.loaded} from "
            f"disk, {self.forks} forks, {self.interrupts} interrupts, {len(self.wrong)} wrong, {resident_mib():.1f} MiB"
        )


def resident_mib() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


# --- a cache in trouble


def program(folder: str | Path, *, limit: int | None = None) -> subprocess.Popen:
    """A process that computes some cases with this cache directory; `limit` is the size of the largest file."""
    command = [sys.executable, __file__, "--program"]
    environment = {**os.environ, "CONVGRAD_CACHE_DIR": str(folder)}
    before = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit is not None else None
    return subprocess.Popen(command, env=environment, stdout=-1, stderr=-2, text=True, preexec_fn=before)


def run_program() -> None:
    """What such a process does: compute, and say how many kernels came from disk and why the cache is not used."""
    make_jobs(PROGRAM_CASES)
    disk = sum(one.from_disk for one in kernel._kernels.values())
    print(f"right {disk} {len(kernel._kernels)} {cache.state().refusal or cache.last_failure() or 'fine'}")


def finish(process: subprocess.Popen) -> tuple[int, int, str]:
    """Kernels from disk, kernels, and the trouble of a process that must have ended well."""
    text, _ = process.communicate(timeout=LONGEST_CHILD)
    assert text.startswith("right "), text
    _, disk, made, trouble = text.strip().split(" ", 3)
    return int(disk), int(made), trouble


@contextmanager
def mounted(folder: Path, options: str):
    """A small file system of its own in a folder, where the user may mount; else None."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    try:
        yield folder if done.returncode == 0 else None
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)


def troubled_caches(folder: Path) -> None:
    """Whatever becomes of the cache directory, results are right, and the reason is told."""
    shared = folder / "shared"
    for process in [program(shared) for _ in range(8)]:
        finish(process)
    disk, made, trouble = finish(program(shared))
    assert (disk, trouble) == (made, "fine")
    assert not list(shared.glob(".writing-*"))
    print(f"cache shared by 8 processes starting at once: right; a ninth takes all {disk} kernels from it", flush=True)

    rng = random.Random(SEED)
    files = sorted(shared.glob("*" + cache.SUFFIX))
    for file in files:
        content = bytearray(file.read_bytes())
        for _ in range(4):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content[: rng.choice((len(content), len(content) // 2))])
    disk, made, _ = finish(program(shared))
    assert disk == 0, "a damaged kernel was used"
    assert finish(program(shared))[:2] == (made, made), "damaged files were not replaced"
    print(f"cache with all {len(files)} files damaged: right; nothing taken from it, and repaired", flush=True)

    _, _, trouble = finish(program(folder / "limited", limit=1000))
    assert "File too large" in trouble, trouble
    assert not list((folder / "limited").iterdir())
    print(f"cache that takes no files beyond 1000 bytes: right; {trouble.split(' (')[0]}", flush=True)

    (folder / "full").mkdir(mode=0o700)
    with mounted(folder / "full", "size=32k,mode=0700") as full:
        if full:
            _, _, trouble = finish(program(full))
            assert "No space left" in trouble, trouble
            assert not list(full.glob(".writing-*"))
            print(f"cache on a full disk of 32 KiB: right; {trouble.split(' (')[0]}", flush=True)
        else:
            print("cache on a full disk: this user may not mount one")

    (folder / "read-only").mkdir(mode=0o700)
    with mounted(folder / "read-only", "ro,mode=0700") as frozen:
        if frozen is None:
            frozen = folder / "read-only"
            frozen.chmod(0o500)
        _, _, trouble = finish(program(frozen))
        assert "Read-only" in trouble or "Permission denied" in trouble, trouble
        print(f"cache that is read-only: right; {trouble.split(' (')[0]}", flush=True)

    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    _, _, trouble = finish(program(folder / "open"))
    assert "may be written by others" in trouble, trouble
    assert not list((folder / "open").iterdir())
    print("cache that others may write to: right; refused", flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long to soak (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=8, help="that call at once (default: %(default)s)")
    parser.add_argument("--shapes", type=int, default=120, help="that they call (default: %(default)s)")
    parser.add_argument("--slack", type=float, default=16, help="MiB that memory may grow by (default: %(default)s)")
    parser.add_argument("--torch", action="store_true", help="import PyTorch first")
    parser.add_argument("--admit", action="store_true", help="to the inline cache, every geometry at its second call")
    parser.add_argument("--no-caches", action="store_true", help="leave out the caches in trouble")
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.program:
        run_program()
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell takes from what it runs in the background
    if args.torch:
        import torch  # noqa: F401
    if args.admit:
        calls.OFTEN, calls.SELDOM = 1, 3
    folder = Path(tempfile.mkdtemp(prefix="convgrad-soak-"))
    try:
        if not args.no_caches:
            troubled_caches(folder)
        os.environ["CONVGRAD_CACHE_DIR"] = str(folder / "soak")
        set_num_threads(2)
        jobs = make_jobs(args.shapes)
        print(f"{args.threads} threads call {len(jobs)} shapes", flush=True)
        soak = Soak(jobs)
        with soak.churn():
            right = soak.run(args.seconds, args.threads, args.slack)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("all right" if right else "not right")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

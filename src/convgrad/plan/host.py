"""What the operating system says of the machine this process runs on. The only reader of the CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from math import ceil

ARCH_REQ_XCOMP_PERM = 0x1023  # code of arch_prctl: ask the kernel for a large register state
XFEATURE_XTILEDATA = 18  # that of the AMX tiles
SYS_ARCH_PRCTL = 158  # of x86-64
MOST_BYTES = 16384  # that are read of a file
AVX2_FLAGS = ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")
LOADING_ALONE = (("GenuineIntel", "6", "106"), ("GenuineIntel", "6", "108"))  # Ice Lake servers; see measured facts
AVX512_FLAGS = (*AVX2_FLAGS, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")


def host_triple() -> str:
    """LLVM's name of the host, spelled without asking LLVM."""
    if hasattr(os, "uname"):
        arch = os.uname().machine.lower()
    else:
        import platform  # 3 ms, for Windows only

        arch = platform.machine().lower()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    if sys.platform == "darwin":
        return f"{'arm64' if arch == 'aarch64' else arch}-apple-darwin"
    if sys.platform == "win32":
        return f"{arch}-pc-windows-msvc-elf"  # LLVM's loader takes ELF objects only, there too
    return f"{arch}-unknown-linux-gnu"


@cache
def amx_refusal() -> str | None:
    """Ask the kernel for the tile registers; None if it grants them, and then they are this process's to keep.

    Threads inherit the permission, forked children too. It has to be asked for before any thread uses a tile.
    """
    if not sys.platform.startswith("linux"):
        return "tile registers are only asked for on Linux"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    code = libc.syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, ctypes.c_ulong(XFEATURE_XTILEDATA))
    if code == 0:
        return None
    return f"the kernel refused the tile registers (arch_prctl: {os.strerror(ctypes.get_errno())})"


@cache
def cpu_flags() -> frozenset[str]:
    """Features of the CPU that the operating system lets programs use, as Linux names them."""
    if sys.platform.startswith("linux"):
        core = _linux_core("/proc/cpuinfo")
        return frozenset(core.get("flags", core.get("Features", "")).split())
    if sys.platform == "darwin":
        return _darwin_flags()
    if sys.platform == "win32":
        return _windows_flags()
    return frozenset()


@cache
def loads_alone() -> bool:
    """Whether the core loads one vector of 512 bits in the time of two multiply-adds; others load two."""
    core = _linux_core("/proc/cpuinfo") if sys.platform.startswith("linux") else {}
    return tuple(core.get(name, "") for name in ("vendor_id", "cpu family", "model")) in LOADING_ALONE


@cache
def multiplies_alone() -> bool:
    """Whether the core does one multiply-add of vectors of 512 bits in a cycle; others do two. AMD's Zen 4 does."""
    core = _linux_core("/proc/cpuinfo") if sys.platform.startswith("linux") else {}
    zen_3_or_4 = (core.get("vendor_id", ""), core.get("cpu family", "")) == ("AuthenticAMD", "25")
    return zen_3_or_4 and "avx512f" in core.get("flags", "").split()


@cache
def _linux_core(cpuinfo: str) -> dict[str, str]:
    """What Linux says of the first core."""
    try:
        text = _text(cpuinfo)  # the first core is enough: a large machine has hundreds
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _darwin_flags() -> frozenset[str]:
    names = {"avx2_0": "avx2", "fma": "fma", "f16c": "f16c", "bmi1": "bmi1", "bmi2": "bmi2", "movbe": "movbe"}
    names |= {f"avx512{part}": f"avx512{part}" for part in ("f", "bw", "dq", "vl", "cd")}
    flags = {flag for name, flag in names.items() if _sysctl(f"hw.optional.{name}")}
    return frozenset(flags | {"abm"} if "bmi1" in flags else flags)  # every Mac with BMI has LZCNT


def _sysctl(name: str) -> int:
    value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return 0 if failed else value.value


def _windows_flags() -> frozenset[str]:
    has = ctypes.windll.kernel32.IsProcessorFeaturePresent  # type: ignore[attr-defined]
    avx2, avx512f = has(40), has(41)
    # Windows names no more than these two; every CPU with AVX2 has the rest of its level, and every one that is still
    # sold with AVX-512 has its five parts.
    return frozenset((AVX512_FLAGS if avx512f else AVX2_FLAGS) if avx2 else ())


@cache
def caches() -> tuple[int, int, int]:
    """Bytes of L1, L2 and L3 that one core can count on, in a few classes."""
    sizes = _linux_caches("/sys/devices/system/cpu/cpu0/cache") if sys.platform.startswith("linux") else {}
    if sys.platform == "darwin":
        sizes = {1: _sysctl("hw.l1dcachesize"), 2: _sysctl("hw.l2cachesize")}
    return _cache_class(sizes)


def _linux_caches(folder: str) -> dict[int, int]:
    """Bytes of data cache by level, of those that a core has to itself, or shares with its other thread."""
    sizes: dict[int, int] = {}
    try:
        for index in sorted(name for name in os.listdir(folder) if name.startswith("index")):
            level = int(_text(folder, index, "level"))
            if level <= 2 and _text(folder, index, "type") != "Instruction":
                text = _text(folder, index, "size")
                sizes[level] = int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        pass  # what was read so far, and defaults for the rest
    return sizes


def _cache_class(sizes: dict[int, int]) -> tuple[int, int, int]:
    """Sizes rounded down to a few classes.

    Blocking decides the order of sums, so two machines of one class give the same bits; and a hypervisor that reports
    a share of a cache one day and all of it the next should not change results. Classes: L1 32 or 48 KiB; L2 256 KiB,
    512 KiB, 1 or 2 MiB; L3 a flat 2 MiB per core, since its share says more about the neighbours than about the chip.
    """
    l1 = 48 << 10 if sizes.get(1, 0) >= 48 << 10 else 32 << 10
    l2 = max((c << 10 for c in (256, 512, 1024, 2048) if c << 10 <= sizes.get(2, 512 << 10)), default=256 << 10)
    return l1, l2, max(l2, 2 << 20)


def available_cpus() -> tuple[int, str]:
    """Cores this process may use, and what limits them: affinity or the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota("/proc/self/cgroup", "/sys/fs/cgroup")
    if quota is not None and quota < cores:
        return quota, "the CPU quota of the control group"
    return cores, "the CPUs this process may run on"


def _cgroup_quota(membership: str, root: str) -> int | None:
    """The tightest CPU quota on the way from this process's control group to the root, in whole cores, rounded up."""
    try:
        lines = [line.split(":", 2) for line in _text(membership).splitlines()]
    except OSError:
        return None
    quotas = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        base = f"{root}/cpu" if "cpu" in controllers.split(",") else root  # version 1 mounts each controller apart
        if controllers and base == root:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            quotas.append(_quota_of("/".join([base, *parts[:depth]])))
    found = [quota for quota in quotas if quota is not None]
    return max(1, ceil(min(found))) if found else None


def _quota_of(group: str) -> float | None:
    try:
        try:
            limit, period = _text(group, "cpu.max").split()
        except FileNotFoundError:
            limit, period = _text(group, "cpu.cfs_quota_us"), _text(group, "cpu.cfs_period_us")
        return float(limit) / float(period) if limit != "max" and float(limit) > 0 else None
    except (OSError, ValueError):
        return None


def _text(*path: str) -> str:
    """Of a small file, without a file object: those take up to twice as long, and a first call reads two dozen."""
    file = os.open("/".join(path), os.O_RDONLY)
    try:
        return os.fsdecode(os.read(file, MOST_BYTES)).strip()
    finally:
        os.close(file)

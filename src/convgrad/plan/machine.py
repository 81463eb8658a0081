"""What is known of the machine that kernels are compiled for. The only reader of the CPU.

Instruction sets are levels, and a level is exactly the features in its row of `LEVELS`: whatever else a CPU can do is
left out, so that equal levels mean equal code and equal bits on all machines. That matters most for conversions to
bf16: with +avx512bf16 LLVM would round with an instruction that turns denormals into zero.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

from convgrad import settings
from convgrad.errors import SettingError

ARCH_REQ_XCOMP_PERM = 0x1023  # code of arch_prctl: ask the kernel for a large register state
XFEATURE_XTILEDATA = 18  # that of the AMX tiles
SYS_ARCH_PRCTL = 158  # of x86-64


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction set that kernels can be compiled for."""

    arch: str
    cpu: str  # LLVM's name for a CPU that has the baseline of this level and is scheduled alike
    needs: tuple[str, ...]  # as Linux names them in /proc/cpuinfo
    features: str  # in LLVM's words, on top of the cpu
    lanes_f32: int
    registers: int  # that hold vectors
    has_fma: bool


_AVX2 = ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_AMX = (*_AVX512, "amx_tile", "amx_bf16")
_WIDE = "-prefer-256-bit"  # 512-bit registers are the point of the level; the old frequency penalty is gone

LEVELS = {  # from the least to the best of each architecture
    "portable": Level("x86_64", "x86-64", (), "", 4, 16, False),
    "avx2": Level("x86_64", "x86-64-v3", _AVX2, "", 8, 16, True),
    "avx512": Level("x86_64", "x86-64-v4", _AVX512, _WIDE, 16, 32, True),
    "amx_emulated": Level("x86_64", "x86-64-v4", _AVX512, _WIDE, 16, 32, True),  # tiles by vectors; for tests
    "amx": Level("x86_64", "x86-64-v4", _AMX, f"{_WIDE},+amx-tile,+amx-bf16", 16, 32, True),
    "neon": Level("aarch64", "generic", (), "+neon", 4, 32, True),
}
_PORTABLE_ELSEWHERE = {  # baselines of other architectures: features, registers, fused multiply-add
    "aarch64": ("+neon", 32, True),
    "riscv64": ("+m,+a,+f,+d,+c", 16, True),
    "ppc64le": ("", 32, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The target of a compilation. Equal machines get equal code, so this value is part of every cache key."""

    isa: str  # of LEVELS
    triple: str
    cpu: str
    features: str
    lanes_f32: int  # of one vector register
    registers: int
    has_fma: bool  # an unfused target would call a library function for llvm.fma
    l1_bytes: int  # of data cache per core, rounded to a class; see `_cache_class`
    l2_bytes: int
    l3_bytes: int  # of one core's share

    @property
    def has_tiles(self) -> bool:
        """Whether there is a matrix unit, or something that acts as one."""
        return self.isa in ("amx", "amx_emulated")

    def validate(self) -> None:
        """Assert what planning relies on."""
        assert self.isa in LEVELS
        assert self.lanes_f32 in (4, 8, 16)
        assert self.registers in (16, 32)
        assert 0 < self.l1_bytes < self.l2_bytes <= self.l3_bytes

    def __str__(self) -> str:
        def kib(size: int) -> str:
            return f"{size // 1024} KiB"

        return (
            f"{self.isa} on {self.triple} ({self.cpu}{', ' if self.features else ''}{self.features}): "
            f"{self.registers} registers of {self.lanes_f32} f32, {'fma' if self.has_fma else 'no fma'}, "
            f"L1 {kib(self.l1_bytes)}, L2 {kib(self.l2_bytes)}, L3 {kib(self.l3_bytes)}"
        )


def current_machine() -> Machine:
    """The machine this process runs on, at the level that CONVGRAD_ISA asks for or the best it has."""
    return _current(settings.isa())


@cache
def _current(forced: str | None) -> Machine:
    if forced is None:
        isa = available_isas()[-1]
    else:
        reason = why_not(forced)
        if reason:
            raise SettingError(
                f"CONVGRAD_ISA is {forced!r}, but {reason}; this machine has {', '.join(available_isas())}"
            )
        isa = forced
    return machine_for(isa, triple=host_triple(), caches=_host_caches())


def machine_for(isa: str, *, triple: str | None = None, caches: tuple[int, int, int] | None = None) -> Machine:
    """A target that need not be the host, for looking at code and for cross-compilation."""
    if isa not in LEVELS:
        raise SettingError(f"there is no instruction set {isa!r}; the choice is {', '.join(LEVELS)}")
    if triple is None:
        triple = host_triple() if LEVELS[isa].arch == _arch(host_triple()) else f"{LEVELS[isa].arch}-unknown-linux-gnu"
    arch, level = _arch(triple), LEVELS[isa]
    if isa != "portable" and arch != level.arch:
        raise SettingError(f"instruction set {isa!r} belongs to {level.arch}, but the target is {triple}")
    if isa == "portable" and arch != level.arch:
        features, registers, has_fma = _PORTABLE_ELSEWHERE.get(arch, ("", 16, False))
        level = Level(arch, "generic" if arch == "aarch64" else "", (), features, 4, registers, has_fma)
    l1, l2, l3 = caches or (32 << 10, 512 << 10, 2 << 20)
    return Machine(
        isa=isa,
        triple=triple,
        cpu=level.cpu,
        features=level.features,
        lanes_f32=level.lanes_f32,
        registers=level.registers,
        has_fma=level.has_fma,
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=l3,
    )


@cache
def available_isas() -> tuple[str, ...]:
    """The levels this machine can run, best last; without the emulation, which only those get who ask for it."""
    return tuple(isa for isa in LEVELS if why_not(isa) is None and isa != "amx_emulated")


@cache
def why_not(isa: str) -> str | None:
    """The reason this machine cannot run a level; None if it can."""
    level, arch = LEVELS[isa], _arch(host_triple())
    if isa == "portable":
        return None
    if level.arch != arch:
        return f"it belongs to {level.arch} and this machine is {arch}"
    missing = [name for name in level.needs if name not in cpu_flags()]
    if missing:
        return f"the CPU or the operating system does not offer {', '.join(missing)}"
    return amx_refusal() if isa == "amx" else None


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


def _arch(triple: str) -> str:
    arch = triple.split("-")[0]
    return "aarch64" if arch == "arm64" else arch


@cache
def cpu_flags() -> frozenset[str]:
    """Features of the CPU that the operating system lets programs use, as Linux names them."""
    if sys.platform.startswith("linux"):
        return _linux_flags(Path("/proc/cpuinfo"))
    if sys.platform == "darwin":
        return _darwin_flags()
    if sys.platform == "win32":
        return _windows_flags()
    return frozenset()


def _linux_flags(cpuinfo: Path) -> frozenset[str]:
    try:
        with cpuinfo.open("rb", buffering=0) as file:
            text = file.read(16384).decode("ascii", "replace")  # the first core is enough: a large machine has hundreds
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


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
    return frozenset((_AVX512 if avx512f else _AVX2) if avx2 else ())


@cache
def _host_caches() -> tuple[int, int, int]:
    sizes = _linux_caches(Path("/sys/devices/system/cpu/cpu0/cache")) if sys.platform.startswith("linux") else {}
    if sys.platform == "darwin":
        sizes = {1: _sysctl("hw.l1dcachesize"), 2: _sysctl("hw.l2cachesize")}
    return _cache_class(sizes)


def _linux_caches(folder: Path) -> dict[int, int]:
    """Bytes of data cache by level that one core can count on: a shared cache is divided among those that share it."""
    sizes: dict[int, int] = {}
    try:
        for index in sorted(folder.glob("index*")):
            if (index / "type").read_text().strip() == "Instruction":
                continue
            text = (index / "size").read_text().strip()
            size = int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
            level = int((index / "level").read_text())
            sharers = _count_cpus((index / "shared_cpu_list").read_text()) if level > 2 else 1
            sizes[level] = size // max(1, sharers)
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


def _count_cpus(text: str) -> int:
    """How many a list such as 0-3,8 names."""
    spans = (part.split("-") for part in text.strip().split(","))
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def available_cpus() -> tuple[int, str]:
    """Cores this process may use, and what limits them: affinity or the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    if quota is not None and quota < cores:
        return quota, "the CPU quota of the control group"
    return cores, "the CPUs this process may run on"


def _cgroup_quota(membership: Path, root: Path) -> int | None:
    """The tightest CPU quota on the way from this process's control group to the root, in whole cores, rounded up."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return None
    quotas = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        base = root / "cpu" if "cpu" in controllers.split(",") else root  # version 1 mounts each controller apart
        if controllers and base == root:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            quotas.append(_quota_of(base.joinpath(*parts[:depth])))
    found = [quota for quota in quotas if quota is not None]
    return max(1, ceil(min(found))) if found else None


def _quota_of(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            limit, period = (group / "cpu.max").read_text().split()
        else:
            limit = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text()
        return float(limit) / float(period) if limit != "max" and float(limit) > 0 else None
    except (OSError, ValueError):
        return None

"""What is known of the machine that kernels are compiled for.

Instruction sets are levels, and a level is exactly the features in its row of `LEVELS`: whatever else a CPU can do is
left out, so that equal levels mean equal code and equal bits on all machines. The emitters spell out how bf16 is
rounded, by integers: where there is +avx512bf16 LLVM would take an instruction that turns denormals into zero. That is
for sums of dot products, none of which is denormal (`DotUnit.narrow`), and for results that were looked at
(`codegen/outputs/rounded_by_processor.py`).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from convgrad import settings
from convgrad.errors import SettingError
from convgrad.plan import host
from convgrad.plan.host import AVX2_FLAGS, AVX512_FLAGS, amx_refusal, cpu_flags, host_triple
from convgrad.values import frozen, replace


class Level(NamedTuple):
    """An instruction set that kernels can be compiled for."""

    arch: str
    cpu: str  # LLVM's name for a CPU that has the baseline of this level and is scheduled alike
    needs: tuple[str, ...]  # as Linux names them in /proc/cpuinfo
    features: str  # in LLVM's words, on top of the cpu
    lanes_f32: int
    registers: int  # that hold vectors
    has_fma: bool


_BF16 = (*AVX512_FLAGS, "avx512_bf16")
_AMX = (*AVX512_FLAGS, "amx_tile", "amx_bf16")  # and AVX512_BF16, as all processors that have these
_WIDE = "-prefer-256-bit"  # 512-bit registers are the point of the level; the old frequency penalty is gone

LEVELS = {  # from the least to the best of each architecture
    "portable": Level("x86_64", "x86-64", (), "", 4, 16, False),
    "avx2": Level("x86_64", "x86-64-v3", AVX2_FLAGS, "", 8, 16, True),
    "avx512": Level("x86_64", "x86-64-v4", AVX512_FLAGS, _WIDE, 16, 32, True),
    "avx512_bf16_emulated": Level("x86_64", "x86-64-v4", AVX512_FLAGS, _WIDE, 16, 32, True),  # by f32; for tests
    "avx512_bf16": Level("x86_64", "x86-64-v4", _BF16, f"{_WIDE},+avx512bf16", 16, 32, True),
    "amx_emulated": Level("x86_64", "x86-64-v4", AVX512_FLAGS, _WIDE, 16, 32, True),  # tiles by vectors; for tests
    "amx": Level("x86_64", "x86-64-v4", _AMX, f"{_WIDE},+avx512bf16,+amx-tile,+amx-bf16,+prfchw", 16, 32, True),
    "neon": Level("aarch64", "generic", (), "+neon", 4, 32, True),
}
_PORTABLE_ELSEWHERE = {  # baselines of other architectures: features, registers, fused multiply-add
    "aarch64": ("+neon", 32, True),
    "riscv64": ("+m,+a,+f,+d,+c", 16, True),
    "ppc64le": ("", 32, True),
}


@frozen(kw_only=True)
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
    loads_alone: bool  # one vector of 512 bits in the time of two multiply-adds; others load two
    multiplies_alone: bool  # one multiply-add of 512 bits in a cycle, or two of 256; others do two of either

    @property
    def halved(self) -> Machine:
        """With vectors of half the length, and as many: instruction sets of 512 bits have instructions for both."""
        return replace(self, isa="avx2", lanes_f32=self.lanes_f32 // 2)

    @property
    def tile_registers(self) -> int:
        """Registers of sums and operands of a tile: if not added at once, a product needs one, too."""
        return self.registers if self.has_fma else self.registers - 1

    @property
    def has_tiles(self) -> bool:
        """Whether there is a matrix unit, or something that acts as one."""
        return self.isa in ("amx", "amx_emulated")

    @property
    def has_dots(self) -> bool:
        """Whether pairs of bf16 are multiplied at once, or something acts as if they were."""
        return self.isa in ("avx512_bf16", "avx512_bf16_emulated")

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
    return machine_for(
        isa, triple=host_triple(), caches=host.caches(), loads_alone=host.loads_alone(),
        multiplies_alone=host.multiplies_alone(),
    )  # fmt: skip


def machine_for(
    isa: str, *, triple: str | None = None, caches: tuple[int, int, int] | None = None, loads_alone: bool = False,
    multiplies_alone: bool = False,
) -> Machine:  # fmt: skip
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
        loads_alone=loads_alone and level.lanes_f32 == 16,
        multiplies_alone=multiplies_alone and level.lanes_f32 == 16,
    )


@cache
def available_isas() -> tuple[str, ...]:
    """The levels this machine can run, best last; without the emulations, which only those get who ask for them.

    Processors that have AVX512_FP16 as well take twice as long for a dot product as for a multiply-add: nothing gained.
    """
    found = [isa for isa in LEVELS if why_not(isa) is None and not isa.endswith("_emulated")]
    if "avx512_bf16" in found and "avx512_fp16" in cpu_flags():
        found.remove("avx512_bf16")
        found.insert(found.index("avx512"), "avx512_bf16")
    return tuple(found)


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


def _arch(triple: str) -> str:
    arch = triple.split("-")[0]
    return "aarch64" if arch == "arm64" else arch

"""LLVM and the loaders: code for other machines, relocations, and what is refused."""

import ctypes
import struct
import sys

import pytest
from tiny_kernels import tiny_module

from convgrad.plan import host, machine
from convgrad.runtime import driver, elf, jit, linking
from convgrad.runtime.object_file import EM_AARCH64, ObjectFile, UnsupportedObject

here = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="objects are loaded by LLVM elsewhere")

# A constant table, a variable, a call into the C library, and a variable of another module by its address in memory.
IR = """
@table = private constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@calls = internal global i64 5
@environ = external global ptr
@pointers = private constant [2 x ptr] [ptr @twice, ptr @thrice]
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define internal i64 @twice(i64 %v) nounwind noinline {
  %r = mul i64 %v, 2
  ret i64 %r
}
define internal i64 @thrice(i64 %v) nounwind noinline {
  %r = mul i64 %v, 3
  ret i64 %r
}
define i64 @mix(ptr %out, i64 %i, i64 %size) nounwind {
  %entry = getelementptr i64, ptr @table, i64 %i
  %value = load i64, ptr %entry
  %seen = load i64, ptr @calls
  %now = add i64 %seen, 1
  store i64 %now, ptr @calls
  call void @llvm.memset.p0.i64(ptr %out, i8 7, i64 %size, i1 false)
  %which = and i64 %i, 1
  %at = getelementptr ptr, ptr @pointers, i64 %which
  %function = load ptr, ptr %at
  %scaled = call i64 %function(i64 %value)
  %sum = add i64 %scaled, %now
  ret i64 %sum
}
define ptr @where() nounwind {
  ret ptr @environ
}
"""


def call_mix(address, index):
    out = ctypes.create_string_buffer(64)
    mix = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
    result = mix(ctypes.addressof(out), index, 40)
    assert out.raw == b"\7" * 40 + bytes(24)
    return result


@pytest.fixture(scope="module")
def mixed():
    return jit.compile_ir(IR, machine.machine_for("portable"))


@here
def test_an_object_runs_without_llvm(mixed):
    loaded = elf.Loaded(mixed, ("mix", "where"))
    assert [call_mix(loaded.addresses["mix"], index) for index in range(4)] == [26, 67, 68, 129]
    where = ctypes.CFUNCTYPE(ctypes.c_void_p)(loaded.addresses["where"])()
    assert where == elf.external_address("environ")


def test_an_object_runs_by_the_loader_of_llvm(mixed):
    addresses, _alive = jit.load_with_llvm(mixed, ("mix",))
    assert [call_mix(addresses["mix"], index) for index in range(4)] == [26, 67, 68, 129]


def test_a_symbol_that_is_not_there_is_an_error(mixed):
    with pytest.raises(jit.CompileError, match="no symbol nowhere"):
        jit.load(mixed, ("nowhere",))


@here
def test_memory_of_code_is_never_writable_and_executable(mixed):
    loaded = elf.Loaded(mixed, ("mix",))
    code = loaded.addresses["mix"]
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, access = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= code < end:
                assert access == "r-xp"
                return
    raise AssertionError("the code is not mapped")


@here
def test_memory_is_given_back(mixed):
    def mapped():
        with open("/proc/self/maps") as maps:
            return sum(1 for line in maps if " r-xp 00000000 00:00 0" in line)

    kept = elf.Loaded(mixed, ("mix",))
    before = mapped()
    for _ in range(50):
        elf.Loaded(mixed, ("mix",))
    assert mapped() <= before + 1
    assert kept.addresses


@here
@pytest.mark.parametrize("length", [0, 10, 64, 200, -60])
def test_a_torn_object_is_refused(mixed, length):
    with pytest.raises(UnsupportedObject):
        elf.Loaded(mixed[:length], ("mix",))


@here
def test_a_relocation_nobody_knows_goes_to_llvm(mixed, monkeypatch):
    monkeypatch.setattr(linking, "_apply_x86_64", linking._apply_aarch64)
    monkeypatch.setattr(linking, "_apply_aarch64", linking._apply_x86_64)
    with pytest.raises(UnsupportedObject, match="relocation"):
        elf.Loaded(mixed, ("mix",))
    addresses, _alive = jit.load(mixed, ("mix",))
    assert call_mix(addresses["mix"], 0) == 26


@here
def test_an_object_for_another_architecture_is_refused():
    foreign = "neon" if host.host_triple().startswith("x86_64") else "avx2"
    with pytest.raises(UnsupportedObject, match="another architecture"):
        elf.Loaded(jit.compile_ir(IR, machine.machine_for(foreign)), ("mix",))


def decode_aarch64(image, place, base):
    """The address that an instruction refers to, or the part of it that it holds, read back from its bits."""
    (word,) = struct.unpack_from("<I", image, place)
    if word & 0x9F000000 == 0x90000000:  # adrp
        pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
        pages -= (pages & 0x100000) << 1
        return ((base + place) >> 12) + pages << 12
    if word & 0x7C000000 == 0x14000000:  # b, bl
        words = word & 0x3FFFFFF
        return base + place + 4 * (words - ((words & 0x2000000) << 1))
    scale = word >> 30 if word & 0x3B000000 == 0x39000000 else 0  # ldr and str by their size; add
    if word & 0x04800000 == 0x04800000 and scale == 0 and word & 0x3B000000 == 0x39000000:
        scale = 4  # of a vector register
    return (word >> 10 & 0xFFF) << scale


def test_code_for_aarch64_is_linked_to_the_right_places():
    file = ObjectFile(jit.compile_ir(IR, machine.machine_for("neon", triple="aarch64-unknown-linux-gnu")))
    layout, base = linking.lay_out(file), 0x7F1234560000
    externals = {"memset": 0x7E0000001234, "environ": 0x7E0000005678}
    image = linking.link(file, layout, base, externals.__getitem__)
    kinds = set()
    for number, entries in file.relocations.items():
        for offset, info, addend in entries:
            symbol, kind = file.symbols[info >> 32], info & 0xFFFFFFFF
            kinds.add(kind)
            place = layout.sections[number] + offset
            defined = symbol.section in layout.sections
            target = base + layout.sections[symbol.section] + symbol.value if defined else externals[symbol.name]
            if kind in (311, 312):
                target = base + layout.slots[symbol.name]
                (value,) = struct.unpack_from("<Q", image, layout.slots[symbol.name])
                assert value == externals[symbol.name]
            target += addend
            if kind == 257:
                assert struct.unpack_from("<Q", image, place) == (target,)
            elif kind in (275, 311):
                assert decode_aarch64(image, place, base) == target & ~0xFFF
            elif kind in (282, 283):
                near = base + layout.stubs.get(symbol.name, target - base)
                assert decode_aarch64(image, place, base) == near
            else:
                assert decode_aarch64(image, place, base) == target & 0xFFF
    assert {257, 275, 311, 312} <= kinds
    assert kinds & {282, 283}
    stub = layout.stubs["memset"]
    assert image[stub : stub + 16] == linking._STUBS[EM_AARCH64] + externals["memset"].to_bytes(8, "little")


@pytest.mark.parametrize("isa", machine.LEVELS)
def test_code_of_every_level_can_be_looked_at(isa):
    ir = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
define void @f(ptr %p) nounwind {
  %a = load <16 x float>, ptr %p, align 4
  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %a, <16 x float> %a)
  store <16 x float> %r, ptr %p, align 4
  ret void
}
"""
    text = jit.assembly(ir, machine.machine_for(isa))
    expected = {
        "portable": "fmaf",
        "avx2": "%ymm",
        "neon": ".4s",
    }
    wide = isa.startswith(("avx512", "amx"))
    if isa != "portable" or "x86_64" in machine.machine_for(isa).triple:
        assert ("%zmm" if wide else expected[isa]) in text
    assert wide == ("%zmm" in text)
    assert (isa in ("avx2",)) == ("%ymm" in text)


def test_rounding_to_bf16_is_not_left_to_an_instruction_that_flushes_denormals():
    ir = """
define <16 x bfloat> @f(<16 x float> %a) nounwind {
  %r = fptrunc <16 x float> %a to <16 x bfloat>
  ret <16 x bfloat> %r
}
"""
    for isa in ("avx512", "amx_emulated"):
        assert "vcvtneps2bf16" not in jit.assembly(ir, machine.machine_for(isa))


def test_ir_that_llvm_refuses_is_an_error_of_ours():
    with pytest.raises(jit.CompileError, match="LLVM does not accept the module"):
        jit.compile_ir("define void @f( {", machine.machine_for("portable"))


def test_the_driver_is_compiled_for_other_machines():
    for isa in machine.LEVELS:
        target = machine.machine_for(isa)
        assert driver.ENTRY in jit.assembly(driver.with_driver(tiny_module(3), target.triple), target)


def test_assembly_for_another_processor_is_refused():
    """LLVM knows how to write for it, but only reads assembly of its own host; unasked, it ends the process."""
    ir = 'define void @f() {\n  call void asm sideeffect "nop", ""()\n  ret void\n}\n'
    isa, triple = ("neon", "aarch64-unknown-linux-gnu")
    if host.host_triple().startswith("aarch64"):
        isa, triple = ("avx2", "x86_64-unknown-linux-gnu")
    with pytest.raises(jit.CompileError, match=f"assembly for {triple}.*compile it on such a machine"):
        jit.assembly(ir, machine.machine_for(isa, triple=triple))

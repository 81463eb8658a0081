"""What an instruction set offers to the emitters: vectors of numbers, and how they are loaded, combined and stored.

Everything is plain LLVM IR on vectors of the natural length; an instruction set differs in lanes, registers and in what
it must spell out because the hardware lacks it. Conversions between storage and arithmetic types round to nearest even.
"""

from __future__ import annotations

from collections.abc import Sequence

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value, constant, index, lanes_of, like, vector_of
from convgrad.codegen.isa import x86
from convgrad.codegen.isa.conversions import (
    bfloat_to_float,
    float_to_bfloat,
    float_to_half,
    half_to_float,
    number_of_words,
    rounded_to_bfloat,
)  # fmt: skip
from convgrad.values import frozen

STORAGE = {"f32": "float", "f64": "double", "bf16": "i16", "f16": "i16"}  # LLVM types in memory
PACKED = 32  # bytes of vectors whose words are packed half by half
FEW_REGISTERS = 16
PART = 4  # f32 numbers of the parts of a vector that most shuffles stay inside
ARITHMETIC = {"f32": "float", "f64": "double"}
BYTES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}


@frozen(kw_only=True)
class Isa:
    """Lengths and abilities of one instruction set."""

    name: str
    vector_bytes: int
    registers: int  # vector registers
    fma: bool  # else a product is rounded before it is added
    half: bool  # converts f16 in hardware
    masks: bool  # masked loads and stores are single instructions
    bfloat: bool = False  # rounds to bf16 in hardware, denormals to zero; see `codegen/outputs/rounded_by_processor.py`
    halves: bool = (
        False  # there are instructions on halves of its vectors, and processors that take half as long for them
    )
    assembly: bool = False  # squares are turned by `x86.turn`
    permute: str = ""  # the intrinsic that picks any lanes of one vector at once, without its type

    def lanes(self, compute: str) -> int:
        """Numbers of an arithmetic type in one vector."""
        return self.vector_bytes // BYTES[compute]

    def vector(self, compute: str) -> str:
        """The LLVM type of one vector."""
        return vector_of(self.lanes(compute), ARITHMETIC[compute])

    def multiply_add(self, b: Builder, x: Value, y: Value, total: Value) -> Value:
        """total + x · y, lane by lane."""
        if self.fma:
            return b.call(total.type, f"llvm.fma.{_suffix(total.type)}", x, y, total)
        return b.binary("fadd", total, b.binary("fmul", x, y))

    @property
    def multiplies_from_memory(self) -> bool:
        """Whether `multiply_add_from` is there."""
        return self.assembly and self.fma and self.vector_bytes == x86.WIDEST

    def multiply_add_from(self, b: Builder, x: Value, address: Value, total: Value) -> Value:
        """total + x · y, of a vector y at an address that takes no register: LLVM reads one once and would keep it."""
        kind = "pd" if total.type.endswith("double>") else "ps"
        operands = f"ptr elementtype({total.type}) {address.text}, {x}, {total}"
        code = f'"vfmadd231{kind} $1, $2, $0", "=v,*m,v,0"'
        return b.emit(total.type, f"call {total.type} asm {code}({operands}) memory(argmem: read)")

    def splat(self, b: Builder, x: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        type_ = vector_of(lanes, x.type)
        one = b.emit(type_, f"insertelement {type_} poison, {x}, i64 0")
        return b.emit(type_, f"shufflevector {one}, {type_} poison, <{lanes} x i32> zeroinitializer")

    # --- memory, with conversion to and from the arithmetic type

    @property
    def few_registers(self) -> bool:
        """Whether a tile's sums take all registers of vectors but a few, so that LLVM soon spills."""
        return self.registers <= FEW_REGISTERS

    def load(
        self, b: Builder, dtype: str, address: Value, lanes: int = 1, count: Value | None = None,
        mask: Value | None = None, near: tuple[int, int] = (0, 0),
    ) -> Value:  # fmt: skip
        """`lanes` consecutive numbers; with `count` only the first `count` lanes are read, the rest is zero.

        With `mask`, an integer of as many bits, only the lanes whose bits are set are. As many numbers as `near` says,
        before them and behind, may be read besides.
        """
        return self.widen(b, dtype, self.load_bits(b, dtype, address, lanes, count, mask, near))

    def load_firsts(self, b: Builder, dtype: str, address: Value, lanes: int, mask: Value | None = None) -> Value:
        """The first of each of `lanes` pairs of 16-bit numbers; a mask has a bit for every number."""
        pairs = b.cast("bitcast", self.load_bits(b, dtype, address, 2 * lanes, mask=mask), vector_of(lanes, "i32"))
        if dtype == "bf16":
            return number_of_words(b, pairs, odd=False)
        return self.widen(b, dtype, b.cast("trunc", pairs, vector_of(lanes, "i16")))

    def load_in_all(self, b: Builder, dtype: str, address: Value, lanes: int) -> Value:
        """A number, in every lane; those of 16 bits are broadcast as they are stored, by the load, and then widened."""
        if dtype in ARITHMETIC or not self.assembly or lanes != self.lanes("f32"):
            return self.splat(b, self.load(b, dtype, address), lanes)
        return self.widen(b, dtype, self.splat(b, b.load(STORAGE[dtype], address, BYTES[dtype]), lanes))

    def load_bits(
        self, b: Builder, dtype: str, address: Value, lanes: int = 1, count: Value | None = None,
        mask: Value | None = None, near: tuple[int, int] = (0, 0),
    ) -> Value:  # fmt: skip
        """The same numbers, as they are stored."""
        stored = STORAGE[dtype] if lanes == 1 else vector_of(lanes, STORAGE[dtype])
        if mask is not None and mask.text.isdigit() and int(mask.text).bit_count() == 1:  # as of a count of 1
            lane = int(mask.text).bit_length() - 1
            one = b.load(STORAGE[dtype], b.at(address, lane, STORAGE[dtype]), BYTES[dtype])
            return b.emit(stored, f"insertelement {stored} zeroinitializer, {one}, i64 {lane}")
        if mask is not None and not self.masks and BYTES[dtype] == 2 and mask.text.isdigit():
            return self._load_part(b, stored, address, int(mask.text), near)
        if mask is not None:
            bits = b.cast("bitcast", mask, vector_of(lanes, "i1"))
            return self.load_masked(b, stored, address, BYTES[dtype], bits)
        if count is None:
            return b.load(stored, address, BYTES[dtype])
        if count.text == "1":  # LLVM 22 reads two 16-bit numbers under a mask known to hold in one lane only
            one = b.load(STORAGE[dtype], address, BYTES[dtype])
            return b.emit(stored, f"insertelement {stored} zeroinitializer, {one}, i64 0")
        count = _unknown(b, count) if BYTES[dtype] == 2 else count
        return self.load_masked(b, stored, address, BYTES[dtype], first_lanes(b, lanes, count))

    def store(self, b: Builder, dtype: str, value: Value, address: Value, count: Value | None = None) -> None:
        """Round `value` to `dtype` and store it; with `count` only its first `count` lanes."""
        self.store_bits(b, self.rounded(b, dtype, value), address, count)

    @property
    def streams(self) -> bool:
        """Whether `stream` stores past the caches (Intel 64 and IA-32 manual, volume 1, 10.4.6)."""
        return self.assembly

    def stream(self, b: Builder, vector: Value, address: Value) -> None:
        """Store a whole vector, of the arithmetic type, where addresses are multiples of its length."""
        b.store_past_caches(vector, address, self.vector_bytes)

    def is_aligned(self, b: Builder, *addresses: Value) -> Value:
        """Whether addresses are multiples of the length of a vector."""
        first, *others = (b.cast("ptrtoint", address, "i64") for address in addresses)
        number = first
        for other in others:
            number = b.emit("i64", f"or {number}, {other.text}")
        return b.compare("eq", b.emit("i64", f"and {number}, {self.vector_bytes - 1}"), 0)

    def end_streams(self, b: Builder) -> None:
        """Whoever sees a store that comes now sees those of `stream` that came before."""
        b.do('call void asm sideeffect "sfence", "~{memory}"()')

    def store_bits(self, b: Builder, raw: Value, address: Value, count: Value | None = None) -> None:
        """Store numbers as they are, aligned to one of them; with `count` only the first `count` lanes."""
        kind = raw.type[1:-1].split(" x ")[1] if raw.type.startswith("<") else raw.type
        align = {"i16": 2, "float": 4, "double": 8}[kind]
        if count is None:
            b.store(raw, address, align)
            return
        lanes = lanes_of(raw)
        if not self.masks and count.text.isdigit():
            self._store_pieces(b, raw, address, int(count.text), align)
            return
        if count.text == "1":  # and writes two
            b.store(b.emit(kind, f"extractelement {raw}, i64 0"), address, align)
            return
        count = _unknown(b, count) if align == 2 else count
        self.store_masked(b, raw, address, align, first_lanes(b, lanes, count))

    def _load_part(self, b: Builder, type_: str, address: Value, mask: int, near: tuple[int, int]) -> Value:
        """Numbers of 16 bits in a known run of lanes: AVX2 has no loads of these under a mask.

        At one end of a vector whose neighbours are there at the other: all of a vector, moved; else by powers of two.
        """
        lanes = int(type_[1:-1].split(" x ")[0])
        first, stop = (mask & -mask).bit_length() - 1, mask.bit_length()
        assert mask == (1 << stop) - (1 << first)
        left_out, (before, behind) = lanes - (stop - first), near
        if 0 in (first, lanes - stop) and left_out <= (behind if first else before):
            zeros, moved = Value(type_, "zeroinitializer"), left_out if first else -left_out
            every = b.load(type_, b.at(address, moved, "i16"), BYTES["bf16"])
            return shuffle(b, zeros, every, [lanes + i - moved if first <= i < stop else 0 for i in range(lanes)])
        return self._load_pieces(b, type_, address, first, stop)

    def _load_pieces(self, b: Builder, type_: str, address: Value, lane: int, stop: int) -> Value:
        """Those from a lane on, by powers of two."""
        lanes = int(type_[1:-1].split(" x ")[0])
        found = Value(type_, "zeroinitializer")
        while lane < stop:
            size = next(n for n in (8, 4, 2, 1) if lane % n == 0 and lane + n <= stop and n < lanes)
            kind = f"i{16 * size}"
            words = b.cast("bitcast", found, vector_of(lanes // size, kind)) if size > 1 else found
            piece = b.load(kind, b.at(address, lane, "i16"), 2)
            words = b.emit(words.type, f"insertelement {words}, {piece}, i64 {lane // size}")
            found = b.cast("bitcast", words, type_) if size > 1 else words
            lane += size
        return found

    def _store_pieces(self, b: Builder, raw: Value, address: Value, count: int, align: int) -> None:
        """The first lanes, a known number of them, by halves: a store under a mask takes AMD's cores 12 cycles."""
        lanes, kind = lanes_of(raw), raw.type[1:-1].split(" x ")[1]
        first, piece = 0, lanes
        while first < count:
            while piece > count - first:
                piece //= 2
            if piece == 1:
                part = b.emit(kind, f"extractelement {raw}, i64 {first}")
            else:
                part = raw if piece == lanes else shuffle(b, raw, raw, list(range(first, first + piece)))
            b.store(part, b.at(address, first, kind), align)
            first += piece

    def load_masked(self, b: Builder, type_: str, address: Value, align: int, mask: Value) -> Value:
        """A vector of which only the lanes of a mask are read; the others are zero."""
        zero = Value(type_, "zeroinitializer")
        return b.call(type_, f"llvm.masked.load.{_suffix(type_)}.p0", address, Value("i32", str(align)), mask, zero)

    def store_masked(self, b: Builder, raw: Value, address: Value, align: int, mask: Value) -> None:
        """The lanes of a mask."""
        name = f"llvm.masked.store.{_suffix(raw.type)}.p0"
        b.module.declare("void", name, [raw.type, "ptr", "i32", mask.type])
        b.do(f"call void @{name}({raw}, {address}, i32 {align}, {mask})")

    def load_apart(self, b: Builder, dtype: str, address: Value, step: int, lanes: int, mask: Value) -> Value:
        """Numbers `step` apart, in the lanes of a mask; zero in the others, of which nothing is read."""
        kind, size = STORAGE[dtype], BYTES[dtype]
        stored = vector_of(lanes, kind)
        if step == 1:
            return self.widen(b, dtype, self.load_masked(b, stored, address, size, mask))
        offsets = "<" + ", ".join(f"i64 {lane * step * size}" for lane in range(lanes)) + ">"
        places = b.emit(vector_of(lanes, "ptr"), f"getelementptr i8, {address}, <{lanes} x i64> {offsets}")
        name = f"llvm.masked.gather.{_suffix(stored)}.v{lanes}p0"
        zero = Value(stored, "zeroinitializer")
        return self.widen(b, dtype, b.call(stored, name, places, Value("i32", str(size)), mask, zero))

    def widen(self, b: Builder, dtype: str, raw: Value) -> Value:
        """Numbers of the arithmetic type, from those that are stored."""
        if dtype == "bf16":
            return bfloat_to_float(b, raw)
        if dtype == "f16":
            if self.half and self.assembly and raw.type == "i16":
                return half_alone(b, raw)
            if self.half:
                return b.cast("fpext", b.cast("bitcast", raw, like(raw, "half")), like(raw, "float"))
            return half_to_float(b, raw)
        return raw

    def rounded(self, b: Builder, dtype: str, value: Value) -> Value:
        """Rounded to a type of storage, and about to be stored: not by the conversion, which takes twice as long."""
        raw = self.narrow(b, dtype, value)
        hides = dtype == "f16" and self.half and self.assembly and value.type == self.vector("f32")
        return apart(b, raw) if hides else raw

    def narrow(self, b: Builder, dtype: str, value: Value) -> Value:
        """Rounded to a type of storage, as it is stored."""
        if dtype == "bf16":
            return self.to_bfloat(b, value)
        if dtype == "f16":
            if self.half:
                return b.cast("bitcast", b.cast("fptrunc", value, like(value, "half")), like(value, "i16"))
            return float_to_half(b, value)
        return value

    def to_bfloat(self, b: Builder, value: Value) -> Value:
        """Rounded to bf16, exactly, by integers."""
        if not self.packs(value):
            return float_to_bfloat(b, value)
        packed = self.packed(b, value, value)
        return shuffle(b, packed, packed, [*range(4), *range(8, 12)])

    def packs(self, value: Value) -> bool:
        """Whether `packed` is what vectors become bf16 by."""
        return self.vector_bytes == PACKED and value.type == self.vector("f32")

    def packed(self, b: Builder, low: Value, high: Value) -> Value:
        """bf16 of two vectors of AVX2, exactly, half of each at a time.

        LLVM shuffles bytes else, keeps the places of all of them in one of sixteen registers through all loops around,
        and spills sums.
        """
        kept = [rounded_to_bfloat(b, value) for value in (low, high)]
        upper = [b.binary("lshr", bits, constant(bits.type, 16)) for bits in kept]
        return b.call("<16 x i16>", "llvm.x86.avx2.packusdw", *upper)

    # --- rearrangement

    def pick(self, b: Builder, x: Value, wanted: list[int]) -> Value:
        """The vector whose lane l is lane wanted[l] of x; a single instruction where there is one.

        LLVM makes two of a shuffle that repeats itself across halves of a vector, expecting to share one of them; so
        it is not told which lanes are wanted.
        """
        inside = all(lane // PART == place // PART for place, lane in enumerate(wanted))
        if not self.permute or inside or len(set(wanted)) == 1:
            return shuffle(b, x, x, wanted)
        kind, numbers = ("sf", "i32") if x.type.endswith("float>") else ("df", "i64")
        type_ = vector_of(len(wanted), numbers)
        places = b.module.opaque(type_, "<" + ", ".join(f"{numbers} {lane}" for lane in wanted) + ">")
        places = b.load(type_, places, 64)
        return b.call(x.type, f"{self.permute}.{kind}.512", x, places)

    def slide(self, b: Builder, x: Value, y: Value, lanes: int) -> Value:
        """x without its first lanes, followed by the first lanes of y.

        One instruction of AVX-512, which LLVM does not find for numbers with a point: it takes one that overwrites its
        operand, copies that before, and runs out of registers.
        """
        if self.assembly and self.vector_bytes == x86.WIDEST:
            code = f"valign{'q' if x.type.endswith('double>') else 'd'} $${lanes}, $1, $2, $0"
            return b.emit(x.type, f'call {x.type} asm "{code}", "=v,v,v"({x}, {y}) memory(none)')
        return shuffle(b, x, y, list(range(lanes, lanes + lanes_of(x))))

    def load_transposed(self, b: Builder, compute: str, address: Value, step: Index) -> list[Value]:
        """The columns of a square of numbers of an arithmetic type, whose rows lie `step` numbers apart."""
        lanes, kind = self.lanes(compute), STORAGE[compute]
        if not self.assembly:
            return self.transpose(b, [self.load(b, compute, b.at(address, b.mul(i, step), kind), lanes)
                                      for i in range(lanes)])  # fmt: skip
        bases = [b.at(address, b.mul(i, step), kind) for i in range(0, lanes, 4)]
        steps = [index(b.mul(step, times * BYTES[compute])) for times in (1, 3)]
        code = x86.turn_from_memory(lanes, self.vector_bytes)
        return _assembled(b, self.vector(compute), code, "sideeffect ", [*bases, *steps], "")

    def transpose_words(self, b: Builder, rows: list[Value]) -> list[Value]:
        """The columns, of 32 words, of sixteen vectors in which rows lie as `x86.turn_words` has them."""
        return _assembled(b, rows[0].type, x86.turn_words(), "", rows, " memory(none)")

    def transpose(self, b: Builder, rows: list[Value]) -> list[Value]:
        """Row i, lane j becomes row j, lane i; as many rows as lanes, a power of two.

        log2(lanes) rounds; each exchanges the off-diagonal blocks of half the size of the round before. Where half of
        the rows are known to be zero, LLVM leaves out more than assembly gains, which is for whole vectors.
        """
        lanes = len(rows)
        whole = rows[0].type in map(self.vector, ARITHMETIC)
        if self.assembly and whole and rows[lanes // 2].text != "zeroinitializer":
            return _assembled(b, rows[0].type, x86.turn(lanes, self.vector_bytes), "", rows, " memory(none)")
        half = lanes // 2
        while half:
            low = [j if not j & half else lanes + j - half for j in range(lanes)]
            high = [j + half if not j & half else lanes + j for j in range(lanes)]
            following = list(rows)
            for i in range(lanes):
                if not i & half:
                    following[i] = shuffle(b, rows[i], rows[i + half], low)
                    following[i + half] = shuffle(b, rows[i], rows[i + half], high)
            rows, half = following, half // 2
        return rows


def shuffle(b: Builder, x: Value, y: Value, lanes: list[int]) -> Value:
    """Lanes of x (0 ..) and y (len ..), picked at compile time."""
    kind = x.type.split(" x ")[1][:-1]
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    return b.emit(vector_of(len(lanes), kind), f"shufflevector {x}, {y}, <{len(lanes)} x i32> <{mask}>")


def _assembled(
    b: Builder, row: str, code: x86.Assembly, effects: str, operands: Sequence[Value], after: str
) -> list[Value]:
    """Vectors like `row` that a piece of assembly makes, in its order."""
    type_ = "{" + ", ".join([row] * (len(code.places) + 1)) + "}"
    values = ", ".join(map(str, operands))
    every = b.emit(type_, f'call {type_} asm {effects}"{code.text}", "{code.constraints}"({values}){after}')
    return [b.emit(row, f"extractvalue {every}, {place}") for place in code.places]


def apart(b: Builder, raw: Value) -> Value:
    """The same bits, of which LLVM does not know that they were converted: vcvtps2ph to memory takes twice as long."""
    return b.emit(raw.type, f'call {raw.type} asm "", "=v,0"({raw}) memory(none)')


def half_alone(b: Builder, raw: Value) -> Value:
    """A number of f16 as f32, by way of a register that nothing was in: LLVM's way waits for the number before it."""
    code = "vmovd $1, $0\\0Avcvtph2ps $0, $0"
    return b.emit("float", f'call float asm "{code}", "=x,r"({b.cast("zext", raw, "i32")}) memory(none)')


def first_lanes(b: Builder, lanes: int, count: Value) -> Value:
    """The mask that holds in lanes 0 .. count-1, for a count of 0 to lanes."""

    def mask() -> Value:
        others = b.cast("trunc", b.emit("i64", f"shl i64 -1, {count.text}"), f"i{lanes}")
        return b.cast("bitcast", b.binary("xor", others, Value(others.type, "-1")), vector_of(lanes, "i1"))

    return b.once(("mask", lanes, count.text), mask)


def _unknown(b: Builder, number: Value) -> Value:
    """The same integer, of which LLVM does not find out that it is 1, or 0 and 1: it would take two lanes for one."""
    if number.text.isdigit():
        return number
    asm = f'call {number.type} asm "", "=r,0"({number}) memory(none)'
    return b.once(("unknown", number.text), lambda: b.emit(number.type, asm))


def _suffix(type_: str) -> str:
    """Of intrinsic names: <16 x float> is v16f32."""
    scalar = {"float": "f32", "double": "f64"}
    if type_.startswith("<"):
        lanes, kind = type_[1:-1].split(" x ")
        return f"v{lanes}{scalar.get(kind, kind)}"
    return scalar.get(type_, type_)

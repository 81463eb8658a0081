"""Matrix units: eight tile registers of 16 rows of 64 bytes, and products of two of them.

A C tile holds 16 x 16 f32, an A tile 16 rows of 32 bf16, a B tile 16 rows of 16 pairs of bf16; one multiply-add is
C[m, n] += Σ_k A[m, 2k] · B[k, 2n] + A[m, 2k + 1] · B[k, 2n + 1] (Intel 64 and IA-32 Architectures Software Developer's
Manual, TDPBF16PS). Tile numbers are fixed by the emitters: LLVM's allocator, which would spill them, is not involved.
"""

from __future__ import annotations

from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value, index
from convgrad.codegen.isa.dots import flushed, piece

ROWS, ROW_BYTES = 16, 64
COLUMNS, DEPTH = 16, 32  # f32 in a row of C; bf16 in a row of A
TILE_NUMBERS = ROWS * DEPTH  # bf16 in a tile of A or B
C_TILES, A_TILES, B_TILES = (0, 1, 2, 3), (4, 5), (6, 7)


class TileUnit:
    """Tile instructions as the processor has them (AMX-TILE and AMX-BF16); `rows` of C and A are in use."""

    def __init__(self, rows: int = ROWS):
        self.rows = rows

    def rows_of(self, tile: int) -> int:
        """How many rows an instruction moves."""
        return ROWS if tile in B_TILES else self.rows

    def begin(self, b: Builder) -> None:
        """Configure the tiles of this thread."""
        tiles = range(len(C_TILES + A_TILES + B_TILES))
        palette, reserved = 1, [0] * 15
        widths = [byte for tile in range(16) for byte in (ROW_BYTES if tile in tiles else 0, 0)]
        rows = [self.rows_of(tile) if tile in tiles else 0 for tile in range(16)]
        self._do(b, "ldtilecfg", b.module.bytes(bytes([palette, *reserved, *widths, *rows])))

    def end(self, b: Builder) -> None:
        """Give the tiles back, so that a thread that is not ours never carries them through a context switch."""
        self._do(b, "tilerelease")

    def zero(self, b: Builder, tile: int) -> None:
        """All numbers of a tile."""
        self._do(b, "tilezero", _number(tile))

    def load(self, b: Builder, tile: int, address: Value, row_bytes: Index) -> None:
        """Rows that lie `row_bytes` apart."""
        self._do(b, "tileloadd64", _number(tile), address, index(row_bytes))

    def store(self, b: Builder, tile: int, address: Value, row_bytes: int) -> None:
        """Rows, `row_bytes` apart."""
        self._do(b, "tilestored64", _number(tile), address, Value("i64", str(row_bytes)))

    def multiply_add(self, b: Builder, c: int, a: int, x: int) -> None:
        """C += A · B. Denormals count as zero, in the operands and in C."""
        self._do(b, "tdpbf16ps", _number(c), _number(a), _number(x))

    def _do(self, b: Builder, name: str, *arguments: Value) -> None:
        name = f"llvm.x86.{name}"
        b.module.declare("void", name, [argument.type for argument in arguments])
        b.do(f"call void @{name}({', '.join(map(str, arguments))})")


class EmulatedTileUnit(TileUnit):
    """The same by vectors of whatever the target has, to the last bit: for tests on machines without tiles.

    The registers are memory on the stack of the task.
    """

    def begin(self, b: Builder) -> None:
        """Room for the registers, which hold anything at first."""
        b.do(f"{_REGISTERS.text} = alloca [{8 * ROWS * ROW_BYTES} x i8], align 64")
        if "emulated" not in b.module.notes:
            b.module.notes.add("emulated")
            for make in (_emulated_move, _emulated_multiply_add):
                make(b.module)

    def end(self, b: Builder) -> None:
        """Nothing to give back."""

    def zero(self, b: Builder, tile: int) -> None:
        """All numbers of a tile."""
        for row in range(self.rows_of(tile)):
            b.store(Value("<16 x i32>", "zeroinitializer"), b.at(self._at(b, tile), row * ROW_BYTES, "i8"), 64)

    def load(self, b: Builder, tile: int, address: Value, row_bytes: Index) -> None:
        """Rows that lie `row_bytes` apart."""
        b.call_void("tile.move", self._at(b, tile), ROW_BYTES, address, row_bytes, self.rows_of(tile))

    def store(self, b: Builder, tile: int, address: Value, row_bytes: int) -> None:
        """Rows, `row_bytes` apart."""
        b.call_void("tile.move", address, row_bytes, self._at(b, tile), ROW_BYTES, self.rows_of(tile))

    def multiply_add(self, b: Builder, c: int, a: int, x: int) -> None:
        """C += A · B."""
        b.call_void("tile.multiply.add", *(self._at(b, tile) for tile in (c, a, x)), self.rows)

    def _at(self, b: Builder, tile: int) -> Value:
        return b.at(_REGISTERS, tile * ROWS * ROW_BYTES, "i8")


_REGISTERS = Value("ptr", "%tiles")  # of the task that is being emitted


def _number(tile: int) -> Value:
    return Value("i8", str(tile))


def _emulated_move(module: Module) -> None:
    """Rows from one place to another."""
    arguments = [("ptr", "dst"), ("i64", "dst.step"), ("ptr", "src"), ("i64", "src.step"), ("i64", "rows")]
    b = Builder(module, "tile.move", arguments)
    dst, dst_step, src, src_step, rows = b.arguments

    def row(i, _: object) -> None:
        value = b.load("<16 x i32>", b.at(src, b.mul(i, src_step), "i8"), 2)
        b.store(value, b.at(dst, b.mul(i, dst_step), "i8"), 2)

    b.loop(0, rows, row, name="row")
    b.finish()


def _emulated_multiply_add(module: Module) -> None:
    """One row of C at a time; even and odd products are summed apart, and their sums added to C at the end."""
    b = Builder(module, "tile.multiply.add", [("ptr", "c"), ("ptr", "a"), ("ptr", "b"), ("i64", "rows")])
    c, a, x, rows = b.arguments
    zero = Value("<16 x float>", "zeroinitializer")

    def row(m, _: object) -> None:
        def pair(k, sums):
            of_b = b.load("<16 x i32>", b.at(x, b.mul(k, ROW_BYTES), "i8"), 64)
            of_a = b.load("i32", b.at(a, b.add(b.mul(m, ROW_BYTES), b.mul(k, 4)), "i8"), 4)
            one = b.emit("<16 x i32>", f"insertelement <16 x i32> poison, {of_a}, i64 0")
            every = b.emit("<16 x i32>", f"shufflevector {one}, <16 x i32> poison, <16 x i32> zeroinitializer")
            return {part: _fma(b, piece(b, every, part), piece(b, of_b, part), total) for part, total in sums.items()}

        sums = b.loop(0, ROWS, pair, carried={"even": zero, "odd": zero}, name="pair")
        place = b.at(c, b.mul(m, ROW_BYTES), "i8")
        pairs = flushed(b, b.binary("fadd", sums["even"], sums["odd"]))
        total = b.binary("fadd", flushed(b, b.load("<16 x float>", place, 64)), pairs)
        b.store(flushed(b, total), place, 64)

    b.loop(0, rows, row, name="row")
    b.finish()


def _fma(b: Builder, x: Value, y: Value, total: Value) -> Value:
    return flushed(b, b.call(total.type, "llvm.fma.v16f32", x, y, total))


UNITS = {"amx": TileUnit, "amx_emulated": EmulatedTileUnit}

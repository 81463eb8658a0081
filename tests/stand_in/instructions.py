"""IR for AVX-512, dot products and matrix tiles, as IR for any vectors: same results, to the last bit.

Only what no other instruction set has is put in other words: assembly, and the functions `llvm.x86.*` for vectors of
512 bits, for bf16 and for tiles. Everything else is LLVM's to take apart. So what runs is what the compiler wrote for a
processor that is not here, but for registers and schedules.
"""

import re
from collections.abc import Callable

from convgrad.codegen.ir_module import Module
from convgrad.codegen.isa import matrix
from stand_in import assembly
from stand_in.assembly import numbers, shuffled, split, typed

OWN = r"@llvm\.x86\.(?P<function>avx512\w*\.\w+|ldtilecfg|tile\w+|tdp\w+)"  # without lengths of vectors
CALL = re.compile(rf"^  (?:(?P<name>%\S+) = )?call (?P<type>.+?) {OWN}[\w.]*\((?P<operands>.*)\)$")
TILE_BYTES, TILES, CONFIGURATION, ROWS = 1024, 8, 64, 48  # the last where a configuration has the rows of tiles
NAN_OR_DENORMAL = "161"  # of the kinds of numbers that vfpclassps knows


class Translation:
    """Of one module, line by line; what lines need besides comes at the end."""

    def __init__(self, ir: str) -> None:
        self.needed: dict[str, str] = {}  # by the name of a function
        lines: list[str] = []
        for line in ir.splitlines():
            lines += self._line(line)
        self.lines = lines

    def __str__(self) -> str:
        known = set(re.findall(r"^(?:declare|define) .*?@([\w.]+)\(", "\n".join(self.lines), re.MULTILINE))
        return "\n".join([*self.lines, *(text for name, text in self.needed.items() if name not in known)]) + "\n"

    def needs(self, family: str, lanes: int = 0, kind: str = "") -> str:
        """A function that is there, or will be at the end: one of a family, for so many lanes of a kind."""
        name = f"{family}.v{lanes}{kind}" if lanes else family
        if name not in self.needed:
            self.needed[name] = ""
            self.needed[name] = _MAKERS[family](self, name, lanes, kind)
        return f"@{name}"

    def _line(self, line: str) -> list[str]:
        if line.startswith("declare ") and re.search(OWN, line):
            return []
        piece = assembly.CALL.match(line)
        if piece and piece["constraints"].startswith(("=v", "=&v")):
            return assembly.Piece(piece, needs=self.needs).lines
        call = CALL.match(line)
        if call:
            return _CALLS[call["function"]](self, call["name"], call["type"], split(call["operands"]))
        return [line]

    # --- functions of vectors

    def _pick(self, name: str, type_: str, operands: list[str]) -> list[str]:
        """Any lanes of one vector, or of two with the places between them."""
        lanes, kind = numbers(type_)
        of = "two" if len(operands) == 3 else "one"
        function = self.needs(f"picked.{of}", lanes, kind)
        return [f"  {name} = call {type_} {function}({', '.join(operands)})"]

    def _classify(self, name: str, _: str, operands: list[str]) -> list[str]:
        assert operands[1] == f"i32 {NAN_OR_DENORMAL}"
        lanes, _ = numbers(typed(operands[0])[0])
        return [f"  {name} = call <{lanes} x i1> {self.needs('odd', lanes)}({operands[0]})"]

    def _dots(self, name: str, type_: str, operands: list[str]) -> list[str]:
        lanes, _ = numbers(type_)
        words = [f"{name}.{n}" for n in range(2)]
        lines = [f"  {word} = bitcast {x} to <{lanes} x i32>" for word, x in zip(words, operands[1:], strict=True)]
        pairs = ", ".join(f"<{lanes} x i32> {word}" for word in words)
        return [*lines, f"  {name} = call {type_} {self.needs('dots', lanes)}({operands[0]}, {pairs})"]

    def _round(self, name: str, type_: str, operands: list[str]) -> list[str]:
        """One vector, or two, of which the second comes first."""
        lanes, _ = numbers(type_)
        each = lanes // len(operands)
        lines = [
            f"  {name}.{n} = call <{each} x i16> {self.needs('rounded', each)}({x})" for n, x in enumerate(operands)
        ]
        last = f"{name}.0"
        if len(operands) == 2:
            last = f"{name}.both"
            lines.append(f"  {last} = {shuffled(f'<{each} x i16>', f'{name}.1', f'{name}.0', list(range(lanes)))}")
        return [*lines, f"  {name} = bitcast <{lanes} x i16> {last} to {type_}"]

    # --- tiles, which are memory on the stack of a task, and behind them their configuration

    def _configure(self, _name: str, _type: str, operands: list[str]) -> list[str]:
        self.needs("llvm.memcpy.p0.p0.i64")
        return [
            f"  %tiles = alloca [{TILES * TILE_BYTES + CONFIGURATION} x i8], align 64",
            f"  %tiles.configuration = getelementptr i8, ptr %tiles, i64 {TILES * TILE_BYTES}",
            f"  call void @llvm.memcpy.p0.p0.i64(ptr %tiles.configuration, {operands[0]}, i64 64, i1 false)",
        ]

    def _tile(self, function: str, operands: list[str]) -> list[str]:
        every = ", ".join(operand.replace("i8 ", "i64 ") for operand in operands)
        return [f"  call void {self.needs(function)}(ptr %tiles, {every})"]


_CALLS: dict[str, Callable[[Translation, str, str, list[str]], list[str]]] = {
    "avx512.permvar": Translation._pick,
    "avx512.vpermi2var": Translation._pick,
    "avx512.fpclass": Translation._classify,
    "avx512bf16.dpbf16ps": Translation._dots,
    "avx512bf16.cvtneps2bf16": Translation._round,
    "avx512bf16.cvtne2ps2bf16": Translation._round,
    "ldtilecfg": Translation._configure,
    "tilerelease": lambda *_: [],
    "tilezero": lambda self, _name, _type, operands: self._tile("tile.zero", operands),
    "tileloadd64": lambda self, _name, _type, operands: self._tile("tile.load", operands),
    "tilestored64": lambda self, _name, _type, operands: self._tile("tile.store", operands),
    "tdpbf16ps": lambda self, _name, _type, operands: self._tile("tile.products", operands),
}


# --- the functions themselves

Maker = Callable[[Translation, str, int, str], str]  # of a module, by its name, the lanes and their kind


def _function(result: str, name: str, arguments: str, body: str) -> str:
    return f"define internal {result} @{name}({arguments}) noinline {{\n{body}}}"


def _declared(result: str, name: str, *arguments: str) -> str:
    return f"declare {result} @{name}({', '.join(arguments)})"


def _fma(_: Translation, name: str, lanes: int, kind: str) -> str:
    type_ = f"<{lanes} x {'float' if kind == 'f32' else 'double'}>"
    return _declared(type_, name, type_, type_, type_)


def _flushed(value: str, name: str, lanes: int) -> str:
    """Zeros of the same sign for denormals."""
    floats, words = f"<{lanes} x float>", f"<{lanes} x i32>"
    return f"""  {name}.bits = bitcast {floats} {value} to {words}
  {name}.exponent = and {words} {name}.bits, splat (i32 {0x7F800000})
  {name}.tiny = icmp eq {words} {name}.exponent, zeroinitializer
  {name}.sign = and {words} {name}.bits, splat (i32 {-(1 << 31)})
  {name}.kept = select <{lanes} x i1> {name}.tiny, {words} {name}.sign, {words} {name}.bits
  {name} = bitcast {words} {name}.kept to {floats}
"""


def _dots_function(self: Translation, name: str, lanes: int, _kind: str) -> str:
    """total + odd products, + even products; see `convgrad.codegen.isa.dots`."""
    floats, words, total = f"<{lanes} x float>", f"<{lanes} x i32>", "%before"
    fma, body = self.needs("llvm.fma", lanes, "f32"), _flushed("%total", "%before", lanes)
    for part, moved in (
        ("odd", f"and {words} %{{0}}, splat (i32 -65536)"),
        ("even", f"shl {words} %{{0}}, splat (i32 16)"),
    ):
        for side in "xy":
            body += f"  %{side}.{part}.moved = {moved.format(side)}\n"
            body += f"  %{side}.{part}.all = bitcast {words} %{side}.{part}.moved to {floats}\n"
            body += _flushed(f"%{side}.{part}.all", f"%{side}.{part}", lanes)
        factors = f"{floats} %x.{part}, {floats} %y.{part}"
        body += f"  %{part}.all = call {floats} {fma}({factors}, {floats} {total})\n"
        body += _flushed(f"%{part}.all", f"%{part}", lanes)
        total = f"%{part}"
    return _function(floats, name, f"{floats} %total, {words} %x, {words} %y", f"{body}  ret {floats} {total}\n")


def _rounded(_: Translation, name: str, lanes: int, _kind: str) -> str:
    """f32 to bf16: to nearest even, denormals to zero, NaNs quiet."""
    floats, words, halves = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{lanes} x i16>"
    body = f"""{_flushed("%x", "%flushed", lanes)}  %bits = bitcast {floats} %flushed to {words}
  %last = lshr {words} %bits, splat (i32 16)
  %odd = and {words} %last, splat (i32 1)
  %more = add {words} %odd, splat (i32 {0x7FFF})
  %near = add {words} %bits, %more
  %size = and {words} %bits, splat (i32 {0x7FFFFFFF})
  %nan = icmp ugt {words} %size, splat (i32 {0x7F800000})
  %quiet = or {words} %bits, splat (i32 {0x400000})
  %kept = select <{lanes} x i1> %nan, {words} %quiet, {words} %near
  %upper = lshr {words} %kept, splat (i32 16)
  %result = trunc {words} %upper to {halves}
  ret {halves} %result
"""
    return _function(halves, name, f"{floats} %x", body)


def _odd(_: Translation, name: str, lanes: int, _kind: str) -> str:
    """Which numbers are NaN or denormal."""
    words, flags = f"<{lanes} x i32>", f"<{lanes} x i1>"
    body = f"""  %bits = bitcast <{lanes} x float> %x to {words}
  %size = and {words} %bits, splat (i32 {0x7FFFFFFF})
  %nan = icmp ugt {words} %size, splat (i32 {0x7F800000})
  %some = icmp ne {words} %size, zeroinitializer
  %small = icmp ult {words} %size, splat (i32 {0x800000})
  %denormal = and {flags} %some, %small
  %result = or {flags} %nan, %denormal
  ret {flags} %result
"""
    return _function(flags, name, f"<{lanes} x float> %x", body)


def _picked(vectors: int) -> Callable[[Translation, str, int, str], str]:
    """Lanes of one or two vectors, whose places are numbers of the same size, by way of memory."""

    def make(_: Translation, name: str, lanes: int, kind: str) -> str:
        index = {"float": "i32", "double": "i64"}.get(kind, kind)
        type_, places, every = f"<{lanes} x {kind}>", f"<{lanes} x {index}>", vectors * lanes
        body = f"  %room = alloca [{every} x {kind}], align 64\n  store {type_} %x, ptr %room, align 64\n"
        if vectors == 2:
            body += f"  %second = getelementptr {type_}, ptr %room, i64 1\n  store {type_} %y, ptr %second, align 64\n"
        body += f"  %inside = and {places} %places, splat ({index} {every - 1})\n"
        before = "poison"
        for n in range(lanes):
            body += f"""  %place{n} = extractelement {places} %inside, i64 {n}
  %from{n} = getelementptr {kind}, ptr %room, {index} %place{n}
  %one{n} = load {kind}, ptr %from{n}, align 1
  %with{n} = insertelement {type_} {before}, {kind} %one{n}, i64 {n}
"""
            before = f"%with{n}"
        arguments = f"{type_} %x, {places} %places{f', {type_} %y' if vectors == 2 else ''}"
        return _function(type_, name, arguments, f"{body}  ret {type_} {before}\n")

    return make


def _of_tiles(function: str) -> Maker:
    """What tiles are zeroed, loaded, stored and multiplied by, as they are configured."""

    def make(self: Translation, name: str, _lanes: int, _kind: str) -> str:
        if function != "zero":
            self.needs("tile.functions")
        numbers = ("c", "a", "b") if function == "products" else ("c",)
        body = "".join(
            f"  %{tile}.offset = mul i64 %{tile}, {TILE_BYTES}\n"
            f"  %{tile}.at = getelementptr i8, ptr %tiles, i64 %{tile}.offset\n"
            for tile in numbers
        )
        body += f"""  %rows.offset = add i64 %c, {TILES * TILE_BYTES + ROWS}
  %rows.at = getelementptr i8, ptr %tiles, i64 %rows.offset
  %rows.byte = load i8, ptr %rows.at, align 1
  %rows = zext i8 %rows.byte to i64
"""
        row = matrix.ROW_BYTES
        if function in ("zero", "load"):  # rows that are not configured become zero
            self.needs("llvm.memset.p0.i64")
            body += f"  call void @llvm.memset.p0.i64(ptr %c.at, i8 0, i64 {TILE_BYTES}, i1 false)\n"
        body += {
            "zero": "",
            "load": f"  call void @tile.move(ptr %c.at, i64 {row}, ptr %there, i64 %step, i64 %rows)\n",
            "store": f"  call void @tile.move(ptr %there, i64 %step, ptr %c.at, i64 {row}, i64 %rows)\n",
            "products": "  call void @tile.multiply.add(ptr %c.at, ptr %a.at, ptr %b.at, i64 %rows)\n",
        }[function]
        arguments = ["ptr %tiles", *(f"i64 %{tile}" for tile in numbers)]
        arguments += ["ptr %there", "i64 %step"] if function in ("load", "store") else []
        return _function("void", name, ", ".join(arguments), f"{body}  ret void\n")

    return make


def _tile_functions(self: Translation, _name: str, _lanes: int, _kind: str) -> str:
    """Those of the emulation of tiles, which move rows and multiply."""
    module = Module()
    for make in (matrix._emulated_move, matrix._emulated_multiply_add):
        make(module)
    lines = str(module).splitlines()
    for declared in (line for line in lines if line.startswith("declare")):
        family, lanes, kind = re.search(r"@([a-z.]+)\.v(\d+)(\w+)", declared).groups()
        self.needs(family, int(lanes), kind)
    return "\n".join(line for line in lines if not line.startswith("declare"))


_MAKERS: dict[str, Maker] = {
    "llvm.fma": _fma,
    "llvm.memset.p0.i64": lambda *_: _declared("void", "llvm.memset.p0.i64", "ptr", "i8", "i64", "i1"),
    "llvm.memcpy.p0.p0.i64": lambda *_: _declared("void", "llvm.memcpy.p0.p0.i64", "ptr", "ptr", "i64", "i1"),
    "dots": _dots_function,
    "rounded": _rounded,
    "odd": _odd,
    "picked.one": _picked(1),
    "picked.two": _picked(2),
    "tile.functions": _tile_functions,
    **{f"tile.{function}": _of_tiles(function) for function in ("zero", "load", "store", "products")},
}


def translated(ir: str) -> str:
    """The module, of which any processor with vectors can execute what LLVM makes."""
    return str(Translation(ir))

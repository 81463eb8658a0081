"""Pieces of assembly for vectors of 512 bits, in plain LLVM IR.

Such a piece is a straight line of instructions in AT&T order, the last operand being the result, on the operands of an
`asm` call: `$k` is the k-th of its outputs and inputs. Each instruction becomes what it does to a vector (Intel 64 and
IA-32 Architectures Software Developer's Manual, volume 2); one that is not known here is an error.
"""

import re
from collections.abc import Callable

CALL = re.compile(
    r'^  (?:(?P<name>%\S+) = )?call (?P<type>.+?) asm (?:sideeffect )?"(?P<text>.*?)", "(?P<constraints>.*?)"'
    r"\((?P<operands>.*?)\)(?: memory\(.*\))?$"
)
ADDRESS = re.compile(r"^(?P<offset>-?\d*)\(\$(?P<base>\d+)(?:,\$(?P<index>\d+)(?:,(?P<scale>\d))?)?\)$")
WORDS = {"ps": (4, "i32"), "pd": (8, "i64"), "wd": (2, "i16")}
PARTS, PART_BYTES = 4, 16
VECTOR = "<8 x i64>"  # of 512 bits, where only parts of 128 move
PART = "<2 x i64>"


def split(text: str) -> list[str]:
    """At the commas outside of all brackets."""
    pieces, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            pieces.append(text[start:place].strip())
            start = place + 1
    return [*pieces, text[start:].strip()] if text.strip() else []


def typed(operand: str) -> tuple[str, str]:
    """The type of an operand, and its value."""
    end = operand.index(">") + 1 if operand.startswith("<") else operand.index(" ")
    return operand[:end], operand[end:].strip()


def shuffled(type_: str, x: str, y: str, lanes: list[int]) -> str:
    """Lanes of x (0 ..) and of y (from their number on)."""
    return f"shufflevector {type_} {x}, {type_} {y}, <{len(lanes)} x i32> <{', '.join(f'i32 {n}' for n in lanes)}>"


def numbers(type_: str) -> tuple[int, str]:
    """How many a vector has, and of which type."""
    count, kind = type_[1:-1].split(" x ")
    return int(count), kind


class Piece:
    """A call of assembly as lines of IR, and the functions that these call."""

    def __init__(self, call: re.Match[str], *, needs: Callable[..., str]) -> None:
        self.name, self.needs = call["name"], needs
        self.lines: list[str] = []
        self.types = split(call["type"][1:-1]) if call["type"].startswith("{") else [call["type"]]
        self.registers: dict[int, tuple[str, str]] = {}
        self.addresses: dict[int, str] = {}
        inputs = [c for c in call["constraints"].split(",")[len(self.types) :] if not c.startswith("~")]
        for number, (constraint, operand) in enumerate(
            zip(inputs, split(call["operands"]), strict=True), len(self.types)
        ):
            if constraint == "*m":
                self.addresses[number] = operand.split()[-1]
            else:
                type_, value = typed(operand)
                # the numbers are what they are to assembly; LLVM would not mind what becomes of some
                register = int(constraint) if constraint.isdigit() else number
                self.registers[register] = type_, self._emit(f"freeze {type_} {value}")
        for line in filter(None, call["text"].replace("$$", "#").split("\\0A")):
            instruction, operands = line.split(None, 1)
            self._do(instruction, split(re.sub(r"\{1to\d+\}", "", operands)))
        self._give_back(call["type"])

    def _give_back(self, type_: str) -> None:
        values = [self._value(f"${n}", kind) for n, kind in enumerate(self.types)]
        if not type_.startswith("{"):
            self.lines.append(f"  {self.name} = bitcast {type_} {values[0]} to {type_}")
            return
        whole = "poison"
        for n, (kind, value) in enumerate(zip(self.types, values, strict=True)):
            after = self.name if n + 1 == len(values) else f"{self.name}.of{n}"
            self.lines.append(f"  {after} = insertvalue {type_} {whole}, {kind} {value}, {n}")
            whole = after

    def _emit(self, text: str) -> str:
        name = f"{self.name}.step{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def _value(self, operand: str, type_: str) -> str:
        """What a register holds, as a type."""
        kind, value = self.registers[int(operand[1:])]
        return value if kind == type_ else self._emit(f"bitcast {kind} {value} to {type_}")

    def _put(self, operand: str, type_: str, text: str) -> None:
        self.registers[int(operand[1:])] = type_, self._emit(text)

    def _load(self, type_: str, operand: str) -> str:
        """What lies at an address, wherever it is: operands of these instructions need not be aligned."""
        if operand.startswith("$"):
            return self._emit(f"load {type_}, ptr {self.addresses[int(operand[1:])]}, align 1")
        place = ADDRESS.match(operand)
        assert place, operand
        address = self.registers[int(place["base"])][1]
        if place["index"]:
            steps = self._emit(f"mul i64 {self.registers[int(place['index'])][1]}, {place['scale'] or 1}")
            address = self._emit(f"getelementptr i8, ptr {address}, i64 {steps}")
        address = self._emit(f"getelementptr i8, ptr {address}, i64 {place['offset'] or 0}")
        return self._emit(f"load {type_}, ptr {address}, align 1")

    def _do(self, instruction: str, operands: list[str]) -> None:
        *sources, target = operands
        if instruction.removeprefix("vp").removeprefix("v").startswith("unpck"):
            self._unpack(instruction, sources, target)
            return
        if instruction[-2:] in ("ps", "pd") and instruction.startswith("vfmadd231"):
            self._multiply_add(sources, target)
            return
        {
            "vshuff64x2": self._shuffle_parts, "vbroadcastf32x4": self._part_everywhere, "vinsertf32x4": self._insert,
            "valignd": self._align, "valignq": self._align, "vdpbf16ps": self._dots,
            "vcvtne2ps2bf16": self._round_two,
        }[instruction](sources, target)  # fmt: skip

    def _unpack(self, instruction: str, sources: list[str], target: str) -> None:
        """Halves of the parts of two vectors, interleaved."""
        size, kind = WORDS[instruction[-2:]]
        per_part, lanes = PART_BYTES // size, PARTS * PART_BYTES // size
        first = per_part // 2 if "unpckh" in instruction else 0
        wanted = [part * per_part + first + n for part in range(PARTS) for n in range(per_part // 2)]
        y, x = (self._value(source, f"<{lanes} x {kind}>") for source in sources)
        both = [lane for n in wanted for lane in (n, lanes + n)]
        self._put(target, f"<{lanes} x {kind}>", shuffled(f"<{lanes} x {kind}>", x, y, both))

    def _shuffle_parts(self, sources: list[str], target: str) -> None:
        """Two parts of x, then two of y, as the bits of a number say."""
        which, y, x = int(sources[0][1:], 16), *(self._value(source, VECTOR) for source in sources[1:])
        parts = [(which >> 2 * n & 3) + PARTS * (n // 2) for n in range(PARTS)]
        self._put(target, VECTOR, shuffled(VECTOR, x, y, [2 * part + n for part in parts for n in range(2)]))

    def _part_everywhere(self, sources: list[str], target: str) -> None:
        part = self._load(PART, sources[0])
        self._put(target, VECTOR, shuffled(PART, part, part, [0, 1] * PARTS))

    def _insert(self, sources: list[str], target: str) -> None:
        """A part from memory in one place of x."""
        place, x = int(sources[0][1:]), self._value(sources[2], VECTOR)
        part = self._load(PART, sources[1])
        every = self._emit(shuffled(PART, part, part, [0, 1] * PARTS))
        lanes = [n + 2 * PARTS * (n // 2 == place) for n in range(2 * PARTS)]
        self._put(target, VECTOR, shuffled(VECTOR, x, every, lanes))

    def _align(self, sources: list[str], target: str) -> None:
        """x without its first lanes, then the first ones of y."""
        type_, first = self.types[0], int(sources[0][1:])
        x, y = (self._value(source, type_) for source in sources[1:])
        self._put(target, type_, shuffled(type_, x, y, list(range(first, first + numbers(type_)[0]))))

    def _multiply_add(self, sources: list[str], target: str) -> None:
        type_ = self.types[0]
        lanes, kind = numbers(type_)
        y, x, total = self._load(type_, sources[0]), self._value(sources[1], type_), self._value(target, type_)
        function = self.needs("llvm.fma", lanes, "f32" if kind == "float" else "f64")
        self._put(target, type_, f"call {type_} {function}({type_} {x}, {type_} {y}, {type_} {total})")

    def _dots(self, sources: list[str], target: str) -> None:
        """With one pair from memory for all lanes."""
        type_ = self.types[0]
        lanes, _ = numbers(type_)
        pairs = f"<{lanes} x i32>"
        one = self._emit(f"insertelement {pairs} poison, i32 {self._load('i32', sources[0])}, i64 0")
        every = self._emit(shuffled(pairs, one, one, [0] * lanes))
        total, y = self._value(target, type_), self._value(sources[1], pairs)
        function = self.needs("dots", lanes)
        self._put(target, type_, f"call {type_} {function}({type_} {total}, {pairs} {y}, {pairs} {every})")

    def _round_two(self, sources: list[str], target: str) -> None:
        """Two vectors of f32 as bf16, the second source first."""
        halves = []
        for source in sources:
            value = self._value(source, "<16 x float>")
            halves.append(self._emit(f"call <16 x i16> {self.needs('rounded', 16)}(<16 x float> {value})"))
        self._put(target, "<32 x i16>", shuffled("<16 x i16>", *halves, list(range(32))))

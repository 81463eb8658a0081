"""Lowering of a MatrixDataPlan: the stages of a DataPlan with bf16 pieces as packed numbers and tiles as arithmetic."""

from __future__ import annotations

from functools import partial

from convgrad.codegen.by_matrix.matrix_sweep import MatrixSweep
from convgrad.codegen.by_matrix.slab_beside import SlabBeside
from convgrad.codegen.copies.asking import LINES_AHEAD, PLACES_AHEAD, ask
from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.halves import Also, HalvesCopy
from convgrad.codegen.copies.packing import at_taps, in_pieces, pack_weights_panel
from convgrad.codegen.copies.paired_copies import PairedCopy, paired_copy
from convgrad.codegen.copies.paired_weights import PairedPanel
from convgrad.codegen.copies.split_runs import SplitRuns
from convgrad.codegen.copies.split_weights import SplitPanel
from convgrad.codegen.copies.splitting import Pieces
from convgrad.codegen.copies.turned_windows import TurnedWindows
from convgrad.codegen.copies.words import PAIR, moves_pairs
from convgrad.codegen.copies.zeroing import Range, emit_zero, emit_zero_outside
from convgrad.codegen.general.watched import WatchedStages
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Value
from convgrad.codegen.isa.base import STORAGE
from convgrad.codegen.isa.matrix import UNITS
from convgrad.codegen.module import round64
from convgrad.codegen.stages import Places
from convgrad.dtypes import SIZES
from convgrad.plan.by_matrix.matrix import COLUMNS, DEPTH, MatrixDataPlan, halves_of
from convgrad.plan.costs import LINE, SETS_BYTES
from convgrad.plan.general.data import KEPT_BYTES
from convgrad.plan.strides import row_major
from convgrad.values import replace

PAIRS_AHEAD, DISTANT_BYTES = 8, 8 * 1024 * 1024  # of weights that are more than a share of L3


class MatrixStages(WatchedStages):
    """Both stages of a MatrixDataPlan."""

    plan: MatrixDataPlan
    sweep = MatrixSweep
    beside: SlabBeside | None = None

    @property
    def packed_kind(self) -> str:
        """LLVM's type of a packed number."""
        return "i16"

    @property
    def _pairs(self) -> bool:
        """Whether numbers are moved two by two: channels are pairs, but for an odd one, which is with zeros."""
        return self.plan.packs_pairs

    @property
    def watches_pairs(self) -> bool:
        """Not of pieces."""
        return moves_pairs(self.plan)

    @property
    def _f32_panel(self) -> int:
        return round64(self.plan.f32_panel_bytes)

    def task(self, b: Builder, at: Places, task: Value) -> None:
        """With tiles."""
        unit = UNITS[self.plan.isa](self.plan.rows)
        unit.begin(b)
        self.beside = SlabBeside(b, self.plan) if self.plan.packs_beside else None
        self.watched_task(b, at, task)
        unit.end(b)

    @property
    def result_bytes(self) -> int:
        """Of the results of a task, or of one block of tiles."""
        return round64(self.plan.tile_bytes) if self.plan.moves_tiles else super().result_bytes

    def _tile_room(self, b: Builder, at: Places) -> Value | None:
        """In place of results."""
        return b.at(at.scratch, self.slab_bytes, "i8") if self.plan.moves_tiles else None

    def pack_panel(
        self, b: Builder, at: Places, source: Value, target: Value, *,
        lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """Two by two, as pieces; by way of f32 in scratch, channel by channel, where taps lie side by side."""
        plan, p = self.plan, self.plan.problem
        if self._pairs:
            self._pack_pairs(b, at, source, target, lanes[0], channels)
            return
        taps = list(zip(p.taps, p.w_strides[3:], strict=True))
        if not plan.stages_weights or plan.splits_runs or plan.taps_staged == p.taps:
            self._pack_pieces(b, at, source, target, lanes, channels, taps)
            return

        def piece(firsts: list[Index], counts: list[int]) -> None:
            of, to = at_taps(b, firsts, taps)
            some = [(n, step) for n, (_, step) in zip(counts, taps, strict=True)]
            origin = b.at(source, of, STORAGE[p.dtype])
            there = b.at(target, b.mul(to, plan.panel // (plan.runs * plan.taps)), self.packed_kind)
            self._pack_pieces(b, at, origin, there, lanes, channels, some)

        in_pieces(b, p.taps, plan.taps_staged, piece)

    def _pack_rest(
        self, b: Builder, at: Places, source: Value, target: Value, lanes: list[tuple[Index, int, int]],
        channels: Index, in_step: int,
    ) -> None:  # fmt: skip
        """The last block of channels, filled up."""
        plan, unit = self.plan, self.plan.channel_unit
        rest = plan.in_channels % unit
        if not rest:
            return
        whole = b.floor_div(channels, unit)
        with b.when(b.compare("ne", b.mul(whole, unit), channels)):
            origin = b.at(source, b.mul(whole, unit * in_step), STORAGE[plan.problem.dtype])
            there = b.at(target, b.mul(whole, plan.panel // plan.runs), self.packed_kind)
            self.pack_panel(b, at, origin, there, lanes=lanes, channels=(rest, unit, in_step))

    def _pack_pieces(
        self, b: Builder, at: Places, source: Value, target: Value, lanes: list[tuple[Index, int, int]],
        channels: tuple[Index, int, int], taps: list[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Some taps."""
        plan, p, (count, room, step) = self.plan, self.plan.problem, channels
        many, _, lane_step = lanes[0]
        block = plan.lane_tiles * COLUMNS * plan.channel_unit
        pieces = Pieces(plan.pieces, block, plan.exact, self.watch, self.room)
        copy = Copy(isa=self.isa, compute="f32", src_dtype=p.dtype, dst_dtype="bf16", pieces=pieces)
        far = p.bytes_of("w") > KEPT_BYTES and not plan.stages_weights
        next_panel = self._next_panel(room, lane_step, step)
        if plan.stages_weights and not plan.splits_runs:
            plain = replace(copy, dst_dtype="f32", pieces=None)
            pack_weights_panel(
                b, plain, source, at.scratch, b.at(at.scratch, self._f32_panel, "i8"), lanes=lanes, channels=channels,
                taps=taps, width=plan.width, whole=many == plan.width,
            )  # fmt: skip
            source, copy, many, lane_step, step = at.scratch, replace(copy, src_dtype="f32"), plan.width, 1, plan.width
            extents = tuple(extent for extent, _ in taps)
            taps = list(zip(extents, row_major(extents, room * plan.width), strict=True))
        kind = partial(SplitRuns, staging=at.scratch) if plan.splits_runs else SplitPanel
        panel = kind(
            copy=copy, tiles=plan.lane_tiles, depth=plan.channel_unit, taps=taps, room=room,
            last=plan.in_channels % plan.channel_unit, far=far, next_panel=next_panel,
        )  # fmt: skip
        panel.emit(b, source, target, (many, lane_step), (count, step))

    def _next_panel(self, room: int, lane_step: int, step: int) -> int:
        """Numbers of w from a panel, or from a run of one, to what is packed next."""
        plan = self.plan
        if plan.runs > 1:
            return room * step
        by_lanes = plan.i_blocks == 1 or (plan.packs_weights and plan.blocks_per_task > 1)
        return plan.width * lane_step if by_lanes else room * step

    def _pack_pairs(
        self, b: Builder, at: Places, source: Value, target: Value, lanes: tuple[Index, int, int],
        channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """Those of one piece, two by two."""
        plan, p, (many, _, lane_step), (count, room, step) = self.plan, self.plan.problem, lanes, channels
        taps, place = [], room * plan.width // PAIR
        for extent, tap_step in reversed(list(zip(p.taps, p.w_strides[3:], strict=True))):
            taps.insert(0, Dim(extent, tap_step, place))
            place *= extent
        if not (many == plan.width and isinstance(count, int) and count == room):
            emit_zero(b, self.isa, "f32", target, place)
        panel = PairedPanel(
            copy=paired_copy(self.isa, p.dtype, self.watch, self.room, step),
            tiles=plan.lane_tiles,
            depth=plan.channel_unit,
            taps=taps,
            staging=at.scratch,
            staged=plan.pairs_staged,
            room=room,
            far=p.bytes_of("w") > KEPT_BYTES and plan.channel_unit == DEPTH,
            next_panel=self._next_panel(room, lane_step, step),
            ahead=PAIRS_AHEAD if p.bytes_of("w") > DISTANT_BYTES else 0,
        )
        panel.emit(b, source, target, (many, lane_step), (count, step))
        if plan.in_channels % PAIR:
            with b.when(b.compare("ne", b.sub(count, b.mul(b.floor_div(count, PAIR), PAIR)), 0)):
                panel.emit_odd(b, source, target, (many, lane_step), (count, step))

    @property
    def zeroes_rest(self) -> bool:
        """Whether a last block of channels that is not whole is zero before numbers come."""
        return self.plan.in_channels % self.plan.channel_unit > 0

    def _pack_slab(self, b: Builder, at: Places, slab: Value, i_block: Index) -> None:
        """Now, or line by line beside products."""
        plan, dtype = self.plan, self.plan.problem.dtype
        if self.beside is None:
            super()._pack_slab(b, at, slab, i_block)
            return
        places = zip(self.starts, plan.axes, plan.slab_start, strict=True)
        origins = [b.add(b.mul(start, axis.in_step), first) for start, axis, first in places]
        first = b.add(b.mul(i_block, plan.i_block), b.mul(self.slab_group, self.in_strides[1]))
        tensor = b.at(at.of(self.input), first, STORAGE[dtype])
        copy = self._halves(Copy(isa=self.isa, compute="f32", src_dtype=dtype, dst_dtype="bf16"), (COLUMNS, COLUMNS))
        self.beside.begin(b, copy, tensor, slab, origins)

    def _halves(self, copy: Copy, lanes: tuple[int, int], *, apart: int = COLUMNS, lane: int = 0) -> HalvesCopy:
        """Of lanes from one on, as pieces."""
        plan, stride = self.plan, self.in_strides[2]
        pieces = Pieces(plan.pieces, plan.piece_step, plan.exact, self.watch, self.room)
        return HalvesCopy(
            copy=replace(copy, dst_dtype="bf16", pieces=pieces), lanes=lanes, lane_step=stride, apart=apart * stride,
            room=min(COLUMNS, plan.channel_unit // 2 - lane),
        )  # fmt: skip

    def begin_slab(self, b: Builder, slab: Value, channels: Index) -> None:
        """Zeros in the last tile of channels, where some only fill it up."""
        if self.zeroes_rest:
            unit = self.plan.channel_unit
            last, block = b.floor_div(b.sub(channels, 1), unit), self.plan.slab_strides[1]
            emit_zero(b, self.isa, "f32", b.at(slab, b.mul(last, block), "i16"), block // 2)  # two pieces per f32

    def clear_slab(self, b: Builder, slab: Value, ranges: list[Range], channels: Index) -> None:
        """Zeros around the numbers of the input in every piece, in one band."""
        plan = self.plan
        if all(r.full for r in ranges):
            return
        last = b.floor_div(b.sub(channels, 1), plan.channel_unit)
        doubled = [replace(r, step=r.step // 2) for r in ranges]

        def piece(n: Index, _: object) -> None:
            emit_zero_outside(b, self.isa, "f32", b.at(slab, b.mul(n, plan.piece_step), "i16"), doubled)

        count = last if self.zeroes_rest else b.add(last, 1)
        b.loop(0, b.mul(count, plan.pieces), piece, name="piece")

    def copy_slab(self, b: Builder, copy: Copy, tensor: Value, packed: Value, dims: list[Dim], channels: Index) -> None:
        """Channels block by block, then the rest."""
        plan, stride, block = self.plan, self.in_strides[2], self.plan.slab_strides[1]
        unit = plan.channel_unit
        if self._pairs:
            self._copy_pairs(b, tensor, packed, dims, channels)
            return
        *outer, run = _with_run(copy.merged(b, dims), stride)

        def halves(tensor: Value, packed: Value, outer: list[Dim], size: int) -> None:
            first, second = halves_of(size)
            for lane in range(0, first, COLUMNS):
                lanes = min(COLUMNS, first - lane), max(0, min(COLUMNS, second - lane))
                pairs = self._halves(copy, lanes, apart=first, lane=lane)
                source, there = copy.src_at(b, tensor, lane * stride), b.at(packed, 2 * lane, "i16")
                both = run.extent, run.extent if lanes[1] else 0
                pairs.emit(b, source, there, outer, run, both, self._asks(b, pairs, run) if size == unit else None)

        whole = b.floor_div(channels, unit)
        if plan.in_channels >= unit:
            halves(tensor, packed, [Dim(whole, unit * stride, block), *outer], unit)
        if plan.in_channels % unit:
            source = copy.src_at(b, tensor, b.mul(whole, unit * stride))
            with b.when(b.compare("ne", b.mul(whole, unit), channels)):
                halves(source, b.at(packed, b.mul(whole, block), "i16"), outer, plan.in_channels % unit)

    def _asks(self, b: Builder, pairs: HalvesCopy, run: Dim) -> Also | None:
        """For numbers of the input that are read some places later, if L2 may not keep it."""
        p, size = self.plan.problem, SIZES[self.plan.problem.dtype]
        if p.bytes_of(p.given) <= KEPT_BYTES:
            return None
        ahead = PLACES_AHEAD * run.src * size if pairs.lane_step == 1 else LINES_AHEAD * LINE
        return lambda _, here: ask(b, here, (ahead, ahead + pairs.apart * size))

    def _copy_pairs(self, b: Builder, tensor: Value, packed: Value, dims: list[Dim], channels: Index) -> None:
        """Likewise of numbers of one piece."""
        plan, stride, block = self.plan, self.in_strides[2], self.plan.slab_strides[1]
        unit = plan.channel_unit
        copy = paired_copy(self.isa, plan.problem.dtype, self.watch, self.room, stride)
        whole = b.floor_div(channels, unit)
        if plan.in_channels >= unit:
            self._turn_blocks(b, tensor, packed, [*dims, Dim(whole, unit * stride, block)], copy)
        dims = [replace(dim, dst=dim.dst // PAIR) for dim in dims]
        rest = plan.in_channels % unit
        if rest:
            source = copy.src_at(b, tensor, b.mul(whole, unit * stride))
            target = b.at(packed, b.mul(whole, block), "i16")
            pairs: Index = b.floor_div(b.sub(channels, b.mul(whole, unit)), PAIR)
            if rest % PAIR == 0:
                copy.emit(b, source, target, [*dims, Dim(pairs, PAIR * stride, 1)])
                return
            with b.when(b.compare("ne", b.mul(whole, unit), channels)):
                copy.emit_odd(b, source, target, dims, rest, stride)

    def _turn_blocks(self, b: Builder, tensor: Value, packed: Value, dims: list[Dim], copy: PairedCopy) -> None:
        """Whole blocks of channels; by whole lines, each met once, where those of all channels share a set of L1."""
        p, unit, stride = self.plan.problem, self.plan.channel_unit, self.in_strides[2]
        numbers = Copy(isa=self.isa, compute="f32", src_dtype=p.dtype, dst_dtype="bf16")
        squares, run = TurnedWindows(copy, numbers), Dim(unit, stride, 1)
        dims = numbers.merged(b, dims)
        rows = next((dim for dim in dims if dim.src == 1), None)
        others = [dim for dim in dims if dim is not rows]

        def paired(tensor: Value, packed: Value, dims: list[Dim]) -> None:
            words = [replace(dim, dst=dim.dst // PAIR) for dim in dims]
            copy.emit(b, tensor, packed, [*words, Dim(unit // PAIR, PAIR * stride, 1)])

        apart = stride * SIZES[p.dtype] % SETS_BYTES > 0
        if rows is not None and stride != 1 and apart and squares.takes(rows, run):
            outer = numbers.in_order(others)
            squares.emit(b, tensor, packed, outer, rows, run, lambda src, dst: paired(src, dst, [rows]))
        else:
            paired(tensor, packed, dims)


def _with_run(dims: list[Dim], channel_step: int) -> list[Dim]:
    """In the order of the slab but for the last, along which the input is read where its channels lie apart."""
    dims = sorted(dims, key=lambda dim: -abs(dim.dst)) or [Dim(1, 0, 0)]
    if channel_step == 1:
        return dims
    run = min(dims, key=lambda dim: abs(dim.src))
    return [*(dim for dim in dims if dim is not run), run]

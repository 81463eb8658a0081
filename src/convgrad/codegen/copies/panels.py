"""The weights of the data operations, packed panel by panel: by a stage before, by the tasks that use them, or not."""

from __future__ import annotations

from convgrad.codegen.copies.copying import Copy, Dim
from convgrad.codegen.copies.input_slab import channels_of
from convgrad.codegen.copies.packing import at_taps, in_pieces, pack_weights_panel
from convgrad.codegen.copies.zeroing import emit_zero
from convgrad.codegen.ir import Builder
from convgrad.codegen.ir_module import Index, Module, Value
from convgrad.codegen.isa import ISAS
from convgrad.codegen.isa.base import ARITHMETIC, STORAGE, Isa
from convgrad.codegen.loops.lanes import lane_dims, lane_origin, weights_origin, weights_steps, whole_lanes
from convgrad.codegen.module import round64
from convgrad.codegen.stages import Places, emit_part
from convgrad.plan.general.data import DataPlan
from convgrad.values import replace

PANEL = "panel"  # the part of a task that packs one of its own


def pack_bias(plan: DataPlan, b: Builder, at: Places, group: Index, block: Index, target: Value) -> None:
    """That of a block of lanes, with zeros in lanes that hold no channel."""
    isa, p = ISAS[plan.isa], plan.problem
    steps = (plan.out_channels * p.bias_stride, p.bias_stride)
    emit_zero(b, isa, plan.compute, target, plan.width)
    copy = Copy(isa=isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
    source = b.at(at.bias, lane_origin(plan, b, group, block, *steps), STORAGE[p.dtype])
    copy.emit(b, source, target, [Dim(n, src, dst) for n, dst, src in lane_dims(plan, block, b, *steps)])


def bias_at(plan: DataPlan, b: Builder, at: Places, group: Index, block: Index) -> Value:
    """The packed bias of a block of lanes in shared memory."""
    which = b.add(b.mul(group, plan.lane_blocks), block)
    packed = b.at(at.shared, round64(plan.packed_bytes * plan.weights_size), "i8")
    return b.at(packed, b.mul(which, plan.width), ARITHMETIC[plan.compute])


class Panels:
    """Packing of weights and of the bias, for the stages of a plan; those say where a task has room for its own."""

    plan: DataPlan
    isa: Isa
    kind: str  # LLVM's type of a number of the arithmetic type
    packed_kind: str
    slab_bytes: int  # of scratch, before the weights of a task's own; likewise
    result_bytes: int
    main_bytes: int  # of scratch, all of it

    @property
    def panel_bytes(self) -> int:
        """Of a panel of weights."""
        return round64(self.plan.packed_bytes * self.plan.panel)

    @property
    def pack_bytes(self) -> int:
        """Scratch of a task that packs weights, or of that part of one."""
        return round64(self.plan.staged_bytes)

    def pack(self, b: Builder, at: Places, task: Value) -> None:
        """One panel of weights, or a part of it, and with the first panel of a lane block its bias."""
        plan, parts = self.plan, self.plan.panel_parts
        group, block, i_block, part = b.split(task, (plan.group_blocks, plan.lane_blocks, plan.i_blocks, parts))
        target = b.at(at.shared, b.mul(b.floor_div(task, parts), plan.panel), self.packed_kind)
        bias = bias_at(plan, b, at, group, block) if plan.problem.bias else None
        self._pack(b, at, (group, block, i_block), target, bias, *([part] if parts > 1 else []))

    def _pack(
        self, b: Builder, at: Places, which: tuple[Index, Index, Index], target: Value, bias: Value | None,
        part: Index = 0,
    ) -> None:  # fmt: skip
        """The panel of a group, a block of lanes and a block of input channels, or a part; its bias if it is the first.

        Kinds that pack in their own way have no parts.
        """
        plan, p, (group, block, i_block) = self.plan, self.plan.problem, which
        group_step, out_step, in_step = weights_steps(plan)
        source = b.at(at.w, weights_origin(plan, b, group, block, i_block), STORAGE[p.dtype])
        channels = channels_of(plan, b, i_block)
        lanes = lane_dims(plan, block, b, group_step, out_step)
        if plan.runs == 1:
            self.pack_panel(b, at, source, target, lanes=lanes, channels=(channels, plan.i_block, in_step))
        else:
            unit, panel = plan.channel_unit, plan.panel // plan.runs

            def run(n: Index, _: object) -> None:
                origin = b.at(source, b.mul(n, unit * in_step), STORAGE[p.dtype])
                there = b.at(target, b.mul(n, panel), self.packed_kind)
                self.pack_panel(b, at, origin, there, lanes=lanes, channels=(unit, unit, in_step))

            first, last = 0, b.floor_div(channels, unit)
            if plan.panel_parts > 1:
                first = b.mul(part, share := -(-plan.runs // plan.panel_parts))
                last = b.minimum(b.add(first, share), last)
            b.loop(first, last, run, name="run")
            self._pack_rest(b, at, source, target, lanes, channels, in_step)
        if bias is not None:
            with b.when(b.compare("eq", b.add(i_block, part), 0)):
                pack_bias(plan, b, at, group, block, bias)

    def _pack_rest(
        self, b: Builder, at: Places, source: Value, target: Value, lanes: list[tuple[Index, int, int]],
        channels: Index, in_step: int,
    ) -> None:  # fmt: skip
        """Channels that are less than a run: none."""

    def pack_panel(
        self, b: Builder, at: Places, source: Value, target: Value, *,
        lanes: list[tuple[Index, int, int]], channels: tuple[Index, int, int],
    ) -> None:  # fmt: skip
        """The weights at `source` in the order of the microkernel, but for taps that meet the input nowhere."""
        plan, p = self.plan, self.plan.problem
        copy = Copy(isa=self.isa, compute=plan.compute, src_dtype=p.dtype, dst_dtype=plan.compute)
        taps = list(zip(p.taps, p.w_strides[3:], strict=True))
        met, at_once = plan.packed_taps

        def some(firsts: list[Index], counts: list[int]) -> None:
            of, to = at_taps(b, [b.add(n, r.start) for n, r in zip(firsts, met, strict=True)], taps)
            there = b.at(target, b.mul(to, channels[1] * plan.width), self.packed_kind)
            pack_weights_panel(
                b, copy, b.at(source, of, STORAGE[p.dtype]), there, at.scratch, lanes=lanes, channels=channels,
                taps=[(n, step) for n, (_, step) in zip(counts, taps, strict=True)], width=plan.width,
                whole=whole_lanes(plan),
            )  # fmt: skip

        in_pieces(b, tuple(map(len, met)), at_once, some)

    # --- of one task alone

    def emit_panel(self, module: Module) -> None:
        """The part of a task that packs a panel of its own, and with the first panel of a lane block the bias."""

        def body(b: Builder, at: Places, group: Value, block: Value, i_block: Value) -> None:
            staging = b.at(at.scratch, self.main_bytes - self.pack_bytes, "i8")
            bias = self._own_bias(b, at) if self.plan.problem.bias else None
            self._pack(b, replace(at, scratch=staging), (group, block, i_block), self._own_panel(b, at), bias)

        emit_part(module, PANEL, ("group", "block", "i"), body)

    def _own_panel(self, b: Builder, at: Places) -> Value:
        return b.at(at.scratch, self.slab_bytes + self.result_bytes, "i8")

    def _own_bias(self, b: Builder, at: Places) -> Value:
        before = 0 if self.plan.reads_weights else self.panel_bytes
        return b.at(self._own_panel(b, at), before, "i8")

    def _unpacked(self, b: Builder, at: Places, group: Index, block: Index, i_block: Index) -> Value:
        """Where the weights of a sweep begin that reads them as they lie."""
        plan = self.plan
        if plan.problem.bias:
            with b.when(b.compare("eq", i_block, 0)):
                pack_bias(plan, b, at, group, block, self._own_bias(b, at))
        return b.at(at.w, weights_origin(plan, b, group, block, i_block), STORAGE[plan.problem.dtype])

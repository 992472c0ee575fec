"""Random PTX programs: all kinds of register-to-register instructions, loads and stores of every space, atomics, branches,
loops of their own for every thread, threads that exit early, collectives, barriers of the CTA. They end, and they are legal
but for what `wild` allows: values that were never written, addresses that are misaligned or out of bounds."""

import itertools
import random
from functools import cache

import numpy as np

from mxfp8fa.emulator.isa import snippets
from mxfp8fa.emulator.values import BITS

THREADS, GRID, IN_WORDS, SHARED_BYTES, LOCAL_BYTES = 64, 2, 64, 512, 64
CLASSES = {"pred": ("p", 6), "b16": ("h", 8), "b32": ("r", 12), "b64": ("d", 8)}
EDGES = (
    0, 1, 2, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0x3FF, 0x400, 0x3C00, 0x3F80, 0x7BFF, 0x7C00, 0x7C01, 0x7E00,
    0x7F80, 0x7FFF, 0x8000, 0x8001, 0xBC00, 0xFC00, 0xFFFF, 0x007FFFFF, 0x00800000, 0x3F800000, 0x4B000001,
    0x4F000000, 0x5F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x80000000, 0x80000001,
    0xBF800000, 0xCF000000, 0xFF800000, 0xFFC00000, 0xFFFFFFFE, 0xFFFFFFFF,
)  # fmt: skip
EDGES_64 = (
    0, 1, 0xFFFFFFFFFFFFF, 0x10000000000000, 0x3FF0000000000000, 0x41E0000000000000, 0x43E0000000000000, 0x7FEFFFFFFFFFFFFF,
    0x7FF0000000000000, 0x7FF0000000000001, 0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xBFF0000000000000,
    0xFFFFFFFFFFFFFFFF, 0x47EFFFFFE0000000, 0x380FFFFFC0000000, 0x36A0000000000000,
)  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def inputs(rng):
    """Words of the input: edges of every width, and random bits."""
    words = np.empty(THREADS * GRID * IN_WORDS, np.uint32)
    for i in range(0, words.size, 2):
        if rng.random() < 0.3:
            words[i : i + 2] = np.array([rng.choice(EDGES_64)], np.uint64).view(np.uint32)
        else:
            words[i : i + 2] = [rng.choice(EDGES) if rng.random() < 0.6 else rng.getrandbits(32) for _ in range(2)]
    return words


@cache
def forms():
    """(opcode, forms) of the pure instructions, where no operand has more than 64 bits."""
    by_opcode = {}
    for form in snippets.forms():
        if all(o.type in BITS and BITS[o.type] <= 64 for o in (*form.inputs, *form.outputs)):
            by_opcode.setdefault(form.definition.opcode, []).append(form)
    return sorted(by_opcode.items())


class Writer:
    """Writes one program."""

    def __init__(self, rng, *, wild=False, size=40):
        self.rng, self.wild = rng, wild
        self.lines = []
        self.depth = 0
        self.labels = itertools.count()
        self.budget = size

    # -- operands -----------------------------------------------------------------------------------------------------

    def register(self, kind):
        letter, count = CLASSES[kind]
        return f"%{letter}{self.rng.randrange(count)}"

    def of_type(self, value_type, *, written=False):
        """A register for a value type; sometimes a wider one, which the emulator takes everywhere."""
        if value_type == "pred":
            return self.register("pred")
        width = max(BITS[value_type], 16)
        return self.register(f"b{width}")

    def source(self, value_type):
        """A register or an immediate."""
        if value_type == "pred":
            return ("!" if self.rng.random() < 0.2 else "") + self.register("pred")
        if self.rng.random() < 0.8:
            return self.of_type(value_type)
        bits = BITS[value_type]
        value = self.rng.choice(EDGES + EDGES_64) if self.rng.random() < 0.7 else self.rng.getrandbits(64)
        value &= (1 << bits) - 1
        if value_type == "f32":
            return f"0f{value:08X}"
        if value_type == "f64":
            return f"0d{value:016X}"
        return f"{value:#x}"

    def guard(self, chance=0.25):
        if self.rng.random() >= chance:
            return ""
        return f"@{'!' if self.rng.random() < 0.5 else ''}{self.register('pred')} "

    def add(self, text):
        self.lines.append("  " + text)

    # -- statements ---------------------------------------------------------------------------------------------------

    def pure(self):
        form = self.rng.choice(self.rng.choice(forms())[1])
        given = {o.name: o for o in (*form.inputs, *form.outputs)}
        texts = []
        member = form.definition.extra.get("membermask")
        guard = self.guard()
        if member:
            self.add("activemask.b32 %active;")
        for spec in form.definition.operands:
            if spec.name not in given:
                continue
            operand = given[spec.name]
            if spec.name == member:
                text = "%active"
            elif spec.name == form.immediate:
                text = str(self.rng.randrange(256))
            elif operand in form.outputs:
                text = self.of_type(operand.type)
                if spec.pair:
                    text += f"|{self.register('pred') if given[spec.pair].type == 'pred' else '_'}"
            else:
                text = self.source(operand.type)
            texts.append(text)
        if form.definition.extra.get("carry_in") and self.rng.random() < 0.7:
            self.add(
                f"{self.rng.choice(('add', 'sub'))}.cc.u32 {self.register('b32')}, {self.source('u32')}, {self.source('u32')};"
            )
        outputs = [t for t, s in zip(texts, form.definition.operands, strict=False) if s.output]
        if len(outputs) != len(set(outputs)):
            return
        self.add(f"{guard}{form.mnemonic} {', '.join(texts)};")

    def move(self):
        rng = self.rng
        kind = rng.choice(("b16", "b32", "b64", "pred"))
        shape = rng.choice(("plain", "pack", "unpack", "special"))
        guard = self.guard()
        if kind == "pred" or (kind == "b16" and shape != "special") or shape == "plain":
            source = self.register(kind) if kind == "pred" else self.source("u" + kind[1:])
            self.add(f"{guard}mov.{kind} {self.register(kind)}, {source};")
        elif shape == "special":
            self.add(
                f"{guard}mov.u32 {self.register('b32')}, %{rng.choice(('tid.x', 'laneid', 'ctaid.x', 'ntid.x', 'warpid'))};"
            )
        else:
            parts = 4 if kind == "b64" and rng.random() < 0.5 else 2
            part = f"b{int(kind[1:]) // parts}"
            count = CLASSES[part][1]
            numbers = (
                rng.sample(range(count), parts) if shape == "unpack" else [rng.randrange(count) for _ in range(parts)]
            )
            vector = "{" + ", ".join(f"%{CLASSES[part][0]}{n}" for n in numbers) + "}"
            whole = self.register(kind)
            self.add(f"{guard}mov.{kind} {f'{whole}, {vector}' if shape == 'pack' else f'{vector}, {whole}'};")

    def compare(self):
        t = self.rng.choice(("f32", "f64", "s32", "u32", "s64", "u64", "u16", "s16"))
        operations = COMPARISONS if t[0] == "f" else COMPARISONS[:6] + (("lo", "ls", "hi", "hs") if t[0] == "u" else ())
        self.add(
            f"{self.guard()}setp.{self.rng.choice(operations)}.{t} {self.register('pred')}, {self.source(t)}, {self.source(t)};"
        )

    def place(self, space, size):
        """Write the address of an access of `size` bytes; returns the operand."""
        rng = self.rng
        room = {"global": IN_WORDS * 4, "shared": SHARED_BYTES, "local": LOCAL_BYTES, "generic": SHARED_BYTES}[space]
        mask = (room - 1) & ~(size - 1)
        if self.wild and rng.random() < 0.03:
            mask = rng.choice((room - 1, 2 * room - 1, 0xFFFFFFFF))
        self.add(f"and.b32 %offset, {self.register('b32')}, {mask:#x};")
        self.add("cvt.u64.u32 %wide, %offset;")
        if space == "global":
            self.add("add.u64 %place, %own, %wide;")
        elif space == "generic":
            self.add("add.u64 %place, %generic, %wide;")
        elif rng.random() < 0.5:
            self.add(f"add.u32 %narrow, %{space}base, %offset;")
            return "[%narrow]"
        else:
            self.add(f"cvt.u64.u32 %place, %{space}base;")
            self.add("add.u64 %place, %place, %wide;")
        constant = rng.choice((0, 0, 0, size, -size)) if self.wild and rng.random() < 0.05 else 0
        return f"[%place{constant:+d}]" if constant else "[%place]"

    def memory(self):
        rng = self.rng
        space = rng.choice(("global", "global", "shared", "shared", "local", "generic"))
        qualifier = "" if space == "generic" else f".{space}"
        if rng.random() < 0.2 and space != "local":
            return self.atomic(space, qualifier)
        load = rng.random() < 0.6
        t = rng.choice(("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"))
        bits = int(t[1:])
        count = rng.choice((1, 1, 2, 4)) if bits >= 16 else 1
        if bits * count > 128:
            count = 1
        place = self.place(space, bits // 8 * count)
        # ld of narrow signed or unsigned types extends to the register; st takes the low bits
        kind = (
            f"b{max(bits, 16)}"
            if t[0] == "f" or rng.random() < 0.7
            else rng.choice([k for k in ("b16", "b32", "b64") if int(k[1:]) >= bits])
        )
        numbers = rng.sample(range(CLASSES[kind][1]), count)
        names = ", ".join(f"%{CLASSES[kind][0]}{n}" for n in numbers)
        value = names if count == 1 else "{" + names + "}"
        vector = "" if count == 1 else f".v{count}"
        guard = self.guard()
        if load:
            self.add(f"{guard}ld{qualifier}{vector}.{t} {value}, {place};")
        else:
            self.add(f"{guard}st{qualifier}{vector}.{t} {place}, {value};")
        return None

    def atomic(self, space, qualifier):
        rng = self.rng
        operation, types = rng.choice((
            ("add", ("u32", "u64", "s32", "f32", "f64")), ("min", ("u32", "s32", "u64", "s64")), ("max", ("u32", "s32", "s64")),
            ("and", ("b32", "b64")), ("or", ("b32", "b64")), ("xor", ("b32", "b64")), ("exch", ("b32", "b64")),
            ("cas", ("b16", "b32", "b64")), ("inc", ("u32",)), ("dec", ("u32",)),
        ))  # fmt: skip
        t = rng.choice(types)
        place, register = self.place(space, int(t[1:]) // 8), f"b{t[1:]}"
        operands = [self.register(register) for _ in range(2 if operation == "cas" else 1)]
        if operation in ("exch", "cas") or rng.random() < 0.6:
            self.add(
                f"{self.guard()}atom{qualifier}.{operation}.{t} {self.register(register)}, {place}, {', '.join(operands)};"
            )
        else:
            self.add(f"{self.guard()}red{qualifier}.{operation}.{t} {place}, {', '.join(operands)};")

    def branch(self):
        end = f"L{next(self.labels)}"
        otherwise = f"L{next(self.labels)}" if self.rng.random() < 0.4 else None
        self.add(f"{self.guard(1)}bra {otherwise or end};")
        self.block(self.rng.randrange(1, 5))
        if otherwise:
            self.add(f"bra {end};")
            self.lines.append(f"{otherwise}:")
            self.block(self.rng.randrange(1, 5))
        self.lines.append(f"{end}:")

    def loop(self):
        """Up to 3 rounds, another number for every thread."""
        counter, start = f"%c{self.depth}", f"L{next(self.labels)}"
        self.add(f"and.b32 {counter}, {self.register('b32')}, 3;")
        self.lines.append(f"{start}:")
        self.block(self.rng.randrange(1, 5))
        self.add(f"setp.ne.u32 %again, {counter}, 0;")
        self.add(f"@%again sub.u32 {counter}, {counter}, 1;")
        self.add(f"@%again bra {start};")

    def switch(self):
        rng = self.rng
        labels, end = [f"L{next(self.labels)}" for _ in range(4)], f"L{next(self.labels)}"
        self.add(f"and.b32 %offset, {self.register('b32')}, 3;")
        self.lines.append(f"T{labels[0]}: .branchtargets {', '.join(labels)};")
        self.add(f"brx.idx %offset, T{labels[0]};")
        for label in rng.sample(labels, 4):
            self.lines.append(f"{label}:")
            self.block(1)
            if rng.random() < 0.7:
                self.add(f"bra {end};")
        self.lines.append(f"{end}:")

    def barrier(self):
        """Only where the threads of the CTA come together."""
        kind = self.rng.choice(("sync", "sync", "named", "red", "warp", "fence"))
        if kind == "sync":
            self.add("bar.sync 0;")
        elif kind == "named":
            self.add(f"barrier.sync {self.rng.randrange(1, 16)};")
        elif kind == "red":
            self.add(f"barrier.red.popc.u32 {self.register('b32')}, 0, {self.register('pred')};")
        elif kind == "warp":
            self.add("bar.warp.sync -1;")
        else:
            self.add("membar.cta;")

    def block(self, statements):
        self.depth += 1
        for _ in range(statements):
            if self.budget <= 0:
                break
            self.budget -= 1
            self.statement()
        self.depth -= 1

    def statement(self):
        kinds = [(self.pure, 10), (self.move, 3), (self.compare, 2), (self.memory, 4)]
        if self.depth < 4:
            kinds += [(self.branch, 2), (self.loop, 1), (self.switch, 0.3)]
        if self.depth == 1:
            kinds += [(self.barrier, 1)]
        (choice,) = self.rng.choices([k for k, _ in kinds], [w for _, w in kinds])
        choice()
        if self.rng.random() < 0.01:
            self.add(f"{self.guard(1)}exit;")

    # -- the program --------------------------------------------------------------------------------------------------

    def program(self):
        declared = [f".reg .{kind} %{letter}<{count}>;" for kind, (letter, count) in CLASSES.items()]
        self.add("mov.u32 %offset, %ctaid.x; mov.u32 %narrow, %tid.x;")
        self.add(f"mad.lo.u32 %offset, %offset, {THREADS}, %narrow;")
        self.add("ld.param.u64 %own, [data];")
        self.add(f"mad.wide.u32 %own, %offset, {4 * IN_WORDS}, %own;")
        self.add("mov.u32 %sharedbase, buffer; cvt.u64.u32 %generic, %sharedbase; cvta.shared.u64 %generic, %generic;")
        self.add("mov.u32 %localbase, stack;")
        at = 0
        for kind, (letter, count) in CLASSES.items():
            for i in range(count):
                guard = "@%again " if self.wild and self.rng.random() < 0.01 else ""
                if kind == "pred":
                    self.add(
                        f"ld.global.u32 %narrow, [%own+{at}]; and.b32 %offset, %narrow, {1 << self.rng.randrange(16)};"
                    )
                    self.add(f"setp.ne.u32 %p{i}, %offset, 0;")
                else:
                    size = int(kind[1:]) // 8
                    at = -(-at // size) * size
                    self.add(f"{guard}ld.global.{kind} %{letter}{i}, [%own+{at}];")
                at += int(kind[1:]) // 8 if kind != "pred" else 4
                if kind == "pred" and i == 0:
                    self.add("mov.pred %again, %p0;")
        # each thread writes its part of shared memory, and all of its own local memory
        self.add("mov.u32 %offset, %tid.x; shl.b32 %offset, %offset, 3; add.u32 %narrow, %sharedbase, %offset;")
        self.add("st.shared.b64 [%narrow], %d0;")
        for i in range(0, LOCAL_BYTES, 8):
            self.add(f"st.local.b64 [%localbase+{i}], %d{i // 8};")
        self.add("bar.sync 0; add.cc.u32 %narrow, %offset, 0xFFFFFF00;")
        rounds = self.rng.choice((1, 2, 4))
        self.add("mov.u32 %round, 0;")
        self.lines.append("ROUND:")
        while self.budget > 0:
            self.block(1)
        self.add("bar.sync 0;")
        self.add(f"add.u32 %round, %round, 1; setp.lt.u32 %again, %round, {rounds}; @%again bra ROUND;")
        at = 0
        for kind, (letter, count) in CLASSES.items():
            for i in range(count):
                if kind == "pred":
                    self.add(f"selp.b32 %narrow, 1, 0, %p{i}; st.global.u32 [%own+{at}], %narrow;")
                    at += 4
                else:
                    size = int(kind[1:]) // 8
                    at = -(-at // size) * size
                    self.add(f"st.global.{kind} [%own+{at}], %{letter}{i};")
                    at += size
        body = "\n".join(self.lines)
        return f""".version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 data)
{{
  {" ".join(declared)}
  .reg .pred %again; .reg .b32 %offset, %narrow, %active, %sharedbase, %localbase, %round, %c<6>;
  .reg .b64 %own, %wide, %place, %generic;
  .shared .align 16 .b8 buffer[{SHARED_BYTES}];
  .local .align 16 .b8 stack[{LOCAL_BYTES}];
{body}
  ret;
}}
"""


def random_program(seed, **keywords):
    """(PTX, input words) of a seed."""
    rng = random.Random(seed)
    return Writer(rng, **keywords).program(), inputs(rng)

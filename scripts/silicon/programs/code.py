"""Small hand-written kernels: what describes one, and a writer that spares them the repetitive lines."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mxfp8fa.emulator.host.tensormap import TiledMap
from silicon.inputs import random_words

ENTRY = "program"
SLOT_BYTES = 8  # each thread's input and every result take one 64-bit word


@dataclass(frozen=True)
class Program:
    """A kernel for one warp, CTA or cluster.

    Attributes:
        name: unique; `covers` says in words what it checks.
        ptx: the text after .version/.target/.address_size, with an entry point ENTRY(input, output).
        inputs: 64-bit words that `input` points to.
        results: 64-bit words written per thread.
        grid, block, cluster: numbers of CTAs, threads of a CTA, CTAs of a cluster (one dimension).
        unordered: results come in an order that the ISA leaves open: compare them as a multiset.
        minimum: smallest compute capability, times ten.
        illegal: the kernel breaks a rule: the GPU should fault, and the emulator refuse.
        tensor: a tensor map (its address is counted from `input`), passed as a third parameter named `map`.
    """

    name: str
    covers: str
    ptx: str
    inputs: np.ndarray
    results: int
    grid: int = 1
    block: int = 32
    cluster: int = 1
    unordered: bool = False
    minimum: int = 80
    illegal: bool = False
    tensor: TiledMap | None = None

    @property
    def threads(self) -> int:
        """Threads of the launch."""
        return self.grid * self.block

    @property
    def output_words(self) -> int:
        """64-bit words that the kernel writes."""
        return self.threads * self.results


class Code:
    """Collects the body of a kernel.

    Registers that are ready: %tx (%tid.x), %lane, %warp, %cta (%ctaid.x), %thread (number in the launch), %in and %out (addresses of
    the buffers), %mine (address of the thread's input slot). Free: %r0.. (b32), %d0.. (b64), %h0.. (b16), %p0.. .
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.results = 0
        self.head: list[str] = []

    def __call__(self, text: str) -> None:
        """Add lines of PTX."""
        self.lines += [line.strip() for line in text.strip().split("\n")]

    def put(self, register: str) -> None:
        """Store a register (%r, %d, %h, %p) as the thread's next result, zero-extended."""
        widen = {
            "r": "cvt.u64.u32 %result, {};",
            "d": "mov.b64 %result, {};",
            "h": "cvt.u64.u16 %result, {};",
            "p": "selp.b64 %result, 1, 0, {};",
        }
        self(widen[register[1]].format(register))
        self(f"st.global.b64 [%slot+{SLOT_BYTES * self.results}], %result;")
        self.results += 1

    def shared(self, name: str, size_bytes: int, alignment: int = 16) -> None:
        """Declare shared memory."""
        self.head.append(f".shared .align {alignment} .b8 {name}[{size_bytes}];")

    def declare(self, text: str) -> None:
        """Add a declaration inside the kernel."""
        self.head.append(text)

    def build(
        self,
        name: str,
        covers: str,
        inputs: np.ndarray | None = None,
        *,
        module: str = "",
        directives: str = "",
        **options: object,
    ) -> Program:
        """The finished Program; without inputs each thread gets a random word."""
        prologue = f"""
        mov.u32 %tx, %tid.x; mov.u32 %lane, %laneid; mov.u32 %cta, %ctaid.x; mov.u32 %thread, %ntid.x;
        shr.u32 %warp, %tx, 5; mad.lo.u32 %thread, %cta, %thread, %tx;
        ld.param.u64 %in, [input]; ld.param.u64 %out, [output];
        mad.wide.u32 %mine, %thread, {SLOT_BYTES}, %in; mad.wide.u32 %slot, %thread, {SLOT_BYTES * self.results}, %out;"""
        registers = ".reg .b32 %r<200>, %tx, %lane, %warp, %cta, %thread; .reg .b16 %h<50>; .reg .pred %p<50>; "
        registers += ".reg .b64 %d<100>, %in, %out, %mine, %slot, %result;"
        body = "\n    ".join(
            [*self.head, registers, *(line.strip() for line in prologue.strip().split("\n")), *self.lines, "ret;"]
        )
        tensor = ", .param .align 64 .b8 map[128]" if options.get("tensor") else ""
        parameters = f".param .u64 input, .param .u64 output{tensor}"
        ptx = f"{module}\n.visible .entry {ENTRY}({parameters}) {directives}\n{{\n    {body}\n}}\n"
        program = Program(name, covers, ptx, np.zeros(0, np.uint64), self.results, **options)  # type: ignore[arg-type]
        given = random_words(name, program.threads) if inputs is None else inputs.astype(np.uint64)
        return replace(program, inputs=given)

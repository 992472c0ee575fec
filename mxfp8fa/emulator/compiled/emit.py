"""LLVM IR of a region: the nodes of `graph.py` over vectors of a few lanes, in a loop over the lanes of the warp.

Native vectors keep code generation quick (vectors of 32 lanes take many times as long to compile and run no faster).
Every operation is an IEEE operation of LLVM without fast-math flags, so nothing is contracted or reassociated, and the
results are those of `lanes.py` bit for bit; the tests compare the two for every instruction form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mxfp8fa.emulator.compiled.graph import Graph, Node
from mxfp8fa.emulator.compiled.jit import wide_vectors
from mxfp8fa.emulator.values import BITS, Value, is_float, is_signed
from mxfp8fa.numerics.exp2 import COEFFICIENTS, EXCEPTIONS, HIGHEST, LOWEST

WARP_LANES = 32
ELEMENT = {"pred": "i1", "f16": "half", "f32": "float", "f64": "double"}
ELEMENT |= {f"{k}{n}": f"i{n}" for k in "us" for n in (8, 16, 32, 64)}
_SUFFIX = {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "half": "f16", "float": "f32", "double": "f64"}
WIDEST_BITS = 512  # of a register
_ROUNDINGS = ("sqrt", "rint", "floor", "ceil", "trunc")


class Emitter:
    """Writes operations on vectors of `lanes` elements as text.

    Attributes:
        lines: instructions so far.
        intrinsics: declarations they need.
    """

    def __init__(self, lanes: int):
        self.lanes = lanes
        self.lines: list[str] = []
        self.intrinsics: set[str] = set()
        self._count = 0

    # -- text ---------------------------------------------------------------------------------------------------------

    def name(self) -> str:
        """A fresh local name."""
        self._count += 1
        return f"%v{self._count}"

    def vector(self, element: str) -> str:
        """The vector type of an element type."""
        return f"<{self.lanes} x {element}>"

    def type_of(self, t: str) -> str:
        """The vector type of a value type."""
        return self.vector(ELEMENT[t])

    def put(self, text: str) -> str:
        """Append an instruction; returns the name of its result."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def splat(self, element: str, value: int) -> str:
        """A constant vector of integers, or of floats given by their bits."""
        if element == "i1":
            return f"<{', '.join(['i1 true' if value else 'i1 false'] * self.lanes)}>"
        if element[0] == "i":
            bits = int(element[1:])
            signed = value - (1 << bits) if value >> (bits - 1) & 1 else value
            return f"<{', '.join([f'{element} {signed}'] * self.lanes)}>"
        word = {"half": "i16", "float": "i32", "double": "i64"}[element]
        return f"bitcast ({self.vector(word)} {self.splat(word, value)} to {self.vector(element)})"

    def doubles(self, value: float) -> str:
        """A constant vector of doubles."""
        import struct

        return self.splat("double", int.from_bytes(struct.pack("<d", value), "little"))

    def call(self, name: str, element: str, *operands: str) -> str:
        """A lane-wise intrinsic."""
        t = self.vector(element)
        full = f"@llvm.{name}.v{self.lanes}{_SUFFIX[element]}"
        self.intrinsics.add(f"declare {t} {full}({', '.join([t] * len(operands))})")
        return self.put(f"call {t} {full}({', '.join(f'{t} {x}' for x in operands)})")

    # -- operations ---------------------------------------------------------------------------------------------------

    def operation(self, node: Node, operands: Sequence[str]) -> str:
        """One node, given the names of its operands."""
        special: Callable[[Node, Sequence[str]], str] | None = getattr(self, f"_{node.op}", None)
        if special is not None:
            return special(node, operands)
        t, element = self.type_of(node.type), ELEMENT[node.type]
        if node.op in ("add", "sub", "mul"):
            return self.put(f"{'f' if is_float(node.type) else ''}{node.op} {t} {operands[0]}, {operands[1]}")
        if node.op in ("and", "or", "xor"):
            return self.put(f"{node.op} {t} {operands[0]}, {operands[1]}")
        if node.op in ("eq", "ne", "lt", "le"):
            return self._compare(node, operands)
        if node.op in ("divide", "remainder"):
            return self._divide(node, operands)
        if node.op in _ROUNDINGS:
            return self.call(node.op, element, operands[0])
        raise KeyError(node.op)

    def _const(self, node: Node, operands: Sequence[str]) -> str:
        return self.splat(ELEMENT[node.type], node.attr)

    def _not(self, node: Node, operands: Sequence[str]) -> str:
        ones = self.splat(ELEMENT[node.type], (1 << BITS[node.type]) - 1)
        return self.put(f"xor {self.type_of(node.type)} {operands[0]}, {ones}")

    def _neg(self, node: Node, operands: Sequence[str]) -> str:
        t = self.type_of(node.type)
        if is_float(node.type):
            return self.put(f"fneg {t} {operands[0]}")
        return self.put(f"sub {t} zeroinitializer, {operands[0]}")

    def _shl(self, node: Node, operands: Sequence[str]) -> str:
        return self._shift(node, "shl", operands)

    def _shr(self, node: Node, operands: Sequence[str]) -> str:
        return self._shift(node, "ashr" if is_signed(node.type) else "lshr", operands)

    def _shift(self, node: Node, op: str, operands: Sequence[str]) -> str:
        """Counts of the width or more give what NumPy gives: zero, or copies of the sign."""
        width, t, element = BITS[node.type], self.type_of(node.type), ELEMENT[node.type]
        count = node.args[1]
        if count.op == "const" and count.attr < width:
            return self.put(f"{op} {t} {operands[0]}, {operands[1]}")
        small = self.put(f"icmp ult {t} {operands[1]}, {self.splat(element, width)}")
        flags = self.vector("i1")
        most = self.put(f"select {flags} {small}, {t} {operands[1]}, {t} {self.splat(element, width - 1)}")
        moved = self.put(f"{op} {t} {operands[0]}, {most}")
        return moved if op == "ashr" else self.put(f"select {flags} {small}, {t} {moved}, {t} zeroinitializer")

    def _compare(self, node: Node, operands: Sequence[str]) -> str:
        source = node.args[0].type
        if is_float(source):
            predicate = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole"}[node.op]
            return self.put(f"fcmp {predicate} {self.type_of(source)} {operands[0]}, {operands[1]}")
        predicate = node.op if node.op in ("eq", "ne") else ("s" if is_signed(source) else "u") + node.op
        return self.put(f"icmp {predicate} {self.type_of(source)} {operands[0]}, {operands[1]}")

    def _bits(self, node: Node, operands: Sequence[str]) -> str:
        a = node.args[0].type
        if ELEMENT[a] == ELEMENT[node.type]:
            return operands[0]
        return self.put(f"bitcast {self.type_of(a)} {operands[0]} to {self.type_of(node.type)}")

    def _to(self, node: Node, operands: Sequence[str]) -> str:
        a, b = node.args[0].type, node.type
        if is_float(a) and is_float(b):
            op = "fpext" if BITS[b] > BITS[a] else "fptrunc"
        elif is_float(a):
            # Out of range is undefined here and arbitrary in NumPy; definitions choose another value there.
            text = f"{'fptosi' if is_signed(b) else 'fptoui'} {self.type_of(a)} {operands[0]} to {self.type_of(b)}"
            return self.put(f"freeze {self.type_of(b)} {self.put(text)}")
        elif is_float(b):
            op = "sitofp" if is_signed(a) else "uitofp"
        elif BITS[b] < BITS[a]:
            op = "trunc"
        elif BITS[b] == BITS[a]:
            return operands[0]
        else:
            op = "sext" if is_signed(a) else "zext"
        return self.put(f"{op} {self.type_of(a)} {operands[0]} to {self.type_of(b)}")

    def _select(self, node: Node, operands: Sequence[str]) -> str:
        t = self.type_of(node.type)
        a, b = (self.opaque(x, name) for x, name in zip(node.args[1:], operands[1:], strict=True))
        return self.put(f"select {self.vector('i1')} {operands[0]}, {t} {a}, {t} {b}")

    def opaque(self, node: Node, operand: str) -> str:
        """An operand of a select, such that LLVM does not see where it comes from.

        LLVM 22 joins logic, an operand of it in memory and a select between the result and another operand to one
        vpternlog with a mask, and confuses the operands in some of the orders (a test has the smallest program).
        """
        element, bits = ELEMENT[node.type], BITS[node.type]
        if not wide_vectors() or bits < 32 or not _may_be_logic(node):
            return operand
        most = min(self.lanes, WIDEST_BITS // bits)
        whole, part = self.vector(element), f"<{most} x {element}>"
        pieces = []
        for first in range(0, self.lanes, most):
            places = ", ".join(f"i32 {first + i}" for i in range(most))
            piece = operand
            if most < self.lanes:
                piece = self.put(f"shufflevector {whole} {operand}, {whole} undef, <{most} x i32> <{places}>")
            pieces.append(self.put(f'call {part} asm "", "=v,0"({part} {piece})'))
        while len(pieces) > 1:
            both, count = ", ".join(f"i32 {i}" for i in range(2 * most)), 2 * most
            pairs = zip(pieces[::2], pieces[1::2], strict=True)
            pieces = [self.put(f"shufflevector {part} {x}, {part} {y}, <{count} x i32> <{both}>") for x, y in pairs]
            most, part = count, f"<{count} x {element}>"
        return pieces[0]

    def _join(self, node: Node, operands: Sequence[str]) -> str:
        t, element, width = self.type_of(node.type), ELEMENT[node.type], BITS[node.args[0].type]
        total = ""
        for i, (part, operand) in enumerate(zip(node.args, operands, strict=True)):
            wide = self.put(f"zext {self.type_of(part.type)} {operand} to {t}")
            if i:
                wide = self.put(f"shl {t} {wide}, {self.splat(element, i * width)}")
                wide = self.put(f"or {t} {total}, {wide}")
            total = wide
        return total

    def _float_div(self, node: Node, operands: Sequence[str]) -> str:
        return self.put(f"fdiv {self.type_of(node.type)} {operands[0]}, {operands[1]}")

    def _fma(self, node: Node, operands: Sequence[str]) -> str:
        return self.call("fma", ELEMENT[node.type], *operands)

    def _popc(self, node: Node, operands: Sequence[str]) -> str:
        return self.call("ctpop", ELEMENT[node.type], operands[0])

    def _exp2(self, node: Node, operands: Sequence[str]) -> str:
        t = self.vector("float")
        return self.put(f"call {t} @exp2_{self.lanes}({t} {operands[0]})")

    def _call(self, node: Node, operands: Sequence[str]) -> str:
        arguments = ", ".join(f"{self.type_of(a.type)} {x}" for a, x in zip(node.args, operands, strict=True))
        return self.put(f"call {self.type_of(node.type)} @{call_name(node.attr, self.lanes)}({arguments})")

    def _divide(self, node: Node, operands: Sequence[str]) -> str:
        """All ones where the divisor is 0; the most negative number over -1 wraps."""
        t, element, flags = self.type_of(node.type), ELEMENT[node.type], self.vector("i1")
        a, b = operands
        one, ones = self.splat(element, 1), self.splat(element, (1 << BITS[node.type]) - 1)
        zero = self.put(f"icmp eq {t} {b}, zeroinitializer")
        quotient = node.op == "divide"
        if not is_signed(node.type):
            safe = self.put(f"select {flags} {zero}, {t} {one}, {t} {b}")
            result = self.put(f"{'udiv' if quotient else 'urem'} {t} {a}, {safe}")
        else:
            wraps = self.put(f"icmp eq {t} {b}, {ones}")
            bad = self.put(f"or {flags} {zero}, {wraps}")
            safe = self.put(f"select {flags} {bad}, {t} {one}, {t} {b}")
            result = self.put(f"{'sdiv' if quotient else 'srem'} {t} {a}, {safe}")
            other = self.put(f"sub {t} zeroinitializer, {a}") if quotient else "zeroinitializer"
            result = self.put(f"select {flags} {wraps}, {t} {other}, {t} {result}")
        return self.put(f"select {flags} {zero}, {t} {ones}, {t} {result}")


def _may_be_logic(node: Node) -> bool:
    """Whether LLVM may compute a node by and, or, xor and the like."""
    if node.op == "bits":
        return _may_be_logic(node.args[0])
    arithmetic = is_float(node.type) and node.op not in ("neg", "select")
    return not (arithmetic or node.op in ("register", "const", "lane", "rank", "call", "exp2", "popc"))


def call_name(key: int, lanes: int) -> str:
    """Name of the function of a graph that is called, see `Translator.calls`."""
    return f"graph_{key:x}_{lanes}"


def graph_function(key: int, value: Value, types: Sequence[str], lanes: int) -> tuple[str, set[str]]:
    """IR of the function of one instruction's graph, from raw bits to raw bits, and its declarations."""
    graph, e = Graph(), Emitter(lanes)
    (result,) = graph.apply([value], [graph.register(i, t) for i, t in enumerate(types)])
    names: dict[int, str] = {}

    def emit(node: Node) -> str:
        if node.number not in names:
            operands = [emit(a) for a in node.args]
            names[node.number] = f"%a{node.attr}" if node.op == "register" else e.operation(node, operands)
        return names[node.number]

    value_name = emit(result)
    head = ", ".join(f"{e.type_of(t)} %a{i}" for i, t in enumerate(types))
    t = e.type_of(result.type)
    body = "\n".join(e.lines)
    text = f"define internal {t} @{call_name(key, lanes)}({head}) noinline {{\n{body}\n  ret {t} {value_name}\n}}"
    return text, e.intrinsics


def exp2_function(lanes: int) -> tuple[str, set[str]]:
    """IR of @exp2_<lanes>: `numerics.exp2`, step by step, and its declarations."""
    e = Emitter(lanes)
    single, double, word, flags = (e.vector(x) for x in ("float", "double", "i64", "i1"))
    whole = 1.5 * 2.0**52
    x = e.put(f"fpext {single} %x to {double}")
    for bound, comparison in ((float(LOWEST), "olt"), (float(HIGHEST), "ogt")):
        beyond = e.put(f"fcmp {comparison} {double} {x}, {e.doubles(bound)}")
        x = e.put(f"select {flags} {beyond}, {double} {e.doubles(bound)}, {double} {x}")
    n = e.put(f"fadd {double} {x}, {e.doubles(whole)}")
    f = e.put(f"fsub {double} {n}, {e.doubles(whole)}")
    f = e.put(f"fsub {double} {x}, {f}")
    p = e.put(f"fmul {double} {f}, {e.doubles(COEFFICIENTS[-1])}")
    for coefficient in COEFFICIENTS[-2:0:-1]:
        p = e.put(f"fadd {double} {p}, {e.doubles(coefficient)}")
        p = e.put(f"fmul {double} {p}, {f}")
    p = e.put(f"fadd {double} {p}, {e.doubles(COEFFICIENTS[0])}")
    exponent = e.put(f"shl {word} {e.put(f'bitcast {double} {n} to {word}')}, {e.splat('i64', 52)}")
    p = e.put(f"add {word} {e.put(f'bitcast {double} {p} to {word}')}, {exponent}")
    result = e.put(f"fptrunc {double} {e.put(f'bitcast {word} {p} to {double}')} to {single}")
    for argument, value in EXCEPTIONS:
        hit = e.put(f"fcmp oeq {single} %x, {e.splat('float', _float_bits(argument))}")
        result = e.put(f"select {flags} {hit}, {single} {e.splat('float', _float_bits(value))}, {single} {result}")
    body = "\n".join(e.lines)
    return (
        f"define internal {single} @exp2_{lanes}({single} %x) noinline {{\n{body}\n  ret {single} {result}\n}}",
        e.intrinsics,
    )


def _float_bits(value: object) -> int:
    import struct

    return int.from_bytes(struct.pack("<f", float(value)), "little")  # type: ignore[arg-type]

"""Bulk copies and reductions, and tensor copies (TMA): swizzles, element types, edges of the tensor, element strides."""

from __future__ import annotations

import numpy as np

from mxfp8fa.emulator.host.tensormap import TiledMap
from silicon.inputs import float_edges, random_words
from silicon.programs.code import Code, Program

THREADS = 128
U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ = range(13)
BITS = {
    U8: 8,
    U16: 16,
    U32: 32,
    S32: 32,
    U64: 64,
    S64: 64,
    F16: 16,
    F32: 32,
    F64: 64,
    BF16: 16,
    F32_FTZ: 32,
    TF32: 32,
    TF32_FTZ: 32,
}
SWIZZLE_BYTES = (16, 32, 64, 128)
NONE, SW32, SW64, SW128 = range(4)
WAIT_STORE = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"


def _map(
    data_type: int, dims: tuple[int, ...], box: tuple[int, ...], *, steps: tuple[int, ...] = (), **options: int
) -> TiledMap:
    """A packed tensor at the start of the input, rows rounded up to 16 bytes."""
    strides, pitch = [], -(-dims[0] * BITS[data_type] // 8 // 16) * 16
    for d in dims[1:]:
        strides.append(pitch)
        pitch *= d
    return TiledMap(data_type, 0, dims, strides, box, steps or (1,) * len(dims), l2_promotion=0, **options)


def _box_bytes(tensor: TiledMap) -> int:
    counts = [tensor.box[0]]  # without interleave, the element stride of dimension 0 is ignored (CUDA Driver API)
    counts += [-(-b // s) for b, s in zip(tensor.box[1:], tensor.element_strides[1:], strict=True)]
    return int(np.prod(counts)) * BITS[tensor.data_type] // 8


def _begin(size_bytes: int) -> Code:
    """A CTA whose shared buffer holds 0xEE bytes; %r0 its address, %r1 a barrier for one arrival, %p0 the first thread."""
    code = Code()
    rounds = -(-size_bytes // (8 * THREADS))
    code.shared("buffer", rounds * 8 * THREADS, 1024)
    code.shared("barrier", 8, 8)
    code("""
        mov.u32 %r0, buffer; mov.u32 %r1, barrier; setp.eq.u32 %p0, %tx, 0; mov.b64 %d1, 0xEEEEEEEEEEEEEEEE;
        mad.lo.u32 %r2, %tx, 8, %r0;
    """)
    for i in range(rounds):
        code(f"st.shared.b64 [%r2+{8 * THREADS * i}], %d1;")
    code("""
        @%p0 mbarrier.init.shared.b64 [%r1], 1; @%p0 fence.mbarrier_init.release.cluster; fence.proxy.async;
        bar.sync 0;
    """)
    return code


def _wait_and_dump(code: Code, size_bytes: int) -> None:
    code("again: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra again;")
    for i in range(-(-size_bytes // (8 * THREADS))):
        code(f"ld.shared.b64 %d2, [%r2+{8 * THREADS * i}];")
        code.put("%d2")


def _dump_input(code: Code, size_bytes: int) -> None:
    """Put the first bytes of the input buffer, which was written to."""
    code("bar.sync 0; mad.wide.u32 %d3, %tx, 8, %in;")
    for i in range(-(-size_bytes // (8 * THREADS))):
        code(f"ld.global.b64 %d2, [%d3+{8 * THREADS * i}];")
        code.put("%d2")


def _tensor_address(coordinates: tuple[int, ...]) -> str:
    return f"[%d4, {{{', '.join(str(c) for c in coordinates)}}}]"


def _load(
    name: str, covers: str, tensor: TiledMap, at: tuple[int, ...], data: np.ndarray | None = None, **options: object
) -> Program:
    size = _box_bytes(tensor)
    code = _begin(size)
    dim = f"{len(tensor.dims)}d"
    code("mov.u64 %d4, map; cvta.param.u64 %d4, %d4;")
    code(f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {size};")
    code(f"""
        @%p0 cp.async.bulk.tensor.{dim}.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0], {_tensor_address(at)}, [%r1];
    """)
    _wait_and_dump(code, size)
    words = random_words(name, 4096) if data is None else data
    return code.build(f"tma.{name}", covers, words, block=THREADS, minimum=90, tensor=tensor, **options)


def _store(
    name: str,
    covers: str,
    tensor: TiledMap,
    at: tuple[int, ...],
    operation: str = "",
    elements: np.ndarray | None = None,
    **options: object,
) -> Program:
    """A box whose shared bytes come from the second half of the input goes to the tensor in the first half."""
    size, half = _box_bytes(tensor), 8192
    code = _begin(size)
    code(f"mad.wide.u32 %d5, %tx, 8, %in; add.u64 %d5, %d5, {half}; mov.u64 %d4, map; cvta.param.u64 %d4, %d4;")
    for i in range(-(-size // (8 * THREADS))):
        code(f"ld.global.b64 %d6, [%d5+{8 * THREADS * i}]; st.shared.b64 [%r2+{8 * THREADS * i}], %d6;")
    prefix = "cp.reduce" if operation else "cp"
    code("fence.proxy.async; bar.sync 0;")
    code(f"""
        @%p0 {prefix}.async.bulk.tensor.{len(tensor.dims)}d.global.shared::cta{operation}.tile.bulk_group {_tensor_address(at)}, [%r0];
        {WAIT_STORE}
    """)
    _dump_input(code, half)
    words = random_words(name, half // 4) if elements is None else elements
    return code.build(f"tma.{name}", covers, words, block=THREADS, minimum=90, tensor=tensor, **options)


def _swizzles() -> list[Program]:
    found = []
    for swizzle, span in enumerate(SWIZZLE_BYTES):
        for t, label in ((U8, "u8"), (U16, "u16"), (F32, "f32")):
            inner = span * 8 // BITS[t]
            tensor = _map(t, (4 * inner, 24), (inner, 16), swizzle=swizzle)
            found.append(
                _load(
                    f"swizzle{span}.{label}",
                    f"tensor copy of {span}-byte rows of {label}, swizzle {(swizzle and span) or 'none'}",
                    tensor,
                    (inner, 5),
                )
            )
    tensor = _map(F16, (64, 20), (64, 16), swizzle=SW128)
    return [*found, _store("swizzle128.store", "tensor store from a swizzled box", tensor, (0, 2))]


def _edges() -> list[Program]:
    """Boxes that hang over the edge of the tensor. The innermost coordinate is a multiple of 16 bytes, as the GPU demands."""
    found = []
    for t, label in ((F16, "f16"), (BF16, "bf16"), (F32, "f32"), (F64, "f64"), (U8, "u8")):
        inner, sixteen_bytes = 256 // BITS[t], 128 // BITS[t]
        for fill in (0, 1) if t != U8 else (0,):
            tensor = _map(t, (inner + 3, 9), (inner, 8), oob_fill=fill)
            for where, at in (("before", (-sixteen_bytes, -2)), ("after", (sixteen_bytes, 4))):
                name = f"edge.{where}.{label}.{'nan' if fill else 'zero'}"
                found.append(
                    _load(
                        name,
                        f"a box that begins {where} the start of a tensor of {label}; outside: {'NaN' if fill else 'zero'}",
                        tensor,
                        at,
                    )
                )
    tensor = _map(F16, (64, 9), (32, 8), swizzle=SW64, oob_fill=1)
    found += [
        _load("edge.swizzled", "a swizzled box that hangs over the edge", tensor, (48, -3)),
        _load("edge.outside", "a box outside the tensor", tensor, (640, 3)),
    ]
    for name, dims, at in (
        ("inner", (40, 9), (32, 0)),
        ("ragged", (37, 9), (32, 0)),
        ("outer", (40, 9), (0, 5)),
        ("both", (37, 9), (32, 5)),
        ("outside", (40, 9), (0, 64)),
    ):
        found.append(
            _store(f"edge.{name}.store", f"a store over the edge of the tensor ({name})", _map(U16, dims, (16, 8)), at)
        )
    return found


def _illegal_coordinates() -> list[Program]:
    """What the GPU answers with an illegal-instruction fault."""
    tensor, plain = _map(F16, (64, 9), (32, 8)), _map(U16, (40, 9), (16, 8))
    return [
        _load(
            "illegal.load.unaligned",
            "an innermost coordinate that is not a multiple of 16 bytes",
            tensor,
            (4, 0),
            illegal=True,
        ),
        _load(
            "illegal.load.unaligned_negative",
            "a negative innermost coordinate that is not a multiple of 16 bytes",
            tensor,
            (-5, 0),
            illegal=True,
        ),
        _store(
            "illegal.store.unaligned",
            "a store at an innermost coordinate that is not a multiple of 16 bytes",
            plain,
            (4, 0),
            illegal=True,
        ),
        _store(
            "illegal.store.negative_inner", "a store at a negative innermost coordinate", plain, (-8, 0), illegal=True
        ),
        _store("illegal.store.negative_outer", "a store at a negative outer coordinate", plain, (0, -1), illegal=True),
        _store(
            "illegal.reduce.negative_outer",
            "a reduction at a negative outer coordinate",
            plain,
            (0, -1),
            ".add",
            illegal=True,
        ),
    ]


def _ranks() -> list[Program]:
    found = []
    for rank in range(1, 6):
        dims, box = (16, 5, 4, 3, 3)[:rank], (16, 4, 3, 2, 2)[:rank]
        found.append(_load(f"rank{rank}", f"a box of {rank} dimensions", _map(U16, dims, box), (8, -1, 3, 1, 2)[:rank]))
        found.append(
            _store(f"rank{rank}.store", f"a store of {rank} dimensions", _map(U16, dims, box), (8, 1, 3, 1, 2)[:rank])
        )
    return found


def _steps() -> list[Program]:
    cases = {"inner": (2, 1), "outer": (1, 3), "both": (3, 2)}
    return [
        _load(f"steps.{n}", f"element strides {steps}", _map(U16, (96, 20), (48, 12), steps=steps), (8, -2))
        for n, steps in cases.items()
    ]


def _conversions() -> list[Program]:
    edges = float_edges("f32")[(random_words("tma f32", 8192) % np.uint64(80)).astype(np.int64)]
    data = edges[::2] | edges[1::2] << np.uint64(32)
    found = [
        _load(f"convert.{label}", f"loads of type {label}", _map(t, (64, 16), (32, 16)), (8, 1), data)
        for t, label in ((F32, "f32"), (F32_FTZ, "f32 with ftz"), (TF32, "tf32"), (TF32_FTZ, "tf32 with ftz"))
    ]
    return found + [
        _store(f"convert.{label}.store", f"stores of type {label}", _map(t, (32, 16), (32, 16)), (0, 0), "", data)
        for t, label in ((F32_FTZ, "f32 with ftz"), (TF32, "tf32"))
    ]


_FLOAT_TYPE = {F16: "f16", BF16: "bf16", F32: "f32", F32_FTZ: "f32 with ftz"}


def _float_pairs(t: int) -> np.ndarray:
    """Edge values of a float format, packed into words."""
    edges = float_edges(_FLOAT_TYPE[t].split()[0])
    count = 64 // BITS[t]
    found = edges[(random_words(f"tma reduce {t}", 2048 * count) % np.uint64(80)).astype(np.int64)].reshape(-1, count)
    return np.bitwise_or.reduce(found << (np.arange(count, dtype=np.uint64) * np.uint64(BITS[t])), axis=1)


def _tensor_reductions() -> list[Program]:
    cases = [(U32, op) for op in ("add", "min", "max", "inc", "dec", "and", "or", "xor")] + [
        (S32, "min"),
        (S32, "max"),
        (U64, "add"),
        (S64, "min"),
    ]
    found = [
        _store(
            f"reduce.{op}.type{t}",
            f"cp.reduce.async.bulk.tensor.{op} of driver type {t}",
            _map(t, (1024 // BITS[t], 16), (1024 // BITS[t], 16)),
            (0, 0),
            f".{op}",
        )
        for t, op in cases
    ]
    for t, op in (
        (F16, "add"),
        (F16, "min"),
        (F16, "max"),
        (BF16, "add"),
        (BF16, "min"),
        (BF16, "max"),
        (F32, "add"),
        (F32_FTZ, "add"),
    ):
        tensor = _map(t, (1024 // BITS[t], 16), (1024 // BITS[t], 16))
        found.append(
            _store(
                f"reduce.{op}.{_FLOAT_TYPE[t]}",
                f"cp.reduce.async.bulk.tensor.{op} of {_FLOAT_TYPE[t]}",
                tensor,
                (0, 0),
                f".{op}",
                _float_pairs(t),
            )
        )
    return found


def _bulk_load() -> Program:
    code = _begin(2048)
    code("@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 1040;")
    for to, source, size in ((0, 16, 16), (512, 256, 512), (1040, 1024, 512)):
        code(f"""
            add.u32 %r5, %r0, {to}; add.u64 %d5, %in, {source};
            @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%d5], {size}, [%r1];
        """)
    _wait_and_dump(code, 2048)
    return code.build(
        "bulk.load", "cp.async.bulk from global to shared memory", random_words("bulk", 512), block=THREADS, minimum=90
    )


def _bulk_store(operation: str = "", elements: np.ndarray | None = None) -> Program:
    code = _begin(2048)
    code("""
        mad.wide.u32 %d5, %tx, 8, %in; ld.global.b64 %d6, [%d5+4096]; ld.global.b64 %d7, [%d5+5120];
        st.shared.b64 [%r2], %d6; st.shared.b64 [%r2+1024], %d7;
    """)
    prefix = "cp.reduce" if operation else "cp"
    code(f"""
        fence.proxy.async; bar.sync 0; add.u64 %d8, %in, 48;
        @%p0 {prefix}.async.bulk.global.shared::cta.bulk_group{operation} [%d8], [%r0], 2000; {WAIT_STORE}
    """)
    _dump_input(code, 3072)
    name = "bulk.store" if not operation else f"bulk.reduce{operation}"
    words = random_words(name, 1024) if elements is None else elements[:1024]
    return code.build(
        name, f"{prefix}.async.bulk{operation} from shared to global memory", words, block=THREADS, minimum=90
    )


def _bulk_peer(operation: str = "") -> Program:
    """Each CTA of a pair sends its buffer to the other one's."""
    code = _begin(2048)
    code("""
        mad.wide.u32 %d5, %thread, 8, %in; ld.global.b64 %d6, [%d5]; st.shared.b64 [%r2], %d6;
        mov.u32 %r6, %cluster_ctarank; xor.b32 %r6, %r6, 1;
    """)
    code("""
        add.u32 %r7, %r0, 1024; mapa.shared::cluster.u32 %r7, %r7, %r6; mapa.shared::cluster.u32 %r8, %r1, %r6;
        @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 1024;
    """)
    prefix = "cp.reduce" if operation else "cp"
    code("fence.proxy.async; barrier.cluster.arrive; barrier.cluster.wait;")
    code(f"""
        @%p0 {prefix}.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{operation} [%r7], [%r0], 1024, [%r8];
    """)
    _wait_and_dump(code, 2048)
    code("barrier.cluster.arrive; barrier.cluster.wait;")
    return code.build(
        f"bulk.peer{operation}",
        f"{prefix}.async.bulk{operation} to the other CTA of a cluster",
        block=THREADS,
        grid=2,
        cluster=2,
        minimum=90,
    )


def programs() -> list[Program]:
    """All kernels of this file."""
    reductions = [
        ".add.u32",
        ".min.s32",
        ".max.u32",
        ".inc.u32",
        ".dec.u32",
        ".and.b32",
        ".or.b32",
        ".xor.b64",
        ".add.u64",
        ".min.s64",
        ".max.u64",
    ]
    floats = {
        ".add.noftz.f16": F16,
        ".min.f16": F16,
        ".max.f16": F16,
        ".add.noftz.bf16": BF16,
        ".min.bf16": BF16,
        ".max.bf16": BF16,
        ".add.f32": F32,
    }
    peers = (".add.u32", ".min.s32", ".max.u32", ".inc.u32", ".dec.u32", ".and.b32", ".or.b32", ".xor.b32", ".add.u64")
    return [
        _bulk_load(),
        _bulk_store(),
        _bulk_peer(),
        *(_bulk_store(o) for o in reductions),
        *(_bulk_store(o, _float_pairs(t)) for o, t in floats.items()),
        *(_bulk_peer(o) for o in peers),
        *_swizzles(),
        *_edges(),
        *_illegal_coordinates(),
        *_ranks(),
        *_steps(),
        *_conversions(),
        *_tensor_reductions(),
    ]

"""Tables of the PTX ISA the parser needs: types, state spaces, special registers, directives of a kernel."""

from __future__ import annotations

# PTX ISA, "Fundamental Types" and "Packed Floating Point Data Types". A predicate has no size in memory.
TYPE_BITS = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "f16x2": 32,
    "f32": 32,
    "f64": 64,
}
# PTX ISA, "Texture Sampler and Surface Types": opaque, handled as 64-bit handles in memory.
OPAQUE_TYPES = {"texref": 64, "samplerref": 64, "surfref": 64}

VECTOR_LENGTHS = {"v2": 2, "v4": 4, "v8": 8}
# PTX ISA, "Vectors as Operands": the elements of a vector register by either set of letters.
VECTOR_COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}
# PTX ISA, "Scalar Video Instructions": bytes and half-words of a 32-bit register.
PART_SELECTORS = frozenset({"b0", "b1", "b2", "b3", "h0", "h1"})

# PTX ISA, "State Spaces", where a variable can be declared (registers and parameters are handled on their own).
VARIABLE_SPACES = frozenset({"const", "global", "local", "shared"})
LINKAGES = frozenset({"common", "extern", "visible", "weak"})

# PTX ISA, "Special Registers". True: a vector of which .x, .y, .z (and .w, always 0) can be read.
SPECIAL_REGISTERS: dict[str, bool] = {
    **dict.fromkeys(
        ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"),
        True,
    ),
    **dict.fromkeys(
        (
            *("laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "is_explicit_cluster"),
            *("cluster_ctarank", "cluster_nctarank", "clock", "clock_hi", "clock64"),
            *(f"lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")),
            *(f"pm{i}" for i in range(8)),
            *(f"pm{i}_64" for i in range(8)),
            *(f"envreg{i}" for i in range(32)),
            *("globaltimer", "globaltimer_lo", "globaltimer_hi"),
            *("reserved_smem_offset_begin", "reserved_smem_offset_end", "reserved_smem_offset_cap"),
            *(f"reserved_smem_offset_{i}" for i in range(2)),
            *("total_smem_size", "aggr_smem_size", "dynamic_smem_size", "current_graph_exec"),
        ),
        False,
    ),
}

# PTX ISA, "Performance-Tuning Directives", "Cluster Dimension Directives" and "Miscellaneous Directives": how many
# numbers each takes, least and most.
FUNCTION_DIRECTIVES = {
    "maxnreg": (1, 1),
    "maxntid": (1, 3),
    "reqntid": (1, 3),
    "minnctapersm": (1, 1),
    "maxnctapersm": (1, 1),
    "noreturn": (0, 0),
    "reqnctapercluster": (1, 3),
    "explicitcluster": (0, 0),
    "maxclusterrank": (1, 1),
    "blocksareclusters": (0, 0),
    "abi_preserve": (1, 1),
    "abi_preserve_control": (1, 1),
}

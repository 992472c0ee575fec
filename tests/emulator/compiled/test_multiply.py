"""tcgen05.mma in machine code against plain NumPy: the first run teaches it what the descriptors mean, the second one uses it."""

import itertools
from unittest import mock

import numpy as np
import pytest
from test_engines import run

from mxfp8fa.emulator import compiled
from mxfp8fa.emulator.compiled import engine
from mxfp8fa.emulator.errors import OutOfBounds
from mxfp8fa.emulator.isa import tcgen05_mma
from mxfp8fa.emulator.machine.program import load_program
from tests.emulator.tensor import kernels, products
from tests.emulator.tensor.products import Case, expected, random_data, spread

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no machine code here")

BF16, F16, F8 = Case("f16"), Case("f16", a="f16", b="f16"), Case("f8f6f4", a="e4m3", b="e5m2")
MX8 = Case("mxf8f6f4", a="e4m3", b="e5m2", scales=1, steps=3, n=48, accumulate=True)
CASES = {
    "bf16": BF16.change(steps=4),
    "f16, D kept": F16.change(accumulate=True, n=24),
    "64 rows": BF16.change(m=64, n=40, accumulate=True),
    "fp8": F8.change(n=256),
    "A and B MN-major": F8.change(a_major="MN", b_major="MN", a_swizzle="64B", n=64),
    "A in tensor memory": BF16.change(tensor_a=True, accumulate=True),
    "fp8 in tensor memory": F8.change(tensor_a=True, n=16),
    "block-scaled": MX8,
    "block-scaled, 256 columns": MX8.change(n=256, steps=1, sfa_id=2, sfb_id=1),
}
PYTHON = {  # none of these is the compiled instruction's
    "another format": F8.change(a="e2m3"),
    "negated": BF16.change(negate=(True, False)),
    "lane 16": BF16.change(m=64, lane=16),
    "disabled lanes": BF16.change(disabled=(0xFF, 0, 0, 1)),
    "a pair": BF16.change(m=256, group=2),
}


@pytest.fixture
def python_products():
    """How many products Python steps did; code is analysed from the first turn on."""
    spy = mock.Mock(side_effect=tcgen05_mma.multiply)
    load_program.cache_clear()  # what other tests taught it
    with mock.patch.object(tcgen05_mma, "multiply", spy), mock.patch.object(engine, "PATIENCE_STEPS", -1):
        yield spy


def product(case, seed=0, data=None, **options):
    """Cells of the product by a kernel whose text is the same each time, so that the program is; checked against NumPy."""
    data = data or random_data(case, seed)
    with mock.patch.object(kernels, "_waits", itertools.count()):
        found, before = products.product(case, data, **options)
    if np.isfinite(data.c).all() and 255 not in data.sfa:
        np.testing.assert_array_equal(found, spread(case, expected(case, data), before))
    return found


@pytest.mark.parametrize("name", CASES)
def test_products(name, python_products):
    product(CASES[name])
    python_products.reset_mock()
    product(CASES[name], seed=1)
    assert not python_products.called


@pytest.mark.parametrize("name", PYTHON)
def test_what_is_left_to_python(name, python_products):
    product(PYTHON[name])
    product(PYTHON[name], seed=1)
    assert python_products.called


@pytest.mark.parametrize("options", [{"schedule": "lazy"}, {"accumulate": "exact"}, {"check": "races"}], ids=str)
def test_other_modes_stay_in_python(options, python_products):
    product(BF16)
    python_products.reset_mock()
    product(BF16, **options)
    assert python_products.called


def test_specials_of_a_block(python_products):
    """A NaN scale, an infinite product and zeros give the bits of the Python step, which has the first run."""
    data = random_data(MX8)
    data.sfa[5], data.a[7, :32], data.a[9, :32] = 255, 0x7F, 0
    first = product(MX8, data=data)
    python_products.reset_mock()
    np.testing.assert_array_equal(product(MX8, data=data), first)
    assert not python_products.called
    assert np.isnan(first.view(np.float32)).any()


HOSTILE = {
    "shifts by more than the width": "shl.b32 %v, %t, 77; shr.s32 %m, %v, 4000000000; shr.u32 %s, %t, %n; xor.b32 %v, %m, %s;",
    "64-bit shifts": "cvt.u64.u32 %pair, %t; shl.b64 %pair, %pair, 200; shr.s64 %pair, %pair, 64; cvt.u32.u64 %v, %pair;",
    "division by zero": "sub.u32 %a, %i, %i; div.u32 %v, %t, %a; rem.s32 %m, %t, %a; add.u32 %v, %v, %m;",
    "the least integer by -1": """
  mov.u32 %a, 0x80000000; mov.u32 %s, -1; div.s32 %v, %a, %s; rem.s32 %m, %a, %s; add.u32 %v, %v, %m;
  cvt.s64.s32 %pair, %a; shl.b64 %pair, %pair, 32; div.s64 %pair, %pair, -1; cvt.u32.u64 %m, %pair; xor.b32 %v, %v, %m;""",
    "64-bit division by zero": "cvt.u64.u32 %pair, %t; div.u64 %pair, %pair, 0; cvt.u32.u64 %v, %pair;",
    "conversions out of range": """
  mov.f32 %f, 0f7F800000; cvt.rzi.s32.f32 %v, %f; mov.f32 %f, 0f7FC00000; cvt.rni.u32.f32 %m, %f; xor.b32 %v, %v, %m;""",
    "bit fields past the end": "bfe.u32 %v, %t, 250, 255; bfi.b32 %v, %t, %v, 31, 200; bfe.s32 %m, %t, 33, 7; xor.b32 %v, %v, %m;",
    "lanes that do not exist": "shfl.sync.idx.b32 %v|%q, %t, 4000, 31, -1; shfl.sync.up.b32 %m|%q, %t, 99, 0, -1;",
}
LOOP = "again: {body} add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n; @%p bra again; st.global.u32 [%y], %v;"


@pytest.mark.parametrize("name", HOSTILE)
def test_arithmetic_that_would_trap_on_a_processor(name):
    """Both engines go on, and agree."""
    run(LOOP.format(body=HOSTILE[name]), rounds=150)


ADDRESSES = {
    "null": "mov.u64 %y, 0; ld.global.u32 %v, [%y];",
    "the last byte": "mov.u64 %y, -4; ld.global.u32 %v, [%y];",
    "beyond the last byte": "mov.u64 %y, -4; ld.global.v4.u32 {%v, %m, %s, %a}, [%y];",
    "an index of 2**31": "mad.wide.u32 %y, 2147483648, 4, %x; st.global.u32 [%y], %t;",
    "shared memory of nobody": "mov.u32 %a, 0xFFFFFFF0; ld.shared.u32 %v, [%a];",
    "shared memory, wrapped": "mov.u32 %a, buffer; add.u32 %a, %a, 0xFFFF0000; st.shared.u32 [%a+8], %t;",
    "generic": "mov.u64 %y, 0x0123456789ABCDE0; ld.u32 %v, [%y];",
    "the parameters' end": "ld.param.u32 %v, [n+4096];",
    "local memory": "mov.u32 %a, 0x7FFFFFF0; ld.local.u32 %v, [%a];",
    "the end of a branch table": "T: .branchtargets fine, fine; brx.idx %i, T;",
    "an mbarrier": "mov.u32 %a, 0x00FFFFF8; mbarrier.arrive.shared.b64 _, [%a];",
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_outside_of_everything(name):
    """After 40 rounds of good accesses the same code gets a bad address: an error that both engines word alike."""
    good = "mad.wide.u32 %y, %t, 4, %x; ld.global.u32 %v, [%y]; mov.u32 %a, buffer; st.shared.u32 [%a], %t; bar.sync 0;"
    bad = f"setp.lt.u32 %q, %i, 40; @%q bra fine; {ADDRESSES[name]} fine:"
    with pytest.raises(Exception, match=r".") as caught:
        run(LOOP.format(body=good + bad))
    assert type(caught.value).__module__ == OutOfBounds.__module__

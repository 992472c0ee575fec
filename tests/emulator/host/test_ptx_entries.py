"""The scan of kernel headers: every way a parameter can be written, launch bounds, static shared memory."""

import pytest

from mxfp8fa.emulator.host import scan_entries

MODULE = """
// .entry not_a_kernel(.param .u32 x) {
.version 9.4
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dynamic[];
.shared .align 16 .b8 used_by_both[20];
.shared .u64 used_by_second[3];
.shared .align 4 .f32 unused;
/* .entry neither() { */

.visible .entry first(
	.param .align 64 .b8 first_param_0[128],
	.param .u8 first_param_1,
	.param .b16 first_param_2, // half
	.param .u64 .ptr .global .align 16 first_param_3,
	.param .align 4 .b8 first_param_4[12],
	.param .f64 first_param_5
)
.reqntid 128, 2, 1
.reqnctapercluster 2
{
	.reg .b32 	%r<3>;
	mov.u32 %r1, used_by_both;
	{
	.reg .pred p;
	}
	ret;
}
.entry second
{
	.shared .align 128 .b8 local_tile[256];
	mov.u32 %r1, used_by_second;
	mov.u32 %r2, used_by_both;
	mov.u32 %r3, dynamic;
	ret;
}
.weak .entry third()
.maxntid 64, 4
.minnctapersm 2
{
	ret;
}
"""


@pytest.fixture(scope="module")
def entries():
    return scan_entries(MODULE)


def test_kernels_are_found_and_comments_are_not(entries):
    assert list(entries) == ["first", "second", "third"]


def test_parameter_sizes_and_offsets(entries):
    layout = [(p.name, p.size_bytes, p.align_bytes, p.offset_bytes) for p in entries["first"].params]
    assert layout == [
        ("first_param_0", 128, 64, 0),
        ("first_param_1", 1, 1, 128),
        ("first_param_2", 2, 2, 130),
        ("first_param_3", 8, 8, 136),  # .align after .ptr speaks of the memory pointed to
        ("first_param_4", 12, 4, 144),
        ("first_param_5", 8, 8, 160),
    ]
    assert entries["second"].params == entries["third"].params == ()


def test_launch_bounds(entries):
    first, second, third = (entries[name] for name in ("first", "second", "third"))
    assert first.required_block == (128, 2, 1) and first.required_cluster == (2, 1, 1) and first.max_threads is None
    assert second.required_block is None and second.required_cluster is None and second.max_threads is None
    assert third.max_threads == 256 and third.required_block is None


def test_static_shared_memory_counts_what_a_kernel_uses(entries):
    assert entries["first"].static_smem_bytes == 20
    # 20 bytes, padded to 24 for the .u64 array of 24 bytes, padded to 128 for the aligned tile of 256
    assert entries["second"].static_smem_bytes == 128 + 256
    assert entries["third"].static_smem_bytes == 0


def test_a_parameter_list_that_cannot_be_read_is_an_error():
    with pytest.raises(ValueError, match="cannot read the kernel parameter list"):
        scan_entries(".entry k(.param .texref weird) { ret; }")

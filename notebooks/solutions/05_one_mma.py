"""Solutions to the exercises of 05_one_mma.ipynb."""


def instruction_descriptor(m, n):
    return 1 << 4 | 1 << 7 | 1 << 10 | n // 8 << 17 | m // 16 << 24  # D f32, A and B bf16


def swizzled(start, row, byte):
    address = start + row // 8 * 1024 + row % 8 * 128 + byte
    return address ^ (address >> 3 & 0x70)  # bits 4 to 6 with bits 7 to 9


def parities(k, stages):
    turn = k // stages
    return turn % 2, (turn + 1) % 2


def cell(thread, register):
    lane = thread // 4 + 8 * (register // 2)
    return lane, 2 * (thread % 4) + register % 2

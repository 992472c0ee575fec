"""Solutions to the exercises of 06_scale_factors_in_tmem.ipynb."""


def byte_of(row, block, k):
    atom = row // 128 * (k // 128) + block // 4
    return 512 * atom + row % 32 * 16 + row % 128 // 32 * 4 + block % 4


def places(row, block, first_column):
    return [(row % 32 + 32 * copy, first_column + row // 32, block) for copy in range(4)]


def scale_ids(word):
    return word >> 29 & 3, word >> 4 & 3


def packed_bytes(rows, k):
    return 512 * -(-rows // 128) * -(-k // 128)

"""Solutions to the exercises of 09_the_tmem_bargain.ipynb."""


def scale_columns(k):
    return -(-k // 128) * 4


def free_columns(head_dim, keys, q_tiles):
    return 512 - q_tiles * (keys + head_dim)


def order(work_tiles, steps, interleave):
    runs = 1 if interleave else work_tiles
    length = work_tiles * steps // runs
    return runs * (["S0", "S1"] + (length - 1) * ["S0", "O0", "S1", "O1"] + ["O0", "O1"])

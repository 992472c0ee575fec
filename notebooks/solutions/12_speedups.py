"""Solutions to the exercises of 12_speedups.ipynb."""


def petaflops(cycles, ghz):
    operations = 148 * 2 * 128 * 128 * 4 * 128
    return operations / cycles * ghz * 1e9 / 1e15


def clock_ghz(cycles, us):
    return cycles / (us - 3) / 1000


def useful_share(tile, step, steps):
    return steps * step / (tile + steps * step)


def gain(a, b, chain):
    return max(a + chain, b) / max(a / 2 + chain, b)

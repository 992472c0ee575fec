"""Solutions to the exercises of 10_where_the_cycles_go.ipynb."""


def step_cycles(per_score, lanes):
    return 2 * 128 * 128 * per_score / lanes


def mufu_share(cycles):
    return min(cycles * 16 / (2 * 128 * 128), 1.0)


def half_bits(code):
    return code << 7


def largest_code(p_offset, threshold):
    return round(8 * (p_offset + threshold + 7))

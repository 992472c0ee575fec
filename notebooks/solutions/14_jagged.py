"""Solutions to the exercises of 14_jagged.ipynb."""


def first_atoms(lengths):
    first = [0]
    for length in lengths:
        first.append(first[-1] + -(-length // 128))
    return first[:-1]


def coordinates(i, start, length, tokens):
    row = tokens - length + i
    return (row, start + length) if row < tokens else None


def number(turn, cta, ctas):
    return turn * ctas + (ctas - 1 - cta if turn % 2 else cta)

"""Solutions to the exercises of 00_map.ipynb."""

from mxfp8fa.studies.course import LESSONS


def before(number):
    found = set()
    for needed in LESSONS[number].needs:
        found |= {needed, *before(needed)}
    return sorted(found)


def halved_share(ratio):
    # With a share f halved the new time is 1 - f / 2 of the old one, and ratio = 1 / (1 - f / 2).
    return 2 * (1 - 1 / ratio)


def kind_of(sentence):
    signs = {"float64": "emulated", "write-up": "published", "table of rates": "modelled", "in front of me": "measured"}
    return next(kind for sign, kind in signs.items() if sign in sentence)

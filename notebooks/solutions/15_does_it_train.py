"""Solutions to the exercises of 15_does_it_train.ipynb."""


def relative_error(db):
    return 10 ** (-db / 20)


def hidden_up_to(noise, rounding):
    return (noise / rounding) ** 2


def module_gain(attention, faster):
    return 1 / (1 - attention + attention / faster)

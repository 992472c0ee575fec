"""What every step is tested under: three schedules, two arithmetics of the tensor core, the race checker silent."""

import pytest

SCHEDULES = (("eager", 0), ("lazy", 0), ("random", 1), ("random", 2))


@pytest.fixture(params=SCHEDULES, ids=lambda p: f"{p[0]}{p[1] or ''}")
def schedule(request):
    """Emulator options of one schedule."""
    name, seed = request.param
    return {"schedule": name, "seed": seed}


@pytest.fixture(params=("float32", "blackwell"))
def accumulate(request):
    """Arithmetic of tcgen05.mma, in the emulator and in the NumPy model alike."""
    return request.param

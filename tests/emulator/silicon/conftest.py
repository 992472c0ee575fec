"""The comparison script lives in scripts/silicon; its modules are imported as `silicon`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3] / "scripts"), str(Path(__file__).parent)]

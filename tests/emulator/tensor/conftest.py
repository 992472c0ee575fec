"""The comparison with a GPU lives in scripts; its modules are imported as `tma_h200` and `silicon`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

"""A modelled run as a Chrome trace, in cycles: https://ui.perfetto.dev and chrome://tracing open it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mxfp8fa.timing.simulate import Busy


def to_perfetto(spans: Sequence[Busy]) -> str:
    """JSON of the spans, one cycle drawn as one microsecond."""
    threads = {name: i for i, name in enumerate(dict.fromkeys(span.actor for span in spans))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": name}} for name, i in threads.items()
    ]
    events += [
        {"ph": "X", "name": s.what, "pid": 1, "tid": threads[s.actor], "ts": round(s.start, 1), "dur": round(s.end - s.start, 1)}
        for s in spans
        if s.end > s.start
    ]
    return json.dumps({"traceEvents": events, "otherData": {"time": "modelled cycles of a B200 SM, drawn as microseconds"}})

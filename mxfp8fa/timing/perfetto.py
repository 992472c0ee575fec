"""A modelled run as a Chrome trace, in cycles: https://ui.perfetto.dev and chrome://tracing open it."""

from __future__ import annotations

import json
from typing import Any

from mxfp8fa.timing.activity import BIN_CYCLES, Activity

_UNITS, _ROLES = 1, 2  # processes of the trace


def to_perfetto(shown: Activity) -> str:
    """JSON: a counter per unit (per cent busy) and a thread per role, one cycle drawn as one microsecond."""
    threads = {name: i for i, name in enumerate(dict.fromkeys(span.actor for span in shown.roles))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for pid, name in ((_UNITS, "units, % busy"), (_ROLES, "roles"))
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": _ROLES, "tid": i, "args": {"name": name}} for name, i in threads.items()
    ]
    for name, shares in shown.units.items():
        before = None
        for i, share in enumerate(shares):
            percent = round(100 * float(share), 1)
            if percent != before:
                events.append({"ph": "C", "name": name, "pid": _UNITS, "ts": i * BIN_CYCLES, "args": {"%": percent}})
            before = percent
    for s in shown.roles:
        start, cycles = round(s.start, 1), round(s.end - s.start, 1)
        events.append({"ph": "X", "name": s.what, "pid": _ROLES, "tid": threads[s.actor], "ts": start, "dur": cycles})
    return json.dumps({"traceEvents": events, "otherData": {"time": "modelled cycles of a B200 SM, drawn as microseconds"}})

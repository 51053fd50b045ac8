"""The clocks of a process whose program may replace those of ``time``, as tests do that freeze it.

Imports nothing of cgtool: see ``cgtool.model.program``.
"""

from __future__ import annotations

from importlib.machinery import BuiltinImporter

_spec = BuiltinImporter.find_spec("time")
# Another module than the program's, whatever that has replaced or will replace in its own.
_time = None if _spec is None else BuiltinImporter.create_module(_spec)
assert _time is not None
BuiltinImporter.exec_module(_time)

time_ns, perf_counter_ns = _time.time_ns, _time.perf_counter_ns
monotonic, sleep = _time.monotonic, _time.sleep

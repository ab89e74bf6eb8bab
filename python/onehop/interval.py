"""SQL's intervals, of which Python has a part."""

from __future__ import annotations

from typing import NamedTuple


class Interval(NamedTuple):
    """Months, days and nanoseconds: a month has no number of days, and a day, where clocks change, none of hours."""

    months: int
    days: int
    nanoseconds: int

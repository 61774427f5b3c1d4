"""Schedules: reminders and recurring tasks, stored as rows and run by the gateway.

::

    rules.py     the due times of a rule in a time zone
    words.py     times and rules as people write them
    service.py   create, list, pause, resume and remove schedules
    ticker.py    run due schedules, each due time once
    tools.py     the agent's tools for schedules
"""

from torana.schedules.service import NewSchedule, Schedules
from torana.schedules.ticker import Ticker
from torana.schedules.tools import ScheduleTools

__all__ = ["NewSchedule", "ScheduleTools", "Schedules", "Ticker"]

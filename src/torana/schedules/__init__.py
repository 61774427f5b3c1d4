"""What is said or done at a time: reminders and recurring tasks, kept as rows and fired by the gateway.

::

    rules.py     when a rule is due, in a time zone
    words.py     times and rules as people write them
    service.py   make, list, pause, resume and remove them
    ticker.py    fires what is due, once
    agents.py    the same for the agent's tools
"""

from torana.schedules.agents import AgentSchedules
from torana.schedules.service import NewSchedule, Schedules
from torana.schedules.ticker import Ticker

__all__ = ["AgentSchedules", "NewSchedule", "Schedules", "Ticker"]

"""One rule per tool. A rule matches the whole message or not at all."""

from __future__ import annotations

from collections.abc import Mapping

from torana.models.builtin.readers import (
    arithmetic,
    chance,
    conversation,
    dates,
    files,
    lines,
    lists,
    memory,
    python,
    schedules,
    skills,
    tables,
    units,
    web,
)
from torana.models.builtin.readers.base import Reader

#: The rules by tool name. If several rules match, rules of the best skill come before others, and then this
#: order decides.
READERS: Mapping[str, Reader] = {
    "list_skills": skills.list_skills,
    "load_skill": skills.load_skill,
    "calculate": arithmetic.calculate,
    "convert_units": units.convert_units,
    "current_time": dates.current_time,
    "days_between": dates.days_between,
    "shift_date": dates.shift_date,
    "count_text": lines.count_text,
    "change_text": lines.change_text,
    "sort_lines": lines.sort_lines,
    "unique_lines": lines.unique_lines,
    "query_json": tables.query_json,
    "query_csv": tables.query_csv,
    "run_python": python.run_python,
    "earlier_messages": conversation.earlier_messages,
    "schedule_repeating": schedules.schedule_repeating,
    "schedule_once": schedules.schedule_once,
    "list_schedules": schedules.list_schedules,
    "cancel_schedule": schedules.cancel_schedule,
    "add_to_list": lists.add_to_list,
    "show_list": lists.show_list,
    "remove_from_list": lists.remove_from_list,
    "web_fetch": web.web_fetch,
    "web_search": web.web_search,
    "list_files": files.list_files,
    "read_file": files.read_file,
    "write_file": files.write_file,
    "delete_file": files.delete_file,
    "remember": memory.remember,
    "forget": memory.forget,
    "recall": memory.recall,
    "pick_random": chance.pick_random,
}

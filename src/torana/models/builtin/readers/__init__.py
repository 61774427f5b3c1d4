"""One rule per tool. A rule matches the whole message or not at all."""

from __future__ import annotations

from collections.abc import Mapping

from torana.models.builtin.readers.arithmetic import calculate
from torana.models.builtin.readers.base import Reader
from torana.models.builtin.readers.chance import pick_random
from torana.models.builtin.readers.conversation import earlier_messages
from torana.models.builtin.readers.dates import current_time, days_between, shift_date
from torana.models.builtin.readers.files import delete_file, list_files, read_file, write_file
from torana.models.builtin.readers.lines import change_text, count_text, sort_lines, unique_lines
from torana.models.builtin.readers.lists import add_to_list, remove_from_list, show_list
from torana.models.builtin.readers.memory import forget, recall, remember
from torana.models.builtin.readers.python import run_python
from torana.models.builtin.readers.schedules import (
    cancel_schedule,
    list_schedules,
    schedule_once,
    schedule_repeating,
)
from torana.models.builtin.readers.skills import list_skills, load_skill
from torana.models.builtin.readers.tables import query_csv, query_json
from torana.models.builtin.readers.units import convert_units
from torana.models.builtin.readers.web import web_fetch, web_search

_RULES: tuple[Reader, ...] = (
    list_skills,
    load_skill,
    calculate,
    convert_units,
    current_time,
    days_between,
    shift_date,
    count_text,
    change_text,
    sort_lines,
    unique_lines,
    query_json,
    query_csv,
    run_python,
    earlier_messages,
    schedule_repeating,
    schedule_once,
    list_schedules,
    cancel_schedule,
    add_to_list,
    show_list,
    remove_from_list,
    web_fetch,
    web_search,
    list_files,
    read_file,
    write_file,
    delete_file,
    remember,
    forget,
    recall,
    pick_random,
)

#: The rules by tool name. If several rules match, rules of the best skill come before others, and then this
#: order decides.
READERS: Mapping[str, Reader] = {rule.__name__: rule for rule in _RULES}

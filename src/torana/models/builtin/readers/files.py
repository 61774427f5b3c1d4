"""Read requests to list, read, write and delete files."""

from __future__ import annotations

from torana.models.builtin.message import BuiltinMessage
from torana.models.builtin.readers.base import Arguments, first_match, groups_of, wordings

# Text files only: "example.com" and "version 2.0" do not match.
_ENDING = r"\.(?:txt|md|markdown|rst|org|csv|tsv|json|ya?ml|toml|ini|xml|html?|log|tex|py|js|sh|sql)"
# Paths outside of the user's files match, too, because the tool explains the error.
_NAME = rf"(?P<name>(?:~?/)?(?:(?:\.{{1,2}}|[\w-]+)/)*[\w-]+(?:\.[\w-]+)*{_ENDING})"
_FILE = rf"(?:(?:the|my|a) )?(?:new )?(?:file )?(?:called |named )?{_NAME}"

list_files = groups_of(
    wordings(
        r"(?:list|show(?: me)?) (?:all )?(?:of )?my files",
        r"(?:what|which) files (?:do i have|have i(?: got)?|are there)",
        r"(?:do i have|are there) (?:any )?files",
    )
)
read_file = groups_of(
    wordings(rf"(?:read|show|open|print|display)(?: me)?(?: what is in)? {_FILE}"),
    wordings(rf"what(?:'s| is) in {_FILE}"),
    wordings(rf"what does {_FILE} (?:say|contain)"),
)
delete_file = groups_of(wordings(rf"(?:delete|remove|erase) {_FILE}"))
# "Put" is excluded: "put milk in shopping.txt" may mean to append, but the tool would overwrite the file.
_PASTED = (
    wordings(
        r"(?:save|write|store|keep)(?: (?:this|that|it|the following))?(?: text)? "
        rf"(?:to|into|in|as) {_FILE}"
    ),
)
# Words that refer to text outside of the message, or describe a text.
_POINTING = (
    r"(?:this|that|these|those|it|them|everything|all|some|something|the|an?|copy of"
    r"|me|my|our|your|his|her|their)"
)
# "Write" requires quotes: "write instructions for baking to bread.txt" asks for a new text. A text without
# quotes contains no file name: "save a.txt to b.txt" asks for a copy.
_INLINE = (
    wordings(rf'(?:save|write|store) "(?P<text>[^"]+)" (?:to|into|in) {_FILE}'),
    wordings(rf'(?:save|store) (?!{_POINTING}\b)(?P<text>(?:(?!{_ENDING}\b)[^"])+) (?:to|into|in) {_FILE}'),
)


def write_file(message: BuiltinMessage) -> Arguments | None:
    """Read a request to write a text, pasted or quoted in the message, to a file."""
    if message.pasted and (match := first_match(_PASTED, message.instruction)):
        return {"name": match["name"], "text": message.pasted}
    match = first_match(_INLINE, message.phrase)
    return {"name": match["name"], "text": match["text"]} if match else None

"""Run what is not trusted: in namespaces of its own, with bounds, and with a way out only to granted hosts."""

from torana.tools.sandbox.bubblewrap import FOLDER, Bubblewrap
from torana.tools.sandbox.job import Job, Limits, Outcome, SandboxFault, Stopped
from torana.tools.sandbox.rooms import sweep_rooms
from torana.tools.sandbox.run import Sandbox
from torana.tools.sandbox.usage import OTHERS, PROCESS_FACTOR

__all__ = [
    "FOLDER",
    "OTHERS",
    "PROCESS_FACTOR",
    "Bubblewrap",
    "Job",
    "Limits",
    "Outcome",
    "Sandbox",
    "SandboxFault",
    "Stopped",
    "sweep_rooms",
]

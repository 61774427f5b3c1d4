"""Run untrusted programs in separate namespaces, with limits, and with access only to granted hosts."""

from torana.tools.sandbox.bubblewrap import FOLDER, Bubblewrap
from torana.tools.sandbox.job import Job, Outcome, SandboxFault, SandboxLimits, Stopped
from torana.tools.sandbox.run import Sandbox
from torana.tools.sandbox.usage import OTHERS, PROCESS_FACTOR
from torana.tools.sandbox.workdirs import sweep_workdirs

__all__ = [
    "FOLDER",
    "OTHERS",
    "PROCESS_FACTOR",
    "Bubblewrap",
    "Job",
    "Outcome",
    "Sandbox",
    "SandboxFault",
    "SandboxLimits",
    "Stopped",
    "sweep_workdirs",
]

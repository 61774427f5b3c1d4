"""Run what is not trusted: in namespaces of its own, with bounds, and with a way out only to granted hosts."""

from torana.tools.sandbox.bubblewrap import FOLDER, Bubblewrap
from torana.tools.sandbox.job import Job, Limits, Outcome, SandboxFault, Stopped
from torana.tools.sandbox.run import Sandbox

__all__ = ["FOLDER", "Bubblewrap", "Job", "Limits", "Outcome", "Sandbox", "SandboxFault", "Stopped"]

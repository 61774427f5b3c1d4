"""The gateway's settings (``Settings``) and how they are read (``load``).

=======================  ====================================================
``settings``             every setting, with bounds, default and description
``fields``               the types of values
``formatting``           values and settings as texts for messages
``sources``              flags, variables, ``.env``, settings file
``validation_messages``  a line for each fault
``safety``               which listen addresses need a token
``spending``             whether every limited model has a price
``loading``              all sources together
=======================  ====================================================
"""

from torana.config.fields import is_loopback
from torana.config.formatting import describe_allowed_values
from torana.config.loading import Loaded, load, load_with_faults, models_as_read
from torana.config.settings import FLAGS, PREFIX, SECRETS, TABLES, Settings, flag, variable

__all__ = [
    "FLAGS",
    "PREFIX",
    "SECRETS",
    "TABLES",
    "Loaded",
    "Settings",
    "describe_allowed_values",
    "flag",
    "is_loopback",
    "load",
    "load_with_faults",
    "models_as_read",
    "variable",
]

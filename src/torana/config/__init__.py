"""The gateway's settings: what there is to set (``Settings``), and where it is read from (``load``).

=============  ====================================================
``settings``   every setting, with bounds, default and description
``fields``     the kinds of values
``wording``    how values and settings are put into words
``sources``    flags, variables, ``.env``, settings file
``faults``     what is wrong, a line for each
``safety``     which token is needed where
``spending``   whether what is limited in money can be counted
``loading``    all of it together
=============  ====================================================
"""

from torana.config.fields import is_loopback
from torana.config.loading import Loaded, load, models_as_read, survey
from torana.config.settings import FLAGS, PREFIX, SECRETS, TABLES, Settings, flag, variable
from torana.config.wording import allowed

__all__ = [
    "FLAGS",
    "PREFIX",
    "SECRETS",
    "TABLES",
    "Loaded",
    "Settings",
    "allowed",
    "flag",
    "is_loopback",
    "load",
    "models_as_read",
    "survey",
    "variable",
]

"""Open an address in the browser of the user."""

from __future__ import annotations

import os
import sys
import webbrowser

from torana.cli.process_secrets import erase_variables

#: One of these variables names a browser or a screen.
_SCREENS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


def open_browser(address: str) -> bool:
    """Start a browser, without the variables of the gateway's settings. Return whether a browser was found.

    On Linux, a browser in the terminal is started only if ``BROWSER`` names it: few of them can run the page.
    """
    if sys.platform == "linux" and not any(map(os.environ.get, _SCREENS)):
        return False
    erase_variables([name for name in os.environ if name.startswith("TORANA_")])
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False

"""HTTP clients without cookies."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy


def refuse_cookies() -> CookieJar:
    """Return a jar that neither parses nor keeps cookies.

    The jar of a client has no limit, each request compares all of its cookies, and a server can send thousands
    with each response.
    """
    return CookieJar(DefaultCookiePolicy(netscape=False))

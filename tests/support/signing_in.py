"""Signing the demo user in without a browser."""

import re

import httpx

from tests.support.live_stack import LiveStack


def sign_in(http: httpx.Client, stack: LiveStack) -> None:
    """Sign the demo user in, as the page would; what is sent afterwards passes the check of forms."""
    page = http.get("/")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert token is not None
    fields = {"username": stack.user.email, "password": stack.user.password, "csrfmiddlewaretoken": token[1]}
    answer = http.post(page.url, data=fields, headers={"referer": str(page.url)})
    assert answer.status_code == 200
    cookie = next(cookie.value for cookie in http.cookies.jar if "csrf" in cookie.name)
    http.headers.update({"x-csrftoken": cookie or "", "referer": stack.base_url})

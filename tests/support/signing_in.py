"""Signing the demo user in without a browser."""

import re

import httpx

from tests.support.live_stack import LiveStack, Person


def sign_in(http: httpx.Client, stack: LiveStack, person: Person | None = None) -> None:
    """Sign a person in as the page would, the demo user where none is named; later posts pass the check of forms."""
    page = http.get("/")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert token is not None
    person = person or stack.user
    fields = {"username": person.email, "password": person.password, "csrfmiddlewaretoken": token[1]}
    answer = http.post(page.url, data=fields, headers={"referer": str(page.url)})
    assert answer.status_code == 200
    cookie = next(cookie.value for cookie in http.cookies.jar if "csrf" in cookie.name)
    http.headers.update({"x-csrftoken": cookie or "", "referer": stack.base_url})

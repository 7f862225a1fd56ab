import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from apps.accounts.models import User
from apps.accounts.sign_in_throttle import FAILURES
from tests.support.records import PASSWORD

SIGN_IN = reverse("accounts:login")


@pytest.fixture(autouse=True)
def _no_failures_yet() -> None:
    cache.clear()


def sign_in(client: Client, email: str, password: str, **form: str) -> int:
    return client.post(SIGN_IN, {"username": email, "password": password, **form}).status_code


def test_signs_in_with_any_case_and_out_by_post_only(client: Client, user: User) -> None:
    answer = client.post(SIGN_IN, {"username": "ANN@example.com", "password": PASSWORD})
    assert (answer.status_code, answer["Location"]) == (302, "/")
    assert client.session["_auth_user_id"] == str(user.pk)

    assert client.get(reverse("accounts:logout")).status_code == 405
    assert client.post(reverse("accounts:logout")).status_code == 302
    assert "_auth_user_id" not in client.session


def test_a_wrong_password_says_neither_which_part_was_wrong_nor_echoes_it(client: Client, user: User) -> None:
    wrong = client.post(SIGN_IN, {"username": user.email, "password": "wrong-password"}).content.decode()
    unknown = client.post(SIGN_IN, {"username": "nobody@example.com", "password": "wrong-password"}).content.decode()
    for page in (wrong, unknown):
        assert "Email and password do not match." in page
        assert "wrong-password" not in page


def test_a_switched_off_user_reads_the_same(client: Client, user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)
    answer = client.post(SIGN_IN, {"username": user.email, "password": PASSWORD})
    assert "Email and password do not match." in answer.content.decode()


def test_guessing_is_paused_even_for_the_right_password(client: Client, user: User) -> None:
    for _ in range(FAILURES):
        assert sign_in(client, user.email, "wrong") == 200
    answer = client.post(SIGN_IN, {"username": user.email, "password": PASSWORD})
    assert "Too many attempts" in answer.content.decode()
    other = Client(REMOTE_ADDR="192.0.2.7")
    assert sign_in(other, user.email, PASSWORD) == 302


def test_a_success_forgets_failures(client: Client, user: User) -> None:
    for _ in range(FAILURES - 1):
        sign_in(client, user.email, "wrong")
    assert sign_in(client, user.email, PASSWORD) == 302
    client.logout()
    assert sign_in(client, user.email, "wrong") == 200
    assert sign_in(client, user.email, PASSWORD) == 302


def test_does_not_lead_to_other_hosts(client: Client, user: User) -> None:
    answer = client.post(SIGN_IN, {"username": user.email, "password": PASSWORD, "next": "https://evil.example/"})
    assert answer["Location"] == "/"


def test_the_admin_uses_the_same_page(client: Client) -> None:
    answer = client.get(reverse("admin:index"), follow=True)
    assert answer.redirect_chain[-1][0].startswith(SIGN_IN)


def test_needs_a_csrf_token(user: User) -> None:
    client = Client(enforce_csrf_checks=True)
    assert sign_in(client, user.email, PASSWORD) == 403


@pytest.mark.parametrize("email", ["", "not-an-email", "\x00", "a" * 400, "ann@example.com\n"])
def test_odd_input_is_answered_with_the_form(client: Client, db: None, email: str) -> None:
    assert sign_in(client, email, "x") == 200

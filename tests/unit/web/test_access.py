import pytest

from calve.errors import InvalidInput
from calve.web.access import PageAccess

TOKEN = "a-long-random-text-4711"  # noqa: S105 - of a page that exists in this test alone


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "page.example.com"])  # noqa: S104 - it is refused
def test_an_address_that_other_machines_reach_needs_a_token(host: str) -> None:
    with pytest.raises(InvalidInput, match="needs a token"):
        PageAccess(host)
    assert PageAccess(host, TOKEN).token == TOKEN


@pytest.mark.parametrize("token", ["", "short", "fifteen-letters", "ümläute sind keine guten Zeichen"])
def test_weak_tokens_are_refused(token: str) -> None:
    with pytest.raises(InvalidInput, match="too weak") as refused:
        PageAccess("127.0.0.1", token)
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:9", "[::1]:8080", "LOCALHOST:1", "127.0.0.1"]
)
def test_a_page_for_this_machine_is_served_under_its_names(host: str) -> None:
    assert PageAccess("127.0.0.1").is_host(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example.com", "127.0.0.1.evil.example.com", "localhost.evil.com:8080", "10.0.0.1"]
)
def test_a_page_for_this_machine_is_not_served_under_other_names(host: str) -> None:
    assert not PageAccess("127.0.0.1").is_host(host)
    assert PageAccess("127.0.0.1", TOKEN).is_host(host), "the token protects it"
    assert PageAccess("0.0.0.0", TOKEN).is_host(host)  # noqa: S104 - the same


def test_a_token_is_a_bearer_or_a_cookie_that_does_not_contain_it() -> None:
    access = PageAccess("127.0.0.1", TOKEN)
    assert access.admits(f"Bearer {TOKEN}", "")
    assert access.admits("", access.cookie)
    assert TOKEN not in access.cookie
    for authorization in ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ", f"Bearer {TOKEN[:-1]}"):
        assert not access.admits(authorization, "")
        assert not access.admits(authorization, TOKEN)
    assert TOKEN not in repr(access)
    assert PageAccess("127.0.0.1").admits("", "")

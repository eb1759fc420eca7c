"""The token of a request: from one header or one cookie, read as servers read cookies."""

import pytest
from starlette.datastructures import Headers

from perdure.gateway.guard import token_of


def headers(*pairs: tuple[str, str]) -> Headers:
    return Headers(raw=[(name.encode(), value.encode()) for name, value in pairs])


@pytest.mark.parametrize(
    ("lines", "token"),
    [
        (("perdure_token=abc",), "abc"),
        (("a=1;perdure_token=abc;b=2",), "abc"),
        (("a=1", " perdure_token = abc "), "abc"),
        (('perdure_token="abc"',), "abc"),
        ((r'perdure_token="a\142c"',), "abc"),
        (('perdure_token="abc',), '"abc'),
        (("perdure_token=a=b",), "a=b"),
        (("perdure_token=abc; perdure_token=abc",), "abc"),
    ],
)
def test_the_cookie_is_found_however_it_is_written(lines: tuple[str, ...], token: str) -> None:
    assert token_of(headers(*(("cookie", line) for line in lines))) == (token, True)


@pytest.mark.parametrize("lines", [("perdure_token=a; perdure_token=b",), ("perdure_token=a", "perdure_token=b")])
def test_of_two_cookies_none_is_chosen(lines: tuple[str, ...]) -> None:
    assert token_of(headers(*(("cookie", line) for line in lines))) == ("", True)


def test_a_cookie_of_another_name_is_none_and_a_header_comes_first() -> None:
    assert token_of(headers(("cookie", "xperdure_token=a; perdure_tokens=b; perdure_token"))) == ("", False)
    assert token_of(headers(("authorization", "Bearer x"), ("cookie", "perdure_token=a"))) == ("x", False)
    assert token_of(headers(("authorization", "Bearer x"), ("authorization", "Bearer y"))) == ("", False)

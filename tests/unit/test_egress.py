"""Where webhooks may be sent to: what the operator allows, and no address of a network that is not public."""

import pytest

from perdure.contracts.webhooks import Destination, Egress, EgressError, is_public, read_entry
from perdure.settings import Settings, SettingsError, load_settings

PUBLIC = ("93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1")
PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "0.0.0.0"),
    *("192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fec0::1", "ff02::1", "::127.0.0.1"),
    *("::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:a00:1::", "2001:0:1::1", "2001:db8::1"),
    "example.com",
)


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_public_network_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_of_any_other_network_is_not(address: str) -> None:
    """Loopback, private, link-local with the metadata services, shared, reserved, groups, and tunnels to them."""
    assert not is_public(address)


@pytest.mark.parametrize(
    ("entries", "url", "trusted"),
    [
        (("*",), "https://example.com/hook?a=b", False),
        (("*",), "https://EXAMPLE.com.:8443", False),
        (("*",), "https://1.1.1.1/", False),
        (("*",), "https://[2606:4700:4700::1111]/", False),
        (("example.com",), "https://example.com/", False),
        (("*.example.com",), "https://a.b.example.com/", False),
        (("http://receiver:8080",), "http://receiver:8080/hook", True),
        (("http://receiver",), "http://receiver:80/hook", True),
        (("https://10.0.0.1",), "https://10.0.0.1/hook", True),
        (("*", "http://[::1]:9000"), "http://[::1]:9000/", True),
    ],
)
def test_what_an_entry_allows(entries: tuple[str, ...], url: str, *, trusted: bool) -> None:
    assert Egress(tuple(map(read_entry, entries))).check(url).trusted is trusted


@pytest.mark.parametrize(
    ("entries", "url", "said"),
    [
        (("*",), "http://example.com/", "no TLS; use https"),
        (("*",), "https://127.0.0.1/", "not a public address"),
        (("*",), "https://[::1]/", "not a public address"),
        (("example.com",), "https://other.com/", "on no list"),
        (("example.com",), "https://a.example.com/", "on no list"),
        (("*.example.com",), "https://example.com/", "on no list"),
        (("*.example.com",), "https://badexample.com/", "on no list"),
        (("http://receiver:8080",), "http://receiver:8081/", "on no list"),
        (("http://receiver:8080",), "https://receiver:8080/", "on no list"),
        (("http://receiver:8080",), "https://example.com/", "on no list"),
        ((), "https://example.com/", "on no list"),
        (("*",), "https://user@example.com/", "user or a password"),
        (("*",), "https://example.com\\@10.0.0.1/", "beyond ASCII"),
        (("*",), "https://exa mple.com/", "beyond ASCII"),
        (("*",), "https://exämple.com/", "xn--"),
        (("*",), "https://example.com/#part", "fragment"),
        (("*",), "https://example.com:0/", "port 0"),
        (("*",), "https://example.com:99999/", "cannot be read"),
        (("*",), "https:///hook", "none of http"),
        (("*",), "javascript:alert(1)", "none of http"),
        (("*",), "example.com/hook", "none of http"),
    ],
)
def test_what_no_entry_allows_is_refused_with_the_fix(entries: tuple[str, ...], url: str, said: str) -> None:
    with pytest.raises(EgressError) as refused:
        Egress(entries).check(url)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_address_keeps_its_port_and_host() -> None:
    assert Egress().check("https://Example.com:8443/x") == Destination("https", "example.com", 8443, trusted=False)


def test_the_setting_is_a_list_of_hosts_and_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().egress == Egress(("*",))
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", "*.Example.com, http://receiver:8080/")
    assert load_settings(of_folder=False).webhook_allow == ("*.example.com", "http://receiver:8080")


@pytest.mark.parametrize("wrong", ["http://receiver/path", "not a host", "*.", "a.*.b", "ftp://host", "*.::1"])
def test_an_entry_that_is_neither_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", wrong)
    with pytest.raises(SettingsError, match="PERDURE_WEBHOOK_ALLOW"):
        load_settings(of_folder=False)

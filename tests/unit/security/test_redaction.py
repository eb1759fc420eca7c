"""Secrets leave texts and arguments; what only looks like one stays."""

import json
from collections.abc import Callable, Collection
from string import ascii_letters, digits
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.contracts.values import JsonValue
from perdure.security.credentials import MASK
from perdure.security.redaction import DEEPEST_ARGUMENTS, Hidden, hidden_values_of, mask_arguments, redact_text

SECRET = "hunter2-hunter2"
KEYS = [
    "sk-scripted-0123456789",
    "sk-ant-api03-abcDEF0123456789_abcDEF",
    "sk_live_0123456789abcdef",
    "AKIA0123456789ABCDEF",
    "ghp_0123456789abcdefghijABCDEFGHIJ",
    "github_pat_0123456789abcdefghijABCDEFGHIJ",
    "glpat-0123456789abcdefghij",
    "xoxb-0123456789-abcdef",
    "AIza0123456789abcdefghijABCDEFGHIJ012",
    "gsk_0123456789abcdefghijABCDEFGHIJ0123456789abcdefghijABCD",
    "xai-0123456789abcdefghijABCDEFGHIJ0123456789abcdefghij",
    "nvapi-0123456789-abcdefghij_ABCDEFGHIJ0123456789abcdefghij",
    "pplx-0123456789abcdefghijABCDEFGHIJ0123456789",
    "r8_0123456789abcdefghijABCDEFGHIJ0123456",
    "fw_0123456789abcdefghijABCD",
    "tgp_v1_0123456789abcdefghij-ABCDEFGHIJ_0123456789",
    "csk-0123456789abcdefghijABCDEFGHIJ0123456789abcdefgh",
    "jina_0123456789abcdef0123456789abcdefABCDEFGHIJ_0123456789abcdef",
    "ya29.a0AfH6SNx0123456789-abcdefghij_ABCDEFGHIJ",
    "npm_0123456789abcdefghijABCDEFGHIJ012345",
    "pypi-AgEIcHlwaS5vcmcCJDAxMjM0NTY3-abcdefghij_ABCDEFGHIJ",
    "SG.0123456789abcdefghij-_.ABCDEFGHIJ0123456789abcdefghij-ABCDEFGHIJ_012",
    "lsv2_pt_0123456789abcdef0123456789abcdef_0123456789",
    "pdr_Z0-9abcdefghij_ABCDEFGHIJ0123456789abcdefgh",
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwABCDEFGH+/0=",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
VALUES = st.text(ascii_letters + digits, min_size=12, max_size=40)
NAMES = st.sampled_from(["password", "apiKey", "api_key", "X-Api-Key", "client_secret", "Authorization", "accessToken"])


def is_masked(arguments: dict[str, JsonValue], secrets: Collection[str] = ()) -> bool:
    """Whether masking changes anything."""
    return mask_arguments(arguments, secrets=secrets) != arguments


def strings(value: JsonValue) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for inner in value for text in strings(inner)]
        case dict():
            return [text for inner in value.values() for text in strings(inner)]
        case _:
            return []


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_known_by_its_shape_in_texts_and_in_arguments(key: str) -> None:
    """S-52: in errors and arguments."""
    assert key not in redact_text(f"Incorrect API key provided: {key}. Find yours on the page.")
    assert key not in json.dumps(mask_arguments({"command": f"curl -H 'x: {key}' https://host"}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abcdef.ghijkl", "Authorization: Bearer ***"),
        ("postgresql://user:pa55word@host/db", "postgresql://user:***@host/db"),
        ("redis://:pa55word@host", "redis://:***@host"),
        ("api_key=abcdef&x=1", "api_key=***&x=1"),
        ('{"api_key": "abcdef", "x": 1}', '{"api_key": "***", "x": 1}'),
        ('{"password": "abcdef', '{"password": "***"'),
        ("mysql --password=abcdef -h db", "mysql --password=*** -h db"),
        ("login --api-key abcdef now", "login --api-key *** now"),
        ("Incorrect API key provided: sk-scrip*****6789.", "Incorrect API key provided: ***."),
        ("Incorrect key: abcd********wxyz, or ********wxyz", "Incorrect key: ***, or ***"),
        ("curl -H 'X-Api-Key: abcd1234' host", "curl -H 'X-Api-Key: ***' host"),
        ("Authorization: token abcd1234", "Authorization: token ***"),
        ("GITHUB_TOKEN=abcdefgh make", "GITHUB_TOKEN=*** make"),
        ('export PGPASSWORD="abcdefgh"', 'export PGPASSWORD="***"'),
        ("get https://api/v1?api_key=4f9a8b7c and go", "get https://api/v1?api_key=*** and go"),
        ("https://api/v1?n=1&access_token=4f9a8b7c#top", "https://api/v1?n=1&access_token=***#top"),
        ("refused for url: https://api/v1?token=4f9a8b7c", "refused for url: https://api/v1?token=***"),
        ("https://api/v1?key=4f9a8b7c&secret=4f9a&sig=ab%2Fc1234", "https://api/v1?key=***&secret=***&sig=***"),
        ("export api_key=4f9a8b7c; make", "export api_key=***; make"),
        ("curl -u admin:hunter22 host", "curl -u admin:*** host"),
        ("curl --user 'admin:hunter22' host", "curl --user 'admin:***' host"),
        ("curl -H 'Cookie: session=4f9a; id=1' host", "curl -H 'Cookie: ***' host"),
        ("Set-Cookie: session=4f9a; Path=/", "Set-Cookie: ***"),
        (r'-d "{\"password\": \"hunter22\", \"n\": 1}"', r'-d "{\"password\": \"***\", \"n\": 1}"'),
        ('{"password": "hun\\"ter22", "n": 1}', '{"password": "***", "n": 1}'),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("curl -H 'authorization: bearer letters' host", "curl -H 'authorization: bearer ***' host"),
        ("sent Basic dXNlcjpwYXNzd29yZDE= twice", "sent Basic *** twice"),
    ],
)
def test_a_credential_is_known_by_what_stands_before_it(text: str, expected: str) -> None:
    """S-52."""
    assert redact_text(text) == expected


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"url": "https://api/v1?api_key=4f9a8b7c"}, {"url": "https://api/v1?api_key=***"}),
        ({"url": "https://api/v1?access_token=4f9a8b7c"}, {"url": "https://api/v1?access_token=***"}),
        ({"command": "export api_key=4f9a8b7c"}, {"command": "export api_key=***"}),
        ({"command": "curl -u admin:hunter22 host"}, {"command": "curl -u admin:*** host"}),
        ({"argv": ["curl", "-u", "admin:hunter22", "host"]}, {"argv": ["curl", "-u", "admin:***", "host"]}),
        ({"command": "curl -H 'Cookie: session=4f9a'"}, {"command": "curl -H 'Cookie: ***'"}),
        ({"body": r"{\"password\": \"hunter22\"}"}, {"body": r"{\"password\": \"***\"}"}),
        ({"header": "Authorization: Basic dXNlcjpwYXNz"}, {"header": "Authorization: Basic ***"}),
        ({"sk-proj-abc12345678": "x"}, {MASK: "x"}),
        ({"in": [{f"the {SECRET}": "x", f"the {SECRET}2": "y"}]}, {"in": [{"the ***": "x", "the ***2": "y"}]}),
        ({"sk-proj-abc12345678": 1, "sk-proj-abc12345679": 2}, {MASK: 1, f"{MASK}2": 2}),
    ],
)
def test_no_credential_stays_in_the_texts_or_the_names_of_arguments(
    arguments: dict[str, JsonValue], shown: dict[str, JsonValue]
) -> None:
    """S-52."""
    assert mask_arguments(arguments, secrets=[SECRET]) == shown


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4096 is too large",
        "the bearer of this letter",
        "basic authentication failed",
        "install sk-learn-contrib with pip",
        "see https://host:8080/path and mail me@host",
        "a risk-assessment of task-0123456789",
        "mkdir -p build/output",
        "def make(*args, **options): **bold** and *** or ****",
        "TOKEN=$GITHUB_TOKEN make; SORT_KEY=created_at",
        "SELECT * FROM t WHERE pk_users_2024_index > 1 AND pk_orders_2024 < 2",
        "sk_learn_model_v1 and sk-learn-model-v1",
        "MAX_TOKEN=4096000 make",
        "a bearer certificates store",
        "Basic 2-factor-auth=required, Basic 2-factor-auth=",
        "wc --pass 3 --max-token 4096",
        "docker run -u 1000:1000 image",
        "https://api/v1?page_token=abcdef12&sort_key=name&monkey=business",
        "npm_config_registry and npm_package_version_1 in a run of pypi-publish or xai-sdk-python",
        "fw_update_manager_2024 on r8_0, SG.first.second, ya29.x, the csk-1 line, jina_embeddings_v3",
        "pdr_jobs and the table pdr_sessions_of_the_last_year, whsec_test",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert redact_text(text) == text
    assert not is_masked({"text": text})


def test_source_code_that_a_model_writes_stays() -> None:
    assert not is_masked({"content": '{"password": "string", "api_key": null, "token": "", "password": ""}'})
    assert not is_masked({"content": 'headers = {"Authorization": f"Bearer {key}"}; cookie: a == b'.replace('"A', "A")})
    assert not is_masked({"content": "def connect(api_key: str, password=None):\n    token = read()\n"})
    assert not is_masked({"content": "authorization: required for this page; the x-api-key: header is missing"})
    assert not is_masked({"content": 'API_KEY=os.environ["API_KEY"]\nTOKEN=read_token()\n'})


@given(before=st.text(), after=st.text(), secret=VALUES)
def test_a_known_secret_never_stays_in_a_text(before: str, after: str, secret: str) -> None:
    assert secret not in redact_text(before + secret + after, {secret})


def test_of_two_secrets_the_longer_one_leaves_no_rest() -> None:
    assert redact_text("x abcdefgh-ijkl y", ["abcdefgh", "abcdefgh-ijkl"]) == "x *** y"


def test_a_short_secret_is_cut_out_as_a_whole_word_only() -> None:
    """S-52: a password of six letters is one too."""
    assert redact_text("refused s3cret, not s3crets or as3cret", {"s3cret"}) == "refused ***, not s3crets or as3cret"
    assert redact_text("it is in or out", {"in"}) == "it is in or out"


@pytest.mark.parametrize(
    "secret", ['quo"ted-value', "back\\slashed", "ümlaut-value", "per%cent/and&more", "new\nline-value"]
)
@pytest.mark.parametrize(
    "write",
    [str, json.dumps, lambda text: json.dumps(text, ensure_ascii=False), repr, quote, lambda text: quote(text, "")],
)
def test_a_known_secret_is_cut_out_however_it_is_written(secret: str, write: Callable[[str], str]) -> None:
    """S-52: as it is, in JSON, in a Python literal, in a URL."""
    written = f"before {write(secret)} after"
    assert redact_text(written, {secret}).replace('"', "").replace("'", "") == "before *** after"


PIECES = (
    *(
        "TOKEN=",
        "PASSWORD=",
        "password",
        "api_key",
        ": ",
        "=",
        " ",
        "'",
        '"',
        '\\"',
        "{",
        "}",
        "]",
        "\u2026",
        "***",
        "&",
        "?",
    ),
    *("Bearer ", "Basic ", "Authorization: ", "Cookie: ", "--token ", "-u ", "me:", "https://", "@", "export ", "key="),
    *("abcd1234", "sk-live-12345678", "sk-", "dXNlcjpwYXNzd29yZDE=", "null", "12345", SECRET, "set ", ";", "<", "\\"),
)


@given(st.text() | st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
@example("TOKEN=PASSWORD={\u2026")
@example("TOKEN=" * 40 + "PASSWORD={abcdef")
@settings(max_examples=500)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once, shown = redact_text(text, {SECRET}), mask_arguments({"text": text, text: [text]}, (), {SECRET})
    assert redact_text(once, {SECRET}) == once
    assert mask_arguments(shown, (), {SECRET}) == shown


JSON_TEXTS = ('{"has_credentials": true}', '{"a": {"api_key": null}}', '[{"password": 12345}]', '{"password":"a]b}c"}')


@pytest.mark.parametrize("text", JSON_TEXTS)
def test_what_is_left_of_json_is_json(text: str) -> None:
    json.loads(redact_text(text).replace(": ***", ': "***"'))


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "new_password",
        "passwordConfirmation",
        "passwd",
        "pwd",
        "passphrase",
        "secret",
        "client_secret",
        "token",
        "github_token",
        "accessToken",
        "api_key",
        "apikey",
        "OPENAI_API_KEY",
        "X-Api-Key",
        "Authorization",
        "credential",
        "credentials",
        "private_key",
        "ssh.private_key",
        "hash",
        "hashes",
        "ntlm_hash",
        "cookie",
        "lmHash",
        "password_hash",
        "page_access_token",
        "api_key_value",
    ],
)
def test_a_credential_is_masked_by_its_name(name: str) -> None:
    assert mask_arguments({name: SECRET}) == {name: MASK}


@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "token_count", "author", "key", "keyboard", "compass", "passenger", "hashtag", "pass_count"),
        *("commit_hash", "fileHash", "page_token", "nextPageToken", "continuation_token", "password_policy"),
        *("password_length", "forgot_password_url", "credential_type", "api_key_name", "has_credentials", "eos_token"),
    ],
)
def test_a_name_that_only_resembles_one_is_not(name: str) -> None:
    assert not is_masked({name: SECRET})


def test_values_after_credential_flags_are_masked() -> None:
    arguments: dict[str, JsonValue] = {
        "argv": ["tool", "--password", "abc", "--token", "def", "-p", "22", "--user", "me"]
    }
    assert mask_arguments(arguments) == {
        "argv": ["tool", "--password", MASK, "--token", MASK, "-p", "22", "--user", "me"]
    }
    assert not is_masked({"argv": ["tool", "--pass", "3", "--page-token", "abc12345"]})
    assert mask_arguments({"argv": ["--api-key=abc"]}) == {"argv": [f"--api-key={MASK}"]}


@pytest.mark.parametrize(
    ("arguments", "masked"),
    [
        ({"name": "password", "value": "abc"}, {"name": "password", "value": MASK}),
        (
            {"headers": [{"key": "X-Api-Key", "value": "abc"}, {"key": "Accept", "value": "text/html"}]},
            {"headers": [{"key": "X-Api-Key", "value": MASK}, {"key": "Accept", "value": "text/html"}]},
        ),
        (
            {"headers": [["Authorization", "abc"], ["Accept", "text/html"]]},
            {"headers": [["Authorization", MASK], ["Accept", "text/html"]]},
        ),
        ({"columns": ["password", "email"]}, {"columns": ["password", "email"]}),
    ],
)
def test_a_value_that_stands_apart_from_its_name_is_masked(
    arguments: dict[str, JsonValue], masked: dict[str, JsonValue]
) -> None:
    """S-52: as HTTP clients and forms take them."""
    assert mask_arguments(arguments) == masked


def test_arguments_that_the_tool_names_are_masked_at_the_top() -> None:
    assert mask_arguments({"pin": "1234", "to": {"pin": "1"}}, {"pin"}) == {"pin": MASK, "to": {"pin": "1"}}


def test_a_known_secret_is_masked_wherever_it_stands_in_the_arguments() -> None:
    arguments: dict[str, JsonValue] = {"rows": [{"note": f"use {SECRET}"}]}
    assert mask_arguments(arguments, secrets=[SECRET]) == {"rows": [{"note": f"use {MASK}"}]}
    assert is_masked(arguments, secrets=[SECRET])


@given(st.dictionaries(st.text(), JSON), NAMES, VALUES, st.lists(st.sampled_from(["list", "dict"]), max_size=6))
def test_a_credential_is_masked_at_any_depth(
    around: dict[str, JsonValue], name: str, secret: str, path: list[str]
) -> None:
    """S-52: no credential-named argument is left anywhere."""
    planted: JsonValue = {name: secret}
    for kind in path:
        planted = [planted] if kind == "list" else {"inner": planted}
    arguments = {**around, "planted": planted}
    assert is_masked(arguments)
    assert secret not in strings(mask_arguments(arguments))


@given(st.dictionaries(st.text(), JSON), NAMES, JSON)
def test_the_hidden_values_are_all_texts_that_masking_takes_out(
    around: dict[str, JsonValue], name: str, secret: JsonValue
) -> None:
    """S-52: an exception that repeats an argument is redacted with them."""
    arguments: dict[str, JsonValue] = {**around, "planted": [{name: secret}], "pin": secret}
    assert hidden_values_of(arguments, ["pin"]).named >= set(strings(secret)) - {MASK}
    assert not hidden_values_of({"planted": [*strings(secret)]}).named


def test_what_is_shown_is_not_hidden() -> None:
    hidden = hidden_values_of({"user": "me", "to": ["you"], "n": 1, "password": {"old": "a", "new": ["b"]}})
    assert hidden == Hidden(named=frozenset({"a", "b"}))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("mysql --password=abcdef -h db", "abcdef"),
        ("postgresql://user:pa55word@host/db", "pa55word"),
        ("curl -H 'Authorization: Bearer abcdef.ghijkl' host", "abcdef.ghijkl"),
        ("GITHUB_TOKEN=abcd1efgh make", "abcd1efgh"),
        (f"deploy with {KEYS[0]} now", KEYS[0]),
        ('{"api_key": "abcdef"}', "abcdef"),
        (r"{\"api_key\": \"abcdef\"}", "abcdef"),
        ("curl -u admin:hunter https://api?token=4f9a8b7c", "hunter"),
        ("curl -u admin:hunter https://api?token=4f9a8b7c", "4f9a8b7c"),
    ],
)
def test_what_masking_takes_out_of_a_text_is_guessed_to_be_secret_alone_too(text: str, part: str) -> None:
    """S-52: an exception repeats the password, not the command line it stood in."""
    hidden = hidden_values_of({"command": [text]})
    assert part in hidden.guessed
    assert not hidden.named


def test_a_word_behind_a_name_is_not_looked_for_elsewhere() -> None:
    """Else every traceback would lose the name of a class."""
    assert hidden_values_of({"code": "TOKEN=LexerToken"}) == Hidden()


def test_a_number_is_hidden_as_it_is_written() -> None:
    """S-52: from four digits on; shorter ones stand everywhere."""
    arguments: dict[str, JsonValue] = {"pin": 4711, "password": {"a": 3.141, "b": None, "c": True, "d": 99}, "n": 12345}
    assert hidden_values_of(arguments, ["pin"]).named == {"4711", "3.141"}


@given(st.dictionaries(st.text(), JSON))
def test_masking_keeps_the_names_and_masking_twice_changes_nothing_more(arguments: dict[str, JsonValue]) -> None:
    once = mask_arguments(arguments)
    assert list(once) == list(arguments)
    assert mask_arguments(once) == once
    assert is_masked(arguments) == (once != arguments)


def test_arguments_nested_too_deep_are_masked_whole_and_break_nothing() -> None:
    deep: JsonValue = SECRET
    for _ in range(DEEPEST_ARGUMENTS * 5):
        deep = [deep]
    assert SECRET not in json.dumps(mask_arguments({"deep": deep}))

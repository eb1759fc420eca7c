"""Which values of the environment are secrets: those that nobody may read, and none that every text holds."""

from pathlib import Path

import pytest

from perdure.settings import credentials_in

VALUE = "s3cret-value-9"


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "GITHUB_TOKEN", "CLIENT_SECRET", "PGPASSWORD", "DB_PASSWD", "BORG_PASSPHRASE", "apikey"),
        *("AUTHTOKEN", "APP_CREDENTIALS", "OPENAI_API_KEY_2", "TOKEN_GITHUB", "SECRET_KEY_BASE", "AWS_ACCESS_KEY_ID"),
        *("DB_PASS", "SMTP_PASS", "DBPASS", "PASS", "SMTP_PWD", "MYSQL_PWD", "GITHUB_PAT", "MY_PAT", "PAT", "JWT"),
        *("SESSION_COOKIE", "SITE_COOKIES", "REGISTRY_AUTH", "AUTH", "HTTP_AUTHORIZATION", "API_BEARER"),
        *(
            "CI_JOB_JWT_V2",
            "APIKEY_EU",
            "DB_PASSWORD_OLD",
            "DB_PASS_REPLICA",
            "smtp_pwd",
            "TEMPORAL_TLS_CLIENT_KEY_DATA",
        ),
    ],
)
def test_a_variable_that_names_a_credential_is_secret(name: str) -> None:
    """S-52."""
    assert credentials_in({name: VALUE}) == {VALUE}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "/usr/local/sbin:/usr/local/bin") for name in ("PATH", "PATTERN", "PATH_INFO", "COMPAT")),
        *((name, VALUE) for name in ("PASSENGER_ROOT", "COMPASS", "BYPASS", "KEYBOARD_LAYOUT", "MONKEY", "HOTKEYS")),
        *((name, VALUE) for name in ("TOKENIZERS_PARALLELISM", "GIT_ASKPASS", "AUTHOR", "SESSION", "HOSTNAME", "JWTS")),
        *((name, "/no/such/folder/at/all") for name in ("PWD", "OLDPWD")),
        *((name, VALUE) for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", "KEY_VAULT_NAME", "SECRET_ROTATION", "TOKEN_TTL")),
        ("TOKEN_URL", "https://login.example/oauth2/token"),
        ("PRIMARY_KEY_COLUMN_OF_ORDERS", "customer_id"),
        ("TOKEN_CASE", "lowercase"),
        ("PAT_OF", "patient-record"),
        ("WEBHOOK_PORT", "8080808080"),
        ("PERDURE_WEBHOOK_ALLOW", "http://receiver.internal:8080"),
        ("DSN", "my-data-source-3"),
        ("PASSWORD", "short-7"),
        ("APP_SECRET", "Production"),
        ("DB_PASS", "changeme"),
        ("HOST_KEY", "/usr/bin"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/passwd"),
        ("HOME_KEY", str(Path.home())),
        ("USER_KEY", "~/"),
    ],
)
def test_what_texts_hold_for_other_reasons_is_no_secret(name: str, value: str) -> None:
    assert credentials_in({name: value}) == set()


@pytest.mark.parametrize(
    ("name", "address", "secrets"),
    [
        ("PERDURE_STORE_URL", "postgresql://app:h7nter-pass@db:5432/perdure?sslmode=require", {"h7nter-pass"}),
        ("PERDURE_STORE_URL", "postgresql://db/perdure?user=app&password=in-query-9", {"in-query-9"}),
        ("PERDURE_STORE_URL", "sqlite:///.perdure/store.db", set[str]()),
        ("DATABASE_URL", "postgresql+psycopg://app:p%40ss%2Fword@db/app", {"p%40ss%2Fword", "p@ss/word"}),
        ("DATABASE_URL", "postgres://app:p@ss/w#rd-1@db/app", {"p@ss/w#rd-1"}),
        ("DATABASE_URL", "postgresql://postgres:postgres@localhost/postgres", set[str]()),
        ("DATABASE_URL", "postgresql://app_writer:app_writer@localhost/app", set[str]()),
        ("JDBC", "jdbc:postgresql://db/app?user=u&ssl_key=abcdefgh-1", {"abcdefgh-1"}),
        ("REDIS_URL", "redis://:redis-pass-1@cache:6379/0", {"redis-pass-1"}),
        ("HTTPS_PROXY", "http://me:proxy-pass@proxy:3128", {"proxy-pass"}),
        ("https_proxy", "me:proxy-pass@proxy:3128", {"proxy-pass"}),
        ("BROKERS", "amqp://a:first-pass@one:5672,amqp://b:second-pass@two", {"first-pass", "second-pass"}),
        ("MONGO", "mongodb://u:mongo-pass@one:27017,two:27017/db", {"mongo-pass"}),
        ("MYSQL", "app:mysql-pass@tcp(127.0.0.1:3306)/app", {"mysql-pass"}),
        ("CONNECTION", "host=db user=app password=plain-pass dbname=app", {"plain-pass"}),
        ("CONNECTION", "Server=db;User Id=app;Pwd='quoted pass';", {"quoted pass"}),
        ("STORAGE", "AccountName=app;AccountKey=abc+def/123==;Suffix=x", {"abc+def/123=="}),
        ("CONFIG", '{"url": "redis://:json-pass-1@cache"}', {"json-pass-1"}),
        ("SENTRY_URL", "https://0123456789abcdef0123@o1.example/2", {"0123456789abcdef0123"}),
        ("SERVICE", "http://user:short@host", set[str]()),
        ("SERVICE", "http://host:8080/package@1.2.3-beta", set[str]()),
        ("SERVICE", "https://some.person@example.com/", set[str]()),
        ("ALIAS", "npm:string-width@4.2.3", set[str]()),
        ("PS1", r"\u@\h:\w\$ ", set[str]()),
    ],
)
def test_the_password_in_an_address_is_secret_and_the_rest_of_it_is_not(
    name: str, address: str, secrets: set[str]
) -> None:
    """S-52: as it stands there, and decoded."""
    assert credentials_in({name: address}) == secrets


def test_the_whole_address_is_secret_where_it_is_the_credential() -> None:
    """S-52: who knows a webhook may post to it; clients name its path alone when they fail."""
    hook = "https://hooks.example/services/T00000000/B00000000/XXXX0000"
    assert credentials_in({"SLACK_WEBHOOK": hook}) == {hook, hook.partition("example/")[2]}
    assert credentials_in({"SLACK_WEBHOOK_URL": hook}) == credentials_in({"SLACK_WEBHOOK": hook})
    assert credentials_in({"PAGES_WEBHOOK": "https://me.example/webhooks"}) == {"https://me.example/webhooks"}
    dsn = "https://public-key-1@errors.example/5"
    assert credentials_in({"SENTRY_DSN": f"{dsn}?token=of-the-query"}) == {f"{dsn}?token=of-the-query", "of-the-query"}

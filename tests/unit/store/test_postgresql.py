"""What is PostgreSQL's alone: the options of its address, and refusals that pass."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text

from perdure.store import Store, StoreError, StoreUnavailableError
from perdure.store.database import Address
from perdure.store.postgresql import AnsweringConnection
from tests.unit.store.given import SESSION, open_turn

SERVER = "postgresql://somebody@127.0.0.1:1/none"


def with_options(url: str, **options: str) -> str:
    return make_url(url).update_query_dict(options).render_as_string(hide_password=False)


def carry_out(url: str, *statements: str) -> None:
    engine = create_engine(Address(url).url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


@pytest.mark.parametrize("threshold", [None, "0", "3"])
async def test_nothing_is_prepared_on_the_server_unless_the_address_asks_for_it(
    postgresql_url: str, threshold: str | None
) -> None:
    url = with_options(postgresql_url, **({} if threshold is None else {"prepare_threshold": threshold}))
    async with await Store.open(url, upgrade=True) as store:
        await open_turn(store)
        for _ in range(8):
            await store.session(SESSION)
        with store._database.engine.connect() as connection:
            prepared = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one()
    assert (prepared > 0) is (threshold is not None)


async def test_the_options_of_the_address_reach_the_connection(postgresql_url: str) -> None:
    url = with_options(postgresql_url, application_name="billing", sslmode="prefer", connect_timeout="7")
    async with await Store.open(url, upgrade=True) as store:
        with store._database.engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW application_name").scalar_one() == "billing"
            assert connection.connection.driver_connection.info.get_parameters()["connect_timeout"] == "7"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("query", "authorities"),
    [
        ("sslmode=verify-full", "system"),
        ("sslmode=verify-full&sslrootcert=/etc/ca.pem", "/etc/ca.pem"),
        ("sslmode=verify-ca", None),  # PostgreSQL's client takes the system's for verify-full alone
        ("sslmode=require", None),
        ("", None),
    ],
)
async def test_a_servers_certificate_is_verified_by_the_systems_authorities_where_the_address_names_none(
    query: str, authorities: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, object]] = []

    def connect(**named: object) -> None:
        given.append(named)
        raise psycopg.OperationalError("nobody is there")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(AnsweringConnection, "connect", connect)
    with pytest.raises(StoreUnavailableError, match="nobody is there"):
        await Store.open(f"{SERVER}?{query}")
    assert given[0].get("sslrootcert") == authorities
    folder = tmp_path / ".postgresql"
    folder.mkdir()
    (folder / "root.crt").touch()
    with pytest.raises(StoreUnavailableError):
        await Store.open(f"{SERVER}?{query}")
    assert given[-1].get("sslrootcert") == (None if authorities == "system" else authorities)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "prepare_treshold=0",
            "the option 'prepare_treshold', which .* does not know; did you mean prepare_threshold?",
        ),
        ("pool_size=3", "the option 'pool_size', which PostgreSQL's client does not know; take it out"),
        ("autocommit=1", "the option 'autocommit', which PostgreSQL's client does not know"),
        ("prepare_threshold=many", "the option prepare_threshold='many', which is no whole number; write one"),
        ("connect_timeout=5s", "the option connect_timeout='5s', which is no whole number; write one"),
    ],
)
async def test_an_option_that_cannot_be_used_is_named_in_one_line(query: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as refused:
        Store(f"{SERVER}?{query}")
    assert len(str(refused.value).splitlines()) == 1


async def test_a_value_that_only_the_client_library_can_judge_is_one_line_too(postgresql_url: str) -> None:
    with pytest.raises(StoreUnavailableError, match='invalid sslmode value: "sometimes"') as refused:
        await Store.open(with_options(postgresql_url, sslmode="sometimes"), upgrade=True)
    assert len(str(refused.value).splitlines()) == 1


@contextmanager
def somebody(url: str) -> Iterator[str]:
    """A role with every right on the tables that are there; gives its address, and its name at the end."""
    name = f"role_{uuid.uuid4().hex}"
    carry_out(url, f"CREATE ROLE {name} LOGIN", f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
    yield make_url(url).set(username=name).render_as_string(hide_password=False)
    carry_out(url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


async def test_tables_that_are_away_for_a_moment_are_waited_for(postgresql_url: str) -> None:
    """A restore, or a changed search_path: what is written then would be lost for good if it were refused."""
    async with await Store.open(postgresql_url, upgrade=True) as store:
        await open_turn(store)
        carry_out(postgresql_url, "ALTER TABLE sessions RENAME TO sessions_elsewhere")
        with pytest.raises(StoreUnavailableError, match='relation "sessions" does not exist'):
            await open_turn(store, request_id="r2")
        carry_out(
            postgresql_url, "ALTER TABLE sessions_elsewhere RENAME TO sessions", "ALTER SCHEMA public RENAME TO s"
        )
        with pytest.raises(StoreUnavailableError, match="does not exist"):
            await store.session(SESSION)
        carry_out(postgresql_url, "ALTER SCHEMA s RENAME TO public")
        assert (await open_turn(store, request_id="r2")).turn == 2


async def test_rights_that_are_missing_for_a_moment_are_waited_for(postgresql_url: str) -> None:
    await (await Store.open(postgresql_url, upgrade=True)).close()
    with somebody(postgresql_url) as url:
        role = make_url(url).username
        async with await Store.open(url) as store:
            await open_turn(store)
            carry_out(postgresql_url, f"REVOKE ALL ON sessions FROM {role}")
            with pytest.raises(StoreUnavailableError, match="permission denied for table sessions"):
                await open_turn(store, request_id="r2")
            carry_out(postgresql_url, f"GRANT ALL ON sessions TO {role}")
            assert (await open_turn(store, request_id="r2")).turn == 2


async def test_a_plan_of_a_table_that_was_changed_is_made_anew(postgresql_url: str) -> None:
    async with await Store.open(with_options(postgresql_url, prepare_threshold="0"), upgrade=True) as store:
        await open_turn(store)
        await store.session(SESSION)
        carry_out(postgresql_url, "ALTER TABLE sessions ALTER COLUMN agent TYPE varchar")
        with pytest.raises(StoreUnavailableError, match="cached plan must not change result type"):
            await store.session(SESSION)


@pytest.mark.parametrize("statement", ["DEALLOCATE nothing", "PREPARE a AS SELECT 1; PREPARE a AS SELECT 1"])
async def test_a_prepared_statement_of_another_client_is_waited_for(postgresql_url: str, statement: str) -> None:
    """What a pool in transaction mode makes of statements that the address wants prepared."""
    async with await Store.open(postgresql_url, upgrade=True) as store:
        with pytest.raises(StoreUnavailableError, match="prepared statement"):
            await store.read("test", lambda connection: connection.exec_driver_sql(statement))


async def test_a_value_that_cannot_be_written_is_still_refused(postgresql_url: str) -> None:
    async with await Store.open(postgresql_url, upgrade=True) as store:
        with pytest.raises(StoreError, match="NUL") as refused:
            await open_turn(store, session="a\0b")
    assert not isinstance(refused.value, StoreUnavailableError)

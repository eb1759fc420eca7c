"""``perdure setup``: register the search attributes on a cluster, so that jobs can be found by them."""

import click
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest

from perdure.cli.connection import connect, run
from perdure.cli.errors import CliError
from perdure.cli.live import print_json
from perdure.client import Client
from perdure.client.connect import rpc_errors
from perdure.contracts.names import SEARCH_ATTRIBUTE_TYPES

_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
}


@click.command("setup")
@click.option("--json", "as_json", is_flag=True, help="One object, as JSON.")
def setup_command(*, as_json: bool) -> None:
    """Register perdure's search attributes in the namespace. Doing it again changes nothing.

    Temporal Cloud takes them through its own console or command line instead. With --json the object has registered,
    the names that were missing.
    """

    async def main() -> list[str]:
        async with connect(store=False) as client:
            return await register(client)

    added = run(main())
    if as_json:
        print_json({"registered": list(added)})
        return
    click.echo(f"registered {', '.join(added)}" if added else "all search attributes are registered already")


async def register(client: Client) -> list[str]:
    """Add the search attributes that are missing, and return their names.

    Raises:
        CliError: One of that name has another type.
    """
    missing = await missing_attributes(client)
    if missing:
        request = AddSearchAttributesRequest(namespace=client.temporal.namespace, search_attributes=missing)
        with rpc_errors():
            await client.temporal.operator_service.add_search_attributes(request)
    return sorted(missing)


async def missing_attributes(client: Client) -> dict[str, IndexedValueType.ValueType]:
    """The search attributes that the namespace has not, with their types.

    Raises:
        CliError: One of that name has another type.
    """
    request = ListSearchAttributesRequest(namespace=client.temporal.namespace)
    with rpc_errors():
        listed = await client.temporal.operator_service.list_search_attributes(request)
    wanted = {str(name): _TYPES[kind] for name, kind in SEARCH_ATTRIBUTE_TYPES.items()}
    there = listed.custom_attributes
    other = sorted(name for name in wanted if name in there and there[name] != wanted[name])
    if other:
        msg = f"{', '.join(other)}: registered with another type; remove it, or set PERDURE_SEARCH_ATTRIBUTES=off"
        raise CliError(msg)
    return {name: kind for name, kind in wanted.items() if name not in there}

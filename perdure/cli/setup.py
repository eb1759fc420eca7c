"""``perdure setup``: register the search attributes on a cluster, so that jobs can be found by them."""

import click
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest

from perdure.cli.connection import connected, run
from perdure.cli.errors import CliError
from perdure.client import Client
from perdure.client.connect import rpc_errors
from perdure.contracts.names import SEARCH_ATTRIBUTE_TYPES

_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
}


@click.command("setup")
def command() -> None:
    """Register perdure's search attributes in the namespace. Doing it again changes nothing.

    Temporal Cloud takes them through its own console or command line instead.
    """

    async def main() -> list[str]:
        async with connected(store=False) as client:
            return await register(client)

    added = run(main())
    click.echo(f"registered {', '.join(added)}" if added else "all search attributes are registered already")


async def register(client: Client) -> list[str]:
    """Add the search attributes that are missing, and return their names.

    Raises:
        CliError: One of that name has another type.
    """
    operator, namespace = client.temporal.operator_service, client.temporal.namespace
    wanted = {str(name): _TYPES[kind] for name, kind in SEARCH_ATTRIBUTE_TYPES.items()}
    with rpc_errors():
        listed = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=namespace))
        there = listed.custom_attributes
        other = sorted(name for name in wanted if name in there and there[name] != wanted[name])
        if other:
            msg = f"{', '.join(other)}: registered with another type; remove it, or set PERDURE_SEARCH_ATTRIBUTES=off"
            raise CliError(msg)
        missing = {name: kind for name, kind in wanted.items() if name not in there}
        if missing:
            request = AddSearchAttributesRequest(namespace=namespace, search_attributes=missing)
            await operator.add_search_attributes(request)
    return sorted(missing)

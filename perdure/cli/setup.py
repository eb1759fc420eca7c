"""``perdure setup``: register perdure's search attributes in the namespace."""

import click
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest

from perdure.cli.connection import with_client
from perdure.cli.errors import CliError
from perdure.cli.output import print_json
from perdure.client import Client
from perdure.client.connect import rpc_errors
from perdure.contracts.names import SEARCH_ATTRIBUTE_TYPES

_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
}


@click.command("setup")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def setup_command(*, as_json: bool) -> None:
    """Register perdure's search attributes in the namespace. Running it again changes nothing.

    On Temporal Cloud, add them in its console or with tcld instead. With --json the object has registered: the names
    that were missing.
    """
    added = with_client(register, store=False)
    if as_json:
        print_json({"registered": list(added)})
        return
    click.echo(f"registered {', '.join(added)}" if added else "all search attributes are registered already")


async def register(client: Client) -> list[str]:
    """Add the search attributes that are missing, and return their names."""
    missing = await find_missing_attributes(client)
    if missing:
        request = AddSearchAttributesRequest(namespace=client.temporal.namespace, search_attributes=missing)
        with rpc_errors():
            await client.temporal.operator_service.add_search_attributes(request, retry=True)
    return sorted(missing)


async def find_missing_attributes(client: Client) -> dict[str, IndexedValueType.ValueType]:
    """The search attributes that the namespace lacks, with their types."""
    request = ListSearchAttributesRequest(namespace=client.temporal.namespace)
    with rpc_errors():
        listed = await client.temporal.operator_service.list_search_attributes(request, retry=True)
    wanted = {str(name): _TYPES[kind] for name, kind in SEARCH_ATTRIBUTE_TYPES.items()}
    there = listed.custom_attributes
    other = [
        f"{name} ({kind})"
        for name, kind in SEARCH_ATTRIBUTE_TYPES.items()
        if there.get(name, wanted[name]) != wanted[name]
    ]
    if other:
        fix = "remove them, or set PERDURE_SEARCH_ATTRIBUTES=off"
        raise CliError(f"search attributes that must be of another type: {', '.join(sorted(other))}; {fix}")
    return {name: kind for name, kind in wanted.items() if name not in there}

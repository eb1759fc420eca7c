"""Search attributes that a namespace must have before a worker polls: turns that set unknown ones would hang."""

import temporalio.api.operatorservice.v1 as operator
import temporalio.client
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.service import RPCError

from perdure.client.connect import error_of_call, is_away, is_unknown_namespace
from perdure.contracts.names import SEARCH_ATTRIBUTE_TYPES, SearchAttribute


class SearchAttributesError(Exception):
    """The cluster does not know our search attributes, so turns that set them would hang."""


async def check_search_attributes(client: temporalio.client.Client) -> None:
    """Refuse a cluster that lacks our search attributes, or has others of their names."""
    request = operator.ListSearchAttributesRequest(namespace=client.namespace)
    try:
        known = await client.operator_service.list_search_attributes(request, retry=True)
    except RPCError as error:
        if is_unknown_namespace(error) or is_away(error):
            raise SearchAttributesError(str(error_of_call(error))) from error
        raise SearchAttributesError(
            f"the cluster's search attributes cannot be read ({error}); set PERDURE_SEARCH_ATTRIBUTES=off to go without"
        ) from error
    there = known.custom_attributes
    missing = sorted(set(SearchAttribute) - set(there))
    types = {
        name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}")
        for name, kind in SEARCH_ATTRIBUTE_TYPES.items()
    }
    other = sorted(name for name in types if name in there and there[name] != types[name])
    if other:
        raise SearchAttributesError(
            f"the cluster has the search attributes {', '.join(other)} with another type; remove them and run "
            "'perdure setup', or set PERDURE_SEARCH_ATTRIBUTES=off"
        )
    if missing:
        raise SearchAttributesError(
            f"the cluster lacks the search attributes {', '.join(missing)}; run 'perdure setup' once, "
            "or set PERDURE_SEARCH_ATTRIBUTES=off"
        )

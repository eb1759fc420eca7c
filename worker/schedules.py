"""Messages of schedules, sent by a worker to a session: as a client, over its own connection to Temporal."""

from datetime import timedelta

import temporalio.client

from perdure.activities.errors import permanent, runtime_error, transient
from perdure.activities.schedules import Send
from perdure.client import BlockedError, Client, ClientError, RequestRefusedError, SessionBusyError, UnknownSessionError
from perdure.contracts.errors import ReasonCode
from perdure.contracts.schedules import Knock
from perdure.settings import Settings
from perdure.store.errors import StoreError

RETRY = timedelta(seconds=5)
"""Wait before a message that nobody took is sent again."""


def sender(settings: Settings) -> Send:
    """Sends by a client of its own for each message: a schedule has few."""

    async def send(temporal: temporalio.client.Client, knock: Knock, request_id: str) -> int | None:
        try:
            async with Client(temporal, settings) as client:
                turn = await client.send(
                    knock.session,
                    knock.prompt,
                    when_busy=knock.when_busy,
                    request_id=request_id,
                    context=knock.context,
                    by=knock.by,
                    priority=knock.priority,
                )
                return turn.turn or await turn.number()
        except SessionBusyError as error:
            if knock.when_busy == "reject":
                return None
            raise transient(runtime_error(ReasonCode.REQUEST_INVALID, str(error)), RETRY) from None
        except UnknownSessionError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_UNKNOWN_SESSION, str(error))) from None
        except BlockedError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_BLOCKED, str(error))) from None
        except RequestRefusedError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from None
        except StoreError as error:
            raise transient(runtime_error(ReasonCode.RUNTIME_STORE_UNAVAILABLE, str(error)), RETRY) from None
        except ClientError as error:
            raise transient(runtime_error(ReasonCode.REQUEST_TOO_EARLY, str(error)), RETRY) from None

    return send

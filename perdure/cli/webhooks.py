"""``perdure webhooks``: which addresses are notified when turns end or wait for people, and each delivery's state."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal, cast

import click

from perdure.cli.connection import with_client
from perdure.cli.errors import CliError, ExitCode
from perdure.cli.options import as_json, list_limit
from perdure.cli.output import print_json, print_list
from perdure.cli.render import clean, duration
from perdure.contracts.webhooks import Delivery, NewWebhook, Webhook, WebhookEvent


@click.group("webhooks")
def webhooks_command() -> None:
    """Manage webhooks: HTTP requests to your addresses when turns end or wait for people.

    Each message names the session and turn, but holds nothing of the conversation. It is signed as Standard Webhooks
    says, and is sent again for up to three days until the receiver answers with success.
    """


webhook_argument = click.argument("webhook", metavar="ID")


@webhooks_command.command("add")
@click.argument("url")
@click.option(
    "--event",
    "events",
    multiple=True,
    type=click.Choice([event.value for event in WebhookEvent]),
    help="Notify of turns that wait for a person, or that have ended; may be repeated. [default: both]",
)
@click.option("--agent", "agents", multiple=True, metavar="A", help="Only turns of this agent; may be repeated.")
@click.option("--session", metavar="SESSION", help="Only turns of this session.")
@click.option("--tenant", default="", metavar="T", help="Only turns of this tenant. [default: turns without a tenant]")
@as_json
def add_command(
    *, url: str, events: Sequence[str], agents: Sequence[str], session: str | None, tenant: str, as_json: bool
) -> None:
    """Send turns' events to URL from now on. Prints the webhook's id and, this once, the secret of its signatures."""
    chosen = tuple(map(WebhookEvent, events)) or tuple(WebhookEvent)
    added = with_client(lambda client: client.webhooks.add(url, chosen, agents=agents, session=session, tenant=tenant))
    _print_new(added, as_json=as_json)


@webhooks_command.command("list")
@as_json
def list_command(*, as_json: bool) -> None:
    """List the webhooks, the oldest first."""
    found = with_client(lambda client: client.webhooks.list())
    none = "there are no webhooks; add one with 'perdure webhooks add URL'"
    print_list(found, ("id", "events", "for", "state", "url"), _row, none, as_json=as_json)


@webhooks_command.command("pause")
@webhook_argument
def pause_command(*, webhook: str) -> None:
    """Pause webhook ID. Events that happen meanwhile are never sent."""
    with_client(lambda client: client.webhooks.pause(webhook))
    click.echo(f"{webhook} is paused")


@webhooks_command.command("unpause")
@webhook_argument
def unpause_command(*, webhook: str) -> None:
    """Send events to webhook ID again, from now on."""
    with_client(lambda client: client.webhooks.unpause(webhook))
    click.echo(f"{webhook} gets events again")


@webhooks_command.command("secret")
@webhook_argument
@click.option(
    "--overlap",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="How many hours messages are signed with the old secret too.",
)
@as_json
def secret_command(*, webhook: str, overlap: float, as_json: bool) -> None:
    """Replace the secret of webhook ID, and print the new one, this once."""
    hours = timedelta(hours=overlap)
    _print_new(with_client(lambda client: client.webhooks.exchange_secret(webhook, overlap=hours)), as_json=as_json)


@webhooks_command.command("remove")
@webhook_argument
def remove_command(*, webhook: str) -> None:
    """Remove webhook ID; messages that are on their way fail at their next attempt."""
    with_client(lambda client: client.webhooks.remove(webhook))
    click.echo(f"{webhook} is removed")


@webhooks_command.command("test")
@webhook_argument
@as_json
def test_command(*, webhook: str, as_json: bool) -> None:
    """Send one message of type webhook.test to webhook ID, without retries. Exit code 1 if it was not delivered."""
    tried = with_client(lambda client: client.webhooks.test(webhook))
    if as_json:
        print_json(tried)
    if tried.state == "failed":
        raise CliError(f"not delivered: {tried.error}", ExitCode.ERROR)
    if not as_json:
        click.echo(f"{tried.message} was delivered")


@webhooks_command.command("deliveries")
@webhook_argument
@click.option(
    "--state", type=click.Choice(["delivering", "delivered", "failed"]), help="Only deliveries in this state."
)
@list_limit("Most deliveries to list.")
@as_json
def deliveries_command(*, webhook: str, state: str | None, limit: int, as_json: bool) -> None:
    """List the deliveries of webhook ID, the newest first, as long as Temporal keeps them."""
    wanted = cast("Literal['delivering', 'delivered', 'failed'] | None", state)
    found = with_client(lambda client: client.webhooks.deliveries(webhook, state=wanted, limit=limit))
    heads = ("message", "state", "ago", "attempts", "next in", "last failure")
    row = partial(_delivery_row, now=datetime.now(UTC))
    none = f"nothing was sent to {webhook} yet, or Temporal no longer keeps it"
    print_list(found, heads, row, none, as_json=as_json)


@webhooks_command.command("redrive")
@webhook_argument
@click.argument("message", required=False)
def redrive_command(*, webhook: str, message: str | None) -> None:
    """Send MESSAGE to webhook ID again, for up to three days; without MESSAGE, every message whose delivery failed.

    The receiver gets the same message id and the same bytes. Prints the ids.
    """
    again = with_client(lambda client: client.webhooks.redrive(webhook, message))
    for name in again:
        click.echo(name)
    if not again:
        click.echo("no delivery has failed")


def _print_new(webhook: NewWebhook, *, as_json: bool) -> None:
    if as_json:
        print_json(webhook)
        return
    click.echo(f"{webhook.id} is notified when turns are {' or '.join(webhook.events)}")
    click.echo(f"secret, shown this once: {webhook.secret}")


def _row(webhook: Webhook) -> tuple[str, ...]:
    parts = [*webhook.agents, webhook.session or "", f"tenant {webhook.tenant}" if webhook.tenant else ""]
    state = "active" if not webhook.paused else f"paused {webhook.pause_reason}".rstrip()
    told = ", ".join(webhook.events)
    return webhook.id, told, clean(", ".join(filter(None, parts)) or "all"), clean(state), clean(webhook.url)


def _delivery_row(delivery: Delivery, now: datetime) -> tuple[str, ...]:
    return (
        clean(delivery.message),
        delivery.state,
        duration((now - delivery.started_at).total_seconds()),
        str(delivery.attempts or ""),
        duration(max(0.0, (delivery.next_at - now).total_seconds())) if delivery.next_at is not None else "",
        clean(delivery.error or ""),
    )

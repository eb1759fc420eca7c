"""``perdure errors``: the table of reason codes."""

import json

import click

from perdure.contracts.errors import REASONS


@click.command("errors")
@click.option("--json", "as_json", is_flag=True, help="One code a line, as JSON.")
def command(*, as_json: bool) -> None:
    """List the reason codes: what each means, and whether the call is retried or the failure is final."""
    width = max(map(len, REASONS))
    for code, reason in sorted(REASONS.items(), key=lambda row: row[0].split(".")):
        if as_json:
            click.echo(json.dumps({"code": code, **reason.model_dump(mode="json")}, ensure_ascii=False))
        else:
            click.echo(f"{code:{width}}  {'retried' if reason.transient else 'final':7}  {reason.text}")

"""Usage of chat completions and of Responses: tokens and cost, as OpenAI and everybody who copies it count them.

The copies differ in what is counted beside what. An odd form counts what can be read, and the larger count counts, so
that usage never costs an answer, nor makes it cheaper than it was.
"""

from decimal import Decimal

from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires.reply import (
    Counts,
    count_both,
    count_of,
    to_cost,
    to_object,
    to_objects,
    to_text,
)


def counts_of(reply: Object) -> Counts:
    """The usage in a completion or a chunk; an odd form of it counts what can be read."""
    usage = usage_in(reply)
    details = to_object(usage.get("prompt_tokens_details")) or to_object(usage.get("input_tokens_details"))
    read, written = count_both(
        usage,
        count_of(usage, "prompt_tokens", "input_tokens"),
        _written(usage),
        beside=_cached_beside(usage, details),
    )
    cached = count_of(details, "cached_tokens") or count_of(
        usage, "cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens"
    )
    stored = count_of(details, "cache_creation_tokens", "cache_write_tokens") or count_of(
        usage, "cache_creation_input_tokens"
    )
    return Counts(
        input_tokens=read,
        output_tokens=written,
        cached_tokens=min(cached, read),
        stored_tokens=min(stored, read - min(cached, read)),
        cost_usd=_cost_in(usage),
        tier=to_text(reply.get("service_tier")),
    )


def _written(usage: Object) -> int:
    """Tokens of the answer; those of its reasoning are beside them if they are more."""
    written = count_of(usage, "completion_tokens", "output_tokens")
    details = to_object(usage.get("completion_tokens_details")) or to_object(usage.get("output_tokens_details"))
    reasoning = count_of(details, "reasoning_tokens") or count_of(usage, "reasoning_tokens")
    return written + reasoning if reasoning > written else written


def _cached_beside(usage: Object, details: Object) -> int:
    """Tokens of the provider's cache, if they may be counted beside the prompt: they are more than it."""
    cached = count_of(details, "cached_tokens") or count_of(usage, "cache_read_input_tokens")
    stored = count_of(usage, "cache_creation_input_tokens")
    return cached + stored if cached + stored > count_of(usage, "prompt_tokens", "input_tokens") else 0


TICKS = 10**10
"""xAI's ticks in a US dollar."""

_UPSTREAM = ("upstream_inference_prompt_cost", "upstream_inference_completions_cost")


def _cost_in(usage: Object) -> Decimal | None:
    """The cost that the provider says: OpenRouter's, Perplexity's and xAI's; None if it says none."""
    told = usage.get("cost")
    cost = to_cost(to_object(told).get("total_cost") if isinstance(told, dict) else told)
    details = to_object(usage.get("cost_details"))
    upstream = to_cost(details.get("upstream_inference_cost"))
    if upstream is None and (parts := [part for name in _UPSTREAM if (part := to_cost(details.get(name))) is not None]):
        upstream = sum(parts, Decimal(0))
    if upstream is not None and (cost is None or usage.get("is_byok") is True):  # paid with the caller's own key
        cost = upstream + (cost or 0)
    ticks = to_cost(usage.get("cost_in_usd_ticks"))
    return ticks / TICKS if cost is None and ticks is not None else cost


def usage_in(reply: Object) -> Object:
    """The usage of a completion or a chunk, wherever a provider puts it."""
    for choice in (reply, to_object(reply.get("x_groq")), *to_objects(reply.get("choices"))):
        if usage := to_object(choice.get("usage")):
            return usage
    return {}

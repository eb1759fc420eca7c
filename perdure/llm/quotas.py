"""Words of providers for quotas and accounts that are used up, so that no wait of minutes helps: patterns with sources.

A quota of a day is one, unless the provider says that a shorter wait is enough, as it does where the day is the last 24
hours. Google's waits are not believed: it names 36 seconds for a quota that is full again at midnight. A quota of a
minute is a limit of the rate. Each line has a pattern, its source, and an example.
"""

import re

_OPENAI = "https://platform.openai.com/docs/guides/error-codes"
_ANTHROPIC = "https://docs.claude.com/en/api/errors"
_ZAI = "https://docs.z.ai/api-reference/api-code"

_SOON = r"(?!(?s:.*)(retry|try again) (in|after) [\d.]+ ?[ms])"
"""No wait of minutes or seconds is told."""

_CLI = "google-gemini/gemini-cli/issues/10925"

OF_A_DAY: tuple[tuple[str, str, str], ...] = (
    (r"\[\w*PerDay", _CLI, "Quota exceeded (retry in 36s) [GenerateRequestsPerDayPerProjectPerModel-FreeTier]"),
    (r"\w:0\]", _CLI, "Resource exhausted (retry in 5s) [GenerateRequestsPerMinutePerProjectPerModel-FreeTier:0]"),
    (
        r"quota exceeded.{0,200}\blimit: 0(?![\d.])",
        "https://discuss.ai.google.dev",
        "Quota exceeded for metric: a/free_tier_requests, limit: 0, model: gemini-2.5-pro",
    ),
    (
        rf"\A{_SOON}(?!(?s:.*)too large)(?s:.*)\b(tokens|requests|calls|limit)\b.{{0,60}}(per |/ ?)(day|month)\b",
        "RooCodeInc/Roo-Code/issues/5050",
        "Too many tokens per day, please wait before trying again.",
    ),
    ("-per-day", "cline/cline/issues/5301", "free-models-per-day. Add 10 credits to unlock 1000 free model requests"),
    (
        r"\b(daily|weekly|monthly) .{0,40}(limit|quota)",
        "https://cloud.baidu.com/doc/qianfan-api/s/rmwbl43x7",
        "Daily request quota per user for AI Search exceeded",
    ),
    (r"ByDay\b", "GitHub's models", "for UserByModelByDay. Please wait 33513 seconds before retrying."),
    ("今日调用次数", "https://docs.bigmodel.cn/cn/api/api-code", "该 API 已达今日调用次数限额"),
)
"""Quotas of a day, and of nothing at all."""

USED_UP: tuple[tuple[str, str, str], ...] = (
    (r"\binsufficient_quota\b", _OPENAI, "no more calls [insufficient_quota]"),
    (r"\bbilling_hard_limit_reached\b", _OPENAI, "stopped [billing_hard_limit_reached]"),
    (r"\bbilling_not_active\b", _OPENAI, "Your account is not active [billing_not_active]"),
    (
        r"\b(insufficient|no) (account )?(balance|credits?|quota)\b",
        "Wei-Shaw/sub2api/issues/890",
        "Insufficient account balance",
    ),
    (
        "balance is (too low|insufficient)",
        _ANTHROPIC,
        "Your credit balance is too low to access the Anthropic API.",
    ),
    ("余额不足", _ZAI, "余额不足或无可用资源包"),
    # Not of this hour only: those come with a time to wait.
    (
        r"\A(?!(?s:.*)\b(retry|try again) (in|after) \d)(?s:.*)"
        r"(\b(reach\w*|exceed\w*|hit) .{0,40}(spend|spending|usage|billing) (limit|cap)|"
        r"(spend|spending|usage|billing) (limit|cap) .{0,40}(reached|exceeded))",
        "anthropics/claude-code/issues/38035",
        "You have reached your specified API usage limits.",
    ),
    # The same words come with a time to wait, lines below, when only the quota of this minute is used up.
    (
        r"\A(?!(?s:.*)(\b(retry|try again) (in|after) \d|PerMinute))(?s:.*)"
        r"(exceeded your current quota|check your (plan and )?billing details)",
        _OPENAI,
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    (
        "used all available credits",
        "continuedev/continue/issues/10373",
        "Your team has used all available credits.",
    ),
    (
        "doesn't have any credits",
        "continuedev/continue/issues/12670",
        "Your newly created team doesn't have any credits or licenses yet.",
    ),
    (
        r"\bout of credits",
        "Wei-Shaw/sub2api/issues/4069",
        "You have run out of credits or need a Grok subscription.",
    ),
    # Of a proxy's key, of a team and of a deployment.
    (
        "budget has been exceeded",
        "BerriAI/litellm/issues/14144",
        "Budget has been exceeded! Current cost: 12.0, Max budget: 10.0",
    ),
    ("over budget", "BerriAI/litellm/issues/14144", "ExceededBudget: Team=a over budget. Spend=51, Budget=50"),
    ("crossed budget", "BerriAI/litellm/issues/14144", "No deployments available - crossed budget: 0.4 >= 1d"),
    # An account that cannot be billed; a permission to look at bills is another matter.
    (
        r"\bbilling (is |has been )?(not |disabled|past due)",
        "GoogleCloudPlatform/java-docs-samples/issues/276",
        "Project a (#8) has billing disabled. Please enable it.",
    ),
    (
        "billing account for .{1,100} is disabled",
        "swiss-ai-center/a-guide-to-mlops/pull/102",
        "The billing account for the owning project is disabled in state absent",
    ),
    (
        "billing (to|must) be enabled",
        "pgmichael/wavenet-for-chrome/issues/83",
        "This API method requires billing to be enabled.",
    ),
    (
        "valid credit card on file",
        "arlanrakh/talk-to-girlfriend-ai/issues/6",
        "AI Gateway requires a valid credit card on file to service requests.",
    ),
    ("billing hard limit", _OPENAI, "Billing hard limit reached"),
    (
        "without a billing account",
        "google-gemini/cookbook/issues/135",
        "User location is not supported for the API use without a billing account linked.",
    ),
    (
        r"\boverdue balance",
        "coze-dev/coze-studio/issues/2195",
        "The request failed because your account has an overdue balance.",
    ),
    (
        "account is in good standing",
        "infiniflow/ragflow/issues/1552",
        "Access denied, please make sure your account is in good standing.",
    ),
    (
        "free tier of the model has been exhausted",
        "APIParkLab/APIPark/issues/394",
        "The free tier of the model has been exhausted.",
    ),
    (
        r"\binvalid_payment_instrument\b",
        "Tracer-Cloud/opensre/pull/1811",
        "Model access is denied due to INVALID_PAYMENT_INSTRUMENT:A valid payment instrument must be provided.",
    ),
    (
        r"\Akey limit exceeded",
        "RooCodeInc/Roo-Code/issues/515",
        "Key limit exceeded (total limit). Manage it using https://openrouter.ai/settings/keys",
    ),
)
"""Credits, budgets and accounts."""

_PAID = "charged deducted debited used consumed billed invoiced spent counted incurred"
_PAY = "charge deduct debit use consume bill invoice spend count incur"
_PAYING = "charging deducting using consuming billing spending"
_BEEN = "was were is are has have had will would be been being yet ever get got"


def _any_of(words: str) -> str:
    return f"(?:{'|'.join(words.split())})"


_REST = r"(?: (?!(?:because|since|as)\b)[^\s.,;:!?]+)"

_DENIALS = re.compile(
    r"\b(?:no|zero|0)(?: (?!of\b)\w+){0,3}? (?:credits?|tokens?|balance|quota|funds|money|usage|charges?|costs?|fees?)"
    rf"(?: {_any_of(_BEEN)}){{0,4}} {_any_of(_PAID)}\b"
    rf"|(?:\bnot|\bnever|n.t)(?: {_any_of(_BEEN)}){{0,3}} {_any_of(f'{_PAID} {_PAY}')}\b"
    rf"(?: {_any_of('any your against toward towards to from')}\b{_REST}{{0,6}})?"
    rf"|\bwithout {_any_of(_PAYING)}\b{_REST}{{0,6}}",
    re.IGNORECASE,
)
"""Clauses which deny that something was paid, as in OpenRouter's "flagged for violence. No credits were charged."."""


def without_denials(text: str) -> str:
    """The text without the clauses which deny that something was paid: they name credits and quotas that are there."""
    return _DENIALS.sub("", text)

"""Refusals of providers as their users have reported them: what each is, whatever wire it came over.

Each line holds the kind of sentence that a report shows, with other numbers and names, and where it was seen. None of
them is a row of ``llm/refusals.py``: they show that its word classes know more than what they were written for.
"""

from typing import NamedTuple

import pytest

from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import JsonValue
from perdure.llm.failures import class_of, classify
from perdure.testing import faults
from tests.unit.activities.calls import Way, met

R = ReasonCode


class Said(NamedTuple):
    """A refusal: where it was seen, its status, its body, what it is, and the class where that is known."""

    seen: str
    status: int
    body: JsonValue
    code: ReasonCode
    kind: str = ""


def error(message: str, **fields: JsonValue) -> JsonValue:
    return {"error": {"message": message, **fields}}


LONG = R.LLM_CONTEXT_OVERFLOW
EMPTY = R.LLM_QUOTA_EXHAUSTED
POLICY = R.LLM_CONTENT_FILTERED
WRONG = R.LLM_REQUEST_ERROR
UNKNOWN = "NotFoundError"

SEEN: dict[str, Said] = {
    # A prompt that is too long.
    "Cohere": Said(
        "cohere-ai/sandbox-topically/issues/4",
        400,
        {
            "message": "too many tokens: total number of tokens (prompt and prediction) cannot exceed 4096 - received "
            "9001. Try using a shorter prompt or a smaller max_tokens value."
        },
        LONG,
    ),
    "AI21": Said("stanford-crfm/helm/issues/349", 422, {"detail": "Request too many tokens: 4000 + 100 > 4096"}, LONG),
    "SGLang": Said(
        "sgl-project/sglang/issues/4048",
        400,
        {"object": "error", "message": "Input length (9000 tokens) exceeds the maximum allowed length (8000 tokens)."},
        LONG,
    ),
    "Cerebras": Said(
        "cline/cline/issues/5140",
        400,
        error("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8000"),
        LONG,
    ),
    "Doubao": Said(
        "bytedance/deer-flow/issues/583",
        400,
        error("Total tokens of text and images exceeds the maximum message tokens. Request id: 0217"),
        LONG,
    ),
    "litellm's proxy, of a team": Said(
        "BerriAI/litellm/issues/14144", 400, error("ExceededBudget: Team=a over budget. Spend=51, Budget=50"), EMPTY
    ),
    "litellm's proxy, of a deployment": Said(
        "BerriAI/litellm/issues/14144",
        429,
        error("No deployments available - crossed budget: Exceeded budget for deployment m: 0.4 >= 1d", code="429"),
        EMPTY,
    ),
    "litellm's proxy, in words of its operator": Said(
        "BerriAI/litellm/pull/37000", 429, error("See you next month.", type="budget_exceeded", code="429"), EMPTY
    ),
    "TGI, with the answer": Said(
        "huggingface/huggingface_hub/issues/2763",
        422,
        error(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 8000 `inputs` tokens "
            "and 500 `max_new_tokens`"
        ),
        LONG,
    ),
    "TGI": Said(
        "huggingface/text-generation-inference/issues/695",
        422,
        {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1168"},
        LONG,
    ),
    "RKLLM": Said(
        "jaylfc/taOS/issues/1738", 400, {"error": "Prompt is 9000 tokens but the model context window is 4096."}, LONG
    ),
    "mlx-serve": Said("ddalcu/mlx-serve/issues/66", 400, error("Prompt exceeds maximum context length"), LONG),
    "SiliconFlow": Said(
        "continuedev/continue/issues/9971",
        400,
        "number of input tokens (9000) have exceeded max_prompt_tokens (8000) limit.",
        LONG,
    ),
    "a gateway": Said("a proxy in front of vLLM", 400, error("prompt too large"), LONG),
    "another gateway": Said("a proxy in front of vLLM", 422, error("The prompt is too large: 9000 tokens"), LONG),
    "vLLM, with pictures": Said(
        "vllm-project/vllm/issues/12165",
        400,
        error("The prompt (total length 9000) is too long to fit into the model (context length 4096)."),
        LONG,
    ),
    "Anthropic, in bytes": Said(
        "anthropics/anthropic-sdk-python/issues/938", 413, error("Request exceeds the maximum size"), LONG
    ),
    "llama-cpp-python": Said(
        "abetlen/llama-cpp-python/issues/120", 400, error("Requested tokens (600) exceed context window of 512"), LONG
    ),
    "Bedrock": Said(
        "aws-samples/bedrock-chat/issues/95", 400, {"message": "Input is too long for requested model."}, LONG
    ),
    "vLLM, newer": Said(
        "modelscope/evalscope/issues/1368",
        400,
        error("This model's maximum context length is 8000 tokens. However, your request has 9000 input tokens."),
        LONG,
    ),
    # An account that is used up.
    "MiniMax": Said(
        "MiniMax-AI/MiniMax-M2/issues/62",
        500,
        {"type": "error", "error": {"type": "api_error", "message": "insufficient balance (1008)"}},
        EMPTY,
    ),
    "MiniMax at a hub": Said(
        "modelscope/modelscope/issues/1691",
        429,
        error("insufficient balance (1008)", http_code="429", type="insufficient_balance_error"),
        EMPTY,
    ),
    "Zhipu on Anthropic's wire": Said(
        "anthropics/claude-code/issues/9201",
        429,
        {
            "type": "error",
            "error": {"type": "1113", "message": "Insufficient balance or no resource package. Please recharge."},
        },
        EMPTY,
    ),
    "a hub's code": Said(
        "Wei-Shaw/sub2api/issues/890",
        403,
        {"code": "INSUFFICIENT_BALANCE", "message": "Insufficient account balance"},
        EMPTY,
    ),
    "Copilot": Said("github/copilot-cli/issues/406", 429, error("You have no quota", code="quota_exceeded"), EMPTY),
    "OpenRouter": Said(
        "can1357/oh-my-pi/issues/9569",
        402,
        error(
            "This request requires more credits, or fewer max_tokens. You requested up to 9000 tokens, but", code=402
        ),
        EMPTY,
    ),
    "OpenAI, billing": Said(
        "BerriAI/litellm/issues/2743",
        429,
        error(
            "Your account is not active, please check your billing details on our website.", type="billing_not_active"
        ),
        EMPTY,
    ),
    "a project without billing": Said("a proxy of Google's", 403, error("Billing is not enabled for project 8"), EMPTY),
    "billing that is not active": Said("a proxy of OpenAI's", 403, error("billing not active"), EMPTY),
    "billing at its limit": Said("a proxy of OpenAI's", 403, error("Billing hard limit reached"), EMPTY),
    "Google, no billing": Said(
        "pgmichael/wavenet-for-chrome/issues/83",
        403,
        error(
            "This API method requires billing to be enabled. Please enable billing on project #8 by visiting "
            "https://console.developers.google.com/billing/enable?project=8 then retry. If you enabled billing for "
            "this project recently, wait a few minutes for the action to propagate to our systems and retry.",
            status="PERMISSION_DENIED",
        ),
        EMPTY,
    ),
    "Google, billing disabled": Said(
        "GoogleCloudPlatform/java-docs-samples/issues/276",
        403,
        error("Project a (#8) has billing disabled. Please enable it.", status="PERMISSION_DENIED"),
        EMPTY,
    ),
    "Gemini, no billing account": Said(
        "google-gemini/cookbook/issues/135",
        400,
        error("User location is not supported for the API use without a billing account linked."),
        EMPTY,
    ),
    "Volcengine": Said(
        "coze-dev/coze-studio/issues/2195",
        403,
        error("The request failed because your account has an overdue balance.", code="AccountOverdueError"),
        EMPTY,
    ),
    "DashScope, arrears": Said(
        "infiniflow/ragflow/issues/1552",
        400,
        error("Access denied, please make sure your account is in good standing."),
        EMPTY,
    ),
    "DashScope, free tier": Said(
        "APIParkLab/APIPark/issues/394",
        403,
        error(
            "The free tier of the model has been exhausted. If you wish to continue access the model on a paid basis, "
            'please disable the "use free tier only" mode in the management console.',
            code="AllocationQuota.FreeTierOnly",
        ),
        EMPTY,
    ),
    "Bedrock, no card": Said(
        "Tracer-Cloud/opensre/pull/1811",
        403,
        {"message": "Model access is denied due to INVALID_PAYMENT_INSTRUMENT:A valid payment instrument must be pro"},
        EMPTY,
    ),
    "Vercel": Said(
        "arlanrakh/talk-to-girlfriend-ai/issues/6",
        403,
        error("AI Gateway requires a valid credit card on file to service requests."),
        EMPTY,
    ),
    "DeepSeek": Said("continuedev/continue/issues/9853", 402, error("Insufficient Balance"), EMPTY),
    # A policy.
    "Anthropic": Said(
        "anthropics/claude-code/issues/6195",
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"},
        },
        POLICY,
    ),
    "Zhipu": Said(
        "langchain4j/langchain4j/issues/1079",
        400,
        error("系统检测到输入或生成内容可能包含不安全或敏感内容", type="invalid_request_error"),
        POLICY,
    ),
    "Gemini, safety": Said(
        "ChatGPTNextWeb/NextChat/issues/3714",
        400,
        {"error": True, "message": "Message is being blocked for reason: SAFETY"},
        POLICY,
    ),
    "Gemini, prohibited": Said(
        "machinewrapped/llm-subtrans/issues/292",
        400,
        error("Request was blocked by Gemini: BlockedReason.PROHIBITED_CONTENT"),
        POLICY,
    ),
    "Z.ai": Said(
        "ZyphrZero/z.ai2api_python/issues/58",
        400,
        error("Content Security Warning: The content may contain inappropriate content."),
        POLICY,
    ),
    # A model that is not there.
    "Perplexity": Said(
        "lobehub/lobehub/issues/3280",
        400,
        error("Invalid model 'x'. Permitted models can be found in the documentation", type="invalid_model", code=400),
        WRONG,
        UNKNOWN,
    ),
    "Copilot, model": Said(
        "github/copilot-cli/issues/639",
        400,
        error("The requested model is not supported.", code="model_not_supported", type="invalid_request_error"),
        WRONG,
        UNKNOWN,
    ),
    "Copilot, model in words": Said(
        "github/copilot-cli/issues/2661", 400, error("The requested model is not supported."), WRONG, UNKNOWN
    ),
    "Bedrock, model": Said(
        "strands-agents/harness-sdk/issues/38",
        400,
        {"message": "The provided model identifier is invalid."},
        WRONG,
        UNKNOWN,
    ),
    "Ollama, model": Said(
        "ollama/ollama/issues/3876", 404, {"error": "model 'x' not found, try pulling it first"}, WRONG, UNKNOWN
    ),
    "Azure, model": Said(
        "chatboxai/chatbox/issues/861",
        404,
        error("The API deployment for this resource does not exist.", code="DeploymentNotFound"),
        WRONG,
        UNKNOWN,
    ),
    # A key, or what it may use.
    "Bedrock, access": Said(
        "langgenius/dify/issues/2829",
        403,
        {"message": "You don't have access to the model with the specified model ID."},
        R.LLM_AUTH_ERROR,
    ),
    "a key that may not look at bills": Said(
        "googleapis", 403, error("The caller does not have permission billing.accounts.get"), R.LLM_AUTH_ERROR
    ),
    # False friends: what is wrong is a field of the request.
    "Bedrock, answer": Said(
        "charmbracelet/crush/issues/946",
        400,
        {"message": "The maximum tokens you requested exceeds the model limit of 32768"},
        WRONG,
    ),
    "Copilot, field": Said(
        "mnfst/llm-gateway/issues/1849",
        400,
        error("Unsupported parameter: 'max_tokens' is not supported with this model.", code="invalid_request_body"),
        WRONG,
    ),
    "Bedrock, body": Said(
        "langchain-ai/langchain-aws/issues/419",
        400,
        {"message": "1 validation error detected: Value at 'body' failed: Member must have length less than or equal"},
        WRONG,
    ),
}


@pytest.mark.parametrize("name", SEEN)
async def test_a_refusal_that_somebody_has_seen_is_what_it_says(way: Way, name: str) -> None:
    """S-02 S-13 S-41: its code, after one request; a model that is not there is known, so that a fallback is asked."""
    said = SEEN[name]
    facts, requests = await met(way, faults.status(said.status, body=said.body))
    assert (classify(facts), facts.status, requests) == (said.code, said.status, 1)
    if said.code is WRONG:
        assert (class_of(facts) == UNKNOWN) is (said.kind == UNKNOWN)

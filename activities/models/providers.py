"""Providers that are called directly: a row for each prefix of a model's name.

A row says where a provider answers, where its key and another address come from, and how its requests differ from
OpenAI's chat completions, which all but a few take. Sources: the providers' references, and litellm's addresses and
variables, which the tests compare. A provider without a row is called through litellm.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from perdure.contracts.files import MAX_PARTS


@dataclass(frozen=True)
class Provider:
    """A provider, or a kind of server at an address of the author's own.

    Attributes:
        address: Its address, without the path of a request; empty if each author has another.
        keys: Variables of its key, the first that is set; a server of the author's own may want none.
        addresses: Variables of another address, the first that is set.
        renamed: Settings that have another name there; those without one are left out.
        required: Its word for the choice of any tool.
        model_prefix: Beginning that the names of its models have there, and may lack here.
        schemas: Whether it takes a schema of the answer from models of which litellm's map says so: ``yes``, ``strict``
            if each keyword is of its subset, ``native`` of models that have it natively only, or ``no``.
        switches_thinking: Whether an effort is none as long as thinking is not switched on.
        asks_for_usage: Whether it is asked for the usage of a stream; the others tell it unasked, or refuse.
        extra: Fields that each of its requests has.
        own: Settings that only it has, of where its calls go.
        tokens: Variables of a token, or of whoever gives one, that do in place of a key.
        needs: Variables that each call needs which says nothing of its own.
        most_pictures: Most pictures of a request.
        most_files: Most PDFs of a request.
    """

    address: str
    keys: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    required: str = "required"
    model_prefix: str = ""
    schemas: Literal["yes", "strict", "native", "no"] = "yes"
    switches_thinking: bool = False
    asks_for_usage: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    own: frozenset[str] = frozenset()
    tokens: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    most_pictures: int = MAX_PARTS
    most_files: int = MAX_PARTS

    def address_of(self, settings: Mapping[str, Any]) -> str:
        """The address of a call; empty if nobody has said it."""
        given = settings.get("base_url") or settings.get("api_base")
        return str(given or _first_of(self.addresses) or self.address).rstrip("/")

    def missing_keys(self) -> tuple[str, ...]:
        """The variables that a call needs and the environment lacks; a server of one's own needs no key."""
        lacking = tuple(name for name in self.needs if not os.environ.get(name))
        wants = self.keys if self.needs or self.address.startswith("https://") else ()
        return (*lacking, *(wants[:1] if wants and not _first_of((*wants, *self.tokens)) else ()))

    def key_of(self, settings: Mapping[str, Any]) -> str:
        """The key of a call; empty without one."""
        return str(settings.get("api_key") or _first_of(self.keys))


def _first_of(names: Iterable[str]) -> str:
    """The first of these variables of the environment that has a value."""
    return next(filter(None, map(os.environ.get, names)), "")


_OLD_CEILING = {"max_completion_tokens": "max_tokens"}


def _compatible(name: str, address: str, **more: Any) -> Provider:  # noqa: ANN401 - of a provider
    """A provider that speaks like OpenAI, with the usual names of its variables."""
    usual = Provider(address, (f"{name}_API_KEY",), (f"{name}_API_BASE",))
    return replace(usual, **more)


OPENAI = Provider(
    "https://api.openai.com/v1",
    keys=("OPENAI_API_KEY",),
    addresses=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    own=frozenset({"organization", "project"}),
)

ANTHROPIC = Provider(
    "https://api.anthropic.com",
    keys=("ANTHROPIC_API_KEY",),
    addresses=("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"),
    tokens=("ANTHROPIC_AUTH_TOKEN",),
    schemas="native",
)

AZURE = Provider(
    "",
    keys=("AZURE_API_KEY", "AZURE_OPENAI_API_KEY"),
    addresses=("AZURE_API_BASE",),
    needs=("AZURE_API_BASE",),
    tokens=("AZURE_AD_TOKEN", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE", "IDENTITY_ENDPOINT"),
    own=frozenset({"api_version", "azure_ad_token"}),
)

GEMINI = Provider(
    "https://generativelanguage.googleapis.com/v1beta",
    keys=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    addresses=("GEMINI_API_BASE",),
    schemas="strict",
)

BEDROCK = Provider(
    "",
    most_files=5,
    renamed={"user": ""},
    schemas="native",
    own=frozenset(
        {
            *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
            *("aws_profile_name", "aws_role_name", "aws_session_name", "aws_external_id"),
            *("aws_region_name", "aws_bedrock_runtime_endpoint"),
        }
    ),
)

OLLAMA = Provider(
    "http://localhost:11434",
    keys=("OLLAMA_API_KEY",),
    addresses=("OLLAMA_API_BASE",),
)

VERTEX = Provider(
    "",
    schemas="strict",
    own=frozenset({"vertex_project", "vertex_location", "vertex_credentials"}),
)

PROVIDERS: Mapping[str, Provider] = {
    "openai": OPENAI,
    "anthropic": ANTHROPIC,
    "azure": AZURE,
    "bedrock": BEDROCK,
    "cerebras": _compatible("CEREBRAS", "https://api.cerebras.ai/v1", renamed=_OLD_CEILING, asks_for_usage=False),
    "custom_openai": _compatible("OPENAI_LIKE", ""),
    "dashscope": _compatible("DASHSCOPE", "https://dashscope.aliyuncs.com/compatible-mode/v1"),
    "deepinfra": _compatible(
        "DEEPINFRA", "https://api.deepinfra.com/v1/openai", renamed=_OLD_CEILING, asks_for_usage=False
    ),
    "deepseek": _compatible(
        "DEEPSEEK",
        "https://api.deepseek.com/beta",
        renamed=_OLD_CEILING,
        schemas="no",
        switches_thinking=True,
    ),
    "fireworks_ai": _compatible(
        "FIREWORKS",
        "https://api.fireworks.ai/inference/v1",
        keys=("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY", "FIREWORKSAI_API_KEY", "FIREWORKS_AI_TOKEN"),
        renamed=_OLD_CEILING,
        required="any",
        model_prefix="accounts/fireworks/models/",
    ),
    "gemini": GEMINI,
    "groq": _compatible("GROQ", "https://api.groq.com/openai/v1", renamed=_OLD_CEILING, most_pictures=5),
    "hosted_vllm": _compatible("HOSTED_VLLM", ""),
    "hyperbolic": _compatible("HYPERBOLIC", "https://api.hyperbolic.xyz/v1", asks_for_usage=False),
    "litellm_proxy": _compatible("LITELLM_PROXY", ""),
    "llamafile": _compatible("LLAMAFILE", "http://127.0.0.1:8080/v1"),
    "lm_studio": _compatible("LM_STUDIO", ""),
    "mistral": _compatible(
        "MISTRAL",
        "https://api.mistral.ai/v1",
        renamed={**_OLD_CEILING, "seed": "random_seed", "user": ""},
        required="any",
        asks_for_usage=False,
        most_pictures=8,
    ),
    "moonshot": _compatible("MOONSHOT", "https://api.moonshot.ai/v1", renamed=_OLD_CEILING),
    "nebius": _compatible("NEBIUS", "https://api.studio.nebius.ai/v1", renamed=_OLD_CEILING),
    "novita": _compatible("NOVITA", "https://api.novita.ai/v3/openai"),
    "nvidia_nim": _compatible(
        "NVIDIA_NIM", "https://integrate.api.nvidia.com/v1", renamed=_OLD_CEILING, asks_for_usage=False
    ),
    "ollama": OLLAMA,
    "ollama_chat": OLLAMA,
    "openrouter": _compatible(
        "OPENROUTER",
        "https://openrouter.ai/api/v1",
        extra={"usage": {"include": True}},
    ),
    "perplexity": _compatible(
        "PERPLEXITY",
        "https://api.perplexity.ai",
        keys=("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
        asks_for_usage=False,
    ),
    "sambanova": _compatible("SAMBANOVA", "https://api.sambanova.ai/v1"),
    "together_ai": _compatible(
        "TOGETHER_AI",
        "https://api.together.ai/v1",
        keys=("TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHERAI_API_KEY", "TOGETHER_AI_TOKEN"),
        renamed=_OLD_CEILING,
    ),
    "vercel_ai_gateway": _compatible(
        "VERCEL_AI_GATEWAY",
        "https://ai-gateway.vercel.sh/v1",
        keys=("VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN"),
    ),
    "vertex_ai": VERTEX,
    "xai": _compatible("XAI", "https://api.x.ai/v1", renamed=_OLD_CEILING),
    "xinference": _compatible("XINFERENCE", "http://127.0.0.1:9997/v1"),
    "zai": _compatible("ZAI", "https://api.z.ai/api/paas/v4", renamed=_OLD_CEILING, schemas="no"),
}
"""Every row, by its prefix."""

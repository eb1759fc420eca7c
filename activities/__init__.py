"""Activities: all that touches the outside world (models, tools, the store). Importing one module loads one module."""

import os

# litellm reads these while it is imported, by whichever module of this package comes first.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no fetch of prices while importing
os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")  # no fetch at the first Claude call
os.environ.setdefault("LITELLM_MODE", "PRODUCTION")  # no stray .env file
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no tokenizer download, which blocks for 20 s offline
os.environ.setdefault("EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER", "true")  # the openai SDK costs 0.2 ms a message
# By default a worker's 501st call to a provider would wait, unseen, until another has its answer.
os.environ.setdefault("AIOHTTP_CONNECTOR_LIMIT", "100000")  # 0 would be aiohttp's own default, 100
os.environ.setdefault("AIOHTTP_CONNECTOR_LIMIT_PER_HOST", "0")  # no limit but PERDURE_MAX_ACTIVITIES

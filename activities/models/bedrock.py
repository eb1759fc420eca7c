"""Addresses and signatures of Amazon Bedrock.

botocore finds the keys and signs, as boto3 does. Keys that have to be fetched, such as those of a profile, a role or a
machine, are fetched on a thread, since that may take seconds, and kept until they expire.
"""

import asyncio
import functools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import botocore.session  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
from botocore.credentials import (  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
    AssumeRoleCredentialFetcher,
    Credentials,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import (  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
    BotoCoreError,
    ClientError,
    ConfigParseError,
    InvalidConfigError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)

from perdure.activities.models.facts import facts_about
from perdure.activities.models.failures import ErrorReply, NoReplyError, ProviderError
from perdure.activities.models.keys import MissingKeyError

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_REGIONS = ("AWS_REGION_NAME", "AWS_REGION", "AWS_DEFAULT_REGION")
_TOKEN = "AWS_BEARER_TOKEN_BEDROCK"  # noqa: S105 - a variable's name
_FETCHED = ("aws_profile_name", "aws_role_name", "aws_session_name", "aws_external_id")
"""Settings of keys that have to be fetched: a profile, a role, and what goes with one."""

_FETCHING = ("AWS_PROFILE", "AWS_ROLE_ARN")
"""Variables of keys that have to be fetched, which come before those of keys."""

_NOT_THERE = (
    *(NoCredentialsError, PartialCredentialsError, ProfileNotFound),
    *(ConfigParseError, InvalidConfigError, ParamValidationError),
)

_ID = re.compile(r"[a-z0-9][\w.:-]*", re.ASCII)
"""Id of a model, or of a profile of several regions; not the ARN of one."""


def model_of(name: str) -> str:
    """The id of a model that speaks Converse; empty for any other, and for one that litellm routes by its path."""
    is_told = name.startswith("converse/")
    own = name.removeprefix("converse/")
    speaks = is_told or str(facts_about(f"bedrock/{own}").get("litellm_provider")) == "bedrock_converse"
    return own if speaks and _ID.fullmatch(own) and not own.startswith("arn:") else ""


def url_of(model: str, settings: Mapping[str, Any], *, streams: bool) -> str:
    """The URL of a call."""
    given = settings.get("aws_bedrock_runtime_endpoint") or os.environ.get("AWS_BEDROCK_RUNTIME_ENDPOINT")
    address = str(given or f"https://bedrock-runtime.{_region_of(settings)}.amazonaws.com").rstrip("/")
    return f"{address}/model/{quote(model, safe='')}/{'converse-stream' if streams else 'converse'}"


def _region_of(settings: Mapping[str, Any]) -> str:
    return str(settings.get("aws_region_name") or _first_of(_REGIONS) or "us-west-2")


async def sign(url: str, body: bytes, settings: Mapping[str, Any]) -> Mapping[str, str]:
    """The headers of a call, signed or with a bearer token.

    Raises:
        MissingKeyError: There are no keys, or not those that the settings name.
        ProviderError: AWS did not give the role.
        NoReplyError: AWS did not answer.
    """
    headers = {"content-type": "application/json"}
    keys, own = _read_keys(settings), tuple(str(settings.get(name) or "") for name in _FETCHED)
    if keys is None and not any(own) and (token := os.environ.get(_TOKEN)):
        return {**headers, "authorization": f"Bearer {token}"}
    if keys is None and not any(own) and not _first_of(_FETCHING):
        keys = _read_keys({name: os.environ.get(name.upper()) for name in _KEYS})
    given = Credentials(*keys) if keys is not None and not any(own) else await asyncio.to_thread(_fetch, keys, own)
    request: Any = AWSRequest(method="POST", url=url, data=body, headers=headers)
    signer: Any = SigV4Auth(given, "bedrock", _region_of(settings))
    signer.add_auth(request)
    return dict(request.headers.items())


_Keys = tuple[str, str, str | None]


def _read_keys(settings: Mapping[str, Any]) -> _Keys | None:
    access, secret, session = (settings.get(name) for name in _KEYS)
    return (str(access), str(secret), session) if access and secret else None


def _fetch(keys: _Keys | None, own: tuple[str, ...]) -> Any:  # noqa: ANN401 - botocore's
    """Keys that are good for some minutes at least, in seconds or at once."""
    try:
        return _source(keys, own).get_frozen_credentials()
    except _NOT_THERE as error:
        msg = f"AWS credentials ({error})"
        raise MissingKeyError(msg) from error
    except ClientError as error:
        response: Any = error.response
        status: int = response["ResponseMetadata"]["HTTPStatusCode"]
        raise ProviderError(ErrorReply(status, {}, str(error), "AWS")) from error
    except BotoCoreError as error:
        msg = "AWS gave no credentials"
        raise NoReplyError(msg) from error


@functools.cache
def _source(keys: _Keys | None, own: tuple[str, ...]) -> Any:  # noqa: ANN401 - botocore's
    """Whoever has the keys of a profile and a role, and renews them.

    Args:
        keys: Keys that take the role, in place of those of the profile or the environment.
        own: The settings of ``_FETCHED``.

    Raises:
        NoCredentialsError: Nobody has.
    """
    profile, role, name, external = own
    session: Any = botocore.session.Session(profile=profile or None)
    found: Any = session.get_credentials() if keys is None else Credentials(*keys)
    if found is None:
        raise NoCredentialsError
    if not role:
        return found
    more = {"RoleSessionName": name or "perdure", **({"ExternalId": external} if external else {})}
    fetcher = AssumeRoleCredentialFetcher(session.create_client, found, role, extra_args=more)
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _first_of(names: Iterable[str]) -> str:
    return next(filter(None, map(os.environ.get, names)), "")

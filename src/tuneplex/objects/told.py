"""What an object store's refusals and failures mean to people, and whether asking again helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from botocore import exceptions
from urllib3.exceptions import HTTPError

from tuneplex.errors import ObjectStoreError

__all__ = ["told"]

_CREDENTIALS = "the usual places are looked at: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, roles"
_REGION = "name it: storage.s3.region in the fleet file, or AWS_REGION"
_CHANGED = "it was changed meanwhile; try again"
# Code of the refusal -> what it means, and what to do.
_REFUSALS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "SignatureDoesNotMatch": ("the secret key is wrong", _CREDENTIALS),
        "InvalidAccessKeyId": ("the access key is not known there", _CREDENTIALS),
        "ExpiredToken": ("the credentials have expired", _CREDENTIALS),
        "AccessDenied": ("these credentials may not do that", "ask for access to the bucket, or use other credentials"),
        "403": ("these credentials may not do that", "ask for access to the bucket, or use other credentials"),
        "NoSuchBucket": ("there is no such bucket", "check its name, and which store is asked (AWS_ENDPOINT_URL_S3)"),
        "NoSuchKey": ("an object is not there any more", _CHANGED),
        "404": ("an object is not there any more", _CHANGED),
        "PreconditionFailed": ("an object is not the one that was listed any more", _CHANGED),
        "412": ("an object is not the one that was listed any more", _CHANGED),
        "PermanentRedirect": ("the bucket is in another region", _REGION),
        "AuthorizationHeaderMalformed": (
            "the bucket is in another region",
            _REGION,
        ),
        "RequestTimeTooSkewed": ("this machine's clock is wrong", "set it"),
    }
)
_SERVER_ERROR = 500
_SLOW_DOWN = 429


@contextmanager
def told(what: str) -> Iterator[None]:
    """Let what goes wrong in the block be an `ObjectStoreError` about `what`."""
    try:
        yield
    except exceptions.ClientError as error:
        raise _refused(what, error) from error
    except (exceptions.NoCredentialsError, exceptions.CredentialRetrievalError) as error:
        raise ObjectStoreError(f"{what}: there are no credentials", hint=_CREDENTIALS) from error
    except (exceptions.ProfileNotFound, exceptions.ParamValidationError, exceptions.InvalidRegionError) as error:
        raise ObjectStoreError(f"{what}: {error}") from error
    except (exceptions.BotoCoreError, HTTPError, ConnectionError, TimeoutError) as error:
        words = str(error).strip().split("\n", 1)[0] or type(error).__name__
        hint = "check the network and the endpoint, and try again; what has arrived is kept"
        raise ObjectStoreError(f"{what}: the object store is not reached: {words}", hint=hint, again=True) from error
    except ValueError as error:  # an endpoint that is no URL
        raise ObjectStoreError(f"{what}: {error}") from error


def _refused(what: str, error: exceptions.ClientError) -> ObjectStoreError:
    told_error = error.response.get("Error", {})
    code, status = str(told_error.get("Code", "")), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    message, hint = _REFUSALS.get(code, (f"the object store answered {status} {code}".rstrip(), ""))
    again = status >= _SERVER_ERROR or status == _SLOW_DOWN
    words = "" if code in _REFUSALS else _words(str(told_error.get("Message", "")), code)
    return ObjectStoreError(f"{what}: {message}{words}", hint=hint or ("try again later" if again else ""), again=again)


def _words(message: str, code: str) -> str:
    """What the store says itself, if that says more than its code."""
    line = message.strip().split("\n", 1)[0]
    return f": {line}" if line and line != code and line.isprintable() else ""

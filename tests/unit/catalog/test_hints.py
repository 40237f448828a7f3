"""What a person can do about it."""

import pytest
from botocore.exceptions import ClientError, NoRegionError
from pyiceberg.exceptions import ForbiddenError

from calve.catalog.failures import trying
from calve.errors import TransientError


def of_aws(code: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "GetDatabases")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            ForbiddenError("SignatureDoesNotMatch: Signature expired: 20200101T000000Z is now earlier"),
            "The clock of this",
        ),
        (ForbiddenError("InvalidSignatureException: Signature not yet current: 2030"), "The clock of this machine"),
        (of_aws("RequestExpired"), "The clock of this machine is wrong"),
        (of_aws("InvalidSignatureException"), "The secret key is wrong"),
        (of_aws("UnrecognizedClientException"), "The access key id is unknown"),
        (of_aws("ExpiredTokenException"), "The session token has expired"),
        (of_aws("AccessDeniedException"), "The store denies access to these credentials"),
        (of_aws("ThrottlingException"), "AWS asks for fewer requests"),
        (NoRegionError(), "Set REGION"),
    ],
)
def test_errors_of_aws_say_what_helps(error: Exception, hint: str) -> None:
    with pytest.raises(TransientError) as raised, trying("asking"):
        raise error
    assert raised.value.hint.startswith(hint)

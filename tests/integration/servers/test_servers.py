"""The test servers are what they claim to be: a store and a catalog that refuse what real ones refuse."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.support.servers.lakehouse import BUCKET, Lakehouse
from tests.support.servers.store import KEY, REGION, SECRET


def client(lakehouse: Lakehouse, key: str = KEY, secret: str = SECRET, region: str = REGION) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=lakehouse.store.uri,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name=region,
        config=Config(retries={"total_max_attempts": 1}),
    )


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"secret": "other"}, "SignatureDoesNotMatch"),
        ({"key": "nobody"}, "InvalidAccessKeyId"),
        ({"region": "us-west-1"}, "AuthorizationHeaderMalformed"),
    ],
)
def test_the_store_refuses(wrong: dict[str, str], code: str, lakehouse: Lakehouse) -> None:
    with pytest.raises(ClientError) as raised:
        client(lakehouse, **wrong).list_objects_v2(Bucket=BUCKET)
    assert raised.value.response["Error"]["Code"] == code


def test_the_store_keeps_objects_written_in_parts(lakehouse: Lakehouse) -> None:
    s3 = client(lakehouse)
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
    bodies = {1: b"a" * (5 << 20), 2: b"b"}
    parts = [
        {
            "PartNumber": n,
            "ETag": s3.upload_part(Bucket=BUCKET, Key="parts", UploadId=upload, PartNumber=n, Body=b)["ETag"],
        }
        for n, b in bodies.items()
    ]
    s3.complete_multipart_upload(Bucket=BUCKET, Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
    end = s3.get_object(Bucket=BUCKET, Key="parts", Range=f"bytes={(5 << 20) - 1}-")["Body"].read()
    assert end == b"ab"


def test_of_writers_that_want_to_be_first_one_is(lakehouse: Lakehouse) -> None:
    s3, together = client(lakehouse), threading.Barrier(4)

    def put(number: int) -> str:
        together.wait()
        try:
            s3.put_object(Bucket=BUCKET, Key="first", Body=str(number).encode(), IfNoneMatch="*")
        except ClientError as error:
            return str(error.response["Error"]["Code"])
        return "first"

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(put, range(4))) == ["PreconditionFailed"] * 3 + ["first"]

"""API keys, and limits of each client."""

from pathlib import Path

import pytest

from servegym.adapters.routing.clients import AdminKey, Bucket, Client, Clients, digest_of
from servegym.adapters.routing.refusals import Refused
from servegym.errors import RoutingError

FILE = """
clients:
  chat: {key: one, requests_per_minute: 60}
  batch: {key_env: BATCH_KEY, tokens_per_minute: 600, max_in_flight: 1}
  hashed: {key_sha256: "%s"}
"""


def clients_of(folder: Path, text: str, **environment: str) -> Clients:
    path = folder / "clients.yaml"
    path.write_text(text)
    return Clients.of(path, environment)


def test_whose_key_it_is(tmp_path: Path) -> None:
    known = clients_of(tmp_path, FILE % digest_of("three").hex(), BATCH_KEY="two", SERVEGYM_API_KEY="four")
    found = [known.of_key(f"Bearer {key}").name for key in ("one", "two", "three", "four")]
    assert found == ["chat", "batch", "hashed", "default"]
    for header in (None, "", "one", "Basic one", "Bearer ", "Bearer onE", "Bearer one two", "Bearer \udcff"):
        with pytest.raises(Refused) as refused:
            known.of_key(header)
        assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
        assert (b"www-authenticate", b"Bearer") in refused.value.headers


def test_without_keys_any_client_may() -> None:
    assert Clients.of(None, {}).of_key(None).name == "anybody"
    with pytest.raises(Refused):
        AdminKey().check("Bearer ")
    AdminKey.of("k").check("Bearer k")


@pytest.mark.parametrize(("text", "word"), [
    ("{", "cannot be read"), ("a: 1", "clients: {NAME"), ("clients: {}", "clients: {NAME"),
    ("clients: {a: {}}", "one of key"), ("clients: {a: {key: x, key_env: Y}}", "one of key"),
    ("clients: {a: {key: 5}}", "a text in quotes"),
    ("clients: {a: {key_env: NOPE}}", "the environment has no NOPE"),
    ("clients: {a: {key_sha256: abc}}", "64 hexadecimal"), ("clients: {a: {key: x, per_day: 1}}", "may have"),
    ("clients: {a: {key: x, max_in_flight: 0}}", "above 0"), ("clients: {'a b': {key: x}}", "a name is"),
    ("clients: {a: {key: x}, b: {key: x}}", "the same key"),
])  # fmt: skip
def test_a_file_that_is_wrong(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(RoutingError, match=word):
        clients_of(tmp_path, text)


def test_a_bucket_refills_and_may_be_overdrawn() -> None:
    bucket = Bucket(60)
    assert bucket.wait_s(0.0, 60) == 0
    bucket.take(60)
    assert bucket.wait_s(0.0, 1) == pytest.approx(1.0)
    assert bucket.wait_s(5.0, 5) == pytest.approx(0.0)
    bucket.take(30)  # an answer longer than there was room for
    assert bucket.wait_s(5.0, 1) == pytest.approx(26.0)
    assert bucket.wait_s(1000.0, 1000) == 0, "what never fits waits for a full bucket only"


def test_limits_say_when_to_try_again() -> None:
    client = Client("a", requests_per_minute=2, tokens_per_minute=100, max_in_flight=2)

    def refused(now_s: float, tokens: int) -> tuple[str, int | None]:
        with pytest.raises(Refused) as error:
            client.admit(now_s, tokens)
        assert (error.value.status, error.value.code) == (429, "rate_limit_exceeded")
        return error.value.kind, error.value.retry_after_s

    client.admit(0.0, 10)
    client.admit(0.0, 10)
    assert refused(0.0, 10) == ("concurrency", 1)
    client.leave()
    assert refused(0.0, 10) == ("requests", 30)
    client.spend(110)  # answers: 130 of 100 are used
    assert refused(6.0, 10) == ("requests", 24)
    client.admit(30.0, 10)
    assert client.in_flight == 2, "what was refused counts for nothing"
    client.leave()
    client.spend(100)
    assert refused(61.0, 10) == ("tokens", 29)


def test_what_stays_goes_on_with_what_was_used() -> None:
    known = Clients([Client("a", b"1", requests_per_minute=1), Client("b", b"2", requests_per_minute=1)])
    for client in known.all:
        client.admit(0.0, 1)
    known.replace(Clients([Client("a", b"3", requests_per_minute=1), Client("b", b"2", requests_per_minute=9)]))
    a, b = known.all
    assert (a.digest, a.in_flight) == (b"3", 1)
    with pytest.raises(Refused):
        a.admit(0.0, 1)
    b.admit(0.0, 1)  # new limits, a new bucket

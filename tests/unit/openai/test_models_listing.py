"""The merged model list and its single entries."""

import json
from typing import Any

import pytest

from gateway.openai.models import lookup, merge

M = (
    b'{"id":"org/base","object":"model","created":7,"owned_by":"vllm","root":"/models/base","parent":null,"max_model_len":4096,'
    b'"permission":[{"id":"p"}]}'
)
LORA = b'{"id":"m-lora","object":"model","created":8,"owned_by":"vllm","root":"/lora","parent":"org/base","permission":[]}'


def merged(*listings: tuple[str, bytes | None], **aliases: str) -> dict[str, dict[str, Any]]:
    told = json.loads(merge(listings, aliases))
    assert told["object"] == "list"
    return {entry["id"]: entry for entry in told["data"]}


def test_each_name_appears_once_sorted_with_its_fields() -> None:
    """Two replicas of one model make one entry that keeps what the engine told."""
    told = json.loads(merge([("m", M), ("m-lora", LORA), ("m", M), ("k", None)], {"gpt-x": "m"}))["data"]
    assert [entry["id"] for entry in told] == ["gpt-x", "k", "m", "m-lora"]
    assert (told[2]["max_model_len"], told[2]["root"], told[2]["permission"]) == (4096, "/models/base", [{"id": "p"}])


def test_engine_names_become_public_names() -> None:
    """Neither an id nor a parent shows what the engine calls the model."""
    told = merged(("m", M), ("m-lora", LORA))
    assert told["m-lora"]["parent"] == "m"
    assert "org/base" not in {*told, *(entry.get("parent") for entry in told.values())}


def test_an_alias_has_its_models_fields() -> None:
    """Clients that ask for the alias find its context length."""
    assert merged(("m", M), gpt="m")["gpt"] == json.loads(M) | {"id": "gpt"}


def test_an_alias_does_not_hide_a_model() -> None:
    """A name that is both is the model."""
    assert merged(("m", M), ("n", LORA), n="m")["n"]["parent"] == "m"


@pytest.mark.parametrize("odd", [None, b"", b"[]", b"5", b"{", b'{"id":5}', b"\xff", b"[" * 10_000, b'{"parent":{}}'])
def test_an_odd_entry_does_not_spoil_the_list(odd: bytes | None) -> None:
    """A model nobody has described is listed with the four fields every client needs."""
    told = merged(("m", odd), ("k", M))
    assert set(told) == {"m", "k"}
    assert {"id", "object", "created", "owned_by"} <= set(told["m"])
    assert told["m"]["id"] == "m"


def test_the_first_replica_that_knows_speaks() -> None:
    """A replica that tells nothing does not erase what another told."""
    assert merged(("m", None), ("m", M))["m"]["max_model_len"] == 4096
    assert merged(("m", M), ("m", None))["m"]["max_model_len"] == 4096


def test_no_models_is_an_empty_list() -> None:
    """Before discovery the list is empty, not an error."""
    assert json.loads(merge([], {})) == {"object": "list", "data": []}


NAMES = ["org/Name-7B:q4", "999 My Model", "ünï", "100%", "a%2Fb", "a+b", "M", "x?y#z"]


@pytest.mark.parametrize("name", NAMES)
def test_awkward_names_are_found_encoded_and_plain(name: str) -> None:
    """A name is found as clients encode it, and as bytes where it was not encoded."""
    from urllib.parse import quote

    listing = merge([(n, None) for n in NAMES], {})
    for spelled in (quote(name, safe="").encode(), quote(name, safe="/:").encode(), name.encode()):
        found = lookup(listing, b"/v1/models/" + spelled)
        assert found is not None
        assert json.loads(found)["id"] == name


@pytest.mark.parametrize("path", [b"/v1/models/nope", b"/v1/models/m", b"/v1/models/%FF", b"/v1/models/", b"/v1/models/M/"])
def test_unknown_names_are_not_found(path: bytes) -> None:
    """The match is exact and case-sensitive."""
    assert lookup(merge([("M", None)], {}), path) is None

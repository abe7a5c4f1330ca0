from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from gateway.control.client import Answer, Client, Unreachable
from tests.unit.control.fake_engine import engine, table_of


async def test_an_answer_of_any_status_is_an_answer() -> None:
    """What it means is for others to decide."""
    async with engine() as fake, Client() as client:
        fake.answers["/x"] = (503, "loading")
        server = table_of(fake.url).servers()[0]
        assert await client.get(server, "/x", 1.0) == Answer(503, b"loading")


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/pre/fix", "/pre/fix/v1/"])
async def test_paths_are_appended_to_the_base_address(suffix: str) -> None:
    """No `//`, no `/v1/v1`, prefixes kept."""
    async with engine() as fake, Client() as client:
        await client.get(table_of(fake.url + suffix).servers()[0], "/v1/models", 1.0)
        assert fake.paths() == ["/pre/fix/v1/models" if "pre" in suffix else "/v1/models"]


async def test_the_replicas_key_and_headers_are_sent() -> None:
    """A probe passes wherever traffic passes."""
    async with engine() as fake, Client() as client:
        await client.get(table_of(fake.url, api_key="sk-secret", headers={"X-Team": "a"}).servers()[0], "/health", 1.0)
        assert (fake.asked[0].headers["authorization"], fake.asked[0].headers["x-team"]) == ("Bearer sk-secret", "a")


async def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of the host is not on the way to a replica."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost,::1,[::1],fe80::/10")
    async with engine() as fake, Client() as client:
        fake.answers["/health"] = (200, "")
        assert (await client.get(table_of(fake.url).servers()[0], "/health", 1.0)).ok


async def test_redirects_are_answers_not_orders() -> None:
    """A server cannot send the gateway elsewhere."""
    async with engine() as fake, Client() as client:
        fake.answers["/health"] = (302, "")
        assert (await client.get(table_of(fake.url).servers()[0], "/health", 1.0)).status == 302
        assert fake.paths() == ["/health"]


async def test_a_slow_answer_is_given_up_in_time() -> None:
    """The timeout bounds everything, the body included."""
    async with engine() as fake, Client() as client:
        fake.delays["/health"] = 30.0
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unreachable, match=r"no answer within 0\.1 s"):
            await client.get(table_of(fake.url).servers()[0], "/health", 0.1)
        assert asyncio.get_running_loop().time() - began < 2.0


async def test_an_endless_answer_is_given_up() -> None:
    """Memory is not a server's to fill."""
    async with engine() as fake, Client() as client:
        fake.answers["/metrics"] = (200, "x" * (9 << 20))
        with pytest.raises(Unreachable, match="more than 8 MiB"):
            await client.get(table_of(fake.url).servers()[0], "/metrics", 10.0)


async def test_nobody_listening_is_said_without_the_address() -> None:
    """Reasons reach clients, addresses must not."""
    async with engine() as fake:
        url = fake.url
    async with Client() as client:
        with pytest.raises(Unreachable, match=r"^connection refused$"):
            await client.get(table_of(url).servers()[0], "/health", 1.0)


async def test_certificates_are_checked_against_the_configured_authority(tmp_path: Path) -> None:
    """`ca_file` is what makes a private certificate good."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    async with engine(ssl_context=context) as fake, Client() as client:
        fake.answers["/health"] = (200, "")
        assert (await client.get(table_of(fake.url, ca_file=str(ca_file)).servers()[0], "/health", 2.0)).ok
        with pytest.raises(Unreachable, match="certificate is not trusted"):
            await client.get(table_of(fake.url).servers()[0], "/health", 2.0)


async def test_a_missing_authority_file_is_a_fault_of_that_server_only() -> None:
    """It must not end the loops."""
    async with Client() as client:
        with pytest.raises(Unreachable):
            await client.get(table_of("https://127.0.0.1:9", ca_file="/nowhere/ca.pem").servers()[0], "/health", 1.0)

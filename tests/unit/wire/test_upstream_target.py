"""Replica URLs."""

import ssl
from pathlib import Path

import pytest
import trustme

from gateway.wire.upstream import Target


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", ("h", 80, b"h", b"")),
        ("http://h:80/", ("h", 80, b"h", b"")),
        ("HTTP://H.example:8000", ("h.example", 8000, b"h.example:8000", b"")),
        ("http://10.0.0.1:8000/v1", ("10.0.0.1", 8000, b"10.0.0.1:8000", b"")),
        ("http://h:8000/v1/", ("h", 8000, b"h:8000", b"")),
        ("http://h:8000/pre/fix/v1", ("h", 8000, b"h:8000", b"/pre/fix")),
        ("http://h:8000/pre/fix//", ("h", 8000, b"h:8000", b"/pre/fix")),
        ("http://h/v1beta", ("h", 80, b"h", b"/v1beta")),
        ("http://[::1]:8000", ("::1", 8000, b"[::1]:8000", b"")),
        ("http://[::1]/v1", ("::1", 80, b"[::1]", b"")),
    ],
)
def test_urls_are_taken_apart(url: str, expected: tuple[str, int, bytes, bytes]) -> None:
    """Default ports, IPv6, a path in front of the API and a trailing /v1 are understood."""
    target = Target.parse(url)
    assert (target.host, target.port, target.authority, target.prefix) == expected
    assert target.ssl is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:8000",
        "ftp://h",
        "http://",
        "http:///v1",
        "http://u:p@h",
        "http://@h",
        "http://h:0",
        "http://h:65536",
        "http://h:x",
        "http://h?q=1",
        "http://h/#f",
        "http://h/a b",
        "http://h/\r\nx: y",
        "http://h\u00e9",
        "http://[::1",
        "http://[zz]",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    """With a reason, before anything is dialled."""
    with pytest.raises(ValueError, match=r"\w"):
        Target.parse(url)


def test_https_verifies_against_the_given_authorities(tmp_path: Path) -> None:
    """TLS targets check name and chain; a ca_file that cannot be read is a fault of the configuration."""
    ca_file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(ca_file))
    target = Target.parse("https://h/v1", str(ca_file))
    assert (target.port, target.authority) == (443, b"h")
    assert target.ssl is not None
    assert target.ssl.verify_mode is ssl.CERT_REQUIRED
    assert target.ssl.check_hostname
    for bad in (tmp_path / "none.pem", tmp_path):
        with pytest.raises(ValueError, match="ca_file"):
            Target.parse("https://h", str(bad))
    ca_file.write_text("rubbish")
    with pytest.raises(ValueError, match="ca_file"):
        Target.parse("https://h", str(ca_file))

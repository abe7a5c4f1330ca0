"""Responses a replica may send, and what must become of them."""

from typing import Literal, NamedTuple

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
PLAIN = OK + b"Content-Length: 2\r\n\r\nhi"


class Case(NamedTuple):
    """`verdict`: reuse and drop are good answers whose connection is kept or not; cut broke after its head; refused has no usable head.

    `then`: what the replica does after the bytes.
    """

    name: str
    data: bytes
    verdict: Literal["reuse", "drop", "cut", "refused"]
    body: bytes = b"hi"
    status: int = 200
    method: bytes = b"POST"
    then: Literal["stay", "fin", "rst"] = "stay"


CASES = [
    Case("plain", PLAIN, "reuse"),
    Case("second answer behind", PLAIN + OK + b"Content-Length: 1\r\n\r\nx", "drop"),
    Case("junk behind", PLAIN + b"JUNK", "drop"),
    Case("one byte behind", PLAIN + b"H", "drop"),
    Case("blank lines after a 100", b"HTTP/1.1 100 Continue\r\n\r\n\r\n" + PLAIN, "reuse"),
    Case("chunked", CHUNKED + b"2\r\nhi\r\n0\r\n\r\n", "reuse"),
    Case("chunked in pieces", CHUNKED + b"1\r\nh\r\n01;x=y\r\ni\r\n0\r\n\r\n", "reuse"),
    Case("chunked, junk behind", CHUNKED + b"2\r\nhi\r\n0\r\n\r\nX", "drop"),
    Case("trailer", CHUNKED + b"2\r\nhi\r\n0\r\nX-T: v\r\n\r\n", "reuse"),
    Case("trailer says close", CHUNKED + b"2\r\nhi\r\n0\r\nConnection: close\r\n\r\n", "drop"),
    Case("cut in chunk", CHUNKED + b"5\r\nhi", "cut", then="fin"),
    Case("reset in chunk", CHUNKED + b"5\r\nhi", "cut", then="rst"),
    Case("no last chunk", CHUNKED + b"2\r\nhi\r\n", "cut", then="fin"),
    Case("cut in trailer", CHUNKED + b"2\r\nhi\r\n0\r\nX-T", "cut", then="fin"),
    Case("short body then end", OK + b"Content-Length: 5\r\n\r\nhi", "cut", then="fin"),
    Case("bad chunk size", CHUNKED + b"2\r\nhi\r\nzz\r\n", "cut"),
    Case("chunk longer than its size", CHUNKED + b"2\r\nhix\r\n", "cut"),
    Case("100 first", b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, "reuse"),
    Case("103 first", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + PLAIN, "reuse"),
    Case("100 with length", b"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n" + PLAIN, "reuse"),
    Case("100 with coding", b"HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n" + PLAIN, "reuse"),
    Case("100 says close", b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n" + PLAIN, "refused"),
    Case("sixteen 102", b"HTTP/1.1 102 P\r\n\r\n" * 16 + PLAIN, "reuse"),
    Case("seventeen 102", b"HTTP/1.1 102 P\r\n\r\n" * 17 + PLAIN, "refused"),
    Case("101", b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nRAW", "refused"),
    Case("101 without upgrade", b"HTTP/1.1 101 Switching\r\n\r\n" + PLAIN, "refused"),
    Case("upgrade offered", OK + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi", "reuse"),
    Case("204 with length", b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", "reuse", b"", 204),
    Case("204 with coding", b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n", "reuse", b"", 204),
    Case("304", b"HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", "reuse", b"", 304),
    Case("304 with body", b"HTTP/1.1 304 No\r\nContent-Length: 2\r\n\r\nhi", "drop", b"", 304),
    Case("no body", OK + b"Content-Length: 0\r\n\r\n", "reuse", b""),
    Case("HEAD answer", OK + b"Content-Length: 5\r\n\r\n", "reuse", b"", method=b"HEAD"),
    Case("HEAD answer with body", OK + b"Content-Length: 5\r\n\r\nhello", "drop", b"", method=b"HEAD"),
    Case("HEAD answer, chunked", CHUNKED, "reuse", b"", method=b"HEAD"),
    Case("HEAD answer with last chunk", CHUNKED + b"0\r\n\r\n", "drop", b"", method=b"HEAD"),
    Case("HEAD answer without length", OK + b"\r\n", "drop", b"", method=b"HEAD"),
    Case("until close", OK + b"\r\nhi", "drop", then="fin"),
    Case("until close, nothing", OK + b"\r\n", "drop", b"", then="fin"),
    Case("until close, reset", OK + b"\r\nhi", "cut", then="rst"),
    Case("1.0 keep-alive", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", "reuse"),
    Case("1.0", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", "drop"),
    Case("1.0 chunked", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", "drop"),
    Case("close", OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", "drop"),
    Case("close in a list", OK + b"Connection: x-a, Close\r\nContent-Length: 2\r\n\r\nhi", "drop"),
    Case("length with blanks", OK + b"Content-Length:  2 \t\r\n\r\nhi", "reuse"),
    Case("coding with blanks", OK + b"Transfer-Encoding: CHUNKED \r\n\r\n2\r\nhi\r\n0\r\n\r\n", "reuse"),
    Case("length and coding", OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "refused"),
    Case("coding and length", OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", "refused"),
    Case("two lengths", OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", "refused"),
    Case("length list", OK + b"Content-Length: 2, 2\r\n\r\nhi", "refused"),
    Case("length with sign", OK + b"Content-Length: +2\r\n\r\nhi", "refused"),
    Case("coding gzip", OK + b"Transfer-Encoding: gzip\r\n\r\nhi", "refused"),
    Case("coding identity", OK + b"Transfer-Encoding: identity\r\n\r\nhi", "refused"),
    Case("coding gzip, chunked", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "refused"),
    Case("coding chunked twice", OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "refused"),
    Case("folded header", OK + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n", "refused"),
    Case("bare LF", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", "refused"),
    Case("bare LF in headers", OK + b"X: a\nContent-Length: 2\r\n\r\nhi", "refused"),
    Case("NUL in header", OK + b"X: \x00\r\nContent-Length: 0\r\n\r\n", "refused"),
    Case("control bytes in reason", b"HTTP/1.1 200 O\x00\x1b[2J\r\nContent-Length: 2\r\n\r\nhi", "reuse"),
    Case("no reason", b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", "reuse"),
    Case("status 000", b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\nhi", "refused"),
    Case("status 600", b"HTTP/1.1 600 X\r\nContent-Length: 2\r\n\r\nhi", "refused"),
    Case("status 999", b"HTTP/1.1 999 X\r\nContent-Length: 2\r\n\r\nhi", "refused"),
    Case("HTTP/2.0", b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", "refused"),
    Case("HTTP/0.9", b"HTTP/0.9 200 OK\r\nContent-Length: 2\r\n\r\nhi", "refused"),
    Case("RTSP", b"RTSP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", "refused"),
    Case("RTSP behind a 100", b"HTTP/1.1 100 Continue\r\n\r\nRTSP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", "refused"),
    Case("not HTTP", b"SSH-2.0-OpenSSH_9.2\r\n", "refused"),
    Case("70 KB header", OK + b"X: " + b"y" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n", "refused"),
    Case("70 KB head without end", OK + b"X: " + b"y" * 70_000, "refused"),
    Case("256 headers", OK + b"X: y\r\n" * 255 + b"Content-Length: 2\r\n\r\nhi", "reuse"),
    Case("257 headers", OK + b"X: y\r\n" * 256 + b"Content-Length: 2\r\n\r\nhi", "refused"),
    Case("cut in head", OK + b"Content-Le", "refused", then="fin"),
    Case("nothing", b"", "refused", then="fin"),
    Case("nothing, reset", b"", "refused", then="rst"),
]
# Not for a real connection: there it depends on the network whether the last bytes find it idle already.
STRAY = Case("blank lines around", b"\r\n" + PLAIN + b"\r\n", "reuse")
NAMES = [case.name for case in CASES]

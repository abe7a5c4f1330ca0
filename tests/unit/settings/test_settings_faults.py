"""Loading: every fault is found, has its line, and says what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.settings import Fault, Overrides, Settings, SettingsError, load

if TYPE_CHECKING:
    from pathlib import Path

REPLICA = "models: [{name: m, replicas: [{url: http://h:1%s}]}]"


def faults(tmp_path: Path, text: str | bytes, overrides: Overrides | None = None, env: dict[str, str] | None = None) -> list[Fault]:
    """The faults of a file, its name shortened to `f`."""
    file = tmp_path / "f"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError) as caught:
        load(file, overrides, env or {})
    return [fault._replace(file="f" if fault.file == str(file) else fault.file) for fault in caught.value.faults]


def loaded(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> Settings:
    """The settings of a file without faults."""
    file = tmp_path / "f"
    file.write_text(text)
    return load(file, env=env or {})


# What the file says, and the place and a part of the message of the one fault in it.
SINGLE = [
    ("server:\n  prot: 1", "2: server.prot", "did you mean port?"),
    ("rooting: {}", "1: rooting", "did you mean routing?"),
    ("port: 80", "1: port", "did you mean server.port or server.admin.port?"),
    ("discover: []", "1: discover", "unknown key"),
    ("server: {port: 65536}", "1: server.port", "allowed: a whole number from 0 up to 65535"),
    ("server: {port: http}", "1: server.port", "not a whole number"),
    ("server: {port: 8080.5}", "1: server.port", "not a whole number"),
    ("server: {port: }", "1: server.port", "not a whole number"),
    ("server: 8080", "1: server", "not a mapping; allowed: a mapping of host, port"),
    ("server: {reveal: maybe}", "1: server.reveal", "allowed: true or false"),
    ("server: {keepalive_s: 0}", "1: server.keepalive_s", "allowed: a number above 0"),
    ("server: {keepalive_s: .inf}", "1: server.keepalive_s", "not a number"),
    ("server: {keepalive_s: nan}", "1: server.keepalive_s", "not a number"),
    ("server: {keepalive_s: inf}", "1: server.keepalive_s", "not a number"),
    ("server: {host: 'http://x'}", "1: server.host", "allowed: an IP address without brackets, or a host name"),
    ("server: {host: 10.0.0}", "1: server.host", "not a host"),
    ("server:\n  tls:\n    cert: a.pem", "2: server.tls", "allowed: both or neither"),
    ("server:\n  tls: {cert: /nowhere, key: /nowhere}", "2: server.tls.cert", "cannot be read (No such file or directory)"),
    ("server:\n  admin: {host: 0.0.0.0}", "2: server.admin", "allowed: a loopback host such as 127.0.0.1, or a token"),
    ("server:\n  admin: {host: '::'}", "2: server.admin", "allowed: a loopback host"),
    ("server: {port: 9090}", "1: server.admin.port", "the same port as server.port"),
    ("server: {api_keys: ['']}", "1: server.api_keys[0]", "allowed: printable ASCII without spaces"),
    ("server: {api_keys: [a-key, {key: a-key}]}", "1: server.api_keys[1].key", "the same key twice"),
    ("server: {api_keys: [{key: k1, name: x}, {key: k2, name: x}]}", "1: server.api_keys[1].name", "name x is used twice"),
    ("server: {api_keys: [{name: x}]}", "1: server.api_keys[0].key", "missing"),
    ("server: {trusted_proxies: [10.0.0.1/8]}", "1: server.trusted_proxies[0]", "allowed: 10.0.0.1 or 10.0.0.0/8"),
    ("server: {cors_origins: ['https://a.b/']}", "1: server.cors_origins[0]", "allowed: '*' or SCHEME://HOST[:PORT]"),
    ("server: {relay_paths: [/v2/x]}", "1: server.relay_paths[0]", "allowed: /v1/NAME"),
    ("server: {relay_paths: [/v1/]}", "1: server.relay_paths[0]", "allowed: /v1/NAME"),
    ("server: {relay_paths: [/v1/a/../b]}", "1: server.relay_paths[0]", "allowed: /v1/NAME"),
    ("server: {relay_paths: [/v1/models]}", "1: server.relay_paths[0]", "answered by the gateway itself"),
    ("server: {relay_paths: /v1/x}", "1: server.relay_paths", "not a list"),
    ("models: [{name: m, replicas: [{id: a}]}]", "1: models[0].replicas[0].url", "missing; allowed: base address"),
    ("models: [{replicas: []}]", "1: models[0].name", "missing"),
    ("models: [m]", "1: models[0]", "not a mapping; allowed: a mapping of name, aliases"),
    ("models: {m: 1}", "1: models", "not a list"),
    ("models: [{name: ' '}]", "1: models[0].name", "not a model name"),
    ("models:\n- {name: m}\n- {name: m}", "3: models[1].name", "name m is used twice"),
    ("models:\n- {name: m}\n- name: n\n  aliases: [m]", "4: models[1].aliases[0]", "name m is used twice"),
    ("models: [{name: m, aliases: [m]}]", "1: models[0].aliases[0]", "name m is used twice"),
    (REPLICA % ", id: a b", "1: models[0].replicas[0].id", "not an id"),
    (REPLICA % ", engine: vlm", "1: models[0].replicas[0].engine", "allowed: auto | vllm"),
    (REPLICA % ", max_inflight: 0", "1: models[0].replicas[0].max_inflight", "allowed: a whole number above 0, or null"),
    (REPLICA % ", headers: {Host: x}", "1: models[0].replicas[0].headers", "belongs to the connection"),
    (REPLICA % ", headers: {'a b': x}", "1: models[0].replicas[0].headers", "not a header name"),
    (REPLICA % ', headers: {a: "x\\r\\ny: z"}', "1: models[0].replicas[0].headers", "does not fit on a header line"),
    (REPLICA % ", ca_file: /nowhere", "1: models[0].replicas[0].ca_file", "cannot be read"),
    (REPLICA % ", api_key: 'a b'", "1: models[0].replicas[0].api_key", "allowed: printable ASCII without spaces"),
    ("routing: {weights: {gpu: -1}}", "1: routing.weights.gpu", "allowed: a number from 0"),
    ("routing: {weights: {gpu: 0, kv: 0, prefix: 0, queue: 0}}", "1: routing.weights", "all weights are 0"),
    ("routing: {weights: {cache: 1}}", "1: routing.weights.cache", "allowed: gpu, kv, prefix, queue"),
    ("routing: {policy: random}", "1: routing.policy", "allowed: weighted | "),
    ("routing: {load_guard: 0.5}", "1: routing.load_guard", "allowed: a number from 1, or null"),
    ("routing: {hold: on}", "1: routing.hold", "allowed: off"),
    ("retries: {budget: 1.5}", "1: retries.budget", "allowed: a number from 0 up to 1"),
    ("breaker: {ratio: 0}", "1: breaker.ratio", "allowed: a number above 0 up to 1"),
    ("log: {level: loud}", "1: log.level", "allowed: debug | info | warning | error"),
    ("- a", "1: file", "not a mapping"),
    ("server: [", "1: file", "not YAML"),
    ("a: 1\n\tb: 2", "2: file", "not YAML"),
    ("a: 1\n---\nb: 2", "2: file", "not YAML"),
    ("a: *nowhere", "1: file", "not YAML"),
    ("server: !!python/name:os.system {}", "1: server", "YAML tags"),
    ("server: {? [a] : b}", "1: server", "a key that is not plain text"),
    ("server: &a {tls: *a}", "1: server.tls", "contains itself"),
    ("server: {port: 1}\nserver: {port: 2}", "2: server", "key given twice, first on line 1"),
]  # fmt: skip

UNAVAILABLE = [
    ("auto: {small: a}", "auto"),
    ("routing: {policy: least_delay}", "routing.policy"),
    ("routing: {shadow: [session]}", "routing.shadow"),
    ("routing: {hold: auto}", "routing.hold"),
    ("routing: {hold: 2}", "routing.hold"),
    ("routing: {gpu_source: dcgm}", "routing.gpu_source"),
    ("server: {workers: 2}", "server.workers"),
    ("server: {api_keys: [{key: k, tenant: t}]}", "server.api_keys[0].tenant"),
    ("admission: {priority_header: x-prio}", "admission.priority_header"),
    (REPLICA % ", kv_events: tcp://h:5557", "models[0].replicas[0].kv_events"),
    (REPLICA % ", gpu_metrics_url: http://h:9400", "models[0].replicas[0].gpu_metrics_url"),
]

BAD_URLS = [
    "h:8000", "//h:8000", "ftp://h", "http://", "http://:80", "http://h:0", "http://h:99999", "http://h:x", "http://h:", "http://h?a=b",
    "http://h#x", "http://h?", "http://user:secret@h:1", "http://user@h", "http://h/v1/chat/completions", "http://h/v1/models", "http://h//x",
    "http://h/../x", "http://h/a b", "http://h/%2e", "http://[::1", "http://h_/\u00e9", "http://\u00e9", "http://h\\x", "http://a..b/ c",
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "message"), SINGLE)
def test_a_fault_has_its_line_and_says_what_is_allowed(tmp_path: Path, text: str, place: str, message: str) -> None:
    """One fault in, one fault out, at the right place."""
    found = faults(tmp_path, text)
    assert [f"f:{place}"] == [f"{f.file}:{f.line}: {f.field}" for f in found]
    assert message in found[0].message


@pytest.mark.parametrize(("text", "field"), UNAVAILABLE)
def test_what_is_not_built_is_refused_by_name(tmp_path: Path, text: str, field: str) -> None:
    """A feature of a later version is no typing error: the message says so, once."""
    found = faults(tmp_path, text)
    assert [field] == [f.field for f in found]
    assert found[0].message.startswith("not available in this version; allowed: ")


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_replica_needs_a_plain_base_address(tmp_path: Path, url: str) -> None:
    """Anything but scheme, host, port and prefix is refused, and a password in it is not repeated."""
    found = faults(tmp_path, f"models: [{{name: m, replicas: [{{url: '{url}'}}]}}]")
    assert [f.field for f in found] == ["models[0].replicas[0].url"]
    assert "allowed: " in found[0].message
    assert "secret" not in found[0].message


@pytest.mark.parametrize(
    "url",
    ["http://h", "https://h:8443/", "http://10.0.0.1:8000/v1", "http://10.0.0.1:8000/v1/", "http://[::1]:8000", "http://h/pre/fix/v1", "http://a_b-c.svc.cluster.local.:80"],
)  # fmt: skip
def test_usual_base_addresses_are_taken(tmp_path: Path, url: str) -> None:
    """With and without port, path prefix, final slash and /v1."""
    settings = loaded(tmp_path, f"models: [{{name: m, replicas: [{{url: '{url}'}}]}}]")
    assert url == settings.models[0].replicas[0].url


def test_all_faults_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Syntax of values, clashes, missing variables and missing features together: one run of `check` shows everything."""
    text = (
        "server:\n"
        "  port: x\n"
        "  api_keys: ['${GONE}']\n"
        "  admin: {host: 0.0.0.0}\n"
        "models:\n"
        "  - name: m\n"
        "    replicas:\n"
        "      - {id: a, url: http://h:1}\n"
        "      - {id: a, url: http://user:pw@h:2}\n"
        "routing:\n"
        "  hold: auto\n"
        "nonsense: 1\n"
    )
    expected = [
        (2, "server.port"), (3, "server.api_keys[0]"), (4, "server.admin"), (9, "models[0].replicas[1].id"),
        (9, "models[0].replicas[1].url"), (11, "routing.hold"), (12, "nonsense"),
    ]  # fmt: skip
    assert expected == [(f.line, f.field) for f in faults(tmp_path, text)]


def test_the_same_server_twice_under_one_model_is_refused(tmp_path: Path) -> None:
    """However its address is spelt."""
    text = "models:\n- name: m\n  replicas:\n  - url: http://H:80/v1\n  - url: http://h/\n"
    assert [(f.line, f.field) for f in faults(tmp_path, text)] == [(5, "models[0].replicas[1].url")]


def test_a_bad_common_weight_is_reported_once(tmp_path: Path) -> None:
    """Not again for every model that takes it over."""
    text = "routing: {weights: {kv: x}}\nmodels: [{name: m, weights: {prefix: 1}}, {name: n, weights: {prefix: 2}}]"
    assert [f.field for f in faults(tmp_path, text)] == ["routing.weights.kv"]


def test_a_fault_prints_as_file_line_field_and_message() -> None:
    """The form editors and scripts can read."""
    assert str(Fault("k.yaml", 3, "server.port", "bad; allowed: good")) == "k.yaml:3: server.port: bad; allowed: good"
    assert str(Fault("command line", 0, "--port", "bad")) == "command line: --port: bad"


def test_a_missing_file_is_a_fault_and_no_traceback(tmp_path: Path) -> None:
    """Errors of the file itself come out the same way."""
    with pytest.raises(SettingsError, match=r"gone\.yaml:1: file: cannot be read \(No such file or directory\)"):
        load(tmp_path / "gone.yaml", env={})


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"a: \x00", b"[" * 20_000, b"a: " + b"{a: " * 5_000])
def test_bytes_that_are_no_configuration_are_a_fault(tmp_path: Path, text: bytes) -> None:
    """No input makes loading raise anything else."""
    assert [f.field for f in faults(tmp_path, text)] == ["file"]


def test_options_of_the_command_line_are_named_in_faults(tmp_path: Path) -> None:
    """A bad option is not blamed on the file."""
    found = faults(tmp_path, "server: {port: 1}", Overrides(port=70_000, policy="least_delay", replicas=("h:1",)))
    expected = [("command line", 0, "--policy"), ("command line", 0, "--port"), ("command line", 0, "--replica")]
    assert sorted(f[:3] for f in found) == expected
    assert "not available" in next(f.message for f in found if f.field == "--policy")


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    """Every option replaces its value; replicas replace the models."""
    file = tmp_path / "f"
    file.write_text("server: {port: 1, host: 10.0.0.1}\nmodels: [{name: m}]\nrouting:\n")
    overrides = Overrides(replicas=("http://h:1",), host="127.0.0.2", port=2, admin_port=3, policy="session")
    settings = load(file, overrides, env={})
    assert (
        settings.server.host,
        settings.server.port,
        settings.server.admin.port,
        settings.routing.policy,
    ) == ("127.0.0.2", 2, 3, "session")
    assert (settings.models, [r.url for r in settings.discover]) == ((), ["http://h:1"])


def test_without_a_file_the_public_port_is_local() -> None:
    """Trying it out does not open a port to the network, unless asked to."""
    assert load(None, Overrides(replicas=("http://h:1",)), env={}).server.host == "127.0.0.1"
    assert load(None, Overrides(replicas=("http://h:1",), host="0.0.0.0"), env={}).server.host == "0.0.0.0"


def test_admin_may_leave_loopback_with_a_token(tmp_path: Path) -> None:
    """And any spelling of loopback needs none."""
    assert loaded(tmp_path, "server: {admin: {host: 0.0.0.0, token: abc}}").server.admin.token is not None
    for host in ("localhost", "127.8.8.8", "'::1'"):
        assert loaded(tmp_path, f"server: {{admin: {{host: {host}}}}}").server.admin.token is None


def test_port_0_may_be_asked_for_twice(tmp_path: Path) -> None:
    """Two free ports never clash."""
    assert loaded(tmp_path, "server: {port: 0, admin: {port: 0}}").server.admin.port == 0


def test_keys_in_faults_are_not_repeated(tmp_path: Path) -> None:
    """A secret in the wrong place stays out of the terminal and of the log of a failed reload."""
    text = "server: {port: sk-secret-1, api_keys: ['sk-secret 2', sk-secret-3, sk-secret-3], admin: {token: 'sk-secret 4'}}"
    assert "secret" not in "".join(map(str, faults(tmp_path, text)))

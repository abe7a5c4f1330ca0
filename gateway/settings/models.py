"""The settings as frozen models: every key of the YAML file with its default, its limits and the reason for it.

Seconds are floats, sizes bytes, unless the name says otherwise. `None` (YAML `null`) switches a limit off or leaves a fact to be found out.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from gateway.settings.kinds import (
    Count,
    FileName,
    Headers,
    Host,
    Many,
    ModelName,
    Network,
    Origin,
    Port,
    RelayPath,
    ReplicaId,
    Seconds,
    Share,
    Url,
    Wait,
    loopback,
    secret,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

Engine = Literal["auto", "vllm", "sglang", "trtllm", "triton", "llamacpp", "ollama", "openai"]
Policy = Literal["weighted", "least_request", "round_robin", "session"]
Secret = Annotated[SecretStr, BeforeValidator(secret)]


class Section(BaseModel):
    """A frozen mapping of known keys; a section with nothing under it has its defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=False)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value


class TlsSettings(Section):
    cert: FileName | None = Field(None, description="certificate chain, PEM; read again when the file changes")
    key: FileName | None = Field(None, description="its private key, PEM")

    @model_validator(mode="after")
    def _both(self) -> TlsSettings:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together; allowed: both or neither")
        return self


class AdminSettings(Section):
    host: Host = Field("127.0.0.1", description="metrics, admin API and console listen here, never on the public port")
    port: Port = Field(9090, description="0: any free port")
    token: Secret | None = Field(None, description="asked for by everything but /metrics; required unless host is loopback")

    @model_validator(mode="after")
    def _guarded(self) -> AdminSettings:
        if self.token is None and not loopback(self.host):
            raise ValueError("the admin port would be open to the network; allowed: a loopback host such as 127.0.0.1, or a token")
        return self


class ShutdownSettings(Section):
    grace_s: Wait = Field(0, description="after SIGTERM readyz says no at once, but new requests are still served this long")
    timeout_s: Seconds = Field(600, description="then running requests have this long to finish")


class ApiKey(Section):
    """One accepted client key. In the file either the key itself or `{key, name}`."""

    key: Secret = Field(description="what the client sends as Bearer token, x-api-key or api-key")
    name: str = Field("", max_length=64, description="shown in logs instead of the key; default key1, key2 … in order")

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"key": value} if isinstance(value, str | SecretStr) else value


class ServerSettings(Section):
    host: Host = Field("0.0.0.0", description="public address; open to the network without api_keys is warned about at start")  # noqa: S104
    port: Port = Field(8080, description="public port; 0: any free port")
    tls: TlsSettings = Field(TlsSettings(), description="HTTPS on the public port")
    admin: AdminSettings = Field(AdminSettings(), description="the second port, for operators")
    api_keys: Many[ApiKey] = Field((), description="accepted client keys; empty: anyone may ask")
    forward_auth: bool = Field(False, description="pass the client's Authorization header on to replicas")
    max_body_bytes: Count = Field(67_108_864, description="largest request body, after decompression; beyond it 413")
    max_inflight_bytes: Count = Field(1_073_741_824, description="all request bodies held at once; beyond it 503")
    header_timeout_s: Seconds = Field(10, description="from the first byte of a request to the end of its head, against slow-loris clients")
    body_timeout_s: Seconds = Field(60, description="from the end of the head to the end of the body")
    keepalive_s: Seconds = Field(120, description="idle client connection; longer than usual load balancers in front keep theirs")
    write_stall_s: Seconds = Field(60, description="a client that reads nothing this long is cut")
    trusted_proxies: Many[Network] = Field((), description="proxies in front: x-forwarded-for is believed, no connection limit")
    cors_origins: Many[Origin] = Field((), description="web origins that browsers may call from; '*': any")
    relay_paths: Many[RelayPath] = Field((), description="further /v1/... POST paths to relay by the body's model")
    reveal: bool = Field(True, description="x-kvgate-* response headers; off for clients that must not see the fleet")
    shutdown: ShutdownSettings = Field(ShutdownSettings(), description="how SIGTERM ends the process")
    workers: Count = Field(1, description="processes; only 1 in this version")

    @field_validator("api_keys")
    @classmethod
    def _named(cls, keys: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
        return tuple(k if k.name else k.model_copy(update={"name": f"key{n}"}) for n, k in enumerate(keys, 1))


class Weights(Section):
    """Weights of the scoring terms. Unknown terms drop out of a decision and the rest is scaled to the same total."""

    gpu: Wait = Field(0.1, description="room in the running batch")
    kv: Wait = Field(0.1, description="free share of the KV cache")
    prefix: Wait = Field(0.5, description="share of the prompt already cached there")
    queue: Wait = Field(0.3, description="short wait before the first token")

    @model_validator(mode="after")
    def _some(self) -> Weights:
        if not (self.gpu or self.kv or self.prefix or self.queue):
            raise ValueError("all weights are 0; allowed: at least one above 0")
        return self


class ReplicaSettings(Section):
    """One engine server, as a replica of one model."""

    id: ReplicaId = Field("", description="shown to clients, in logs and metrics; default r1, r2 … in order")
    url: Url = Field(description="base address, such as http://10.0.0.1:8000; a final /v1 is accepted")
    engine: Engine = Field("auto", description="auto asks the server")
    served_model: ModelName | None = Field(None, description="the model's name at this server; null: found from what it lists")
    api_key: Secret | None = Field(None, description="sent to this replica only")
    headers: Headers = Field({}, repr=False, description="further header lines for this replica only; values are kept secret")
    ca_file: FileName | None = Field(None, description="CA certificates for an https url; null: the system's")
    max_inflight: Count | None = Field(None, description="most requests sent at once; null: no cap")
    max_num_seqs: Count | None = Field(None, description="engine's batch slots; null: learned or the engine's default")
    step_tokens: Count | None = Field(None, description="engine's token budget per step; null: learned or the engine's default")
    kv_tokens: Count | None = Field(None, description="KV cache capacity in tokens; null: as the engine tells")
    context_length: Count | None = Field(None, description="longest prompt plus answer in tokens; null: as the engine tells")


class ModelSettings(Section):
    """One model: what clients ask for, and the replicas that serve it."""

    name: ModelName = Field(description="what clients ask for")
    aliases: Many[ModelName] = Field((), description="further names for it")
    replicas: Many[ReplicaSettings] = Field((), description="the servers; more can be added over the admin API")
    weights: Weights | None = Field(None, description="this model's own; a key left out is taken from routing.weights")


def _off(value: Any) -> Any:
    # Other YAML tools write a bare `off` as `false`.
    return "off" if value is False or value == "false" else value


class RoutingSettings(Section):
    policy: Policy = Field("weighted", description="how a replica is chosen")
    weights: Weights = Field(Weights(), description="of the weighted policy's terms; also per model")
    gpu_source: Literal["auto", "batch"] = Field("auto", description="what the gpu term reads; auto and batch: fill of the running batch")
    load_guard: Annotated[float, Field(ge=1)] | None = Field(
        1.25, description="replicas above load_guard x mean in-flight + 4 are left out; null: never"
    )
    block_bytes: Annotated[int, Field(ge=16, le=65_536)] = Field(256, description="unit of prompt prefix in the index")
    index_mb: Count = Field(128, description="memory of the prefix index in MiB, all replicas together")
    isolate: Literal["none", "tenant"] = Field("tenant", description="whose prompts share cached prefixes; only matters with tenants")
    allow_pinning: bool = Field(False, description="let a client choose with the request header x-kvgate-replica")
    shadow: Many[Policy] = Field((), description="policies judged on live traffic without routing it; none in this version")
    hold: Annotated[Literal["off"], BeforeValidator(_off)] = Field(
        "off", description="keep requests back while a replica is behind; only off in this version"
    )
    hold_aging: Wait = Field(0.1, description="seconds of credit per second waited, when requests are held")
    hold_max_s: Seconds = Field(10, description="longest time a request is held")


class UsageSettings(Section):
    inject: bool = Field(True, description="ask streaming replicas for token usage, and hide it again from clients that did not ask")


class AdmissionSettings(Section):
    queue_size: Annotated[int, Field(ge=0)] = Field(1000, description="requests waiting for a free replica; beyond it 429")
    max_wait_s: Seconds = Field(60, description="a request whose wait would be longer is refused")
    wait_for_replica_s: Wait = Field(0, description="wait this long for a model none of whose replicas can serve, before 503")
    priority_header: str = Field("x-kvgate-priority", description="header with a request's priority; fixed in this version")


class LimitSettings(Section):
    header_bytes: Annotated[int, Field(ge=1024)] = Field(65_536, description="size of a request head; beyond it 431")
    headers: Count = Field(200, description="header lines of a request; beyond it 431")
    nesting: Annotated[int, Field(ge=10, le=1000)] = Field(200, description="depth of a JSON body; beyond it 400")
    streams_per_key: Count | None = Field(None, description="requests running at once per API key; beyond it 429")
    connections_per_address: Count | None = Field(None, description="open connections per client address")


class TimeoutSettings(Section):
    connect_s: Seconds = Field(2, description="opening a connection to a replica; then the next replica is tried")
    first_byte_s: Seconds = Field(300, description="streamed requests: from sending to the first byte of the answer; covers a long prefill")
    idle_s: Seconds = Field(120, description="streamed answers: between any two bytes")
    data_idle_s: Seconds = Field(
        600, description="streamed answers: between two data events; an engine shutting down can send comments for ever"
    )
    unary_s: Seconds = Field(900, description="the whole of a request that is not streamed")
    total_s: Seconds | None = Field(None, description="the whole of any request; null: no limit")
    queue_s: Seconds = Field(30, description="waiting for a free replica; then 429")


class RetrySettings(Section):
    attempts: Count = Field(2, description="tries whose request was sent, the first included; unreachable replicas cost none")
    budget: Share = Field(0.2, description="most second sends, as a share of the last 10 s of traffic (never less than 10)")
    on_timeout: bool = Field(False, description="also try again after a timeout; risks doing slow work twice")


class HealthSettings(Section):
    interval_s: Seconds = Field(2, description="between two probes of a replica")
    timeout_s: Seconds = Field(5, description="of one probe")
    unhealthy_after: Count = Field(3, description="failed probes in a row that take a replica out")
    healthy_after: Count = Field(1, description="good probes in a row that bring it back")


class ScrapeSettings(Section):
    interval_s: Seconds = Field(1, description="between two readings of a replica's metrics")
    timeout_s: Seconds = Field(1, description="of one reading")
    stale_after_s: Seconds = Field(5, description="signals older than this count as unknown")


class BreakerSettings(Section):
    failures: Count = Field(5, description="failures in a row that open it")
    ratio: Annotated[float, Field(gt=0, le=1)] = Field(0.5, description="share of failures in the window that opens it")
    min_requests: Count = Field(10, description="requests in the window before ratio counts")
    window_s: Seconds = Field(30, description="length of the window")
    cooldown_s: Seconds = Field(10, description="open this long, then one request may try")


class DrainSettings(Section):
    timeout_s: Seconds = Field(600, description="a drained replica's running requests have this long to finish")


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class LogSettings(Section):
    format: Literal["console", "json"] = Field("console", description="console for people, json for log shippers")
    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        "info", description="least important level written; lines about single requests are info"
    )
    requests: FileName = Field("stdout", description="one line per request: stdout, stderr, off, or a file; events go to stderr")


class Settings(Section):
    """Everything a gateway is told. Built once by `load`, replaced as a whole by a reload."""

    server: ServerSettings = ServerSettings()
    models: Many[ModelSettings] = Field((), description="what is served")
    routing: RoutingSettings = RoutingSettings()
    usage: UsageSettings = UsageSettings()
    admission: AdmissionSettings = AdmissionSettings()
    limits: LimitSettings = LimitSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retries: RetrySettings = RetrySettings()
    health: HealthSettings = HealthSettings()
    scrape: ScrapeSettings = ScrapeSettings()
    breaker: BreakerSettings = BreakerSettings()
    drain: DrainSettings = DrainSettings()
    log: LogSettings = LogSettings()
    discover: Many[ReplicaSettings] = Field((), description="replicas given on the command line: every model they list is served")

    @field_validator("models")
    @classmethod
    def _numbered(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        ids = _free_ids({r.id for m in models for r in m.replicas})
        return tuple(m.model_copy(update={"replicas": _with_ids(m.replicas, ids)}) for m in models)

    @field_validator("discover")
    @classmethod
    def _numbered_too(cls, replicas: tuple[ReplicaSettings, ...], info: ValidationInfo) -> tuple[ReplicaSettings, ...]:
        taken = {r.id for m in info.data.get("models", ()) for r in m.replicas}
        return _with_ids(replicas, _free_ids(taken | {r.id for r in replicas}))


def _free_ids(taken: set[str]) -> Iterator[str]:
    return (name for n in count(1) if (name := f"r{n}") not in taken)


def _with_ids(replicas: tuple[ReplicaSettings, ...], ids: Iterator[str]) -> tuple[ReplicaSettings, ...]:
    return tuple(r if r.id else r.model_copy(update={"id": next(ids)}) for r in replicas)

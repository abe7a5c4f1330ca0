"""Which model names a server answers to, and under which of its own names: pure rules over its model list."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gateway.fleet.facts import ModelInfo
    from gateway.fleet.state import ServerState


class Served(NamedTuple):
    """A model and its name at the server; `served` None: unresolved, for the reason in `problem`."""

    model: str
    served: str | None
    problem: str = ""


def configured(server: ServerState, model: str, aliases: Collection[str], served_model: str | None) -> Served:
    """A configured model at this server: `served_model`, else its name or an alias where listed, else the only base model."""
    if not server.listed:
        return _unlisted(server, model, served_model)
    models = server.models
    if served_model is not None:
        if served_model in models or not server.traits.checks_model:
            return Served(model, served_model)
        return Served(model, None, f"does not list served_model {served_model!r}")
    for name in (model, *aliases):
        if name in models:
            return Served(model, name)
    bases = _bases(models)
    if len(bases) == 1:
        return Served(model, bases[0])
    if not server.traits.checks_model:
        return Served(model, model)
    listed = ", ".join(sorted(bases)[:5]) or "no model"
    return Served(model, None, f"lists {listed}: set served_model")


def adapters(server: ServerState, served: str | None, taken: Collection[str]) -> list[Served]:
    """LoRA adapters of the base model `served`: models of their own name, unless that name is `taken` by the configuration."""
    base = server.models.get(served or "")
    if base is None:
        return []
    names = {m.id for m in server.models.values() if m.parent is None and (m.root or m.id) == (base.root or base.id)}
    return [Served(m.id, m.id) for m in server.models.values() if m.parent in names and m.id not in taken]


def everything(server: ServerState, taken: Collection[str]) -> list[Served]:
    """Every listed model under its own name: what a replica without a configured model serves."""
    return [Served(name, name) for name in server.models if name not in taken]


def _unlisted(server: ServerState, model: str, served_model: str | None) -> Served:
    """Without a list the configuration is all there is, unless the list is only not there yet."""
    if server.listed is None and not (served_model and server.listing_error):
        return Served(model, None, server.listing_error or "models not listed yet")
    return Served(model, served_model or model)


def _bases(models: Mapping[str, ModelInfo]) -> list[str]:
    """Base models, one name for each: an engine lists every name it was given for one and the same model."""
    roots: dict[str, str] = {}
    for info in models.values():
        if info.parent is None:
            roots.setdefault(info.root or info.id, info.id)
    return list(roots.values())

"""Lets one test speak to the blocking and to the asynchronous kind of a client."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai

Gpt = openai.OpenAI | openai.AsyncOpenAI
Claude = anthropic.Anthropic | anthropic.AsyncAnthropic


async def got(answer: Any) -> Any:
    """The answer of a call of either kind."""
    return await answer if inspect.isawaitable(answer) else answer


async def each(answer: Any) -> AsyncIterator[Any]:
    """The pieces of a stream of either kind."""
    stream = await got(answer)
    if hasattr(stream, "__aiter__"):
        async for piece in stream:
            yield piece
    else:
        for piece in stream:
            yield piece


async def every(answer: Any) -> list[Any]:
    """All pieces of a stream of either kind."""
    return [piece async for piece in each(answer)]


async def collect(answer: Any, pieces: list[Any]) -> None:
    """Append the pieces of a stream of either kind as they come, so that those before a failure are kept."""
    async for piece in each(answer):
        pieces.append(piece)  # noqa: PERF401  # a comprehension would lose them


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """A context manager of either kind."""
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value

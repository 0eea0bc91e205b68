"""ConServe: a router for LLM agents that schedules the conversation, not the call.

The first turn of a conversation is prefilled on a prefiller, its KV cache is handed over once to a decoder, and the
conversation stays pinned to that decoder.

>>> from conserve import Decoder, Prefiller, Router
>>> router = Router([Prefiller("http://p0:8000")], [Decoder("http://d0:8000", kv_blocks=40_000)])
>>> with router.turn("task-42", prompt_tokens=3_912) as turn:
...     turn.finish(output_tokens=128)
>>> turn.route.decoder
'http://d0:8000'

This module is the whole public API. `create_app`, `openai_routes` and `Settings`, the FastAPI door, need the extra
`proxy` (`pip install 'conserve-router[proxy]'`) and are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from conserve._core import (
    Advice,
    ConversationView,
    Decoder,
    ManualClock,
    Prefiller,
    Route,
    Router,
    Snapshot,
    Swept,
    Turn,
    TurnContext,
    Worker,
    WorkerView,
    __version__,
)
from conserve.errors import (
    ConfigError,
    ConserveError,
    Draining,
    NoWorkers,
    Overloaded,
    PromptTooLong,
    Rejected,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
    WorkerUnavailable,
)

if TYPE_CHECKING:
    from conserve.proxy import create_app as create_app
    from conserve.proxy import openai_routes as openai_routes
    from conserve.settings import Settings as Settings

# The names of the extra `proxy` are public too, but not for `import *`: that must work in a base install.
__all__ = [
    "Advice",
    "ConfigError",
    "ConserveError",
    "ConversationView",
    "Decoder",
    "Draining",
    "ManualClock",
    "NoWorkers",
    "Overloaded",
    "Prefiller",
    "PromptTooLong",
    "Rejected",
    "Route",
    "Router",
    "Snapshot",
    "Swept",
    "Turn",
    "TurnContext",
    "Worker",
    "WorkerError",
    "WorkerProtocolError",
    "WorkerTimeout",
    "WorkerUnavailable",
    "WorkerView",
    "__version__",
]

_OF_THE_DOOR = {
    "create_app": "conserve.proxy",
    "openai_routes": "conserve.proxy",
    "Settings": "conserve.settings",
}

if not TYPE_CHECKING:  # A checker that saw this `__getattr__` would take any name.

    def __getattr__(name: str) -> object:
        home = _OF_THE_DOOR.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(home), name)
        except ModuleNotFoundError as missing:
            if missing.name is not None and missing.name.partition(".")[0] == "conserve":
                raise
            raise ModuleNotFoundError(
                f"conserve.{name} needs {missing.name}: pip install 'conserve-router[proxy]'",
                name=missing.name,
            ) from missing
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_OF_THE_DOOR})

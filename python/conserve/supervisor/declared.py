"""A connector that a fleet file declares itself: what the requests carry, and the engine's flags for each role."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from conserve.errors import ConfigError

from .toml_table import Table

_ROLES: Final = ("prefiller", "decoder", "both")
_DECODE: Final = ("answer", "nothing")


@dataclass(frozen=True, slots=True)
class Declared:
    """One shape.

    `prefill` is added to the prefill request's `kv_transfer_params`, `decode` to the decode request's; there "answer" stands
    for what the prefiller's answer says, and "nothing" for nothing. `retain` is what a decode request without a handoff gets
    there under retention = "pin". `env` and each of `flags` may hold `{host}`,
    `{handoff_port}`, `{handoff_folder}` and `{engine_id}`.
    """

    prefill: Mapping[str, Any]
    decode: Mapping[str, Any] | str
    retain: Mapping[str, Any]
    flags: Mapping[str, tuple[str, ...]]
    env: Mapping[str, str]

    @classmethod
    def read(cls, table: Table) -> Declared:
        """Read `[connector.name]`. Raises ConfigError."""
        prefill = table.table("prefill")
        decode = table.table_or_word("decode", _DECODE) or "answer"
        if decode == "answer" and not prefill:
            raise table.wrong("prefill", 'what asks for KV, because decode is "answer"')
        flags = table.sub("flags")
        made = cls(
            prefill=prefill,
            decode=decode,
            retain=table.table("retain"),
            flags={role: flags.texts(role) for role in _ROLES},
            env=table.strings("env"),
        )
        flags.nothing_else()
        table.nothing_else()
        try:
            json.loads(made.shape)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{table.place}: prefill, decode and retain take what JSON has: {error}", key=table.place
            ) from error
        return made

    @property
    def shape(self) -> str:
        """For the router's setting `connector_shape`."""
        decode = self.decode if isinstance(self.decode, str) else dict(self.decode)
        return json.dumps(
            {"prefill": dict(self.prefill), "decode": decode, "retain": dict(self.retain)}, allow_nan=False
        )

    def flag_said_twice(self, role: str, flags: Sequence[str]) -> str | None:
        """A flag that both the connector and a tier of this role give."""
        mine = {flag.partition("=")[0] for flag in self.flags[role] if flag.startswith("-")}
        return next((name for flag in flags if (name := flag.partition("=")[0]) in mine), None)

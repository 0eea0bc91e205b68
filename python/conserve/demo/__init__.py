"""`conserve demo`: a whole cluster on this machine, agents that work on real files, and a report of what happened.

`run` composes the rest: `cluster` starts the processes, `workspace`, `tools` and `plan` make the agents' work, `agent`
and `client` converse over the OpenAI API, `account` counts what was computed twice, `check` compares with one engine,
`mishaps` says what was not plain, `report` and `progress` show it. Every figure comes from the router, the answers' usage,
or the engines' metrics.

The model of 135 million parameters cannot choose tools, so a fixed plan chooses them: which files, which search. The
tools themselves run for real, on real files, between the turns.
"""

from __future__ import annotations

from .errors import DemoError
from .options import Options
from .report import Report
from .run import run_demo

__all__ = ["DemoError", "Options", "Report", "run_demo"]

"""Workloads of the simulator: recorded traces, generators fitted to them, arrivals."""

from .arrivals import bursty, poisson, recorded
from .catalog import SYNTHETIC, WORKLOADS, conversations, traces_dir
from .load import read_arrivals, read_jsonl, read_length_table
from .record import Conversation, TurnRecord
from .synthetic import generate

__all__ = [
    "SYNTHETIC",
    "WORKLOADS",
    "Conversation",
    "TurnRecord",
    "bursty",
    "conversations",
    "generate",
    "poisson",
    "read_arrivals",
    "read_jsonl",
    "read_length_table",
    "recorded",
    "traces_dir",
]

"""A fast fake vLLM worker: bare asyncio, no model, faults on demand, and a memory of what it was asked."""

from .fault import Fault
from .record import Recorded
from .worker import MockWorker

__all__ = ["Fault", "MockWorker", "Recorded"]

"""The FastAPI door: OpenAI's HTTP API in front of a router. Needs the extra `proxy`."""

from .app import create_app
from .routes import openai_routes

__all__ = ["create_app", "openai_routes"]

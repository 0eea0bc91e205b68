"""Conversation-level router for LLM agents."""

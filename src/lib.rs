//! `ConServe` routes LLM agents' conversations, not their single calls.

"""A small real engine: paged KV on torch, continuous batching, and vLLM's prefill/decode handoff over TCP."""

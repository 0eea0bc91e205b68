"""The paper's method, replayed: its claims, its switches, and what remains without them."""

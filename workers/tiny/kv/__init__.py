"""KV cache: who owns which block (`blocks`), and the tensors behind them (`store`)."""

"""The model: its shape (`config`), weights (`weights`, `smollm2`, `random`), text (`tokenizer`) and forward pass (`llama`)."""

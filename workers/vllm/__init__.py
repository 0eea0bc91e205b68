"""vLLM as a worker: the command line and environment of each role on each class of device."""

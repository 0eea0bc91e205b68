"""KV handoff: a prompt's blocks go from the worker that computed them to the one that continues.

`params` is the object that travels through the router, `leases` keeps blocks until they are fetched, `wire` is the
frame format, `sender` and `fetcher` are its two ends.
"""

"""Programs that ConServe's supervisor starts. They know the router only over HTTP; see `README.md` for the contract."""

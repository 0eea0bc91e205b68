"""Programs that the supervisor starts. They know the router only as HTTP, and it knows them only so."""

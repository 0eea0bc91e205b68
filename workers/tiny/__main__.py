"""`python -m conserve_workers.tiny`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time

from conserve_workers.tiny.cli import parse_args
from conserve_workers.tiny.errors import StartError


def main() -> int:
    """Run a worker; returns the exit status: 0 after a signal, 1 when it could not start."""
    started_s = time.time()
    try:
        options = parse_args()
        logging.basicConfig(
            level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        # OpenMP reads these when torch is imported, which the next import does.
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
        from conserve_workers.tiny.server.serve import serve

        asyncio.run(serve(options, started_s=started_s))
    except (StartError, OSError, ImportError) as error:
        sys.stdout.write(json.dumps({"event": "failed", "error": str(error)}) + "\n")
        sys.stderr.write(f"conserve tiny: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m conserve_workers.tiny`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path

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
        if options.model not in ("smollm2", "random") and not Path(options.model).is_dir():
            # Said at once, not after seconds of importing torch.
            raise StartError(f"--model {options.model}: neither 'smollm2', nor 'random', nor a local folder")
        # OpenMP reads these when torch is imported, which the next import does.
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
        from conserve_workers.tiny.server.serve import serve

        asyncio.run(serve(options, started_s=started_s))
    except ModuleNotFoundError as missing:
        return _failed(f"the engine needs {missing.name}: pip install 'conserve-router[engine]'")
    except (StartError, OSError, ImportError) as error:
        return _failed(str(error))
    return 0


def _failed(why: str) -> int:
    sys.stdout.write(json.dumps({"event": "failed", "error": why}) + "\n")
    sys.stderr.write(f"conserve tiny: {why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""The last message of `docker compose up`: where to go next, and a warning."""

from __future__ import annotations

import os
import sys

_TEXT = """\

    +------------------------------------------------------------------------------------+
    |  ALL PARTIES RUN ON ONE HOST: NON-COLLUSION IS NOT MET.                            |
    |  This machine's administrator can read everything. Use invented data only.         |
    |  Real parties run one service each, on their own machines: deploy/party/.          |
    +------------------------------------------------------------------------------------+

    The federation is up: S1, S2, S3, a coordinator, and three holders.

      coordinator      https://localhost:{coordinator}
      north-hospital   https://localhost:{north}
      south-hospital   https://localhost:{south}
      insurer          https://localhost:{insurer}

    Fetch the authority's certificate and everybody's tokens, then call the coordinator (docker-compose, if that is
    what you have):

      mkdir -p people && docker compose run --rm -T people | tar -x -C people
      curl --cacert people/authority.pem -H "Authorization: Bearer $(cat people/coordinator/operator.token)" \\
          https://localhost:{coordinator}/v1/studies

    deploy/compose/README.md says what to do next.
"""


def main() -> int:
    """Print the message."""
    ports = {name: os.environ[f"{name.upper()}_PORT"] for name in ("coordinator", "north", "south", "insurer")}
    print(_TEXT.format(**ports), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The transports, for every suite here."""

from tests.kit.channels import credentials, run, run_tls

__all__ = ["credentials", "run", "run_tls"]

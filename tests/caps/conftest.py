"""The scripted service, for tests of the client and of commands."""

from tests.kit.client import scripted_service, service

__all__ = ["scripted_service", "service"]
